"""Python imports this at its start where the folder is on the path; see `tests.plants.planting`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))

from tests.plants.planting import plant_from_environment

plant_from_environment()
