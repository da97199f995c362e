"""For tests of stores and of strategies: files that fail on request, a clock and threads that obey."""

from penstock.testing.control import ManualClock, ManualWorkers
from penstock.testing.faults import FaultyFiles

__all__ = ["FaultyFiles", "ManualClock", "ManualWorkers"]
