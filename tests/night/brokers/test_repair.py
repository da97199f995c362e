"""The real Java store opens what Penstock repaired, and sees the same messages by queue and by key."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.interop.compare import same, shown_by_java
from tests.interop.javastore import SMALL_GEOMETRY, JavaStore
from tests.interop.test_interop import KEYS, java_messages, open_here, our_messages, same_by_key

import penstock
from penstock.testing import ManualWorkers
from penstock_tools.repairs.repair import RepairReport

COUNT = 700
SIZES: dict[str, Any] = SMALL_GEOMETRY
Dump = dict[tuple[str, int], dict[str, Any]]


def repair(root: Path, **how: Any) -> RepairReport:
    return penstock.repair(root, environ={}, apply=True, **{**SMALL_GEOMETRY, **how})


def written_by_java(root: Path, java: JavaStore) -> Dump:
    assert java.open(root)
    java.put(*java_messages(COUNT))
    dumped = java.dump()
    java.close()
    return dumped


def shown(dumped: Dump) -> dict[tuple[str, int], list[Any]]:
    return {key: [shown_by_java(m) for m in queue["messages"]] for key, queue in dumped.items()}


def spoil(path: Path, position: int, data: bytes = b"\xa5\x5a") -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def some_queue_file(root: Path) -> Path:
    return sorted((root / "consumequeue" / "topic0").glob("0/0*"))[0]


@pytest.mark.parametrize("lost", ["queues and index", "a queue file", "marks", "index"])
def test_java_finds_all_in_its_own_store_made_whole(
    lost: str, java: JavaStore, java2: JavaStore, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    before = written_by_java(root, java)
    if lost == "queues and index":
        shutil.rmtree(root / "consumequeue")
        shutil.rmtree(root / "index")
    elif lost == "a queue file":
        spoil(some_queue_file(root), 20 * 9 + 5)
    elif lost == "marks":
        (root / "checkpoint").unlink()
    else:
        for file in (root / "index").iterdir():
            spoil(file, 60, b"\xff" * 300)
    done = repair(root)
    assert done.applied
    assert not done.standing
    assert java2.open(root)
    assert shown(java2.dump()) == shown(before)
    with penstock.open(root, read_only=True, environ={}, **SIZES) as store:
        same_by_key(store, java2, KEYS)
    java2.put(*java_messages(20, COUNT))
    java2.close()
    with open_here(root) as store:
        assert sum(1 for t in store.topics(system=True) for _ in store.scan(t)) > 0
        assert not list(store.verify())


def test_what_java_appended_to_ours_is_still_there_after_a_repair(
    java: JavaStore, java2: JavaStore, tmp_path: Path
) -> None:
    """Our records end in a CRC of the whole record and Java's do not; a repair wrote last, but not them."""
    root = tmp_path / "store"
    with open_here(root, **{"log.checksum": "crc32+record"}) as store:
        store.put_many(our_messages(200))
    before = written_by_java(root, java)
    for file in (root / "index").iterdir():
        spoil(file, 60, b"\xff" * 300)
    assert repair(root).applied
    for read_only in (True, False):
        with open_here(root, read_only=read_only) as store:
            same(store, before)
            assert not list(store.verify(deep=True))
    assert java2.open(root)
    assert shown(java2.dump()) == shown(before)
    java2.close()


def test_java_loses_nothing_by_a_repair_around_damage(
    java: JavaStore, java2: JavaStore, tmp_path: Path
) -> None:
    """A record with a broken body keeps its queue entry: RocketMQ reads it without a check, before and after."""
    root = tmp_path / "store"
    before = written_by_java(root, java)
    segment = sorted((root / "commitlog").iterdir())[0]
    victim = next(
        m for m in before["topic0", 0]["messages"] if m["size"] > 250 and m["log_offset"] > 5000
    )
    spoil(segment, victim["log_offset"] + 100)
    spoil(some_queue_file(root), 20 * 9 + 5)
    done = repair(root)
    assert [f.log_offset for f in done.standing] == [victim["log_offset"]]
    assert java2.open(root)
    after = shown(java2.dump())
    java2.close()
    for key, messages in shown(before).items():
        others = [m for m in messages if m["log_offset"] != victim["log_offset"]]
        assert [m for m in after[key] if m["log_offset"] != victim["log_offset"]] == others
        assert len(after[key]) == len(messages), "the damaged one is still handed out too"


@pytest.mark.parametrize("cut", [True, False])
def test_java_opens_what_was_cut_or_turned_back(cut: bool, java: JavaStore, tmp_path: Path) -> None:
    root = tmp_path / "store"
    workers = ManualWorkers()
    with open_here(root, spawn=workers) as store:
        store.put_many(our_messages(3 * COUNT))
        store.flush()
        while workers.run("penstock-seal") is not None:
            pass
    segment = sorted((root / "commitlog").iterdir())[1]
    spoil(
        segment,
        90 if cut else 26,
        b"\xa5\x5a\x77" if cut else bytes([segment.read_bytes()[26] ^ 8]),
    )
    done = repair(root, cut=cut)
    assert {step.action for step in done.steps} >= ({"cut"} if cut else {"turn-back"})
    assert not done.standing
    assert java.open(root)
    dumped = java.dump()
    with penstock.open(root, read_only=True, environ={}, **SIZES) as store:
        assert same(store, dumped) > 0
        same_by_key(store, java, KEYS)
    java.put(*java_messages(20, COUNT))
    java.close()
    with penstock.open(root, read_only=True, environ={}, **SIZES) as store:
        assert not list(store.verify(deep=True))
    left = sum(len(queue["messages"]) for queue in dumped.values())
    assert (0 < left < 3 * COUNT) if cut else left == 3 * COUNT
