"""Which decisions have their messages in the log."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from penstock import Message
from penstock.format.arrays import np
from penstock.log.atomic_batches import batch_marks
from penstock.log.decided import decided_batches
from penstock.testing import open_store


def test_the_decisions_of_batches_are_found_from_a_log_offset_on(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        assert store.decided_batches(0) == set()
        ends = [0]
        for decision in (5, (1 << 40) + 6, 7):
            batch = store.message_batch()
            batch.add_many([Message("t", b"1"), Message("t", b"2")])
            ends.append(batch.append(decision=decision)[1].log_offset)
            store.put("t", b"between")
        batch = store.message_batch()
        batch.add(Message("t", b"of no decision"))
        batch.append()
        store.put_many([Message("t", b"1"), Message("t", b"2")], atomic=True)
        assert store.decided_batches(0) == {5, 6, 7}
        assert store._engine is not None
        last = store.flush()
        assert decided_batches(store._engine.log, last) == set()
        assert store.decided_batches(ends[1]) == {6, 7}, "from within the first one"


class Written:
    """A log of records of 100 bytes with these marks, from log offset 1000 on, where a segment begins."""

    def __init__(self, marks: list[int]) -> None:
        count = len(marks)
        self.end_offset = 1000 + 100 * count
        self.log = SimpleNamespace(
            min_offset=1000, find=lambda _: SimpleNamespace(base_offset=1000)
        )
        self._columns = SimpleNamespace(
            prepared_offsets=np.array(marks, np.int64),
            log_offsets=np.arange(1000, self.end_offset, 100),
            sizes=np.full(count, 100),
        )

    def batches(self, _start: int, _stop: int) -> list[SimpleNamespace]:
        """Return all records as one batch."""
        return [SimpleNamespace(columns=self._columns)]


def decided(*marks: int) -> set[int]:
    """Return the decisions of a log with these marks."""
    log: Any = Written(list(marks))
    return decided_batches(log, 0)


def test_a_part_of_a_batch_decides_nothing() -> None:
    """Another program has kept the first records of a batch, and written on."""
    first, other = batch_marks(0, 300, 5)
    assert decided(first, other, other) == {5}
    alone, _ = batch_marks(300, 400, 6)
    assert decided(first, other, other, alone, 0) == {5, 6}
    for part in (
        (first, other, 0, other),
        (first, 0, other, other),
        (first, first, other),
        (first, other),
    ):
        assert decided(*part, 0, 0) == set(), part
    other_place = batch_marks(100, 400, 5)
    assert decided(first, *other_place[1:] * 2) == set()
    assert decided(0, other_place[0], other_place[1], other_place[1]) == {5}


def test_hostile_marks_decide_nothing() -> None:
    for mark in (
        -1,
        -(1 << 63),
        -2,
        *batch_marks(0, 50, 5),
        *batch_marks(200, 300, 7)[1:],
        *batch_marks(0, 100),
    ):
        assert decided(mark, 0) == set(), mark
        assert decided(mark, mark, mark) == set(), mark
