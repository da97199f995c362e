"""Whatever strategies are picked, the files are the same: log, queues, index and offsets, byte for byte."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from tests.matrix.combos import ALLOWED, REFUSED, REGISTRY, name_of, settings_of

import penstock
from penstock.errors import ConflictError
from penstock.testing import InlineWorkers, ManualClock, messages, open_store
from penstock_tools.matrix.report import Combo

SEGMENT = 64 * 1024


def digests(root: Path) -> dict[str, str]:
    """Return a digest of each file that is RocketMQ's."""
    found = {}
    for folder in ("commitlog", "consumequeue", "consumequeue_ext", "index", "config"):
        for path in sorted((root / folder).rglob("*")):
            if path.is_file():
                data = path.read_bytes()
                found[str(path.relative_to(root))] = hashlib.sha256(data).hexdigest()[:16]
    return found


def play(root: Path, combo: Combo, **more: Any) -> dict[str, str]:
    """Singles, batches, rolls, retention while a reader goes on, a clean close."""
    workers, clock = InlineWorkers(), ManualClock()
    sent = messages(1000)
    chosen = {**settings_of(combo), **more}
    store = open_store(root, clock=clock, spawn=workers, **chosen)
    with store:
        for start in range(0, 1000, 100):
            clock.now_ms += 1000
            for one in sent[start : start + 20]:
                store.put(
                    one.topic, one.body, queue=one.queue, tag=one.tag, keys=one.keys,
                    properties=one.properties,
                )  # fmt: skip
            store.put_many(sent[start + 20 : start + 100])
            workers.run_all()
            reader = store.scan("topic-1")
            before = next(reader)
            store.flush()
            if start >= 600:
                end = store.stats()["log_end_offset"]
                store.discard_before(log_offset=end - SEGMENT)
            assert before.body
            seen = {m.body for m in store.scan("topic-0")} | {m.body for m in store.scan("topic-1")}
            assert {one.body for one in sent[start : start + 100]} <= seen
            assert sum(1 for _ in reader) > 0
        store.commit_offset("g", "topic-0", 0, offset=7)
        assert not list(store.verify())
    return digests(root)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what the plainest combination leaves."""
    plain = Combo("mmap", "on-demand", "async")
    return play(tmp_path_factory.mktemp("plain") / "s", plain)


@pytest.mark.parametrize("combo", ALLOWED, ids=name_of)
def test_every_combination_leaves_the_same_files(
    combo: Combo, expected: dict[str, str], tmp_path: Path
) -> None:
    assert play(tmp_path / "s", combo) == expected
    assert len([name for name in expected if name.startswith("commitlog")]) >= 2


INDEXES: dict[str, dict[str, Any]] = {
    "queues": {"index": ["consume-queue"]},
    "queues first": {"index": ["consume-queue", "hash-index"]},
    "keys first": {"index": ["hash-index", "consume-queue"]},
}
RETENTION: dict[str, dict[str, Any]] = {
    "nothing": {"retention": []},
    "age": {"retention": ["age"], "retention.age.reserved_hours": 1e5, "retention.age.delete_when": "*"},
    "size": {"retention": ["size"], "retention.size.bytes_max": 5 * SEGMENT},
    "all": {"retention": ["age", "size", "disk-ratio"], "retention.disk-ratio.early_percent": 100,
            "retention.disk-ratio.forced_percent": 100, "retention.disk-ratio.refuse_percent": 100},
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("retention", RETENTION)
@pytest.mark.parametrize("index", INDEXES)
def test_index_and_retention_meet_the_allocator(index: str, retention: str, tmp_path: Path) -> None:
    """For each index and retention, allocators still leave the same files."""
    more = {**INDEXES[index], **RETENTION[retention], "retention.pause_ms": 0}
    left = [
        play(tmp_path / alloc, Combo("file", alloc, "sync"), **more)
        for alloc in ("on-demand", "recycle")
    ]
    assert all(each == left[0] for each in left)
    assert any(name.startswith("index/") for name in left[0]) == (index != "queues")


@pytest.mark.parametrize("combo", REFUSED, ids=name_of)
def test_what_makes_no_sense_is_refused_with_the_reason(combo: Combo, tmp_path: Path) -> None:
    with pytest.raises(ConflictError, match=f"{combo.write}|{combo.alloc}|{combo.flush}") as caught:
        penstock.open(tmp_path / "s", environ={}, **settings_of(combo))
    assert caught.value.reason == combo.conflict(REGISTRY)
    assert not (tmp_path / "s").exists(), "refused before anything is made"
