"""By size: the oldest go while the log is too large."""

import time
from pathlib import Path

import pytest

from penstock.contracts import Context, DiskUse, SegmentInfo
from penstock.contracts.geometry import Geometry
from penstock.files import Files
from penstock.testing import ManualClock, ManualWorkers
from penstock_retention.size import SizeOptions, SizeRetention

HOUR = 3_600_000


FOUR = int(time.mktime((2026, 11, 21, 4, 30, 0, 0, 0, -1))) * 1000


DISK = DiskUse(1, 1)


def info(number: int, age_hours: float, size: int = 100) -> SegmentInfo:
    return SegmentInfo(number * size, size, int(FOUR - age_hours * HOUR), Path("x"))


def context() -> Context:
    return Context(
        root=Path("/"),
        files=Files(),
        clock=ManualClock(),
        geometry=Geometry(),
        spawn=ManualWorkers(),
    )


@pytest.mark.parametrize(
    ("limit", "count"), [(1000, 0), (500, 0), (499, 1), (400, 1), (301, 2), (100, 4), (0, 4)]
)
def test_size_lets_the_oldest_go_while_the_log_is_too_large(limit: int, count: int) -> None:
    size = SizeRetention(SizeOptions(bytes_max=limit), context())
    vote = size.vote([info(n, 0) for n in range(5)], FOUR, DISK)
    assert vote.expired_count == count
    assert ("over" in vote.reason) == (limit < 500)
