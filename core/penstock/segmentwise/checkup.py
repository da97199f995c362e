"""Verification of a store, a segment at a time, in processes that share nothing but its files."""

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import attrs

from penstock.contracts.findings import Finding
from penstock.dispatch.store_view import Recipe, StoreView
from penstock.errors import NotAStoreError
from penstock.files import Files
from penstock.integrity.parallel import SegmentWorker
from penstock.integrity.verification import Result, Scope, Tally, Told, Verification
from penstock.recovery.store_layout import check_layout, is_store
from penstock.segmentwise.plain_values import pack, unpack
from penstock.segmentwise.reindex import Reindex
from penstock.store.open import Opener, make_opener
from penstock.store.store import Store

# Pieces of a verification that are no segment: the derived files by themselves, and the store as a
# whole where a dispatcher's checker cannot be split.
DERIVED, WHOLE = -1, -2
_LOOKED_AT = 64


class Checked(NamedTuple):
    """What came of one piece; `seen` is for `Checkup.gather` only."""

    piece: int
    findings: list[Finding]
    tally: Tally
    seen: str


@attrs.frozen
class CheckTask:
    """What a process needs to check pieces of one store: sent to it whole."""

    recipe: Recipe
    scope: Scope

    def worker(self) -> "CheckWorker":
        """Open the store, read-only; make one for many pieces, since it reads the index once."""
        return CheckWorker(self)


class CheckWorker:
    """One process's view of a store that is verified. Not thread-safe."""

    def __init__(self, task: CheckTask) -> None:
        self._task = task
        self._segments = SegmentWorker(task.recipe, task.scope)

    def check(self, piece: int) -> Checked:
        """Check one piece."""
        if piece == WHOLE:
            return self._check_whole()
        if piece == DERIVED:
            return Checked(piece, self._segments.start(), Tally(), pack([]))
        findings, tally, seen = self._segments.check(piece)
        return Checked(piece, findings, tally, pack(seen))

    def _check_whole(self) -> Checked:
        files, recipe = Files(), self._task.recipe
        seen = StoreView.open(files, recipe)
        counts = [Tally()]
        whole = Verification(files, recipe.root, seen.log, seen.dispatchers)
        found = list(whole.run(counts.append, deep=self._task.scope.deep, jobs=1))
        return Checked(WHOLE, found, counts[-1], pack([]))


class Checkup:
    """A verification of one store whose pieces are checked elsewhere.

    Attributes:
        path: the store's folder.
        task: what every process needs.
        pieces: what is to be checked, each once, in any order and anywhere.
        bytes_total: bytes of the log.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: str | os.PathLike[str] | None = None,
        *,
        deep: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        opener = view(path, config, settings, writes=False)
        self.path = opener.root
        recipe = recipe_of(opener)
        seen = StoreView.open(opener.files, recipe)
        self._verification = Verification(opener.files, opener.root, seen.log, seen.dispatchers)
        is_splittable = all(c.is_splittable for c in self._verification.checkers())
        # A store that is one piece is looked at as a whole by the task.
        self._plan = (
            self._verification.plan(deep=deep)
            if is_splittable
            else (self._verification.scope(deep=deep), [])
        )
        self.task = CheckTask(recipe, self._plan[0])
        bases = [segment.base_offset for segment in seen.log.segments]
        self.pieces = [DERIVED, *bases] if is_splittable else [WHOLE]
        self.bytes_total = sum(segment.capacity for segment in seen.log.segments)

    def gather(
        self, checked: Mapping[int, Checked], told: Told = lambda _: None
    ) -> Iterator[Finding]:
        """Return what `Store.verify` does, from what came of the pieces."""
        if WHOLE in checked:
            told(checked[WHOLE].tally)
            yield from checked[WHOLE].findings
            return
        results: list[Result] = [
            (one.findings, one.tally, unpack(one.seen))
            for piece, one in sorted(checked.items())
            if piece != DERIVED
        ]
        started = checked[DERIVED].findings
        yield from self._verification.gather(told, self._plan, started, results)


def view(
    path: str | os.PathLike[str],
    config: str | os.PathLike[str] | None,
    settings: Mapping[str, Any] | None,
    *,
    writes: bool,
) -> Opener:
    """Return what knows the store at `path`, checked as for opening it; nothing is opened yet."""
    opener = make_opener(path, config, None, None, None, None, settings or {})
    opener.check_strategies()
    if not is_store(opener.files, opener.root):
        raise NotAStoreError(opener.root, "there is no commitlog folder in it")
    check_layout(opener.files, opener.root, writes=writes)
    return opener


def recipe_of(opener: Opener) -> Recipe:
    """Return what other processes need to open the same store."""
    return Recipe(opener.root, opener.geometry(), opener.dispatcher_kinds())


def start_reindex(
    path: str | os.PathLike[str],
    config: str | os.PathLike[str] | None = None,
    *,
    shards: int = 8,
    settings: Mapping[str, Any] | None = None,
) -> Reindex:
    """Take a store's lock, and return what makes its queues and index anew in so many parts."""
    opener = view(path, config, settings, writes=True)
    return Reindex(opener, recipe_of(opener), shards=shards)


class MessageRange(NamedTuple):
    """Messages [start, stop) of one queue."""

    topic: str
    queue: int
    start: int
    stop: int


def messages_before(store: Store, log_offset: int) -> Iterator[MessageRange]:
    """Yield for each queue the messages whose records begin before a log offset.

    A few records are read for each queue, so it takes milliseconds for a hundred of them.
    """
    for topic, queues in store.topics().items():
        for queue in queues:
            low, high = store.min_offset(topic, queue), store.max_offset(topic, queue)
            yield MessageRange(topic, queue, low, _first_at(store, topic, queue, log_offset, high))


def _first_at(store: Store, topic: str, queue: int, log_offset: int, high: int) -> int:
    """Return the first queue offset whose record begins at a log offset or behind it."""
    low, stop = store.min_offset(topic, queue), high
    while low < stop:
        middle = (low + stop) // 2
        # An entry may be absent; the next one that is there tells as well.
        found = store.arrow_batches(
            topic, queue, middle, stop, ["log_offset"], rows=_LOOKED_AT, verify=False
        )
        first = next((batch.column(0)[0].as_py() for batch in found if batch.num_rows), None)
        if first is not None and first < log_offset:
            low = middle + 1
        else:
            stop = middle
    return low
