"""The queues of a store, each looked at when it is first asked for, and not before."""

from typing import Any

import pytest

from penstock_index.queue_state import Queue
from penstock_index.queue_summary import ClosedQueue
from penstock_index.queue_table import QueueTable

A, B = ("a", 0), ("b", 0)


def queue(end: int = 5) -> Queue:
    """Return a queue without files that was looked at."""

    class NoFiles:
        bases: tuple[int, ...] = ()

    folder: Any = NoFiles()
    made = Queue(folder, folder, 0, end)
    made.reached = -1
    return made


@pytest.fixture
def looked() -> list[tuple[str, int]]:
    return []


@pytest.fixture
def table(looked: list[tuple[str, int]]) -> QueueTable:
    made = QueueTable()

    def look(key: tuple[str, int], known: ClosedQueue) -> Queue:
        looked.append(key)
        return queue()

    made.add_unopened(look, {A: ClosedQueue((0, 10), 0, 15, 7), B: ClosedQueue((0,))})
    return made


def test_keys_are_listed_without_a_look(table: QueueTable, looked: list[tuple[str, int]]) -> None:
    assert (sorted(table), len(table), A in table, ("c", 0) in table) == ([A, B], 2, True, False)
    assert table.unopened(A) == ClosedQueue((0, 10), 0, 15, 7)
    assert list(table.opened()) == []
    assert looked == []


def test_a_queue_is_looked_at_once(table: QueueTable, looked: list[tuple[str, int]]) -> None:
    found = table[A]
    assert table.get(A) is found
    assert (looked, table.unopened(A)) == ([A], None)
    assert list(table.opened()) == [found]
    assert table.get(("c", 0)) is None
    with pytest.raises(KeyError):
        table["c", 0]


def test_one_that_cannot_be_looked_at_stays_unknown() -> None:
    table = QueueTable()

    def fails(key: tuple[str, int], known: ClosedQueue) -> Queue:
        raise OSError("no")

    table.add_unopened(fails, [(A, ClosedQueue((0,)))])
    for _ in range(2):
        with pytest.raises(OSError, match="no"):
            table[A]
    assert table.unopened(A) == ClosedQueue((0,))


def test_queues_of_many_files_are_looked_at_for_trimming(
    table: QueueTable, looked: list[tuple[str, int]]
) -> None:
    assert len(list(table.opened_or_with_files(2))) == 1
    assert looked == [A]


def test_what_was_noted_counts_only_while_the_log_begins_where_it_did(table: QueueTable) -> None:
    table[B] = queue(0)
    assert dict(table.known(has_moved=False)) == {A: ClosedQueue((0, 10), 0, 15, 7), B: ClosedQueue((), 0, 0, -1)}  # fmt: skip
    assert dict(table.known(has_moved=True))[A] == ClosedQueue((0, 10))
