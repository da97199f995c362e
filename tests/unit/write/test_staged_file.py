"""Staged files: what is written is read back checked, and no byte of a damaged one is taken."""

from pathlib import Path
from random import Random

import pytest
from tests.conftest import power_cut

from penstock._kernel import Batch, QueueCursor, RecordEncoder
from penstock.errors import CorruptionError, StorageError
from penstock.message import Message
from penstock.testing import SimulatedDisk
from penstock.write.staged_file import MARK_MAX, MARK_MIN, StagedFile, StagedWriter

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


def test_what_is_written_is_read_back_after_a_power_cut(disk: SimulatedDisk) -> None:
    with StagedFile.read(power_cut(disk), PATH) as file:
        assert [(batch.group, len(batch)) for batch in file.batches] == [(3, 7), (4, 2)]
        assert file.rows == 9
        first = file.batches[0]
        assert set(first.cursors) == {(f"t{n % 2}", n % 3) for n in range(6)}
        assert len(first.data) == int(first.sizes.sum())


def test_a_batch_goes_on_after_its_first_records(disk: SimulatedDisk) -> None:
    with StagedFile.read(disk, PATH) as file:
        rest = file.batches[0].behind(5)
        assert (len(rest), len(rest.data)) == (2, int(rest.sizes.sum()))
        again = rest.encoded(encoder())
        assert (len(again), again.size) == (2, len(rest.data))


def test_no_flipped_bit_is_taken(disk: SimulatedDisk) -> None:
    whole = disk.read_whole(PATH)
    for at in Random(1).sample(range(len(whole)), 120):
        spoilt = bytearray(whole)
        spoilt[at] ^= 1 << at % 8
        disk.write_whole(PATH, bytes(spoilt))
        with pytest.raises((CorruptionError, StorageError)) as raised:
            StagedFile.read(disk, PATH)
        assert str(PATH) in str(raised.value)


def test_no_file_that_was_cut_short_or_grew_is_taken(disk: SimulatedDisk) -> None:
    whole = disk.read_whole(PATH)
    for size in range(0, len(whole), 7):
        disk.write_whole(PATH, whole[:size])
        with pytest.raises(CorruptionError):
            StagedFile.read(disk, PATH)
    disk.write_whole(PATH, whole + b"\0")
    with pytest.raises(CorruptionError):
        StagedFile.read(disk, PATH)


def test_marks_are_told_from_log_offsets(disk: SimulatedDisk) -> None:
    with StagedFile.read(disk, PATH) as file:
        batch = file.batches[0]
        assert [batch.check_mark(mark) for mark in (MARK_MIN, MARK_MAX)] == [MARK_MIN, MARK_MAX]
        for mark in (0, MARK_MIN - 1, 1 << 63):
            with pytest.raises(ValueError, match="all marks must be at least"):
                batch.check_mark(mark)


def test_a_file_that_is_not_wanted_is_gone() -> None:
    disk = SimulatedDisk()
    StagedWriter(disk, PATH, HOST, crc_property=False).discard()
    assert not disk.exists(PATH)
