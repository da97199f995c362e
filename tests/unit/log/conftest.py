"""A log of 500 known records in a closed store, and the log of a store that is written."""

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.files import Files
from penstock.log.segmented_log import SegmentedLog
from penstock.testing import WrittenLog
from penstock.testing.kit import SMALL

Overwrite = Callable[[int, bytes], None]


@pytest.fixture
def written(tmp_path: Path) -> WrittenLog:
    return WrittenLog(tmp_path / "s", 500)


@pytest.fixture
def first_segment(written: WrittenLog, tmp_path: Path) -> Path:
    return tmp_path / "s" / "commitlog" / f"{0:020d}"


@pytest.fixture
def log(first_segment: Path) -> SegmentedLog:
    """The log as another process reads it: not through maps."""
    made = SegmentedLog(Files(), first_segment.parent, SMALL.segment_bytes, mapped=False)
    made.refresh()
    return made


@pytest.fixture
def overwrite(first_segment: Path) -> Overwrite:
    """Return what replaces bytes of the first segment."""

    def at(position: int, data: bytes) -> None:
        with first_segment.open("r+b") as file:
            file.seek(position)
            file.write(data)

    return at
