"""While a segment goes: what a caller finds missing lies below the bounds that it asks for afterwards."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import OffsetError, PenstockError
from penstock.message import Message
from penstock.store.store import Store
from penstock.testing import ManualWorkers, open_store

SEGMENT = 64 * 1024
ALL: dict[str, Any] = {"retention": [], "retention.pause_ms": 0}
COUNT = 300


def filled(path: Path, **more: Any) -> Store:
    """A store of some segments, one queue, each message with a key of its own."""
    store = open_store(path, spawn=ManualWorkers(), **{**ALL, **more})
    store.put_many([Message("t", b"%d:" % n + b"x" * 900, keys=[f"k{n}"]) for n in range(COUNT)])
    store.flush()
    assert len(store._log.segments) > 4
    return store


def by_find(store: Store, ordinal: int, _at: int) -> bool:
    return bool(store.find("t", f"k{ordinal}"))


def by_read(store: Store, ordinal: int, _at: int) -> bool:
    return [m.queue_offset for m in store.read("t", 0, ordinal, 1).messages] == [ordinal]


def by_read_many(store: Store, ordinal: int, _at: int) -> bool:
    """So many that they are read together."""
    return any(m.queue_offset == ordinal for m in store.read("t", 0, ordinal, 64).messages)


def by_scan(store: Store, ordinal: int, _at: int) -> bool:
    return next(store.scan("t", 0, start=ordinal)).queue_offset == ordinal


def by_scan_of_all(store: Store, ordinal: int, _at: int) -> bool:
    return any(m.queue_offset == ordinal for m in store.scan("t"))


def by_at(store: Store, _ordinal: int, at: int) -> bool:
    return served(lambda: store.at(at))


def by_get(store: Store, ordinal: int, at: int) -> bool:
    host = bytes.fromhex("7f00000100002a9f")
    return served(lambda: store.get((host + at.to_bytes(8, "big")).hex())) or ordinal < 0


def by_arrow(store: Store, ordinal: int, _at: int) -> bool:
    try:
        table = store.to_arrow("t", 0, ordinal, ordinal + 1, columns=["queue_offset"])
    except PenstockError:
        return False
    return bool(table.num_rows)


def served(reading: Callable[[], object]) -> bool:
    try:
        reading()
    except OffsetError:
        return False
    return True


WAYS = [by_find, by_read, by_read_many, by_scan, by_scan_of_all, by_at, by_get, by_arrow]


class Steps:
    """Looks at every message of the leaving segment before and after each step of its leaving."""

    def __init__(self, store: Store, way: Callable[[Store, int, int], bool]) -> None:
        self._store, self._way = store, way
        self._places = [(m.queue_offset, m.log_offset) for m in store.scan("t", 0)]
        self.served = self.refused = 0

    def look(self) -> None:
        store, way = self._store, self._way
        for ordinal, at in self._places[:: len(self._places) // 6]:
            is_served = way(store, ordinal, at)
            low, log_low = store.min_offset("t", 0), store.stats()["log_min_offset"]
            is_above = at >= log_low if way in (by_at, by_get) else ordinal >= low
            assert is_served or not is_above, f"{way.__name__} misses {ordinal}, the bound is {low}"
            self.served += is_served
            self.refused += not is_served


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_segment_that_a_reader_holds_is_below_the_bound_already(
    way: Callable[[Store, int, int], bool], tmp_path: Path
) -> None:
    """From the first try on no new hold was given, for up to two minutes, and the bound said nothing of it."""
    store = filled(tmp_path / "s")
    steps = Steps(store, way)
    with store._log.lease(0):
        assert store.discard_before(log_offset=2 * SEGMENT) == 0
        steps.look()
        assert store.stats()["log_min_offset"] == SEGMENT
        assert store.min_offset("t", 0) > 0
    assert store.discard_before(log_offset=2 * SEGMENT) == 2
    steps.look()
    assert not list(store.verify())
    store.close()


@pytest.mark.slow
def test_a_crash_while_a_segment_is_held_loses_no_queue_entry(tmp_path: Path) -> None:
    """Queue files go after the segment: its records come back with their entries, or not at all."""
    store = filled(tmp_path / "s", **{"geometry.queue_entries": 10})
    with store._log.lease(0):
        assert store.discard_before(log_offset=2 * SEGMENT) == 0
        assert (tmp_path / "s" / "consumequeue" / "t" / "0" / f"{0:020d}").exists()
    store.close()
    more: dict[str, Any] = {**ALL, "geometry.queue_entries": 10}
    with open_store(tmp_path / "s", spawn=ManualWorkers(), **more) as again:
        assert not list(again.verify())
        assert again.min_offset("t", 0) == 0
        assert next(again.scan("t")).queue_offset == 0


def test_a_queue_whose_bound_cannot_be_moved_holds_up_nobody(tmp_path: Path) -> None:
    store = filled(tmp_path / "s")
    assert store._engine is not None
    queues = store._engine.queue_index
    real, queues.move_min = queues.move_min, lambda _offset: 1 / 0  # type: ignore[assignment, method-assign] # the fault
    assert store.discard_before(log_offset=2 * SEGMENT) == 2
    queues.move_min = real  # type: ignore[method-assign] # as it was
    assert store.min_offset("t", 0) > 0, "trimmed at the end of the round"
    store.close()
