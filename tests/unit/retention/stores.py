"""Stores of small segments whose retention tests disturb: by policies, by dispatchers that fail, by readers that hold a segment."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tests.hooked import hooked

from penstock.contracts import DiskUse, RetentionPolicy, SegmentInfo, Trust, Vote
from penstock.store.store import Store
from penstock.testing import ManualWorkers, open_store
from penstock_index.hash_index import HashIndexDispatcher

SEGMENT = 64 * 1024
# Everything but the last segment goes.
ALL: dict[str, Any] = {
    "retention": ["size"], "retention.size.bytes_max": 0, "retention.pause_ms": 0,
}  # fmt: skip
Said = Callable[[Sequence[SegmentInfo]], Any]


def policy_that(says: Said, called: str = "under-test") -> type[RetentionPolicy]:
    class TestPolicy(RetentionPolicy):
        name: ClassVar[str] = called

        def vote(self, segments: Sequence[SegmentInfo], now_ms: int, disk: DiskUse) -> Vote:
            return says(segments)  # type: ignore[no-any-return] # wrong answers are the point

    return TestPolicy


def boom(_given: object) -> Any:
    raise ZeroDivisionError("the plugin's own mistake")


def opened(path: Path, **given: Any) -> Store:
    return open_store(path, **{"spawn": ManualWorkers(), **ALL, **given})


def fill(store: Store, segments: int) -> None:
    """Put so many messages that the log has this many segments."""
    while store.stats()["segments"] < segments:
        store.put("t", b"x" * 1000, queue=0)


def bases(store: Store) -> list[int]:
    """Return the offsets of the files that lie there."""
    return sorted(int(path.name) for path in (store.path / "commitlog").iterdir())


def opened_and_held(path: Path, **given: Any) -> tuple[Store, Callable[[], None]]:
    """Open a store again, whose first segment a dispatcher reads as at an opening; returns what ends that."""
    trusted: list[Trust] = []
    strategies = [hooked(HashIndexDispatcher, "load", trusted.append), *given.pop("strategies", [])]
    store = opened(path, strategies=strategies, **given)
    reading: Any = trusted[0].log.batches(0, SEGMENT)
    next(reading)
    return store, reading.close
