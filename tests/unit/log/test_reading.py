"""Records out of a log, by address or as batches: only valid ones; a wrong offset is told as that, not as corruption."""

import itertools
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.log.conftest import Overwrite
from tests.unit.log.logs import BODY_AT, flipped

from penstock import Message
from penstock.errors import CorruptionError, NoRecordError, OffsetError
from penstock.files import Files
from penstock.format.record import MAGIC_V1
from penstock.log.record_reader import Entries, QueuePosition, RecordReader
from penstock.log.resync import read_batches
from penstock.log.segmented_log import SegmentedLog
from penstock.testing import ManualWorkers, WrittenLog, open_store
from penstock.testing.kit import SMALL

SEGMENT = SMALL.segment_bytes


@pytest.fixture
def reader(log: SegmentedLog) -> RecordReader:
    return RecordReader(log, live=False)


# --- one record


def test_a_large_record_is_read_from_any_segment(tmp_path: Path) -> None:
    """It is read only if the file is as long as it states."""
    body, size = bytes(3 << 19), 2 << 20
    settings: dict[str, Any] = {"geometry.segment_bytes": size}
    with open_store(tmp_path / "large", retention=[], **settings) as store:
        receipts = [store.put("t", body, queue=0) for _ in range(3)]
    made = SegmentedLog(Files(), tmp_path / "large" / "commitlog", size, mapped=False)
    made.refresh()
    for receipt in receipts:
        found = RecordReader(made, live=False).message(receipt.log_offset, receipt.size)
        assert found.body == body
    os.truncate(tmp_path / "large" / "commitlog" / f"{2 * size:020d}", 1000)
    with pytest.raises(CorruptionError, match="the end of the file"):
        RecordReader(made, live=False).message(receipts[2].log_offset, receipts[2].size)


def test_a_record_of_another_place_in_the_queues_is_not_taken_for_it(
    written: WrittenLog, reader: RecordReader
) -> None:
    message = reader.message_at(written.offsets()[6])
    where = (message.log_offset, message.size)
    place = QueuePosition.of(message.topic, message.queue)
    assert reader.message(*where, place, message.queue_offset) == message
    for other, ordinal in (
        (place, message.queue_offset + 1), (QueuePosition.of("other", message.queue), message.queue_offset),
        (QueuePosition.of(message.topic, 9), message.queue_offset),
    ):  # fmt: skip
        with pytest.raises(CorruptionError, match="the record of entry"):
            reader.message(*where, other, ordinal)


def test_a_corrupt_record_is_named_by_file_and_byte(
    written: WrittenLog, reader: RecordReader, overwrite: Overwrite
) -> None:
    at, following = written.offsets()[3:5]
    size = reader.message_at(at).size
    overwrite(at + 94, b"\xff\xff")
    reads: list[Callable[[], object]] = [
        lambda: reader.message_at(at), lambda: reader.message(at, size)
    ]  # fmt: skip
    for read in reads:
        with pytest.raises(CorruptionError) as raised:
            read()
        assert raised.value.position == at
        assert raised.value.path.name == f"{0:020d}"
    assert reader.message_at(following).body == written.sent[4].body


@pytest.mark.parametrize(
    ("head", "text"), [((5, MAGIC_V1), "at least 91 bytes"), ((1 << 30, MAGIC_V1), "ends within"), ((200, 7), "magic")]
)  # fmt: skip
def test_a_head_that_is_none_is_corruption(
    written: WrittenLog,
    reader: RecordReader,
    overwrite: Overwrite,
    head: tuple[int, int],
    text: str,
) -> None:
    at = written.offsets()[3]
    overwrite(at, struct.pack(">ii", *head))
    with pytest.raises(CorruptionError, match=text):
        reader.message_at(at)


def test_where_the_log_ends_it_is_out_of_range(reader: RecordReader, log: SegmentedLog) -> None:
    for at in (-1, 100 * SEGMENT, SEGMENT - 4):
        with pytest.raises(OffsetError):
            reader.message_at(at)
    log.segments[0].lease.retire(0, 0)
    with pytest.raises(OffsetError):
        reader.bytes_at(0, 8)


def test_entries_are_read_together_up_to_the_first_that_is_not_valid(
    written: WrittenLog, reader: RecordReader, overwrite: Overwrite
) -> None:
    batch, anywhere = written.batches()[0], QueuePosition(None, 0)
    rows = np.arange(10)
    entries = Entries(batch.queue_offsets[rows], batch.log_offsets[rows], batch.sizes[rows])
    found = reader.leading(entries, anywhere)
    assert [message.body for message in found] == [each.body for each in written.sent[:10]]
    overwrite(int(entries.offsets[4]) + 94, b"\xff\xff")
    assert len(reader.leading(entries, anywhere)) == 4
    assert len(reader.leading(entries.head(3), anywhere)) == 3
    assert reader.leading(entries.after(4), anywhere) == []


def test_a_follower_looks_again_for_segments_that_it_does_not_know(
    written: WrittenLog, first_segment: Path
) -> None:
    log = SegmentedLog(Files(), first_segment.parent, SEGMENT, mapped=False)
    with pytest.raises(OffsetError):
        RecordReader(log, live=False).message_at(0)
    assert RecordReader(log, live=True).message_at(0).body == written.sent[0].body


# --- batches


@pytest.fixture
def mapped(first_segment: Path) -> SegmentedLog:
    made = SegmentedLog(Files(), first_segment.parent, SEGMENT, mapped=True)
    made.refresh()
    return made


