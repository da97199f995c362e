"""Marks of atomic batches: what they say, which batch at a log's end is incomplete, which decisions are there whole."""

from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.log.logs import CAPACITY, MARKED_SIZE, marked_log

from penstock import Message
from penstock.log.resync import read_batches
from penstock.log.scan import (
    DECISION_MASK,
    BatchMark,
    batch_marks,
    find_incomplete,
    read_mark,
)
from penstock.store.batches import decided_batches
from penstock.testing import open_store

POSITIONS = st.integers(0, (1 << 30) - 1)


@given(POSITIONS, POSITIONS, st.one_of(st.none(), st.integers(0, 1 << 62)))
def test_a_mark_is_read_as_it_was_made(one: int, other: int, decision: int | None) -> None:
    start, end = sorted((one, other))
    if start == end:
        with pytest.raises(ValueError, match="no batch"):
            batch_marks(start, end, decision)
        return
    first, rest = batch_marks(start, end, decision)
    is_decided, low = decision is not None, (decision or 0) & DECISION_MASK
    assert max(first, rest) < 0
    assert read_mark(first) == BatchMark(True, is_decided, 0, end, low)
    assert read_mark(rest) == BatchMark(False, is_decided, start, end, 0)


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_number_is_read_as_a_mark_only_if_a_batch_could_have_it(number: int) -> None:
    mark = read_mark(number)
    if mark is None:
        return
    assert number < 0
    assert 0 <= mark.start < mark.end < 1 << 30
    decision = mark.decision if mark.is_decided else None
    made = batch_marks(mark.start, mark.end, decision)
    assert number == made[0] if mark.is_first else number == made[1]


def begin_of(folder: Path, numbers: list[int], times: list[int] | None = None) -> int | None:
    """Return where the incomplete batch begins with whose last record the log ends; None if there is none."""
    log = marked_log(folder, numbers, times)
    last = len(numbers) - 1
    end = len(numbers) * MARKED_SIZE
    return find_incomplete(log, last * MARKED_SIZE, end, numbers[last])


def test_a_batch_whose_end_is_missing_begins_at_its_first_record(tmp_path: Path) -> None:
    for decision in (None, 7):
        first, rest = batch_marks(MARKED_SIZE, 5 * MARKED_SIZE, decision)
        assert begin_of(tmp_path, [0, first]) == MARKED_SIZE
        assert begin_of(tmp_path, [0, first, rest]) == MARKED_SIZE
        assert begin_of(tmp_path, [0, first, rest, rest]) == MARKED_SIZE
        assert begin_of(tmp_path, [0, first, rest, rest, rest]) is None, "it is whole"


def test_marks_that_the_records_do_not_prove_cut_nothing(tmp_path: Path) -> None:
    first, rest = batch_marks(MARKED_SIZE, 5 * MARKED_SIZE)
    decided = batch_marks(MARKED_SIZE, 5 * MARKED_SIZE, 7)
    hostile = {
        "no first record": [0, rest, rest],
        "no mark before": [0, 0, rest],
        "a record without a mark within": [0, first, 0, rest],
        "another batch within": [0, first, batch_marks(MARKED_SIZE, 6 * MARKED_SIZE)[1], rest],
        "one decided, one not": [0, decided[0], rest],
        "one not decided, one is": [0, first, decided[1]],
        "a first record within": [0, first, first, rest],
        "a start within a record": [0, first, batch_marks(MARKED_SIZE + 1, 5 * MARKED_SIZE)[1]],
        "a start after the record": [0, batch_marks(3 * MARKED_SIZE, 5 * MARKED_SIZE)[1]],
        "an end in the filler": [0, batch_marks(MARKED_SIZE, CAPACITY - 7)[0]],
        "an end after the segment": [0, batch_marks(MARKED_SIZE, CAPACITY + MARKED_SIZE)[0]],
        "an end before the record's": [0, batch_marks(MARKED_SIZE, MARKED_SIZE + 1)[0]],
        "all bits": [0, -1],
        "one bit": [0, -(1 << 63)],
    }
    for name, numbers in hostile.items():
        assert begin_of(tmp_path, numbers) is None, name
    assert begin_of(tmp_path, [0, first, rest], [5, 5, 6]) is None, "another store time"
    assert begin_of(tmp_path, [0, batch_marks(MARKED_SIZE, CAPACITY - 8)[0]]) == MARKED_SIZE


def test_the_decisions_of_batches_are_found_from_a_log_offset_on(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        assert store.lowlevel.decided_batches(0) == set()
        ends = [0]
        for decision in (5, (1 << 40) + 6, 7):
            batch = store.lowlevel.message_batch()
            batch.add_many([Message("t", b"1", queue=0), Message("t", b"2", queue=0)])
            ends.append(batch.append(decision=decision)[1].log_offset)
            store.put("t", b"between", queue=0)
        batch = store.lowlevel.message_batch()
        batch.add(Message("t", b"of no decision", queue=0))
        batch.append()
        store.put_many([Message("t", b"1", queue=0), Message("t", b"2", queue=0)], atomic=True)
        assert store.lowlevel.decided_batches(0) == {5, 6, 7}
        assert store.lowlevel.decided_batches(store.flush()) == set()
        assert store.lowlevel.decided_batches(ends[1]) == {6, 7}, "from within the first one"


@attrs.frozen
class Records:
    """The part of a commit log that is asked."""

    log: Any
    end_offset: int

    def batches(self, start: int, stop: int) -> Any:
        return read_batches(self.log, start, stop)


def test_only_a_whole_batch_counts(tmp_path: Path) -> None:
    """A broker that opened the directory before Penstock may have kept a part of a batch."""
    first, rest = batch_marks(MARKED_SIZE, 4 * MARKED_SIZE, 9)
    single = batch_marks(MARKED_SIZE, 2 * MARKED_SIZE, 9)[0]
    shapes: list[tuple[list[int], set[int]]] = [
        ([0, first, rest, rest, 0], {9}), ([0, single], {9}), ([0, first, rest, 0, rest], set()), ([0, first, rest], set()),
        ([0, 0, rest, rest], set()), ([0, batch_marks(MARKED_SIZE, 1 << 20, 9)[0]], set()), ([0, -1, 0], set()),
        ([0, first, single, rest], set()), ([0, batch_marks(MARKED_SIZE, 4 * MARKED_SIZE)[0], rest, rest], set()),
    ]  # fmt: skip
    for numbers, expected in shapes:
        log = marked_log(tmp_path, numbers)
        records: Any = Records(log, len(numbers) * MARKED_SIZE)
        assert decided_batches(records, 0) == expected, numbers
