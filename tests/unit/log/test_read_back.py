"""What was appended is read back before anybody relies on it: where it is not valid is told exactly."""

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.files import Files
from penstock.log.log_view import RecoveredLog
from penstock.log.read_back import first_unreadable, is_filler, is_in_log, unread_from
from penstock.log.segmented_log import SegmentedLog
from penstock.testing import WrittenLog
from penstock.testing.kit import SMALL

SEGMENT = SMALL.segment_bytes
Spoil = Callable[[int], None]


@pytest.fixture
def written(tmp_path: Path) -> WrittenLog:
    return WrittenLog(tmp_path / "s", 500)


@pytest.fixture
def log(written: WrittenLog, tmp_path: Path) -> SegmentedLog:
    made = SegmentedLog(Files(), tmp_path / "s" / "commitlog", SEGMENT, mapped=False)
    made.refresh()
    return made


@pytest.fixture
def spoil(tmp_path: Path) -> Spoil:
    """Return what changes one byte of the first segment."""

    def at(position: int) -> None:
        path = tmp_path / "s" / "commitlog" / f"{0:020d}"
        data = bytearray(path.read_bytes())
        data[position] ^= 0xFF
        path.write_bytes(data)

    return at


def test_what_is_all_there_is_readable_over_segments_and_their_filler(
    written: WrittenLog, log: SegmentedLog
) -> None:
    assert first_unreadable(log, 0, written.end_offset) is None
    assert first_unreadable(log, 0, 0) is None


def test_the_first_record_that_is_not_valid_is_named(
    written: WrittenLog, log: SegmentedLog, spoil: Spoil
) -> None:
    at = written.offsets()[7]
    spoil(at + 95)
    assert first_unreadable(log, 0, written.end_offset) == at
    assert first_unreadable(log, written.offsets()[8], written.end_offset) is None


def test_a_segment_that_is_not_there_is_unreadable_from_its_begin(
    written: WrittenLog, log: SegmentedLog, tmp_path: Path
) -> None:
    (tmp_path / "s" / "commitlog" / f"{SEGMENT:020d}").unlink()
    log.refresh()
    assert first_unreadable(log, 0, written.end_offset) == SEGMENT


def test_only_a_blank_record_up_to_the_segments_end_is_filler(
    written: WrittenLog, log: SegmentedLog, spoil: Spoil
) -> None:
    last = max(at for at in written.offsets() if at < SEGMENT)
    size = int.from_bytes(log.read(last, 4), "big")
    assert is_filler(log, log.segments[0], last + size)
    assert not is_filler(log, log.segments[0], last)
    assert not is_filler(log, log.segments[0], SEGMENT - 4)
    spoil(last + size + 3)
    assert not is_filler(log, log.segments[0], last + size)
    assert first_unreadable(log, 0, written.end_offset) == last + size


def test_a_batch_that_was_handed_over_is_in_the_log_or_not(
    written: WrittenLog, log: SegmentedLog, spoil: Spoil
) -> None:
    (batch,) = RecoveredLog(log, written.offsets()[9]).batches(0, SEGMENT)
    assert is_in_log(log, batch)
    assert unread_from(log, batch) is None
    spoil(written.offsets()[5] + 95)
    assert not is_in_log(log, batch)


def test_what_a_walk_left_out_is_told_but_for_filler(
    written: WrittenLog, log: SegmentedLog, spoil: Spoil
) -> None:
    whole, *_ = RecoveredLog(log, written.end_offset).batches(0, SEGMENT)
    assert unread_from(log, whole) is None
    at, following = written.offsets()[5:7]
    spoil(at + 4)
    (cut,) = RecoveredLog(log, following).batches(0, SEGMENT)
    assert unread_from(log, cut) == at
