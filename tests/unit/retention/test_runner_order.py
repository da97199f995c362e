"""While a segment goes: what a caller finds missing lies below the bounds that it asks for afterwards."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.hooked import hooked
from tests.unit.retention.stores import SEGMENT, boom, opened_and_held

from penstock.errors import OffsetError, PenstockError
from penstock.message import Message, StoredMessage
from penstock.store.store import Store
from penstock.testing import ManualWorkers, open_store
from penstock_index.consume_queue import ConsumeQueueDispatcher

ALL: dict[str, Any] = {"retention": [], "retention.pause_ms": 0}
COUNT = 300


def filled(path: Path, **more: Any) -> Store:
    """A store of some segments, one queue, each message with a key of its own."""
    store = open_store(path, spawn=ManualWorkers(), **{**ALL, **more})
    store.put_many(
        [Message("t", b"%d:" % n + b"x" * 900, queue=0, keys=[f"k{n}"]) for n in range(COUNT)]
    )
    store.flush()
    assert store.stats()["segments"] > 4
    return store


def served(reading: Callable[[], object]) -> bool:
    """Return whether something is read, rather than nothing or an error that says that it is gone."""
    try:
        return bool(reading())
    except OffsetError:
        return False


def rows(store: Store, ordinal: int) -> int:
    try:
        table = store.to_arrow(
            "t", queue=0, start=ordinal, stop=ordinal + 1, columns=["queue_offset"]
        )
    except PenstockError:
        return 0
    return int(table.num_rows)


def has(messages: Iterable[StoredMessage], ordinal: int) -> bool:
    return any(message.queue_offset == ordinal for message in messages)


HOST = "7f00000100002a9f"
# Whether a way of reading serves a message, by its queue offset and log offset.
WAYS: dict[str, Callable[[Store, int, int], bool]] = {
    "find": lambda store, ordinal, _: bool(store.find(f"k{ordinal}", "t")),
    "read": lambda store, ordinal, _: has(store.read("t", 0, ordinal, 1).messages, ordinal),
    "read-many": lambda store, ordinal, _: has(store.read("t", 0, ordinal, 64).messages, ordinal),
    "scan": lambda store, ordinal, _: has([next(store.scan("t", queue=0, start=ordinal))], ordinal),
    "scan-all": lambda store, ordinal, _: has(store.scan("t"), ordinal),
    "at": lambda store, _, at: served(lambda: store.at(at)),
    "get": lambda store, _, at: served(lambda: store.get(f"{HOST}{at:016x}")),
    "arrow": lambda store, ordinal, _: bool(rows(store, ordinal)),
}


class Steps:
    """Looks at every message of the leaving segment before and after each step of its leaving."""

    def __init__(self, store: Store, way: str) -> None:
        self._store, self._way = store, way
        self._places = [(m.queue_offset, m.log_offset) for m in store.scan("t", queue=0)]
        self.served = self.refused = 0

    def look(self) -> None:
        store, way = self._store, self._way
        for ordinal, at in self._places[:: len(self._places) // 6]:
            is_served = WAYS[way](store, ordinal, at)
            low, log_low = store.min_offset("t", 0), store.stats()["log_min_offset"]
            is_above = at >= log_low if way in ("at", "get") else ordinal >= low
            assert is_served or not is_above, f"{way} misses {ordinal}, the bound is {low}"
            self.served += is_served
            self.refused += not is_served


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_segment_that_a_reader_holds_is_below_the_bound_already(way: str, tmp_path: Path) -> None:
    """From the first try on no new hold was given, for up to two minutes, and the bound said nothing of it."""
    filled(tmp_path / "s").close()
    store, release = opened_and_held(tmp_path / "s", **ALL)
    steps = Steps(store, way)
    assert store.discard_before(log_offset=2 * SEGMENT) == 0
    steps.look()
    assert store.stats()["log_min_offset"] == SEGMENT
    assert store.min_offset("t", 0) > 0
    release()
    assert store.discard_before(log_offset=2 * SEGMENT) == 2
    steps.look()
    assert not list(store.verify())
    store.close()


@pytest.mark.slow
def test_a_crash_while_a_segment_is_held_loses_no_queue_entry(tmp_path: Path) -> None:
    """Queue files go after the segment: its records come back with their entries, or not at all."""
    more: dict[str, Any] = {**ALL, "geometry.queue_entries": 10}
    filled(tmp_path / "s", **more).close()
    store, release = opened_and_held(tmp_path / "s", **more)
    assert store.discard_before(log_offset=2 * SEGMENT) == 0
    assert (tmp_path / "s" / "consumequeue" / "t" / "0" / f"{0:020d}").exists()
    release()
    store.close()
    with open_store(tmp_path / "s", spawn=ManualWorkers(), **more) as again:
        assert not list(again.verify())
        assert again.min_offset("t", 0) == 0
        assert next(again.scan("t")).queue_offset == 0


def test_a_queue_whose_bound_cannot_be_moved_holds_up_nobody(tmp_path: Path) -> None:
    queues = hooked(ConsumeQueueDispatcher, "move_min", boom)
    with filled(tmp_path / "s", strategies=[queues]) as store:
        assert store.discard_before(log_offset=2 * SEGMENT) == 2
        assert store.min_offset("t", 0) > 0, "trimmed at the end of the round"
