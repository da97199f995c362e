"""A tenth of the combinations, and recycling above all, opened by the real Java store, also after SIGKILL."""

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from tests.interop.compare import same
from tests.interop.javastore import SMALL_GEOMETRY, JavaStore
from tests.matrix.combos import TENTH, name_of, settings_of

import penstock
from penstock.store.store import Store
from penstock.testing import messages
from penstock_tools.matrix.report import Combo

RECYCLING = [
    Combo("mmap", "recycle", "async"),
    Combo("file", "recycle", "sync"),
]


def open_here(root: Path, combo: Combo) -> Store:
    chosen: dict[str, Any] = {**SMALL_GEOMETRY, **settings_of(combo)}
    return penstock.open(root, environ={}, **chosen)


def fill(store: Store, first: int = 0) -> None:
    """Put over many rolls, letting old segments go, so that recycled ones come into use."""
    for start in range(first, first + 3000, 100):
        store.put_many(messages(100, first=start, body_bytes=300))
        store.flush()
        store.topics()
        store.discard_before(log_offset=store.stats()["log_end_offset"] - 3 * 65536)


@pytest.mark.parametrize("combo", [*TENTH, *RECYCLING], ids=name_of)
def test_java_opens_what_any_combination_wrote(
    combo: Combo, java: JavaStore, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    with open_here(root, combo) as store:
        fill(store)
        if combo.alloc == "recycle":
            assert store.stats()["strategies"]["alloc"]["segments_recycled"] > 0
    assert java.open(root)
    dumped = java.dump()
    assert java.call("state")["behind"] == 0
    with penstock.open(root, read_only=True) as store:
        assert same(store, dumped) > 100


def fill_until_killed(root: Path, combo: Combo, told: Connection) -> None:
    store = open_here(root, combo)
    first = 0
    while True:
        fill(store, first)
        first += 3000
        told.send(store.stats()["strategies"]["alloc"].get("segments_recycled", 1))


@pytest.mark.parametrize("combo", RECYCLING, ids=name_of)
def test_java_sees_no_old_record_in_a_recycled_segment_after_a_kill(
    combo: Combo, java: JavaStore, tmp_path: Path
) -> None:
    """Java does not compare the stored log offset: bytes of an old record would come back there."""
    root = tmp_path / "store"
    spawner = multiprocessing.get_context("forkserver")
    listen, tell = spawner.Pipe(duplex=False)
    process = spawner.Process(target=fill_until_killed, args=(root, combo, tell))
    process.start()
    assert listen.poll(120)
    assert listen.recv() > 0, "nothing was recycled"
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert java.open(root)
    dumped = java.dump()
    java.close()
    with open_here(root, combo) as store:
        assert same(store, dumped) > 100
        assert not list(store.verify())
