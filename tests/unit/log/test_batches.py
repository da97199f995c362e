"""The log as batches: every record once, filler counted, and none lost after corrupt bytes."""

from pathlib import Path

import pytest

from penstock.errors import OffsetError
from penstock.files import Files
from penstock.log.batches import read_batches
from penstock.log.segmented_log import SegmentedLog
from penstock.testing import WrittenLog
from penstock.testing.kit import SMALL

SEGMENT = SMALL.segment_bytes


@pytest.fixture
def written(tmp_path: Path) -> WrittenLog:
    return WrittenLog(tmp_path / "s", 500)


def log_of(root: Path, *, mapped: bool = False) -> SegmentedLog:
    log = SegmentedLog(Files(), root / "s" / "commitlog", SEGMENT, mapped=mapped)
    log.refresh()
    return log


@pytest.mark.parametrize("mapped", [True, False])
def test_batches_follow_each_other_and_have_every_record(
    written: WrittenLog, tmp_path: Path, mapped: bool
) -> None:
    end = written.end_offset
    found = list(read_batches(log_of(tmp_path, mapped=mapped), 0, end, check_crc=True))
    assert [each.start_offset for each in found[1:]] == [each.end_offset for each in found[:-1]]
    assert (found[0].start_offset, found[-1].end_offset) == (0, end)
    assert sum(map(len, found)) == 500
    assert found[0].end_offset == SEGMENT, "the blank record counts as consumed"


def test_a_batch_ends_where_it_is_asked_to(written: WrittenLog, tmp_path: Path) -> None:
    third = written.offsets()[3]
    (batch,) = read_batches(log_of(tmp_path), 0, third)
    assert (len(batch), batch.end_offset) == (3, third)
    assert list(read_batches(log_of(tmp_path), third, third)) == []


def test_the_batch_before_corrupt_bytes_ends_where_records_go_on(
    written: WrittenLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    second, third = written.offsets()[5:7]
    path = tmp_path / "s" / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[second + 4] ^= 0xFF
    path.write_bytes(data)
    found = list(read_batches(log_of(tmp_path), 0, written.end_offset))
    assert (len(found[0]), found[0].end_offset) == (5, third)
    assert sum(map(len, found)) == 499
    assert f"bytes at log offset {second} are not a valid record" in caplog.text


def test_where_the_log_has_nothing_it_is_out_of_range(written: WrittenLog, tmp_path: Path) -> None:
    with pytest.raises(OffsetError):
        next(read_batches(log_of(tmp_path), 100 * SEGMENT, 101 * SEGMENT))


def test_bodies_are_checked_and_maps_copied_only_if_that_is_asked_for(
    written: WrittenLog, tmp_path: Path
) -> None:
    path = tmp_path / "s" / "commitlog" / f"{0:020d}"
    count = len([at for at in written.offsets() if at < SEGMENT])
    data = bytearray(path.read_bytes())
    data[written.offsets()[5] + 90] ^= 1
    path.write_bytes(data)
    log = log_of(tmp_path, mapped=True)
    unchecked = list(read_batches(log, 0, SEGMENT))
    assert sum(map(len, unchecked)) == count
    assert isinstance(unchecked[0].columns.window, memoryview)
    checked = list(read_batches(log, 0, SEGMENT, check_crc=True, is_copied=True))
    assert sum(map(len, checked)) == sum(map(len, unchecked)) - 1
    assert isinstance(checked[0].columns.window, bytes)
