"""Staged files: what is written is read back checked, and no byte of a damaged one is taken."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from penstock._kernel import Batch, QueueCursor, RecordEncoder
from penstock.errors import CorruptionError, StorageError
from penstock.message import Message
from penstock.testing import SimulatedDisk
from penstock.write.staged_file import MARK_MAX, MARK_MIN, StagedFile, StagedWriter, count_marked

PATH = Path("/staged")


HOST = b"\x7f\0\0\1\0\0\x2a\x9f"


def encoder() -> RecordEncoder:
    return RecordEncoder(
        HOST, crc_property=True, body_bytes_max=1000, time_ms=lambda: 5,
        make_cursor=lambda topic, queue: QueueCursor(topic, queue, 0),
    )  # fmt: skip


def batch_of(count: int) -> Batch:
    batch = Batch(encoder())
    for number in range(count):
        batch.add(Message(f"t{number % 2}", b"%d" % number, queue=number % 3))
    return batch


@pytest.fixture
def disk() -> SimulatedDisk:
    made = SimulatedDisk()
    writer = StagedWriter(made, PATH, HOST, crc_property=True)
    writer.add(batch_of(7), group=3)
    writer.add(batch_of(0))
    writer.add(batch_of(2), group=4)
    writer.finish()
    assert (writer.batches, writer.rows) == (2, 9)
    return made


def test_records_that_an_append_has_not_stamped_yet_are_encoded_as_they_were(
    disk: SimulatedDisk,
) -> None:
    """Their own CRCs are of offsets and times that an append sets, so only the append computes them."""
    batch = Batch(encoder())
    batch.add(Message("t", b"body", queue=0, tag="x", keys=["k"]))
    writer = StagedWriter(disk, Path("/unsealed"), HOST, crc_property=True)
    writer.add(batch)
    writer.finish()
    with StagedFile.read(disk, Path("/unsealed")) as file:
        (staged,) = file.batches
        assert bytes(memoryview(staged.encoded(encoder()))) == bytes(staged.data)


@pytest.mark.parametrize(
    ("size", "text"), [(31, "expected the head of a batch, found 31 bytes"), (32, "expected a batch within ")]
)  # fmt: skip
def test_a_file_that_ends_about_the_head_of_a_batch_is_told_by_what_is_missing(
    disk: SimulatedDisk, size: int, text: str
) -> None:
    whole = disk.read_whole(PATH)
    header = whole.index(b"SBAT")
    disk.write_whole(PATH, whole[: header + size])
    with pytest.raises(CorruptionError, match=text):
        StagedFile.read(disk, PATH)


def test_marks_are_told_from_log_offsets_and_end_below_the_greatest_number(
    disk: SimulatedDisk,
) -> None:
    with StagedFile.read(disk, PATH) as file:
        batch = file.batches[0]
        last = (1 << 63) - len(batch)
        for mark in (MARK_MIN, MARK_MAX, last):
            assert batch.check_mark(mark) == mark
        for mark in (0, MARK_MIN - 1, last + 1, 1 << 63):
            with pytest.raises(ValueError, match="all marks"):
                batch.check_mark(mark)


class _Log:
    """A log whose records begin at 100, a byte each, in batches of two."""

    min_offset = 100

    def __init__(self, *marks: int) -> None:
        self.marks, self.end_offset, self.log = marks, 100 + len(marks), self

    def batches(self, start: int, stop: int) -> Iterator[Any]:
        marks = self.marks[start - 100 : stop - 100]
        for at in range(0, len(marks), 2):
            columns = SimpleNamespace(prepared_offsets=np.array(marks[at : at + 2], np.int64))
            yield SimpleNamespace(columns=columns)


@pytest.mark.parametrize(
    ("marks", "most", "count"),
    [
        ([], 3, 0), ([0], 3, 0), ([50, 51, 52], 3, 3), ([50, 51, 52], 2, 2), ([50, 51, 52, 53, 54], 3, 3),
        ([50, 51, 0, 7], 4, 2), ([50, 53], 3, 1),
        ([0, 50, 7, 8, 51, -9, 52], 3, 3), ([50, 0, 51, 0], 4, 2), ([0, 0, 0, 50], 2, 1), ([50, 51], 0, 0), ([50, 51, 52, 50], 3, 3), ([49], 3, 0), ([50, 51, 52, 52], 3, 3),
        ([53], 3, 0), ([50, 52], 3, -1), ([51], 3, -1), ([50, 51, 50], 3, -1), ([50, 50], 2, -1), ([52], 3, -1),
        ([50, 0, 52], 3, -1), ([0, 51], 3, -1),
    ],
)  # fmt: skip
def test_records_of_a_batch_are_counted_among_others_and_one_out_of_turn_is_an_error(
    marks: list[int], most: int, count: int
) -> None:
    log: Any = _Log(*marks)
    if count >= 0:
        assert count_marked(log, 100, 50, most) == count
        return
    with pytest.raises(StorageError, match="is missing: record"):
        count_marked(log, 100, 50, most)


def test_a_record_that_is_missing_is_named_with_the_one_in_its_place() -> None:
    log: Any = _Log(7, 50, 51, 53)
    with pytest.raises(
        StorageError, match="record 2 of the batch after log offset 101 is missing: record 3 "
    ):
        count_marked(log, 101, 50, 9)  # fmt: skip


def test_records_are_counted_from_an_offset_of_the_log_on() -> None:
    log: Any = _Log(50, 51)
    assert (count_marked(log, 102, 50, 9), count_marked(log, 101, 51, 9)) == (0, 1)
    for at in (99, 103):
        with pytest.raises(StorageError, match="the log has offsets 100 to 102"):
            count_marked(log, at, 50, 9)
