"""Fuzz target: a segment file of any bytes, read, walked, verified and recovered; two segments of 4096 bytes."""

import functools
from pathlib import Path

from tests.fuzz.ground import folder, verified

from penstock.errors import CorruptionError, OffsetError, PenstockError
from penstock.files import Files
from penstock.log.record_reader import RecordReader
from penstock.log.resync import Resync, read_batches
from penstock.log.scan import read_mark
from penstock.log.segmented_log import SegmentedLog
from penstock.recovery.log_end import (
    LogEnd,
    check_corruption,
    find_end,
    rewrite,
    without_part_of_batch,
)

_BYTES = 4096


@functools.cache
def _folder() -> Path:
    path = folder() / "commitlog"
    path.mkdir()
    return path


def target(data: bytes) -> None:
    whole = data[: 2 * _BYTES].ljust(2 * _BYTES, b"\0")
    for base in (0, _BYTES):
        (_folder() / f"{base:020d}").write_bytes(whole[base : base + _BYTES])
    log = SegmentedLog(Files(), _folder(), _BYTES, mapped=False)
    log.refresh()
    _walk(log, whole)
    end = find_end(log, 0, 0)
    assert 0 <= end.offset <= 2 * _BYTES
    assert end.offset + end.dirty_bytes <= 2 * _BYTES
    _cut_batch(log, end)
    for unwritten in (False, True):
        try:
            check_corruption(log, end, was_abnormal=unwritten, is_ours=unwritten)
        except CorruptionError as error:
            assert error.path.parent == _folder()
            assert error.position == end.offset % _BYTES
    assert rewrite(Files(), log, 0, end.offset) == end.offset
    log.close()


def _cut_batch(log: SegmentedLog, end: LogEnd) -> None:
    """Records that are cut off, though they are valid, are one batch: all have its mark, and lie in one segment."""
    cut = without_part_of_batch(log, end, 0, 0, 0)
    assert cut.offset + cut.dirty_bytes == end.offset + end.dirty_bytes
    assert cut.cuts_batch == (cut.offset < end.offset)
    if cut.cuts_batch:
        assert cut.offset // _BYTES == (end.offset - 1) // _BYTES
        for batch in read_batches(log, cut.offset, end.offset):
            assert batch.columns.prepared_offsets.max() < 0
            ends = {
                (mark.end, mark.is_decided)
                for mark in map(read_mark, batch.columns.prepared_offsets.tolist())
                if mark is not None
            }
            assert len(ends) == 1
            assert ends.pop()[0] > end.offset % _BYTES


def _walk(log: SegmentedLog, whole: bytes) -> None:
    seen = {
        int(offset)
        for start in (0, _BYTES)
        for batch in read_batches(log, start, start + _BYTES)
        for offset in batch.log_offsets
    }
    records = RecordReader(log, live=False)
    sound = {
        offset
        for segment in log.segments
        for offset in range(segment.base_offset, segment.end_offset)
        if whole[offset + 4 : offset + 7] == b"\xda\xa3\x20"
        and Resync(log, segment).is_record_at(offset)
    }
    for offset in sorted(seen | sound | {0, _BYTES, 2 * _BYTES - 1, 2 * _BYTES, -1}):
        try:
            message = records.message_at(offset)
            assert offset in sound
            assert message.log_offset == offset
            assert message.topic is not None
        except (CorruptionError, OffsetError):
            assert offset not in sound
    findings, tally = verified(log, [], 2 * _BYTES)
    assert len(findings) <= 2 * _BYTES
    assert all(not isinstance(finding, PenstockError) for finding in findings)
    assert tally.records <= len(sound), "verify counts sound records only"
