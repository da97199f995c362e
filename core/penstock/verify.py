"""Walks log, queues and index of a store and says what disagrees, and where. Changes nothing.

Damage in the log costs no record behind it: from a bad record the walk looks for the next sound one,
which is known by its stored log offset. On a store that is being written, only what its queues have
is compared with them.
"""

from collections.abc import Callable, Iterator

import attrs

from penstock.batch import DispatchBatch
from penstock.columns import Columns, walk
from penstock.contracts import Dispatcher
from penstock.findings import Checker, Finding
from penstock.log import SegmentedLog
from penstock.segment import Segment
from penstock.survivors import find_survivor

_WINDOW_BYTES = 8 << 20


@attrs.define
class Tally:
    """What a verification has seen so far."""

    bytes_total: int = 0
    bytes_seen: int = 0
    records: int = 0
    findings: int = 0


def verify(
    log: SegmentedLog,
    dispatchers: list[Dispatcher],
    end: int,
    *,
    tally: Tally,
    told: Callable[[Tally], None] = lambda _: None,
) -> Iterator[Finding]:
    """Return what is wrong, in the order of the log.

    Args:
        log: the commit log.
        dispatchers: whose files are compared with it.
        end: log offset behind the last record to compare with queues and index.
        tally: counts as the walk goes.
        told: called after each piece, for a progress bar.
    """
    checkers = [c for c in (d.checker() for d in dispatchers) if c is not None]
    tally.bytes_total = sum(segment.capacity for segment in log.segments)
    for finding in _walk_all(log, checkers, end, tally, told):
        tally.findings += 1
        yield finding
    for checker in checkers:
        for finding in checker.finish(end):
            tally.findings += 1
            yield finding


def _walk_all(
    log: SegmentedLog,
    checkers: list[Checker],
    end: int,
    tally: Tally,
    told: Callable[[Tally], None],
) -> Iterator[Finding]:
    expected = None
    for segment in log.segments:
        if expected is not None and segment.base_offset != expected:
            missing = segment.base_offset - expected
            text = f"{missing} bytes of log are missing before this segment"
            yield Finding("log", segment.path, 0, expected, text)
        yield from _walk_segment(log, segment, checkers, end, tally, told)
        expected = segment.end_offset


def _walk_segment(
    log: SegmentedLog,
    segment: Segment,
    checkers: list[Checker],
    end: int,
    tally: Tally,
    told: Callable[[Tally], None],
) -> Iterator[Finding]:
    at = segment.base_offset
    window_bytes = _WINDOW_BYTES
    seen = tally.bytes_seen
    while at < segment.end_offset:
        window = log.read(at, min(window_bytes, segment.end_offset - at))
        found = walk(window)
        columns = Columns(window, found.positions, at)
        bad = columns.first_bad(check_crc=True)
        good = columns if bad is None else columns.head(bad)
        stop = at + (found.stop if bad is None else int(columns.positions[bad]))
        tally.records += len(good)
        yield from _compare(good, at, stop, checkers, end)
        tally.bytes_seen = seen + stop - segment.base_offset
        told(tally)
        if bad is None and found.reason == "end" and len(window) < segment.end_offset - at:
            # The window ended within a record, or right behind one.
            window_bytes = segment.capacity if stop == at else _WINDOW_BYTES
            at = stop
            continue
        if bad is None and found.reason == "blank":
            break
        following = find_survivor(log, segment, stop)
        if following is None:
            yield from _end_of_records(log, segment, stop, end)
            break
        yield Finding(
            "log", segment.path, stop - segment.base_offset, stop,
            f"{following - stop} bytes are no sound record; the next sound one is at {following}",
        )  # fmt: skip
        at = following
    tally.bytes_seen = seen + segment.capacity
    told(tally)


def _compare(
    good: Columns, start: int, stop: int, checkers: list[Checker], end: int
) -> Iterator[Finding]:
    keep = int((good.log_offsets < end).sum())
    if keep:
        batch = DispatchBatch(good.head(keep), start, min(stop, end))
        for checker in checkers:
            yield from checker.batch(batch)


def _end_of_records(log: SegmentedLog, segment: Segment, stop: int, end: int) -> Iterator[Finding]:
    """Say what is wrong where a segment's records end without a blank record."""
    position = stop - segment.base_offset
    is_last = segment is log.segments[-1] or not any(
        bytes(log.read(s.base_offset, 8)).strip(b"\0") for s in log.segments if s.base_offset > stop
    )
    if stop < end or not is_last:
        yield Finding(
            "log", segment.path, position, stop,
            "the records end here, though queues or later segments have more",
        )  # fmt: skip
    elif bytes(log.read(stop, min(8, segment.end_offset - stop))).strip(b"\0"):
        yield Finding(
            "log", segment.path, position, stop,
            "a torn tail: bytes behind the last record that are none; opening for writing cuts it",
        )  # fmt: skip
