"""Records out of a log, by address or as batches: only valid ones; a wrong offset is told as that, not as corruption."""

import itertools
import struct
from pathlib import Path

import pytest
from tests.unit.log.conftest import Overwrite
from tests.unit.log.logs import BODY_AT, flipped

from penstock import Message
from penstock.errors import CorruptionError, NoRecordError, OffsetError
from penstock.format.record import MAGIC_V1
from penstock.log.record_reader import QueuePosition, RecordReader
from penstock.log.resync import read_batches
from penstock.log.segmented_log import SegmentedLog
from penstock.testing import ManualWorkers, WrittenLog, open_store
from penstock.testing.kit import SMALL

SEGMENT = SMALL.segment_bytes


@pytest.fixture
def reader(log: SegmentedLog) -> RecordReader:
    return RecordReader(log, live=False)


# --- one record


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


# --- batches


def test_the_batch_before_corrupt_bytes_ends_where_records_go_on(
    written: WrittenLog, log: SegmentedLog, overwrite: Overwrite, caplog: pytest.LogCaptureFixture
) -> None:
    second, third = written.offsets()[5:7]
    overwrite(second + 4, b"\xff")
    found = list(read_batches(log, 0, written.end_offset))
    assert (len(found[0]), found[0].end_offset) == (5, third)
    assert sum(map(len, found)) == 499
    assert f"bytes at log offset {second} are not a valid record" in caplog.text


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
