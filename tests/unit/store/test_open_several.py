"""Several stores opened with one look at the plugins."""

import random
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import QueueSpan
from penstock.errors import ConfigError
from penstock.store.open_several import open_several
from penstock.testing import ManualWorkers, SimulatedDisk, open_store

SMALL: dict[str, Any] = {
    "geometry.segment_bytes": 16384,
    "geometry.queue_entries": 50,
    "flush": "sync",
}


COLUMNS = ["topic", "queue", "queue_offset", "log_offset", "body"]


def fill(root: Path, count: int = 400, seed: int = 1) -> list[tuple[Any, ...]]:
    chance = random.Random(seed)
    sent = []
    with penstock.open(root, environ={}, **SMALL) as store:
        for _ in range(count):
            topic, queue = chance.choice(["a", "bb", "ccc"]), chance.randrange(3)
            body = chance.randbytes(chance.randrange(300))
            receipt = store.put(topic, body, queue=queue)
            sent.append((topic, queue, receipt.queue_offset, receipt.log_offset, body))
    return sent


def spans_of(store: penstock.Store) -> list[QueueSpan]:
    return [QueueSpan(b.topic, b.queue, b.min_offset, b.max_offset) for b in store.bounds()]


def read(store: penstock.Store, spans: list[QueueSpan], **more: Any) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for batch in store.arrow_spans(spans, COLUMNS, **more):
        assert batch.num_rows <= more.get("rows", 1 << 20)
        found += [tuple(row.values()) for row in batch.to_pylist()]
    return found


def test_several_stores_are_opened_with_one_look(tmp_path: Path) -> None:
    fill(tmp_path / "a", 10)
    fill(tmp_path / "b", 20)
    open_one = penstock.open_several(environ={})
    counts = []
    for name in ("a", "b"):
        with open_one(tmp_path / name) as store:
            assert store.read_only
            counts.append(len(read(store, spans_of(store))))
    assert counts == [10, 20]
    with open_one(str(tmp_path / "a")) as store, pytest.raises(ConfigError, match="no column"):
        store.arrow_spans([], ["nope"])


def test_each_path_is_opened_for_reading_with_one_configuration() -> None:
    disk = SimulatedDisk()
    for name in ("/a", "/b"):
        with open_store(Path(name), files=disk, spawn=ManualWorkers(), retention=[]) as store:
            store.put("t", name.encode())
    opened = open_several(files=disk, environ={})
    for name in ("/a", "/b"):
        with opened(name) as reader:
            assert reader.read("t").messages[0].body == name.encode()
            assert reader.recovery is None
