"""The sink's protocol killed at every call, on a simulated disk: each row once, in order, whatever survived."""

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.lanes import SEED, cases, rounds
from tests.spark import sinkstory
from tests.spark.sinkstory import (
    ENCODING,
    REGISTRY,
    SETTINGS,
    Explorer,
    Place,
    explore,
    play,
)

from penstock.config import sources
from penstock.config.sources import build_config
from penstock.testing import SimulatedDisk
from penstock.testing.platter import Image, Survival
from penstock_spark.sink.commit import (
    Decision,
    SinkCommitter,
)

# So many crashes of the recovery for each crash that is looked at twice.
AGAIN = rounds(gate=1, night=3)
TWO_SURVIVALS = (Survival.PROCESS, Survival.PAGES)


pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("shards", [1, 2])
def test_a_batch_is_there_once_wherever_it_died(shards: int) -> None:
    memories = play(Place(shards), SEED)
    explorer = Explorer(Place(shards), SEED)
    survivals = tuple(Survival) if shards == 1 else (Survival.PROCESS, Survival.BYTE)
    assert explore(explorer, cases(memories, of_so_many=5), survivals, 0) == []
    print(f"seed {SEED}, {shards} shards: {len(memories)} calls, {explorer.states} states")
    assert len(memories) > 90


