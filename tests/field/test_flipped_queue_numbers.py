"""A flipped bit in the number of a record's queue costs that record, and no other one."""

from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

import penstock
from penstock import CorruptionError
from penstock.testing import ManualWorkers, open_store

# The number of a record's queue, 4 bytes, big-endian; the body's CRC does not cover it.
QUEUE_AT = 12 + 3


@pytest.mark.parametrize("order", [(0, 1), (0, 1, 1, 0)])
@pytest.mark.parametrize("bit", [0, 1])
def test_all_other_records_are_read_after_a_repair(
    bit: int, order: tuple[int, ...], tmp_path: Path
) -> None:
    """The store was killed: its queues have no entries that would tell. The next record of the queue was dropped, too."""
    root = tmp_path / "store"
    settings: dict[str, Any] = {"log.checksum": "crc32"}
    places, stated = [], []
    with open_store(root, spawn=ManualWorkers(), **settings) as store:
        for number in range(12):
            receipt = store.put("t", b"%d" % number, queue=order[number % len(order)])
            places.append(receipt.log_offset)
            stated.append((receipt.queue, receipt.queue_offset))
        store.flush()
        killed = copytree(root, tmp_path / "killed")
    # Of the last two records nothing tells which is the torn tail.
    for number in range(6, 10):
        copy = copytree(killed, tmp_path / str(number))
        with (copy / "commitlog" / f"{0:020}").open("r+b") as log:
            log.seek(places[number] + QUEUE_AT)
            (byte,) = log.read(1)
            log.seek(places[number] + QUEUE_AT)
            log.write(bytes([byte ^ (1 << bit)]))
        # Of two records that state the same place nothing tells which is right.
        same = stated[number][0] ^ (1 << bit), stated[number][1]
        others = {b"%d" % each for each in range(12) if each != number and stated[each] != same}
        with pytest.raises(CorruptionError):
            penstock.open(copy, environ={})
        penstock.repair(copy, apply=True)
        with penstock.open(copy, read_only=True, environ={}) as store:
            found = {message.body for message in store.scan("t")}
            wrong = [finding.log_offset for finding in store.verify() if not finding.is_note]
        assert others <= found, f"{number} was changed"
        assert len(wrong) == 1
