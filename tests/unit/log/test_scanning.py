"""Walks over a log's bytes: what is read, what is content, and which bytes explain missing offsets."""

from pathlib import Path

from tests.unit.log.logs import CAPACITY, HEAD, chain, log_of, record

from penstock.format.record import MAGIC_BLANK, MAGIC_V1, RecordFields, encode_record
from penstock.log.resync import (
    Resync,
    reject_by_counts,
)
from penstock.log.scan import Checks, StopReason, note_of, quarantined_at, scan_segment


def test_a_size_that_is_only_claimed_is_not_read(tmp_path: Path) -> None:
    """The file ends long before what its last head says that the record has."""
    data, _ = chain(b"b" * 10, b"b" * 20, b"b" * 30)
    log = log_of(tmp_path, data + HEAD.pack(3000, MAGIC_V1), length=len(data) + 100)
    *_, last = scan_segment(log, log.segments[0], 0, CAPACITY, Checks(), window_bytes=128)
    assert (last.end_offset, last.stop) == (len(data), StopReason.CUT)
    assert max(log.read_sizes) < 1024


def test_a_record_within_the_body_of_another_is_content(tmp_path: Path) -> None:
    """A body may hold a whole record with the offset that it will have."""
    first = record(0, b"")
    inner = record(len(first) + 96, b"inner")
    outer = record(len(first), b"x" * 8 + inner + b"y" * 40, 1)
    assert outer[96:].startswith(inner)
    after = len(first) + len(outer)
    data = first + bytes(48) + outer[48:] + record(after, b"z", 2)
    log = log_of(tmp_path, data)
    assert Resync(log, log.segments[0]).next_valid(len(first)) == after


def test_noted_ranges_of_many_segments_count_up_to_a_valid_record_and_are_read_once(
    tmp_path: Path,
) -> None:
    """A note counted only with the record at once: corruption across the end of a segment stopped the store for ever."""
    count = 1100
    for number in range(1, count):
        (tmp_path / f"{number * CAPACITY:020d}").write_bytes(b"\xa5" * CAPACITY)
    after = tmp_path / f"{count * CAPACITY:020d}"
    after.write_bytes(record(count * CAPACITY, b"after").ljust(CAPACITY, b"\0"))
    log = log_of(tmp_path, b"")
    noted = [note_of(log, s, s.base_offset, s.end_offset) for s in log.segments[:-1]]
    log.quarantined = {each.start: each for each in noted}
    log.read_sizes = []
    assert [quarantined_at(log, each.start) for each in noted[:9]] == noted[:9]
    assert sum(log.read_sizes) < 2 * count * CAPACITY
    changed = tmp_path / f"{9 * CAPACITY:020d}"
    changed.write_bytes(b"\x5a" * CAPACITY)
    for counting in (noted[10:], []):
        again = log_of(tmp_path, b"")
        again.quarantined = log.quarantined
        some = [*noted[:12], noted[-1]]
        assert [each for each in some if quarantined_at(again, each.start)] == [
            each for each in some if each in counting
        ]
        after.write_bytes(bytes(CAPACITY))


def test_bytes_of_segments_that_are_missing_explain_missing_offsets(tmp_path: Path) -> None:
    """And bytes that are there do not: the second segment begins where the first ends."""
    data, _ = chain(b"a" * 50, b"b" * 60, b"c" * 70, b"d")
    for base, notes in ((2 * CAPACITY, 0), (CAPACITY, 1)):
        folder = tmp_path / str(base)
        folder.mkdir()
        left = CAPACITY - len(data)
        log = log_of(folder, data + HEAD.pack(left, MAGIC_BLANK))
        more = b"".join(
            encode_record(
                RecordFields(topic=b"t", log_offset=base + 92 * n, queue_offset=20 + n, body=b"")
            )
            for n in range(2)
        )
        (folder / f"{base:020d}").write_bytes(more.ljust(CAPACITY, b"\0"))
        log.refresh()
        assert len(reject_by_counts(log, lambda _: False, [])) == notes
