"""Calls that fail for a while, since there is no room, no descriptor or no right: what was promised holds then and later."""

import errno
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.lanes import eventually

import penstock
from penstock.errors import StorageError, TopicPermissionError
from penstock.testing import FaultyFiles, open_store

GIVEN: dict[str, Any] = {"retention": [], "flush": "sync"}


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EACCES])
@pytest.mark.parametrize("name", [
    "penstock/removed-topics", "penstock/ranges", "penstock/geometry.json", "config/consumerOffset.json",
])  # fmt: skip
def test_a_file_that_cannot_be_read_now_is_neither_corrupt_nor_replaced(
    name: str, code: int, tmp_path: Path
) -> None:
    """It was set aside: topics that were deleted came back, and what was acknowledged was delivered again."""
    root, files = tmp_path / "s", FaultyFiles()
    with open_store(root, **GIVEN) as store:
        for topic in ("kept", "gone"):
            store.put(topic, b"x", queue=0)
        store.delete_topic("gone")
        store.commit_offset("g", "kept", 0, offset=1)
    path = root / name
    content = path.read_bytes()
    files.plan.fail("open", code, path=name, times=None)
    with pytest.raises(StorageError, match=f"{name} cannot be read now"):
        open_store(root, files=files, **GIVEN)
    assert path.read_bytes() == content
    assert not [*path.parent.glob(f"{path.name}.*")]
    with open_store(root, **GIVEN) as store:
        assert [*store.topics()] == ["kept"]
        assert store.committed_offset("g", "kept", 0) == 1


def test_a_group_that_was_deleted_in_part_loses_no_refused_message(tmp_path: Path) -> None:
    """What it refused next counted as taken in: it was neither retried nor a dead letter."""
    files = FaultyFiles()
    with penstock.open(tmp_path / "s", environ={}, files=files) as store:
        store.put_many([penstock.Message("t", b"%d" % n, queue=0) for n in range(6)])
        with store.consumer("g", "t") as consumer:
            for message in consumer.poll(limit=3, timeout=30):
                consumer.nack(message, delay=7200)
            eventually(lambda: store.committed_offset("g", "t", 0) == 3)
        files.plan.fail("create", errno.ENOSPC, path="consumerOffset", times=None)
        with pytest.raises(StorageError):
            store.delete_group("g")
        files.plan.heal()
        came: set[bytes] = set()
        with store.consumer("g", "t") as consumer:
            refused = consumer.poll(limit=2, timeout=30)
            consumer.nack(refused, delay=1)

            def have_come() -> bool:
                for message in consumer.poll(limit=10, timeout=0.1):
                    message.ack()
                    came.add(message.body)
                return came >= {message.body for message in refused}

            eventually(have_come, "the refused messages are retried")


def test_offsets_newer_than_the_log_are_set_back_once_there_is_room(tmp_path: Path) -> None:
    """It was tried once: messages put after that were delivered to nobody."""
    root, files = tmp_path / "s", FaultyFiles()
    with open_store(root, **GIVEN) as store:
        for _ in range(9):
            store.put("orders", b"lost", queue=0)
        store.commit_offset("g", "orders", 0, offset=9)
    for path in root.iterdir():
        if path.name != "config":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with open_store(root, files=files, **GIVEN) as store:
        files.plan.fail("create", errno.ENOSPC, times=None)
        with pytest.raises(StorageError):
            store.put("orders", b"no", queue=0)
        files.plan.heal()
        assert store.put("orders", b"new", queue=0).queue_offset == 0
        assert store.committed_offset("g", "orders", 0) == 0


def test_a_topic_that_was_altered_is_so_for_puts_though_a_later_step_finds_no_room(
    tmp_path: Path,
) -> None:
    root, files = tmp_path / "s", FaultyFiles()
    with penstock.open(root, environ={}, files=files) as store:
        store.put("orders", b"x", queue=0)
        eventually((root / "penstock/auto-topics").exists)
        files.plan.fail("create", errno.ENOSPC, path="auto-topics", times=None)
        with pytest.raises(OSError, match="No space"):
            store.alter_topic("orders", perm=4)
        with pytest.raises(TopicPermissionError):
            store.put("orders", b"y", queue=0)
        files.plan.heal()
        store.alter_topic("orders", perm=6)
        assert b"orders" not in (root / "penstock/auto-topics").read_bytes()


def test_locks_of_groups_have_the_mode_of_the_store_too(tmp_path: Path) -> None:
    """Users of one group could not share a consumer group."""
    given: dict[str, Any] = {"files.mode": 0o660}
    with penstock.open(tmp_path / "s", environ={}, **given) as store:
        store.put("t", b"x", queue=0)
        with store.consumer("g", "t") as consumer:
            assert consumer.poll(limit=1, timeout=30)
            locks = [*(tmp_path / "s/penstock/groups").rglob("*lock")]
            assert len(locks) > 1
            assert {stat.S_IMODE(path.stat().st_mode) for path in locks} == {0o660}
