"""The end of the log to the byte: which zeros are unwritten sectors, what is corruption, what is rewritten."""

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from penstock.durability.progress import Times
from penstock.errors import CorruptionError
from penstock.files import Files
from penstock.format.columns import RecordColumns
from penstock.format.record import BLANK, MAGIC_BLANK, RecordFields, encode_record
from penstock.format.validity import Coverage
from penstock.log.queue_evidence import QueueGenerations, QueueHistory
from penstock.log.segmented_log import Rejected, SegmentedLog
from penstock.recovery.log_end import (
    LogEnd,
    check_corruption,
    check_reached,
    find_end,
    foreign_start,
    is_torn,
)

# No multiple of a sector: sectors are counted from the beginning of a file.
SIZE = 1000


X = b"x" * SIZE


def log_of(folder: Path, *segments: bytes | None) -> SegmentedLog:
    """Return a log of segments with these first bytes; None is one that is not there."""
    files = Files()
    files.make_folder_durably(folder)
    for number, data in enumerate(segments):
        if data is not None:
            files.write_whole(folder / f"{number * SIZE:020d}", data.ljust(SIZE, b"\0"))
    log = SegmentedLog(files, folder, SIZE, mapped=False)
    log.refresh()
    return log


def record(at: int, body: bytes = b"b", time_ms: int = 5) -> bytes:
    return encode_record(
        RecordFields(topic=b"t", body=body, log_offset=at, store_time_ms=time_ms)
    )  # fmt: skip


def zeroed(*ranges: tuple[int, int]) -> list[bytes]:
    """Return two segments that are full but for these ranges of zeros."""
    data = bytearray(X + X)
    for start, stop in ranges:
        data[start:stop] = bytes(stop - start)
    return [bytes(data[:SIZE]), bytes(data[SIZE:])]


def end_at(offset: int, survivor: int | None) -> LogEnd:
    return LogEnd(offset=offset, last_time_ms=0, reason="why", dirty_bytes=9, survivor=survivor)


@pytest.mark.parametrize(
    ("zeros", "start", "survivor", "ours", "others"),
    [
        ((504, 512), 100, 600, True, False), ((505, 512), 100, 600, False, False),
        ((503, 511), 100, 600, False, False), ((0, 512), 0, 600, True, True),
        ((1, 512), 0, 600, True, False), ((1, 512), 1, 600, True, True),
        ((509, 512), 509, 600, True, True), ((510, 512), 510, 600, False, False),
        ((504, 512), 100, 512, True, False), ((504, 511), 100, 511, False, False),
        # The survivor's size begins with zeros, too.
        ((505, 514), 505, 510, True, True), ((505, 512), 505, 510, True, True),
        ((1504, 1512), 100, 1600, True, False), ((1528, 1536), 100, 1600, False, False),
        ((1504, 1512), 1505, 1600, True, True), ((504, 512), 513, 1600, False, False),
        ((504, 512), 512, 1600, False, False), ((992, 1000), 900, 1600, False, False),
    ],
)  # fmt: skip
def test_a_sector_that_ends_in_zeros_was_not_written(
    zeros: tuple[int, int], start: int, survivor: int, ours: bool, others: bool, tmp_path: Path
) -> None:
    """Of Penstock's writes eight zeros show it, of others only a whole sector; fewer where the record ended in it."""
    log = log_of(tmp_path, *zeroed(zeros))
    end = end_at(start, survivor)
    assert (is_torn(log, end, is_ours=True), is_torn(log, end, is_ours=False)) == (ours, others)


def test_without_a_survivor_any_end_is_torn_and_with_a_segment_missing_none_is(
    tmp_path: Path,
) -> None:
    torn, full = zeroed((504, 512))
    log = log_of(tmp_path, torn, None, full)
    assert is_torn(log, end_at(100, None), is_ours=True)
    assert is_torn(log, end_at(100, 600), is_ours=True)
    assert not is_torn(log, end_at(100, 2100), is_ours=True)
    assert is_torn(log_of(tmp_path, torn, full, full), end_at(100, 2100), is_ours=True)


def refusal(check: Callable[[], None]) -> CorruptionError | None:
    """Return why writing is refused."""
    try:
        check()
    except CorruptionError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("survivor", "abnormal", "durable", "why"),
    [
        (None, True, 100, ""), (None, False, 100, ""), (None, True, 101, "up to log offset 101 were durable"),
        (600, True, 100, ""), (600, False, 100, "a later record at log offset 600 is valid"),
        (500, True, 100, "a later record at log offset 500 is valid"),
        (600, True, 101, "a later record at log offset 600 is valid"),
    ],
)  # fmt: skip
def test_bytes_after_the_end_are_corruption_unless_they_may_be_torn(
    survivor: int | None, abnormal: bool, durable: int, why: str, tmp_path: Path
) -> None:
    log = log_of(tmp_path, *zeroed((504, 512)))

    end = end_at(100, survivor)
    refused = refusal(
        lambda: check_corruption(log, end, was_abnormal=abnormal, is_ours=True, durable=durable)
    )
    assert (refused is None) == (not why)
    if refused is not None:
        assert why in str(refused)
        assert (refused.path, refused.position) == (log.segments[0].path, 100)


