"""A log that ends anywhere: recovery keeps whole batches, cuts one of which only the first part is there, and nothing else."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lanes import examples

from penstock.files import Files
from penstock.format.record import RecordFields, encode_record
from penstock.log.scan import batch_marks
from penstock.log.segmented_log import SegmentedLog
from penstock.recovery.log_end import LogEnd, find_end, without_part_of_batch

SEGMENT = 8192
RECORD = len(encode_record(RecordFields(topic=b"t", body=b"")))
# Each unit is the sizes of its records' bodies, and the decision of its batch.
UNITS = st.lists(
    st.tuples(st.lists(st.integers(0, 200), min_size=1, max_size=5), st.one_of(st.none(), st.integers(0, 1 << 40))),
    max_size=6,
)  # fmt: skip


def record(at: int, size: int, number: int, time_ms: int = 5) -> bytes:
    return encode_record(
        RecordFields(
            topic=b"t", body=b"x" * size, log_offset=at, prepared_offset=number, store_time_ms=time_ms,
        )
    )  # fmt: skip


def end_of(data: bytes, durable: int = 0) -> LogEnd:
    """Return the end that recovery finds in a segment that begins with these bytes."""
    with TemporaryDirectory() as name:
        path = Path(name) / "commitlog"
        path.mkdir()
        (path / f"{0:020d}").write_bytes(data.ljust(SEGMENT, b"\0"))
        log = SegmentedLog(Files(), path, SEGMENT, mapped=False)
        log.refresh()
        try:
            return without_part_of_batch(log, find_end(log, 0, 0), 0, 0, durable)
        finally:
            log.close()


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(UNITS, st.floats(0, 1))
def test_of_a_log_that_ends_anywhere_whole_batches_are_kept(
    units: list[tuple[list[int], int | None]], share: float
) -> None:
    data, ends = b"", [0]
    for sizes, decision in units:
        begin = len(data)
        end = begin + sum(RECORD + size for size in sizes)
        first, rest = (0, 0)
        if len(sizes) > 1 or decision is not None:
            first, rest = batch_marks(begin, end, decision)
        for row, size in enumerate(sizes):
            data += record(len(data), size, rest if row else first, 5 + len(ends))
        ends.append(len(data))
    there = round(len(data) * share)
    found = end_of(data[:there])
    # A record ends in zeros, as the rest of the segment.
    whole = [end for end in ends if data[:there].ljust(end, b"\0")[:end] == data[:end]]
    assert found.offset == whole[-1]
    assert found.last_time_ms == (4 + len(whole) if found.offset else 0)
    # Bytes that are known to be durable are never cut.
    kept = end_of(data[:there], durable=len(data))
    assert kept.offset >= found.offset
    assert not kept.cuts_batch


@st.composite
def any_marks(draw: st.DrawFn) -> list[int]:
    """Return numbers that callers could never write, most of them marks that nearly fit."""
    numbers = []
    for row in range(draw(st.integers(1, 6))):
        near = st.integers(-1, 8).map(lambda n: max(n * RECORD, 0))
        start, end = (
            draw(near),
            draw(st.one_of(near, st.just(SEGMENT - 8), st.just(row * RECORD + 1))),
        )
        made = [
            0,
            7,
            *(batch_marks(start, end, draw(st.sampled_from([None, 3]))) if start < end else ()),
        ]
        numbers.append(
            draw(st.one_of(st.sampled_from(made), st.integers(-(1 << 63), (1 << 63) - 1)))
        )
    return numbers


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None)
@given(any_marks())
def test_hostile_marks_cut_only_what_the_rule_proves(numbers: list[int]) -> None:
    found = end_of(b"".join(record(row * RECORD, 0, each) for row, each in enumerate(numbers)))
    reach = len(numbers) * RECORD
    proven = {
        row * RECORD
        for row in range(len(numbers))
        for end in (*range(reach + 1, 9 * RECORD), SEGMENT - 8)
        for decision in (None, *(d for d in [numbers[row] >> 30 & (1 << 30) - 1]))
        if numbers[row] == batch_marks(row * RECORD, end, decision)[0]
        and set(numbers[row + 1 :]) <= {batch_marks(row * RECORD, end, decision)[1]}
    }  # fmt: skip
    assert found.offset == max(proven, default=reach) or (
        not proven and _fits_far(numbers, found.offset)
    )


def _fits_far(numbers: list[int], offset: int) -> bool:
    """Return whether a random number happens to be the mark of a batch with another end."""
    return offset % RECORD == 0 and numbers[offset // RECORD] < 0
