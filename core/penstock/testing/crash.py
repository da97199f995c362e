"""Crash exploration: one story, killed at one call to the system after another, and what must hold then.

The process dies in the middle of a call (`FaultyFiles.plan.die_at`): nothing of what it still held in
memory reaches a file, what it wrote is in the page cache, its lock is gone. The next open must find
every message that was acknowledged, once, in order; whatever else it finds is what was sent next; queues,
index and consumer offsets agree with the log; `verify` finds nothing. Also when it dies again while it
recovers.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import attrs

from penstock.contracts import Strategy
from penstock.errors import PenstockError
from penstock.message import Durability, Message
from penstock.store import Store
from penstock.testing.control import InlineWorkers
from penstock.testing.faults import FaultyFiles, KilledError
from penstock.testing.kit import SMALL, open_store

_TOPIC = "story"
_ROUNDS = 6


class Problem(NamedTuple):
    """One death that was not survived: the n-th call, what it was, and what is wrong afterwards."""

    point: int
    call: str
    text: str


@attrs.define
class Story:
    """What happened, from the caller's side.

    `sent` are bodies in the order they were put; `kept` how many of them a crash of the process must
    leave; `discarded` how many of the oldest may be gone.
    """

    sent: list[bytes] = attrs.Factory(list)
    kept: int = 0
    discarded: int = 0
    offset: int | None = None

    def play(self, store: Store, workers: InlineWorkers, *, holds_back: bool) -> None:
        """Put, flush, let go, commit offsets, close; every background worker gets its turns."""
        for step in range(_ROUNDS):
            for _ in range(5):
                self._put(store, 1, holds_back=holds_back)
            self._put(store, 12, holds_back=holds_back)
            workers.run_all()
            if step % 2:
                store.flush()
                self.kept = len(self.sent)
                store.commit_offset("group", _TOPIC, 0, offset=step)
                self.offset = step
            if step == _ROUNDS - 2:
                end = store.stats()["log_end_offset"]
                # Set before: it may die half way.
                self.discarded = len(self.sent)
                store.discard_before(log_offset=end - SMALL.segment_bytes)
        store.close()
        self.kept = len(self.sent)

    def _put(self, store: Store, count: int, *, holds_back: bool) -> None:
        first = len(self.sent)
        bodies = [b"%d:" % n + b"." * (n * 611 % 4000) for n in range(first, first + count)]
        self.sent += bodies
        if count == 1:
            receipt = store.put(_TOPIC, bodies[0], queue=first % 2, keys=[f"k{first}"])
        else:
            made = [
                Message(_TOPIC, body, queue=n % 2, keys=[f"k{n}"])
                for n, body in enumerate(bodies, first)
            ]
            receipt = store.put_many(made)[-1]
        if receipt.durability is Durability.ON_DISK or not holds_back:
            self.kept = len(self.sent)


def explore(
    folder: Path,
    *,
    strategies: Sequence[type[Strategy]] = (),
    points: int | None = None,
    **settings: Any,
) -> Iterator[tuple[int, Problem | None]]:
    """Play the story once to count its calls, then kill it at each; yields (point, what went wrong).

    Args:
        folder: where the stores are made, one a point.
        strategies: classes that need not be installed.
        points: so many, evenly spread, instead of every call.
        settings: which strategies to use, as for `penstock.open`.
    """
    total = _count(folder / "whole", strategies, settings)
    wanted = range(1, total + 1)
    if points is not None and points < total:
        wanted = range(1 + total % points // 2, total + 1, total // points)
    for point in wanted:
        yield point, _die_at(folder / f"at-{point}", point, strategies, settings)


def _open(
    path: Path, files: FaultyFiles, strategies: Sequence[type[Strategy]], settings: dict[str, Any]
) -> tuple[Store, InlineWorkers]:
    workers = InlineWorkers()
    store = open_store(path, strategies=strategies, files=files, spawn=workers, **settings)
    return store, workers


def _holds_back(store: Store) -> bool:
    assert store._engine is not None
    return not store._engine.log.tail.writer.commits_at_once


def _count(path: Path, strategies: Sequence[type[Strategy]], settings: dict[str, Any]) -> int:
    files = FaultyFiles()
    store, workers = _open(path, files, strategies, settings)
    files.plan.total = 0
    Story().play(store, workers, holds_back=_holds_back(store))
    return files.plan.total


def _die_at(
    path: Path, point: int, strategies: Sequence[type[Strategy]], settings: dict[str, Any]
) -> Problem | None:
    files = FaultyFiles()
    story = Story()
    store, workers = _open(path, files, strategies, settings)
    files.plan.die_at(point)
    with suppress(KilledError):
        story.play(store, workers, holds_back=_holds_back(store))
    del store, workers
    files.abandon()
    call = files.plan.died_in
    if point % 3 == 0:
        _die_while_recovering(path, point, strategies, settings)
    try:
        text = _look(path, story, strategies, settings)
    except (PenstockError, OSError, AssertionError) as error:
        text = f"{type(error).__name__}: {error}"
    return Problem(point, call, text) if text else None


def _die_while_recovering(
    path: Path, point: int, strategies: Sequence[type[Strategy]], settings: dict[str, Any]
) -> None:
    files = FaultyFiles()
    files.plan.die_at(1 + point % 25)
    with suppress(KilledError):
        _open(path, files, strategies, settings)
    files.abandon()


def _look(
    path: Path, story: Story, strategies: Sequence[type[Strategy]], settings: dict[str, Any]
) -> str:
    """Open what is left, and say what is wrong with it; empty for nothing."""
    store, _ = _open(path, FaultyFiles(), strategies, settings)
    with store:
        found = [message.body for message in store.scan(_TOPIC)]
        wrong = _compare(found, story)
        findings = list(store.verify())
        if not wrong and findings:
            wrong = f"verify: {findings[0].text}"
        wrong = wrong or _look_up(store, found, story)
    store, _ = _open(path, FaultyFiles(), strategies, settings)
    with store:
        assert store.recovery is not None
        if not wrong and store.recovery.state != "clean":
            wrong = f"after a clean close the store is {store.recovery.state}"
        if not wrong and [message.body for message in store.scan(_TOPIC)] != found:
            wrong = "after a clean close it holds other messages"
    return wrong


def _compare(found: list[bytes], story: Story) -> str:
    first = story.sent.index(found[0]) if found and found[0] in story.sent else 0
    if found != story.sent[first : first + len(found)]:
        return "messages are missing, twice, changed or out of order"
    if first > story.discarded:
        return f"the first {first} messages are gone, though nobody let them go"
    if first + len(found) < story.kept:
        return f"{story.kept} messages were acknowledged, the store ends at {first + len(found)}"
    return ""


def _look_up(store: Store, found: list[bytes], story: Story) -> str:
    for body in found[:: max(len(found) // 4, 1)]:
        number = int(body.partition(b":")[0])
        if [message.body for message in store.find(_TOPIC, f"k{number}")] != [body]:
            return f"message {number} is not found by its key"
    offset = store.committed_offset("group", _TOPIC, 0)
    if story.offset is not None and (offset is None or offset < story.offset):
        return f"the consumer offset {story.offset} was committed, and is {offset}"
    return ""
