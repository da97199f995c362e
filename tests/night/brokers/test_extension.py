"""Extension files of consume queues (enableConsumeQueueExt): Java's, read and kept, with queues that both write in turns."""

import shutil
from pathlib import Path
from typing import Any

from tests.interop.compare import same
from tests.interop.javastore import SMALL_GEOMETRY, JavaStore, message
from tests.interop.jvms import JavaStores

import penstock
from penstock import Message
from penstock.format.hashes import java_hash
from penstock.message import StoredMessage
from penstock.store.store import Store

FILE_BYTES = 1000
JAVA = {"enableConsumeQueueExt": True, "mappedFileSizeConsumeQueueExt": FILE_BYTES}
TAGS = ("tag0", "tag1", "tag2", "grün")


def open_here(root: Path, **settings: Any) -> Store:
    return penstock.open(root, environ={}, **{**SMALL_GEOMETRY, **settings})


def java_messages(count: int, start: int = 0) -> list[dict[str, object]]:
    return [
        message("t", b"java %d" % n, queue=n % 2, tag=TAGS[n % 4] if n % 5 else "")
        for n in range(start, start + count)
    ]


def our_messages(count: int, start: int = 0) -> list[Message]:
    return [
        Message("t", b"python %d" % n, queue=n % 2, tag=TAGS[n % 4] if n % 5 else "")
        for n in range(start, start + count)
    ]


def files_of(root: Path, *folders: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for name in folders
        for path in sorted((root / name).rglob("*"))
        if path.is_file()
    }


def code_of(stored: StoredMessage) -> int:
    return java_hash(stored.tag) if stored.tag else 0


def check_ours(store: Store) -> int:
    """Assert that filters and tag codes are right on our side; returns how many messages there are."""
    assert not list(store.verify())
    count = 0
    for queue in (0, 1):
        messages = list(store.scan("t", queue=queue))
        found = store.lowlevel.queue_entries("t", queue, 0, len(messages))
        assert found.tag_codes.tolist() == [code_of(m) for m in messages]
        for tag in (*TAGS, "none"):
            expected = [m.body for m in messages if m.tag == tag]
            assert [m.body for m in store.read("t", queue, 0, 10_000, tag).messages] == expected
        count += len(messages)
    return count


def check_java(java: JavaStore, store: Store) -> None:
    """Assert that Java finds the right unit of each entry that has one, and that its filter finds what it should."""
    for queue in (0, 1):
        messages = list(store.scan("t", queue=queue))
        for m, unit in zip(messages, java.units("t", queue), strict=True):
            assert unit in {(code_of(m), m.store_time_ms), (None, None)}
        for tag in (*TAGS, "none"):
            found = [m["queue_offset"] for m in java.filtered("t", queue, tag)]
            assert found == [m.queue_offset for m in messages if m.tag == tag], tag


def test_java_writes_and_penstock_filters(java: JavaStore, tmp_path: Path) -> None:
    root = tmp_path / "store"
    assert java.open(root, JAVA)
    java.put(*java_messages(400))
    with penstock.open(root, read_only=True) as live:
        assert check_ours(live) == 400, "also while the broker has it open"
        check_java(java, live)
    java.close()
    before = files_of(root, "consumequeue", "consumequeue_ext")
    with open_here(root) as store:
        assert check_ours(store) == 400
    assert files_of(root, "consumequeue", "consumequeue_ext") == before


def test_turns_on_one_directory(version: str, javas: JavaStores, tmp_path: Path) -> None:
    root = tmp_path / "store"
    for turn in range(3):
        with open_here(root) as store:
            store.put_many(our_messages(130, turn * 1000))
            assert check_ours(store) == turn * 280 + 130
        with javas.take(version) as java:
            assert java.open(root, JAVA), f"turn {turn}"
            java.put(*java_messages(150, turn * 1000 + 500))
            with penstock.open(root, read_only=True) as store:
                check_java(java, store)
            java.close()
    with open_here(root) as store:
        assert check_ours(store) == 840


def test_a_killed_java_store_keeps_its_units(
    java: JavaStore, java2: JavaStore, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    assert java.open(root, JAVA)
    java.put(*java_messages(300))
    java.kill()
    units = files_of(root, "consumequeue_ext")
    with open_here(root) as store:
        assert store.recovery is not None
        assert store.recovery.state == "foreign"
        assert check_ours(store) == 300
        store.put_many(our_messages(60))
        assert check_ours(store) == 360
    assert files_of(root, "consumequeue_ext") == units
    assert java2.open(root, JAVA)
    with penstock.open(root, read_only=True) as store:
        assert same(store, java2.dump()) == 360
        check_java(java2, store)


def test_java_goes_on_where_units_were_lost(
    java: JavaStore, java2: JavaStore, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    assert java.open(root, JAVA)
    java.put(*java_messages(400))
    java.kill()
    shutil.rmtree(root / "consumequeue_ext/t/1")
    with open_here(root) as store:
        assert check_ours(store) == 400
    assert java2.open(root, JAVA)
    java2.put(*java_messages(50, 400))
    with penstock.open(root, read_only=True) as store:
        assert check_ours(store) == 450
        check_java(java2, store)
