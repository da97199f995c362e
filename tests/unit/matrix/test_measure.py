"""What a child process measures."""

import mmap
import os
from pathlib import Path

import pytest

from penstock.matrix.combos import Combo
from penstock.matrix.measure import MeasurePlan, Subject, open_store, own_kib
from penstock.matrix.run import run
from penstock.plugins.registry import load_registry

REGISTRY = load_registry()


PLAIN = Combo("mmap", "on-demand", "async", "follow")


TINY = MeasurePlan(
    body=200, batch=50, sync_threads=2, seconds=0.005, rounds=2, segment_bytes=256 << 10
)


@pytest.mark.slow
@pytest.mark.parametrize("flush", REGISTRY.flush_policies.names())
def test_recycling_recycles_before_it_is_measured(flush: str, tmp_path: Path) -> None:
    settings = {"alloc": "recycle", "flush": flush}
    with open_store(str(tmp_path / "s"), settings, TINY) as store:
        Subject(store, TINY).warm_up()
        assert store.stats()["strategies"]["alloc"]["segments_recycled"] > 0
        assert store.stats()["segments"] <= 4


@pytest.mark.slow
def test_memory_that_belongs_to_no_file_is_counted() -> None:
    data = os.urandom(1 << 20) * 32
    before = own_kib()
    private = mmap.mmap(-1, len(data), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    shared = mmap.mmap(-1, len(data))
    private[:] = shared[:] = data
    grown = own_kib() - before
    private.close()
    shared.close()
    assert 64 << 10 <= grown < 80 << 10


@pytest.mark.slow
def test_a_sync_has_something_to_sync_under_a_policy_that_waits(tmp_path: Path) -> None:
    (found,) = run(tmp_path, [PLAIN._replace(flush="sync")], TINY, settings={})
    assert found.failure is None
    # Without a sync in it, a call takes some microseconds.
    assert all(each["sync_ms_per_mib"] > 0.1 for each in found.rounds)