@pytest.mark.parametrize(
    ("staged", "stored"), [("crc32", "crc32+record"), ("crc32+record", "crc32")]
)
def test_a_batch_of_another_checksum_is_there_once_wherever_it_died(
    staged: str, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records are encoded again for the store, and what counts them after a crash still does."""
    settings = {**SETTINGS, "log.checksum": stored}
    built = build_config(sources.gather(None, {}, settings), REGISTRY)
    monkeypatch.setattr(sinkstory, "CONFIG", built)
    crc_property = staged == "crc32+record"
    monkeypatch.setattr(sinkstory, "ENCODING", attrs.evolve(ENCODING, crc_property=crc_property))
    sinkstory.encoded.cache_clear()
    try:
        memories = play(Place(1), SEED)
        explorer = Explorer(Place(1), SEED)
        first = next(n for n, memory in enumerate(memories) if "decision" in memory.call)
        survivals = (Survival.PROCESS, Survival.BYTE)
        assert explore(explorer, cases(memories[first::2], of_so_many=2), survivals, 0) == []
    finally:
        sinkstory.encoded.cache_clear()
    assert explorer.states > 20


@pytest.mark.parametrize("shards", [1, 2])
def test_a_recovery_may_die_as_well(shards: int) -> None:
    seed = SEED + 1
    memories = play(Place(shards), seed)
    explorer = Explorer(Place(shards), seed)
    # Before the decision there is nothing to recover.
    first = next(n for n, memory in enumerate(memories) if "decision" in memory.call)
    some = cases(memories[first :: 2 + shards], of_so_many=3)
    assert explore(explorer, some, TWO_SURVIVALS, AGAIN) == []
    print(f"seed {seed}, {shards} shards: {explorer.states} states")


def watched(disk: SimulatedDisk) -> list[tuple[str, Image]]:
    """Return a list that gets each call that the disk sees from now on, with the disk before it."""
    found: list[tuple[str, Image]] = []

    def remember(call: str, path: Path) -> None:
        found.append((f"{call} {path.parent.name}/{path.name}", disk.image()))

    disk.plan.watch = remember
    return found


def cut_after_a_kill(shards: int, committer: type[SinkCommitter] = SinkCommitter) -> Iterator[str]:
    """Kill the sink before each of its syncs of names, and cut the power at every call of what finishes its batch.

    What a predecessor wrote and did not sync is seen by the next process and not on the disk yet.
    """
    place = Place(shards)
    for memory in play(place, SEED, committer=committer):
        if memory.call not in ("sync_folder sink/ledger", "sync_folder penstock/sink"):
            continue
        explorer = Explorer(place, SEED, committer)
        killed = explorer.worlds(memory.image, Survival.PROCESS, random.Random(SEED))
        images = watched(killed.disk)
        wrong = explorer.recover(killed, 1)
        if wrong:
            yield f"killed before {memory.call}: {wrong}"
        for call, image in cases(images, memory.call, of_so_many=4):
            cut = explorer.worlds(image, Survival.NONE, random.Random(SEED))
            wrong = explorer.recover(cut, 2)
            if wrong:
                yield f"killed before {memory.call}, cut before {call}: {wrong}"


def test_what_a_killed_predecessor_wrote_is_made_durable_before_it_is_believed() -> None:
    """A decision, or a line of the ledger, that a power cut took back after it had been acted upon.

    Rows that were appended for a decision that was lost then were appended again under another mark.
    """
    assert list(cut_after_a_kill(1)) == []


# --- bugs that must be found


class Believes(SinkCommitter):
    """Takes what it sees for durable."""

    def _finish_pending(self) -> None:
        self.ledger.keep = lambda: None  # type: ignore[method-assign]
        super()._finish_pending()


@pytest.mark.night
def test_belief_in_what_is_seen_is_found() -> None:
    assert next(cut_after_a_kill(1, Believes), "")


class Careless:
    """Files that forget to sync what has a word in its path."""

    def __init__(self, disk: SimulatedDisk, word: str) -> None:
        self._disk, self._word = disk, word

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def sync_folder(self, path: Path) -> None:
        if self._word != path.name:
            self._disk.sync_folder(path)

    def write_whole(self, path: Path, data: bytes) -> None:
        if self._word != path.name:
            self._disk.write_whole(path, data)
            return
        fresh = path.with_name("fresh")
        with suppress(FileNotFoundError):
            self._disk.remove(fresh)
        file = self._disk.create(fresh)
        file.pwrite(data, 0)
        file.close()
        self._disk.rename(fresh, path)


class NotesFirst(SinkCommitter):
    """Notes a batch before it is in the store."""

    def _complete(self, decision: Decision, staged: Any) -> None:
        if staged is not None:
            self.ledger.note_batch(decision)
            for shard in range(len(self._shards)):
                self._apply(decision, shard, staged)
        super()._complete(decision, staged)


class Forgets(SinkCommitter):
    """Appends a batch whole, whatever of it is there."""

    def _apply(self, decision: Decision, shard: int, staged: Any) -> None:
        with suppress(FileNotFoundError):
            self._files.remove(self._progress[shard].path)
        super()._apply(decision, shard, staged)


class TakesBack(SinkCommitter):
    """Drops a decision that it finds, and begins again."""

    def _finish_pending(self) -> None:
        if self.ledger.has_decision():
            self.ledger.drop_decision()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("committer", "word"),
    [
        (SinkCommitter, "decision"), (SinkCommitter, "staging"), (SinkCommitter, "progress-store"), (NotesFirst, ""),
        (Forgets, ""), (TakesBack, ""),
    ],
)  # fmt: skip
def test_planted_bugs_are_found(committer: type[SinkCommitter], word: str) -> None:
    def wrap(disk: SimulatedDisk) -> Any:
        return Careless(disk, word) if word else disk

    memories = play(Place(1), SEED, committer=committer, wrap=wrap)
    explorer = Explorer(Place(1), SEED, committer, wrap)
    first = max(
        n
        for n, memory in enumerate(memories)
        if "sync_folder sink/staging" in memory.call or "create staging" in memory.call
    )
    for memory in memories[first::2] + memories[first + 1 :: 2]:
        if explore(explorer, [memory], (Survival.NONE, Survival.PROCESS, Survival.SECTORS), 0):
            return
    pytest.fail(f"{committer.__name__} {word} was not found in {explorer.states} states")


@pytest.mark.night
@pytest.mark.parametrize("shards", [1, 2])
def test_no_seed_finds_another_state(shards: int) -> None:
    for seed in range(SEED, SEED + 10):
        memories = play(Place(shards), seed)
        explorer = Explorer(Place(shards), seed)
        assert explore(explorer, memories, tuple(Survival), 2) == []
