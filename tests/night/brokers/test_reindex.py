"""The real Java store opens what a reindex made, in its own directory and in ours, and sees the same."""

import shutil
from pathlib import Path

import pytest
from tests.interop.compare import queue_files, same
from tests.interop.javastore import JavaStore
from tests.interop.test_interop import KEYS, java_messages, open_here, our_messages, same_by_key
from tests.night.brokers.test_repair import COUNT, SIZES, shown, written_by_java

import penstock
from penstock_tools.segmentwise import start_reindex


def reindex(root: Path) -> None:
    with start_reindex(root, shards=3, settings=SIZES) as work:
        stretches = [work.task.condense(base) for base in work.bases]
        done = work.finish(stretches, {part: work.task.make(part) for part in work.parts})
    assert not done.damages


@pytest.mark.parametrize("lost", ["nothing", "queues and index"])
def test_java_finds_all_in_its_own_store(
    lost: str, java: JavaStore, java2: JavaStore, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    before = written_by_java(root, java)
    queues = queue_files(root)
    if lost != "nothing":
        shutil.rmtree(root / "consumequeue")
        shutil.rmtree(root / "index")
    reindex(root)
    assert queue_files(root) == queues, "byte for byte what Java's dispatching made"
    assert java2.open(root)
    assert shown(java2.dump()) == shown(before)
    with penstock.open(root, read_only=True, environ={}, **SIZES) as store:
        same_by_key(store, java2, KEYS)
    java2.put(*java_messages(20, COUNT))
    java2.close()
    with open_here(root) as store:
        assert not list(store.verify())


def test_java_opens_ours(java: JavaStore, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with open_here(root) as store:
        store.put_many(our_messages(COUNT))
    reindex(root)
    assert java.open(root)
    with penstock.open(root, read_only=True, environ={}, **SIZES) as store:
        assert same(store, java.dump()) == COUNT
        same_by_key(store, java, KEYS)
    java.close()
