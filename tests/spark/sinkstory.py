"""A batch of the sink on a simulated disk, crashed before each call, and put through again as Spark would."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pyarrow as pa

import penstock
from penstock import Store
from penstock.config import sources
from penstock.config.sources import build_config
from penstock.plugins.registry import load_registry
from penstock.staged import EncodedBatch, Encoder, encoding_for
from penstock.store.open import Opener
from penstock.testing import ManualClock, SimulatedDisk
from penstock.testing.kit import InlineWorkers
from penstock.testing.platter import Image, Survival
from penstock_spark.sink.commit import Part, Patience, SinkCommitter
from penstock_spark.sink.rows import Stager, staged_name

TOPIC, APP = "t", "app"
TASKS, ROWS, QUEUES = 2, 7, 2
SETTINGS: dict[str, Any] = {
    "write": "file", "retention": [], "scrub.digests": False, "index": ["consume-queue"],
    "geometry.segment_bytes": 8192, "geometry.queue_entries": 40, "geometry.index_slots": 20,
    "geometry.index_entries": 40,
}  # fmt: skip
REGISTRY = load_registry()
CONFIG = build_config(sources.gather(None, {}, SETTINGS), REGISTRY)
ENCODING = encoding_for("/root", files=SimulatedDisk(), environ={}, **SETTINGS)


@attrs.frozen
class Place:
    """Where a story is played: one store, or a dataset of some."""

    shards: int

    @property
    def root(self) -> Path:
        return Path("/root")

    @property
    def stores(self) -> list[Path]:
        one = self.shards == 1
        return [self.root] if one else [self.root / f"shard-{n}" for n in range(self.shards)]


class World:
    """One disk, and the sink and the others that use it."""

    def __init__(
        self, disk: SimulatedDisk, place: Place, committer: type[SinkCommitter] = SinkCommitter
    ) -> None:
        self.disk, self.place, self._committer = disk, place, committer
        self.files: Any = disk

    def open(self, path: Path) -> Store:
        disk = self.disk
        # Without a look for plugins each time.
        return Opener(path, CONFIG, REGISTRY, disk, disk.clock, InlineWorkers()).open_for_writing()

    def open_busy(self, path: Path) -> Store:
        """Open a store in which a message of others follows each piece of a batch, as delivered ones may."""
        store = self.open(path)
        put = store.lowlevel.put_staged

        def put_both(*args: Any, **more: Any) -> int:
            end = put(*args, **more)
            store.put("between", b"other", queue=0)
            return end

        store.lowlevel.put_staged = put_both  # type: ignore[method-assign]
        return store

    def committer(
        self, open_store: Callable[[Path], Any] | None = None, patience: Patience | None = None
    ) -> SinkCommitter:
        """Return one as a driver makes it, which opens stores as `open_store` does, `open_busy` by default."""
        return self._committer(
            self.place.root, self.place.stores, open_store or self.open_busy, files=self.files,
            patience=patience or Patience(timeout_s=0),
        )  # fmt: skip

    def stage(self, batch: int, attempt: int) -> list[Part]:
        """Do what the tasks do; the rows of a task go in turns to queues, by twos to shards."""
        found = []
        for task in range(TASKS):
            name = staged_name(APP, str(batch), task, attempt)
            folder = self.place.root / "penstock" / "sink" / "staging"
            stager = Stager(self.files, folder, name, task, ENCODING)
            for start in range(0, ROWS, 2):
                stager.put(encoded(batch, task, start), start // 2 % self.place.shards)
            part = stager.finish()
            assert part is not None
            found.append(part)
        return found

    def run(self, batch: int, attempt: int) -> bool:
        """Stage and commit a batch."""
        return self.committer().commit(APP, batch, self.stage(batch, attempt))

    def disturb(self, chance: Random, number: int) -> None:
        """Let another producer append to some of the stores."""
        for path in self.place.stores:
            if chance.random() < 0.7:
                with self.open(path) as store:
                    for n in range(chance.randint(1, 3)):
                        store.put(TOPIC, b"other %d %d" % (number, n), queue=n % QUEUES)

    def wrong(self, batches: int) -> str:
        """Return what is wrong with the stores after so many batches; "" for nothing."""
        committer = self.committer()
        if committer.ledger.has_decision():
            return "a decision is left"
        if committer.ledger.last_batch(APP) != batches - 1:
            return f"the ledger says {committer.ledger.last_batch(APP)}"
        committer.collect(1 << 62)
        if self.disk.entries(committer.ledger.staging):
            return "staged files are left"
        for number, path in enumerate(self.place.stores):
            with self.open(path) as store:
                wrong = self._wrong_in(store, number, batches)
                found = [finding.text for finding in store.verify()]
            if wrong or found:
                return f"{path.name}: {wrong or found[0]}"
        return ""

    def _wrong_in(self, store: Store, shard: int, batches: int) -> str:
        others: list[bytes] = []
        for queue in range(QUEUES):
            found = [message.body for message in store.scan(TOPIC, queue=queue)]
            expected = [
                body(batch, task, row)
                for batch in range(batches)
                for task in range(TASKS)
                for row in range(ROWS)
                if row % QUEUES == queue and row // 2 % self.place.shards == shard
            ]
            ours = [each for each in found if not each.startswith(b"other")]
            if ours != expected:
                names = [each[:12] for each in ours]
                return f"queue {queue} has {names} for {[each[:12] for each in expected]}"
            others += [each for each in found if each.startswith(b"other")]
        return (
            "" if len(set(others)) == len(others) else "another producer's message is there twice"
        )


def body(batch: int, task: int, row: int) -> bytes:
    return b"%d:%d:%d:" % (batch, task, row) + bytes([65 + row]) * (row * 397 % 700)


@lru_cache
def encoded(batch: int, task: int, start: int) -> EncodedBatch:
    """Return two rows of a task, encoded once for all states."""
    rows = list(range(start, min(start + 2, ROWS)))
    table = pa.table({
        "topic": [TOPIC] * len(rows), "queue": [row % QUEUES for row in rows],
        "body": pa.array([body(batch, task, row) for row in rows], pa.binary()),
    })  # fmt: skip
    return Encoder(ENCODING, lambda: 1_700_000_000_000).encode(table)


@attrs.frozen
class Memory:
    """The disk just before a call of batch 1."""

    point: int
    call: str
    image: Image


def play(
    place: Place, seed: int, *, write_back: float = 0.1, committer: type[SinkCommitter] = SinkCommitter,
    wrap: Callable[[SimulatedDisk], Any] = lambda disk: disk,
) -> list[Memory]:  # fmt: skip
    """Play batch 0, another producer, then batch 1; return the disk before each call of batch 1, and after it."""
    disk = SimulatedDisk(clock=ManualClock(), seed=seed, write_back=write_back)
    world = World(disk, place, committer)
    world.files = wrap(disk)
    disk.make_folder(place.root)
    for path in place.stores:
        world.open(path).close()
    world.committer().prepare()
    world.run(0, 0)
    world.disturb(Random(seed), 0)
    memories: list[Memory] = []

    def remember(call: str, path: Path) -> None:
        memories.append(
            Memory(len(memories), f"{call} {path.parent.name}/{path.name}", disk.image())
        )

    disk.plan.watch = remember
    world.run(1, 0)
    remember("after", Path("all"))
    disk.plan.watch = None
    return memories


@attrs.define
class Explorer:
    """Crashes memories and puts the batch through again."""

    place: Place
    seed: int
    committer: type[SinkCommitter] = SinkCommitter
    wrap: Callable[[SimulatedDisk], Any] = lambda disk: disk
    states: int = 0

    def worlds(self, image: Image, survival: Survival, chance: Random) -> World:
        self.states += 1
        clock = ManualClock(1_700_000_000_000 + 60_000 * self.states)
        world = World(
            SimulatedDisk.after(image, survival, chance, clock=clock), self.place, self.committer
        )
        world.files = self.wrap(world.disk)
        return world

    def crash(self, memory: Memory, survival: Survival, again: int) -> Iterator[str]:
        """Crash a memory, recover; and crash the recovery `again` times, each at some call; yields what is wrong."""
        chance = Random(f"{self.seed} {memory.point} {survival.value}")
        world = self.worlds(memory.image, survival, chance)
        if chance.random() < 0.5:
            world.disturb(chance, 1)
        calls: list[Image] = []

        def remember(_call: str, _path: Path) -> None:
            # An image costs as much as several calls.
            if chance.random() < 0.1:
                calls.append(world.disk.image())

        world.disk.plan.watch = remember if again else None
        yield self.recover(world, 1)
        for _ in range(again if calls else 0):
            second = chance.choice(tuple(Survival))
            later = self.worlds(chance.choice(calls), second, chance)
            if chance.random() < 0.5:
                later.disturb(chance, 2)
            wrong = self.recover(later, 2)
            yield f"{wrong} (after a second crash, {second.value})" if wrong else ""

    def recover(self, world: World, attempt: int) -> str:
        try:
            world.run(1, attempt)
            world.disk.plan.watch = None
            if attempt == 1 and world.run(1, attempt + 10):
                return "the batch was taken twice"
            return world.wrong(2)
        except (penstock.PenstockError, OSError, AssertionError, ValueError) as error:
            return f"{type(error).__name__}: {error}"


def explore(
    explorer: Explorer, memories: Sequence[Memory], survivals: Sequence[Survival], again: int
) -> list[str]:
    """Return what is wrong in any of the crashes, each with what repeats it."""
    found = []
    for memory in memories:
        for survival in survivals:
            for wrong in explorer.crash(memory, survival, again):
                if wrong:
                    where = f"seed {explorer.seed}, {explorer.place.shards} shards"
                    found.append(
                        f"{where}, point {memory.point} ({memory.call}), {survival.value}: {wrong}"
                    )
    return found
