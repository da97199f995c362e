"""A master's log with everything a follower must cope with, and what a follower of it must have after a crash."""

from pathlib import Path
from typing import Any

import attrs
from tests.conftest import SMALL

import penstock
from penstock import Message
from penstock.durability.written_ranges import Ranges, read_ranges
from penstock.files import Files
from penstock.store.following import FollowedStore, open_follower
from penstock.store.store import Store
from penstock.testing import ManualClock, SimulatedDisk
from penstock.testing.control import InlineWorkers

ROOT = Path("/store")
SETTINGS: dict[str, Any] = {
    **SMALL, "retention.use": [], "geometry.segment_bytes": 16384, "geometry.queue_entries": 20,
}  # fmt: skip
READING = {name: size for name, size in SETTINGS.items() if name.startswith("geometry")}
SEGMENT = SETTINGS["geometry.segment_bytes"]


@attrs.frozen
class MasterLog:
    """The bytes of a master's log, filler included, and where its records begin.

    Attributes:
        raw: the bytes, from log offset 0 on.
        begins: the log offset of each record that belongs to no batch, or begins one; and the end.
        batches: first log offset of each atomic batch, and the one after it.
        ranges: which of it Penstock wrote.
    """

    raw: bytes
    begins: tuple[int, ...]
    batches: tuple[tuple[int, int], ...]
    ranges: Ranges

    @property
    def end(self) -> int:
        return len(self.raw)


def make_log(path: Path, count: int = 60, **settings: Any) -> MasterLog:
    """Return the log of a store that is made at `path`, with atomic batches in between; it is closed."""
    begins, batches = [], []
    with penstock.open(path, environ={}, **{**SETTINGS, **settings}) as store:
        for number in range(count):
            body = f"{number}:".encode() + b"x" * (number * 37 % 400)
            begins.append(store.put("t", body, queue=number % 2, keys=[f"k{number}"]).log_offset)
            if number % 7 == 3:
                some = [Message("b", f"{number}.{n}".encode() * 20, queue=n % 3) for n in range(9)]
                receipts = store.put_many(some, atomic=True)
                first, last = receipts[0].log_offset, receipts[-1]
                begins.append(first)
                batches.append((first, last.log_offset + last.size))
        end = store.stats()["log_end_offset"]
        ranges = read_ranges(Files(), path)
    assert ranges is not None
    raw = b"".join(each.read_bytes() for each in sorted((path / "commitlog").iterdir()))
    return MasterLog(raw[:end], (*begins, end), tuple(batches), ranges)


def follow(
    root: Path = ROOT,
    disk: SimulatedDisk | None = None,
    *,
    workers: InlineWorkers | None = None,
    **more: Any,
) -> FollowedStore:
    """Open a follower on a simulated disk, without threads; on the real one with them."""
    given: dict[str, Any] = dict(more)
    if disk is not None:
        given.update(files=disk, clock=disk.clock, spawn=workers or InlineWorkers())
    return open_follower(root, environ={}, **{**SETTINGS, **given})


def reader(root: Path = ROOT, disk: SimulatedDisk | None = None) -> Store:
    given: dict[str, Any] = {}
    if disk is not None:
        given = {"files": disk, "clock": disk.clock, "spawn": InlineWorkers()}
    return penstock.open(root, environ={}, read_only=True, **{**READING, **given})


def contents(store: Store) -> dict[tuple[str, int], list[bytes]]:
    """Return the bodies of each queue."""
    return {
        (topic, queue): [m.body for m in store.scan(topic, queue)]
        for topic, queues in store.topics().items()
        for queue in queues
    }


def findings(store: Store) -> list[str]:
    return [each.text for each in store.verify(deep=True) if not each.is_note]


def whole(log: MasterLog, end: int) -> int:
    """Return where a log that ends at `end` would end without a part of a batch."""
    for first, last in log.batches:
        if first < end < last:
            return first
    return end


def clock_of(disk: SimulatedDisk) -> ManualClock:
    assert isinstance(disk.clock, ManualClock)
    return disk.clock
