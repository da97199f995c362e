"""A queue counts only what is in the log: whatever is refused on the way in leaves no gap, by every way in."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.contracts.test_optional_methods import ROWS, OneQueue

from penstock import Message
from penstock.errors import (
    DiskFullError,
    MessageError,
    MessageTooLargeError,
    PluginError,
    StorageError,
    SystemLimitError,
)
from penstock.log.commit_log import BatchSlice, LogTail
from penstock.store.queue_cursors import make_cursor
from penstock.store.store import Store
from penstock.testing import FaultyFiles, ManualWorkers, open_store

Put = Callable[[Store, list[Message]], Any]


QUEUES = (0, 1, 0)


def one(store: Store, messages: list[Message]) -> Any:
    return store.put(messages[0].topic, messages[0].body, queue=0, flag=messages[0].flag)


def many(store: Store, messages: list[Message]) -> Any:
    return store.put_many(messages)


def atomic(store: Store, messages: list[Message]) -> Any:
    return store.put_many(messages, atomic=True)


def arrow(store: Store, messages: list[Message]) -> Any:
    return store.put_arrow(pa.table({
        "topic": [m.topic for m in messages], "queue": pa.array([m.queue for m in messages], pa.int32()),
        "body": [m.body for m in messages],
    }))  # fmt: skip


def batch(count: int, size: int = 100) -> list[Message]:
    return [Message("t", bytes(size), queue=QUEUES[n % 3]) for n in range(count)]


WAYS: dict[str, tuple[Put, int]] = {
    "one": (one, 1),
    "a few": (many, 3),
    "as many as are few": (many, 48),
    "many": (many, 100),
    "a few, atomic": (atomic, 3),
    "many, atomic": (atomic, 100),
    "columns": (arrow, 3),
    "many columns": (arrow, 600),
}


def check_nothing_counted(store: Store) -> None:
    """The next messages get the offsets that those refused would have had."""
    assert [store.put("t", b"next", queue=queue).queue_offset for queue in (0, 1)] == [1, 1]
    assert [r.queue_offset for r in store.put_many(batch(3))] == [2, 2, 3]
    assert (store.max_offset("t", 0), store.max_offset("t", 1)) == (4, 3)
    assert not list(store.verify())


def with_first_messages(path: Path, files: FaultyFiles | None = None, **chosen: Any) -> Store:
    """Open a store with a message in each of two queues."""
    given = {"files": files, "spawn": ManualWorkers(), "alloc": "on-demand", **chosen}
    store = open_store(path, **given)
    for queue in (0, 1):
        store.put("t", b"first", queue=queue)
    return store


@pytest.mark.parametrize("way", WAYS)
def test_nothing_counts_that_a_full_disk_refused(way: str, tmp_path: Path) -> None:
    put, count = WAYS[way]
    files = FaultyFiles()
    chosen: dict[str, Any] = {"write": "file"}
    with with_first_messages(tmp_path / "s", files, **chosen) as store:
        files.plan.fail("pwrite", errno.ENOSPC, path="commitlog", times=1)
        with pytest.raises(DiskFullError):
            put(store, batch(count))
        files.plan.heal()
        check_nothing_counted(store)


@pytest.mark.parametrize("way", WAYS)
def test_nothing_counts_of_a_batch_whose_last_message_is_refused(way: str, tmp_path: Path) -> None:
    put, count = WAYS[way]
    with with_first_messages(tmp_path / "s") as store:
        with pytest.raises(MessageTooLargeError):
            put(store, [*batch(count - 1), Message("t", bytes(70_000), queue=0)])
        if "columns" not in way:
            with pytest.raises(MessageError):
                put(store, [*batch(count - 1), Message("t", b"x", queue=0, flag=1 << 40)])
        check_nothing_counted(store)


class Cursed(list[BatchSlice]):
    """A plan that cannot be used the first time it is looked at."""

    is_cursed = True

    def __iter__(self) -> Iterator[BatchSlice]:
        if self.is_cursed:
            self.is_cursed = False
            raise ZeroDivisionError
        return super().__iter__()


@pytest.mark.parametrize("way", ["many", "many, atomic", "many columns"])
def test_segments_made_for_a_batch_that_is_refused_are_gone(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were made, and then its stamps could not be written: a file left behind would be a hole in the log."""
    put, count = WAYS[way]
    with with_first_messages(tmp_path / "s") as store:
        store.put("u", bytes(20_000), queue=0)
        with monkeypatch.context() as patch:
            # Between planning and stamping nothing of a caller or of a plugin runs that could fail.
            plan = LogTail.plan
            patch.setattr(LogTail, "plan", lambda *given, **more: Cursed(plan(*given, **more)))
            with pytest.raises(ZeroDivisionError):
                put(store, batch(count, 500))
        assert [path.name for path in (tmp_path / "s" / "commitlog").iterdir()] == [f"{0:020d}"]
        store.put_many([Message("u", bytes(500), queue=0) for _ in range(100)])
        check_nothing_counted(store)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (-1, PluginError), (1 << 63, PluginError), ("7", PluginError), (None, PluginError),
        (OSError(errno.EMFILE, "limit"), SystemLimitError), (OSError(errno.EIO, "disk"), StorageError),
    ],
)  # fmt: skip
def test_a_queue_goes_on_where_its_index_says_and_nowhere_if_that_is_not_known(
    tmp_path: Path, answer: Any, error: type[Exception]
) -> None:
    assert make_cursor(OneQueue(tmp_path / "right", ROWS[:7]), "t", 0).next_offset == 7

    class Wrong(OneQueue):
        def max_offset(self, topic: str, queue: int) -> int:
            if isinstance(answer, Exception):
                raise answer
            return answer  # type: ignore[no-any-return] # that is the question

    with pytest.raises(error, match=r"t/0|limit"):
        make_cursor(Wrong(tmp_path, ROWS), "t", 0)
