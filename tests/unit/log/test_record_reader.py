"""Records by address: only valid ones, only the one that was asked for, and errors that say where."""

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import CorruptionError, OffsetError
from penstock.files import Files
from penstock.format.record import MAGIC_V1
from penstock.log.record_reader import Entries, QueuePosition, RecordReader, is_shared
from penstock.log.segmented_log import SegmentedLog
from penstock.testing import WrittenLog, open_store
from penstock.testing.kit import SMALL

SEGMENT = SMALL.segment_bytes
Overwrite = Callable[[int, bytes], None]


@pytest.fixture
def written(tmp_path: Path) -> WrittenLog:
    return WrittenLog(tmp_path / "s", 500)


@pytest.fixture
def log(written: WrittenLog, tmp_path: Path) -> SegmentedLog:
    made = SegmentedLog(Files(), tmp_path / "s" / "commitlog", SEGMENT, mapped=False)
    made.refresh()
    return made


@pytest.fixture
def reader(log: SegmentedLog) -> RecordReader:
    return RecordReader(log, live=False)


@pytest.fixture
def overwrite(tmp_path: Path) -> Overwrite:
    def at(position: int, data: bytes) -> None:
        with (tmp_path / "s" / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(position)
            file.write(data)

    return at


def entries_of(written: WrittenLog, count: int) -> Entries:
    (batch, *_) = written.batches()
    rows = np.arange(count)
    return Entries(batch.queue_offsets[rows], batch.log_offsets[rows], batch.sizes[rows])


def test_a_large_record_is_read_from_any_segment(tmp_path: Path) -> None:
    """It is read only if the file is as long as it states."""
    body, size = bytes(3 << 19), 2 << 20
    settings: dict[str, Any] = {"geometry.segment_bytes": size}
    with open_store(tmp_path / "large", retention=[], **settings) as store:
        receipts = [store.put("t", body) for _ in range(3)]
    made = SegmentedLog(Files(), tmp_path / "large" / "commitlog", size, mapped=False)
    made.refresh()
    for receipt in receipts:
        found = RecordReader(made, live=False).message(receipt.log_offset, receipt.size)
        assert found.body == body
    os.truncate(tmp_path / "large" / "commitlog" / f"{2 * size:020d}", 1000)
    with pytest.raises(CorruptionError, match="the end of the file"):
        RecordReader(made, live=False).message(receipts[2].log_offset, receipts[2].size)


def test_a_record_is_read_by_its_address_alone(written: WrittenLog, reader: RecordReader) -> None:
    for row in (0, 7, 499):
        message = reader.message_at(written.offsets()[row])
        assert message.body == written.sent[row].body
        assert reader.message(message.log_offset, message.size) == message


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


def test_queues_that_share_records_take_any(written: WrittenLog, reader: RecordReader) -> None:
    message = reader.message_at(written.offsets()[6])
    place = QueuePosition.of("%LMQ%x", 0)
    assert is_shared("%LMQ%x")
    assert reader.message(message.log_offset, message.size, place, 77) == message


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
    entries, anywhere = entries_of(written, 10), QueuePosition(None, 0)
    found = reader.leading(entries, anywhere)
    assert [message.body for message in found] == [each.body for each in written.sent[:10]]
    overwrite(int(entries.offsets[4]) + 94, b"\xff\xff")
    assert len(reader.leading(entries, anywhere)) == 4
    assert len(reader.leading(entries.head(3), anywhere)) == 3
    assert reader.leading(entries.after(4), anywhere) == []


def test_a_claimed_size_makes_no_more_memory_than_the_file_has(reader: RecordReader) -> None:
    with pytest.raises(CorruptionError, match="the end of the file"):
        reader.message(0, 1 << 30)


def test_a_follower_looks_again_for_segments_that_it_does_not_know(
    written: WrittenLog, tmp_path: Path
) -> None:
    log = SegmentedLog(Files(), tmp_path / "s" / "commitlog", SEGMENT, mapped=False)
    with pytest.raises(OffsetError):
        RecordReader(log, live=False).message_at(0)
    assert RecordReader(log, live=True).message_at(0).body == written.sent[0].body