@pytest.mark.parametrize(
    ("at", "covered", "still_ours", "refused"),
    [
        (100, True, False, True), (100, True, True, False), (100, False, False, False),
        (SIZE - len(record(0)), True, False, True), (0, True, False, False),
    ],
)  # fmt: skip
def test_a_record_that_lacks_only_its_crc_is_not_cut_after_another_program(
    at: int, covered: bool, still_ours: bool, refused: bool, tmp_path: Path
) -> None:
    """It may be that program's; the last one may end where the segment does."""
    place = at or 200
    log = log_of(tmp_path, X[:place] + record(place) + X[place + len(record(0)) :])
    log.coverage = Coverage.of([(0, SIZE)] if covered else [])

    end, given = end_at(at, None), {"was_abnormal": True, "is_ours": True}
    said = refusal(lambda: check_corruption(log, end, **given, is_still_ours=still_ours))
    assert ("only the CRC of the whole record" in str(said)) == refused


def test_queues_that_stop_before_the_end_refuse_and_name_the_place(tmp_path: Path) -> None:
    log = log_of(tmp_path, X, None, X)
    for reached, path, position in (
        (300, log.path_of(0), 300), (1200, log.path_of(2 * SIZE), 0), (2300, log.path_of(2 * SIZE), 300),
        (3000, log.folder, 0),
    ):  # fmt: skip
        check_reached(log, reached, end_at(reached, None))
        with pytest.raises(CorruptionError, match=f"ends only at {reached + 1}") as raised:
            check_reached(log, reached, end_at(reached + 1, None))
        assert (raised.value.path, raised.value.position) == (path, position)


def full(*records: bytes) -> bytes:
    """Return a segment of records and a blank one after them."""
    data = b"".join(records)
    return data + BLANK.pack(SIZE - len(data), MAGIC_BLANK)


def test_the_walk_goes_on_after_a_blank_and_ends_where_the_log_does(tmp_path: Path) -> None:
    first, second = full(record(0, time_ms=9)), full(record(SIZE, time_ms=7))
    whole = find_end(log_of(tmp_path, first, second), 0, 3)
    assert attrs.astuple(whole)[:5] == (2 * SIZE, 9, "the log's last segment is full", 0, None)
    size = len(record(0))
    open_end = find_end(log_of(tmp_path, first, record(SIZE)), SIZE, 30)
    assert (open_end.offset, open_end.last_time_ms) == (SIZE + size, 30)
    dirty = find_end(log_of(tmp_path, first, record(SIZE) + bytes(50) + b"?"), SIZE, 0)
    assert (dirty.offset, dirty.dirty_bytes, dirty.survivor) == (SIZE + size, 51, None)
    later = find_end(log_of(tmp_path, bytes(10), full(record(SIZE))), 0, 0)
    assert (later.offset, later.survivor) == (0, SIZE)
    assert later.dirty_bytes >= SIZE


class Judged(QueueGenerations):
    """Rejects records at given offsets, whatever it is given."""

    def __init__(self, rejected: dict[int, Rejected]) -> None:
        self.rejected, self.rows = rejected, 0

    def add(self, columns: RecordColumns) -> None:
        self.rows += len(columns)

    def finish(self) -> QueueHistory:
        return QueueHistory(self.rejected, [])


def test_the_first_record_that_its_queue_rejects_is_the_end(tmp_path: Path) -> None:
    size = len(record(0))
    log = log_of(tmp_path, b"".join(record(n * size) for n in range(3)))
    generations = Judged({2 * size: Rejected(size, "odd"), size: Rejected(size, "worse")})
    end = find_end(log, 0, 0, generations=generations)
    assert attrs.astuple(end)[:5] == (size, 5, "worse", 2 * size, 2 * size)
    assert generations.rows == 3
    last = find_end(log, 0, 0, generations=Judged({2 * size: Rejected(size, "odd")}))
    assert attrs.astuple(last)[:5] == (2 * size, 5, "odd", size, None)


def test_java_begins_at_the_third_last_segment_or_where_the_checkpoint_says(tmp_path: Path) -> None:
    def timed(number: int, *times: int) -> SegmentedLog:
        segments = [record(n * SIZE, time_ms=time_ms) for n, time_ms in enumerate(times)]
        return log_of(tmp_path / str(number), *segments)

    times = Times(13_000, 12_000, 0)
    four = timed(0, 1000, 9000, 9001, 9002)
    assert foreign_start(four, times, was_abnormal=False) == SIZE
    assert foreign_start(timed(1, 1, 1, 1), times, was_abnormal=False) == 0
    assert foreign_start(log_of(tmp_path / "none"), times, was_abnormal=True) == 0
    assert foreign_start(four, times, was_abnormal=True) == SIZE
    assert foreign_start(four, times._replace(log_ms=11_999), was_abnormal=True) == 0
    assert foreign_start(timed(2, 1000, 2000, 0), times, was_abnormal=True) == SIZE
    assert foreign_start(timed(3, 9001, 9002), times, was_abnormal=True) == 0
    four.segments[1].path.write_bytes(X)
    assert foreign_start(four, times, was_abnormal=True) == 0
