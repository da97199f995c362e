"""Python imports this at its start where the folder is on the path; see `tests.mutants.tracing`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))

from tests.mutants.tracing import trace_from_environment

trace_from_environment()
