"""A master's log with everything that a follower must cope with, and stores on simulated disks."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import attrs
from tests.conftest import SMALL
from tests.lanes import cases

import penstock
from penstock import FollowedStore, Message
from penstock.contracts import Epoch, FollowBegin, Replica
from penstock.files import Files
from penstock.store.store import Store
from penstock.testing import InlineWorkers, ManualClock, SimulatedDisk
from penstock.testing.platter import Image, Survival

ROOT = Path("/store")
SETTINGS: dict[str, Any] = {
    **SMALL, "retention.use": [], "geometry.segment_bytes": 16384, "geometry.queue_entries": 20,
}  # fmt: skip
READING = {name: size for name, size in SETTINGS.items() if name.startswith("geometry")}
SEGMENT: int = SETTINGS["geometry.segment_bytes"]


def on(disk: SimulatedDisk, **more: Any) -> dict[str, Any]:
    """Return the arguments that open a store on a simulated disk without threads."""
    return {"files": disk, "clock": disk.clock, "spawn": InlineWorkers(), "environ": {}, **more}


def master(disk: SimulatedDisk, **more: Any) -> Store:
    """Open the store on a disk for writing."""
    return penstock.open(ROOT, **on(disk, **{**SETTINGS, **more}))


def reader(disk: SimulatedDisk) -> Store:
    """Open the store on a disk read-only."""
    return penstock.open(ROOT, read_only=True, **on(disk, **READING))


def crashed(image: Image, survival: Survival, seed: object = 0) -> SimulatedDisk:
    """Return what a crash leaves of a disk."""
    clock = ManualClock(1_700_003_600_000)
    return SimulatedDisk.after(image, survival, Random(str(seed)), clock=clock)


def images_of(disk: SimulatedDisk, call: Callable[[], object]) -> list[Image]:
    """Return an image of a disk for each moment before a step of a call that changes it, and one of its end."""
    images = list[Image]()
    disk.plan.watch = lambda _call, _path: images.append(disk.image())
    call()
    disk.plan.watch = None
    return [*images, disk.image()]


def crashes(images: list[Image], seed: str, of_so_many: int = 10) -> Iterator[SimulatedDisk]:
    """Yield what crashes leave of some of the images; at night of all."""
    states = [(number, survival) for number in range(len(images)) for survival in Survival]
    for number, survival in cases(states, seed, of_so_many=of_so_many):
        yield crashed(images[number], survival, number)


def raw_log(files: Files, root: Path = ROOT) -> bytes:
    """Return the bytes of a log that begins at 0."""
    folder = root / "commitlog"
    found = files.entries(folder) if files.is_folder(folder) else []
    return b"".join(files.read_whole(each.path) for each in found)


def contents(store: Store) -> dict[tuple[str, int], list[bytes]]:
    """Return the bodies of each queue."""
    return {
        (topic, queue): [m.body for m in store.scan(topic, queue=queue)]
        for topic, queues in store.topics().items()
        for queue in queues
    }


def findings(store: Store) -> list[str]:
    """Return what a deep verification finds."""
    return [each.text for each in store.verify(deep=True) if not each.is_note]


@attrs.frozen
class MasterLog:
    """The bytes of a master's log, filler included, from log offset 0 on.

    Attributes:
        raw: the bytes.
        begins: the log offset of each record that is in no batch, or begins one; and the end.
        batches: first log offset of each atomic batch, and the one after it.
        ranges: what a master tells of the ranges that it wrote.
        queues: the bodies of each queue.
    """

    raw: bytes
    begins: tuple[int, ...]
    batches: tuple[tuple[int, int], ...]
    ranges: dict[str, Any]
    queues: dict[tuple[str, int], list[bytes]]

    @property
    def end(self) -> int:
        return len(self.raw)

    def whole(self, end: int) -> int:
        """Return where a log that ends at `end` would end without a part of a batch."""
        return next((first for first, last in self.batches if first < end < last), end)

    def digest(self, start: int, stop: int) -> bytes:
        return hashlib.sha256(self.raw[start:stop]).digest()


def make_log(count: int = 60, **settings: Any) -> MasterLog:
    """Return the log of a store with atomic batches among its messages, and filler at the end of each segment."""
    disk = SimulatedDisk()
    begins, batches = list[int](), list[tuple[int, int]]()
    with master(disk, **settings) as store:
        for number in range(count):
            body = f"{number}:".encode() + b"x" * (number * 37 % 400)
            begins.append(store.put("t", body, queue=number % 2, keys=[f"k{number}"]).log_offset)
            if number % 7 == 3:
                some = [Message("b", f"{number}.{n}".encode() * 20, queue=n % 3) for n in range(9)]
                receipts = store.put_many(some, atomic=True)
                first, last = receipts[0].log_offset, receipts[-1]
                begins.append(first)
                batches.append((first, last.log_offset + last.size))
        end, found = store.stats()["log_end_offset"], contents(store)
    checksum = settings.get("log.checksum", "crc32+record")
    told = {"ranges": [{"start": 0, "stop": None, "checksum": checksum}], "perhaps": [], "gaps": []}
    return MasterLog(raw_log(disk)[:end], (*begins, end), tuple(batches), told, found)


def identity(**more: Any) -> Replica:
    """Return the identity that a master's acceptance gives a follower."""
    own = "0123456789abcdef"
    given = {
        "history": own * 2, "store": "f" * 16, "role": "follower", "master": "host:10912",
        "protocol": "penstock", "epochs": (Epoch(0, 0, 0, own),), **more,
    }  # fmt: skip
    return Replica(**given)


def follower(disk: SimulatedDisk, **more: Any) -> FollowedStore:
    """Open a follower on a simulated disk without threads."""
    return penstock.open_follower(ROOT, **on(disk, **{**SETTINGS, **more}))


def accepted(
    disk: SimulatedDisk, log: MasterLog, *, at: int | None = None, **more: Any
) -> FollowedStore:
    """Open a follower, a new one whose log begins at `at`, that the master of a log has accepted."""
    begin = None if at is None else FollowBegin(segment_bytes=SEGMENT, log_offset=at)
    store = follower(disk, begin=begin, **more)
    store.accept(identity(), log.ranges)
    return store


def feed(store: FollowedStore, log: MasterLog, stop: int, size: int = 1 << 20) -> None:
    """Feed the bytes of a log up to an offset in pieces."""
    while (at := store.next_offset) < stop:
        store.feed(at, log.raw[at : min(at + size, stop)])


def check_copy(disk: SimulatedDisk, log: MasterLog, about: object = "") -> None:
    """Check that a copy, closed, has all bytes of a log, and that its queues are those of the master."""
    assert raw_log(disk)[: log.end] == log.raw, about
    with reader(disk) as found:
        assert (findings(found), contents(found)) == ([], log.queues), about
