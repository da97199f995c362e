"""Marks of atomic batches: what they say, which batch at a log's end is incomplete, which decisions are there whole."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.log.logs import CAPACITY, MARKED_SIZE, marked_log

from penstock.log.scan import (
    DECISION_MASK,
    BatchMark,
    batch_marks,
    find_incomplete,
    read_mark,
)

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
