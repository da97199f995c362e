"""Which decisions have their messages in the log."""

from pathlib import Path
from typing import Any

import attrs
from tests.unit.log.test_atomic_batches import SIZE, log_of

from penstock import Message
from penstock.log.atomic_batches import batch_marks
from penstock.log.batches import read_batches
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


@attrs.frozen
class Records:
    """The part of a commit log that is asked."""

    log: Any
    end_offset: int

    def batches(self, start: int, stop: int) -> Any:
        return read_batches(self.log, start, stop)


def test_only_a_whole_batch_counts(tmp_path: Path) -> None:
    """A broker that opened the directory before Penstock may have kept a part of a batch."""
    first, rest = batch_marks(SIZE, 4 * SIZE, 9)
    single = batch_marks(SIZE, 2 * SIZE, 9)[0]
    shapes: list[tuple[list[int], set[int]]] = [
        ([0, first, rest, rest, 0], {9}), ([0, single], {9}), ([0, first, rest, 0, rest], set()), ([0, first, rest], set()),
        ([0, 0, rest, rest], set()), ([0, batch_marks(SIZE, 1 << 20, 9)[0]], set()), ([0, -1, 0], set()),
        ([0, first, single, rest], set()), ([0, batch_marks(SIZE, 4 * SIZE)[0], rest, rest], set()),
    ]  # fmt: skip
    for numbers, expected in shapes:
        log = log_of(tmp_path, numbers)
        records: Any = Records(log, len(numbers) * SIZE)
        assert decided_batches(records, 0) == expected, numbers
        log.close()