def test_batches_follow_each_other_and_have_every_record(
    written: WrittenLog, log: SegmentedLog, mapped: SegmentedLog
) -> None:
    end = written.end_offset
    for each in (log, mapped):
        found = list(read_batches(each, 0, end, check_crc=True))
        assert [b.start_offset for b in found[1:]] == [b.end_offset for b in found[:-1]]
        assert (found[0].start_offset, found[-1].end_offset) == (0, end)
        assert sum(map(len, found)) == 500
        assert found[0].end_offset == SEGMENT, "the blank record counts as consumed"
    third = written.offsets()[3]
    (batch,) = read_batches(log, 0, third)
    assert (len(batch), batch.end_offset) == (3, third)
    assert list(read_batches(log, third, third)) == []
    with pytest.raises(OffsetError):
        next(read_batches(log, 100 * SEGMENT, 101 * SEGMENT))


def test_the_batch_before_corrupt_bytes_ends_where_records_go_on(
    written: WrittenLog, log: SegmentedLog, overwrite: Overwrite, caplog: pytest.LogCaptureFixture
) -> None:
    second, third = written.offsets()[5:7]
    overwrite(second + 4, b"\xff")
    found = list(read_batches(log, 0, written.end_offset))
    assert (len(found[0]), found[0].end_offset) == (5, third)
    assert sum(map(len, found)) == 499
    assert f"bytes at log offset {second} are not a valid record" in caplog.text


def test_dispatchers_that_load_see_the_log_up_to_the_end_that_recovery_found(
    written: WrittenLog, overwrite: Overwrite
) -> None:
    """And not a byte more; what they get is checked, and a copy."""
    assert written.view.spans()[-1][1] == written.end_offset
    assert written.ending_at(SEGMENT + 100).spans() == [(0, SEGMENT), (SEGMENT, SEGMENT + 100)]
    assert written.ending_at(SEGMENT).spans() == [(0, SEGMENT)]
    starts = written.offsets()
    overwrite(starts[5] + BODY_AT, b"\xff")
    batches = list(written.ending_at(starts[10]).batches(0, 1 << 60))
    assert sum(map(len, batches)) == 9
    assert isinstance(batches[0].columns.window, bytes)
    written.lose_head(1)
    assert written.view.min_offset == SEGMENT
    with pytest.raises(OffsetError):
        written.view.read(0, 8)


# --- where no record begins


def filled(path: Path) -> list[tuple[int, int]]:
    """Make a store of three segments and close it; returns log offset and size of its records."""
    with open_store(path, spawn=ManualWorkers(), retention=[]) as store:
        sent = [Message("t", b"%d:" % n + b"x" * (n * 37 % 700), queue=0) for n in range(400)]
        places = [(r.log_offset, r.size) for r in store.put_many(sent)]
    assert 2 * SEGMENT < places[-1][0] < 3 * SEGMENT
    return places


def test_an_offset_within_a_record_names_its_neighbours(tmp_path: Path) -> None:
    """`penstock get STORE 5` said that the log was damaged at byte 5."""
    places = filled(tmp_path / "s")
    last, size = places[-1]
    with open_store(tmp_path / "s", read_only=True) as store:
        for (at, size_), (following, _) in itertools.pairwise(places[:4]):
            for offset in (at + 1, at + 4, at + size_ - 1):
                with pytest.raises(NoRecordError, match=f"begins at {at}; the next") as caught:
                    store.at(offset)
                assert (caught.value.before, caught.value.after) == (at, following)
        with pytest.raises(NoRecordError) as caught:
            store.at(last + 7)
        assert caught.value.after == last + size == store.stats()["log_end_offset"]
        inside = f"{int(store.at(places[1][0]).message_id, 16) + 3:032X}"
        with pytest.raises(NoRecordError):
            store.get(inside)


@pytest.mark.parametrize("read_only", [True, False])
def test_an_offset_of_filler_names_the_next_segment_and_one_after_the_end_the_end(
    read_only: bool, tmp_path: Path
) -> None:
    places = filled(tmp_path / "s")
    before, size = max(place for place in places if place[0] < SEGMENT)
    end = sum(places[-1])
    with open_store(tmp_path / "s", read_only=read_only, spawn=ManualWorkers()) as store:
        for offset in (before + size, SEGMENT - 1):
            with pytest.raises(NoRecordError, match="filler") as caught:
                store.at(offset)
            assert (caught.value.before, caught.value.after) == (before, SEGMENT)
        for offset in (end, end + 1, 3 * SEGMENT - 8, 3 * SEGMENT - 1):
            with pytest.raises(OffsetError) as outside:
                store.at(offset)
            assert not isinstance(outside.value, NoRecordError)
            assert outside.value.high == end
        for offset in (-1, 3 * SEGMENT, 1 << 62):
            with pytest.raises(OffsetError):
                store.at(offset)


@pytest.mark.parametrize("row", [60, -1])
def test_corruption_stays_corruption(row: int, tmp_path: Path) -> None:
    """Neither a corrupt record nor what lies within it is the caller's mistake, and a last one is not the log's end."""
    places = filled(tmp_path / "s")
    at, size = places[row]
    path = tmp_path / "s" / "commitlog" / f"{at // SEGMENT * SEGMENT:020d}"
    path.write_bytes(flipped(path.read_bytes(), at % SEGMENT + BODY_AT))
    with open_store(tmp_path / "s", read_only=True) as store:
        for offset in (at, at + 5, at + size - 1):
            with pytest.raises(CorruptionError):
                store.at(offset)
        before, _ = places[row - 1]
        with pytest.raises(NoRecordError) as caught:
            store.at(before + 5)
        assert caught.value.before == before
