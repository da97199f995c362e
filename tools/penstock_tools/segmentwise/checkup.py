"""Verifies a store, a segment at a time, in processes that share only its files and exchange values as text."""

import json
import os
from collections.abc import Iterator, Mapping
from numbers import Integral
from typing import Any, NamedTuple

import attrs

from penstock.contracts.dispatcher import Finding
from penstock.dispatch.rebuild import Recipe, StoreView
from penstock.errors import NotAStoreError, PluginError
from penstock.files import Files
from penstock.integrity.verification import (
    OnProgress,
    Result,
    Scope,
    SegmentWorker,
    Tally,
    Verification,
)
from penstock.read.spans import QueueSpan
from penstock.recovery.store_layout import check_layout, is_store
from penstock.store.open import Opener, make_opener
from penstock.store.store import Store
from penstock_tools.segmentwise.reindex import Reindex


def pack(value: object) -> str:
    """Return plain values as text; raises `PluginError` for any other value."""
    return json.dumps(_to_json_value(value))


def unpack(text: str) -> Any:
    """Return the values in a text that `pack` returned."""
    return _from_json_value(json.loads(text))


def _to_json_value(value: object) -> object:
    """Return a value in the form that JSON can represent; raises `PluginError` otherwise."""
    if value is None or isinstance(value, bool | float | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, list):
        return [_to_json_value(each) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [_to_json_value(each) for each in value]}
    if isinstance(value, dict):
        return {
            "dict": [[_to_json_value(key), _to_json_value(each)] for key, each in value.items()]
        }
    raise PluginError(
        f"the state of a checker must consist of plain values, which can be sent to another process, not "
        f"{type(value).__name__}: set its is_splittable to False"
    )


def _from_json_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json_value(each) for each in value]
    if isinstance(value, dict):
        if "tuple" in value:
            return tuple(_from_json_value(each) for each in value["tuple"])
        return {_from_json_value(key): _from_json_value(each) for key, each in value["dict"]}
    return value


# Parts of a verification that are not a segment: the derived files alone, and the whole store if a
# dispatcher's checker cannot be split.
DERIVED, WHOLE = -1, -2
_ENTRIES_READ = 64


class Checked(NamedTuple):
    """The result of one part (`piece`); `seen` is only for `Checkup.gather`."""

    piece: int
    findings: list[Finding]
    tally: Tally
    seen: str


@attrs.frozen
class CheckTask:
    """Everything a process needs to check parts of one store; it is sent to the process."""

    recipe: Recipe
    scope: Scope

    def worker(self) -> "CheckWorker":
        """Open the store read-only and return a worker; use one for many parts, since it reads the index once."""
        return CheckWorker(self)


class CheckWorker:
    """Checks parts of one store in one process. Not thread-safe."""

    def __init__(self, task: CheckTask) -> None:
        self._task = task
        self._segments = SegmentWorker(task.recipe, task.scope)

    def check(self, piece: int) -> Checked:
        """Check one part and return the result."""
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
    """A verification of one store whose parts are checked in other processes. Not thread-safe.

    Attributes:
        path: the store's folder.
        task: everything a process needs.
        pieces: the parts to check, each once, in any order and in any process.
        bytes_total: size of the log in bytes.
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
        # A store that cannot be split is planned by the task that checks it.
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
        self, checked: Mapping[int, Checked], on_progress: OnProgress = lambda _: None
    ) -> Iterator[Finding]:
        """Yield the findings that `Store.verify` would, from the results of all parts."""
        if WHOLE in checked:
            on_progress(checked[WHOLE].tally)
            yield from checked[WHOLE].findings
            return
        results: list[Result] = [
            (one.findings, one.tally, unpack(one.seen))
            for piece, one in sorted(checked.items())
            if piece != DERIVED
        ]
        started = checked[DERIVED].findings
        yield from self._verification.gather(on_progress, self._plan, started, results)


def view(
    path: str | os.PathLike[str],
    config: str | os.PathLike[str] | None,
    settings: Mapping[str, Any] | None,
    *,
    writes: bool,
) -> Opener:
    """Return an opener for the store at `path`, checked as for opening it; opens nothing yet."""
    opener = make_opener(path, config, None, None, None, None, settings or {})
    opener.check_strategies()
    if not is_store(opener.files, opener.root):
        raise NotAStoreError(opener.root, "there is no commitlog folder in it")
    check_layout(opener.files, opener.root, writes=writes)
    return opener


def recipe_of(opener: Opener) -> Recipe:
    """Return the data that other processes need to open the same store."""
    return Recipe(opener.root, opener.geometry(), opener.dispatcher_kinds())


def start_reindex(
    path: str | os.PathLike[str],
    config: str | os.PathLike[str] | None = None,
    *,
    shards: int = 8,
    settings: Mapping[str, Any] | None = None,
) -> Reindex:
    """Take a store's lock, and return the reindex that rebuilds its queues in `shards` parts, and its index."""
    opener = view(path, config, settings, writes=True)
    return Reindex(opener, recipe_of(opener), shards=shards)


def messages_before(store: Store, log_offset: int) -> Iterator[QueueSpan]:
    """Yield for each queue the range of messages whose records begin before a log offset.

    Reads a few records of each queue, which takes milliseconds for a hundred queues.
    """
    # If nothing was ever deleted, queues begin at 0, even one that has lost its first entries.
    is_whole = store.stats()["log_min_offset"] == 0
    for topic, queues in store.topics(system=True).items():
        for queue in queues:
            low, high = store.min_offset(topic, queue), store.max_offset(topic, queue)
            stop = _first_at(store, topic, queue, log_offset, high)
            yield QueueSpan(topic, queue, 0 if is_whole else low, stop)


def _first_at(store: Store, topic: str, queue: int, log_offset: int, high: int) -> int:
    """Return the first queue offset whose record begins at or after a log offset; entries before it may be absent."""

    def first(column: str, start: int, stop: int, default: int) -> int:
        # If the entry is absent, the next existing one is used instead.
        span = QueueSpan(topic, queue, start, stop)
        found = store.lowlevel.arrow_spans([span], [column], rows=_ENTRIES_READ, verify=False)
        return next((batch.column(0)[0].as_py() for batch in found if batch.num_rows), default)

    low, stop = store.min_offset(topic, queue), high
    while low < stop:
        middle = (low + stop) // 2
        if first("log_offset", middle, stop, log_offset) < log_offset:
            low = middle + 1
        else:
            stop = middle
    return first("queue_offset", low, high, high)
