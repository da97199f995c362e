"""Walks over a log's bytes: where the records of a segment end and why, what is corrupt, and where they go on."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from tests.unit.log.conftest import Overwrite
from tests.unit.log.logs import BODY_AT, CAPACITY, HEAD, CountedLog, chain, flipped, log_of, record

from penstock.format.record import MAGIC_BLANK, MAGIC_V1, RecordFields, encode_record
from penstock.log.resync import (
    Corrupt,
    End,
    Piece,
    Resync,
    Valid,
    reject_by_counts,
    walk_segment,
)
from penstock.log.scan import Checks, StopReason, is_filler, scan_segment
from penstock.log.segmented_log import Rejected, SegmentedLog
from penstock.testing import WrittenLog
from penstock.testing.kit import SMALL

SEGMENT = SMALL.segment_bytes


def scanned(
    log: CountedLog, stop: int = CAPACITY, checks: Checks | None = None, **more: Any
) -> tuple[list[int], int, StopReason]:
    """Return the log offsets of all records, where they end, and why; that is MORE for all windows but the last."""
    windows = list(scan_segment(log, log.segments[0], 0, stop, checks or Checks(), **more))
    assert all(window.stop is StopReason.MORE for window in windows[:-1])
    offsets = [offset for window in windows for offset in window.records.log_offsets.tolist()]
    return offsets, windows[-1].end_offset, windows[-1].stop


THREE, PLACES = chain(b"b" * 10, b"b" * 20, b"b" * 30)


@pytest.mark.parametrize("window_bytes", [1, 100, 150, 8 << 20])
@pytest.mark.parametrize(
    ("behind", "stop", "reason"),
    [
        (b"", CAPACITY, StopReason.NO_RECORD),
        (b"", len(THREE), StopReason.END),
        (HEAD.pack(CAPACITY - len(THREE), MAGIC_BLANK), CAPACITY, StopReason.FILLER),
        (b"\xff" * 9, CAPACITY, StopReason.NO_RECORD),
        (HEAD.pack(92, MAGIC_V1), CAPACITY, StopReason.INVALID),
        (HEAD.pack(CAPACITY, MAGIC_V1), CAPACITY, StopReason.CUT),
        (HEAD.pack((1 << 31) - 1, MAGIC_V1), CAPACITY, StopReason.CUT),
        (record(0, b"at another place"), CAPACITY, StopReason.INVALID),
        (b"", len(THREE) - 1, StopReason.CUT),
        (b"", len(THREE) + 7, StopReason.CUT),
    ],
)
def test_a_scan_says_why_the_records_end(
    tmp_path: Path, behind: bytes, stop: int, reason: StopReason, window_bytes: int
) -> None:
    log = log_of(tmp_path, THREE + behind)
    is_short = stop < len(THREE)
    places = PLACES[:2] if is_short else PLACES
    end = PLACES[2] if is_short else len(THREE)
    assert scanned(log, stop, window_bytes=window_bytes) == (places, end, reason)


def test_a_record_larger_than_the_window_is_read_by_its_size(tmp_path: Path) -> None:
    data, places = chain(b"small", b"large" * 400, b"small")
    log = log_of(tmp_path, data)
    assert scanned(log, window_bytes=128) == (places, len(data), StopReason.NO_RECORD)
    assert places[2] - places[1] in log.read_sizes


def test_a_size_that_is_only_claimed_is_not_read(tmp_path: Path) -> None:
    """The file ends long before what its last head says that the record has."""
    log = log_of(tmp_path, THREE + HEAD.pack(3000, MAGIC_V1), length=len(THREE) + 100)
    assert scanned(log, window_bytes=128) == (PLACES, len(THREE), StopReason.CUT)
    assert max(log.read_sizes) < 1024


# --- where records go on after corrupt bytes


DATA, STARTS = chain(b"a" * 50, b"b" * 60, b"c" * 70, b"d")


@pytest.mark.parametrize(
    ("position", "spoilt"),
    [(0, bytes(48)), (2, b"\x01"), (BODY_AT, b"?"), (85, b"\x01")],
    ids=["head", "size", "body", "body size"],
)
def test_the_next_record_is_found_whatever_is_wrong_with_one(
    position: int, spoilt: bytes, tmp_path: Path
) -> None:
    at = STARTS[1] + position
    log = log_of(tmp_path, DATA[:at] + spoilt + DATA[at + len(spoilt) :])
    assert Resync(log, log.segments[0]).next_valid(STARTS[1]) == STARTS[2]


def test_a_record_within_the_body_of_another_is_content(tmp_path: Path) -> None:
    """A body may hold a whole record with the offset that it will have."""
    first = record(0, b"")
    inner = record(len(first) + 96, b"inner")
    outer = record(len(first), b"x" * 8 + inner + b"y" * 40, 1)
    assert outer[96:].startswith(inner)
    after = len(first) + len(outer)
    data = first + bytes(48) + outer[48:] + record(after, b"z", 2)
    log = log_of(tmp_path, data)
    assert Resync(log, log.segments[0]).next_valid(len(first)) == after


def test_where_nothing_follows_nothing_is_found(tmp_path: Path) -> None:
    log = log_of(tmp_path, flipped(DATA, STARTS[3] + BODY_AT))
    assert Resync(log, log.segments[0]).next_valid(STARTS[3]) is None


def test_records_within_a_corrupt_range_are_told_whoever_vouches_for_them(tmp_path: Path) -> None:
    resync = Resync(log := log_of(tmp_path, DATA), log.segments[0])
    assert [resync.is_record_at(at) for at in (*STARTS, 1)] == [True] * 4 + [False]
    assert resync.unvouched(STARTS[0], STARTS[2]) == [STARTS[1]]


# --- a walk that goes on


def walked(log: SegmentedLog) -> list[Piece]:
    """Return the pieces of the first segment without valid ones of no record; they follow each other."""
    pieces = list(walk_segment(log, log.segments[0]))
    at = 0
    for piece in pieces[:-1]:
        assert not isinstance(piece, End)
        assert piece.start == at
        at = piece.stop
    assert isinstance(pieces[-1], End)
    assert pieces[-1].start == at
    return [p for p in pieces if not (isinstance(p, Valid) and len(p.columns) == 0)]


def offsets_of(pieces: list[Piece]) -> list[int]:
    return [
        at
        for piece in pieces
        if isinstance(piece, Valid)
        for at in piece.columns.log_offsets.tolist()
    ]


@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_corrupt_record_costs_no_other(row: int, tmp_path: Path) -> None:
    pieces = walked(log_of(tmp_path, flipped(DATA, STARTS[row] + BODY_AT)))
    assert [p for p in pieces if isinstance(p, Corrupt)] == [Corrupt(STARTS[row], STARTS[row + 1])]
    assert offsets_of(pieces) == STARTS[:row] + STARTS[row + 1 :]


def test_a_torn_tail_is_not_looked_into(tmp_path: Path) -> None:
    log = log_of(tmp_path, DATA)
    log.torn_at = STARTS[2]
    pieces = walked(log)
    assert offsets_of(pieces) == STARTS[:2]
    assert pieces[1:] == [End(STARTS[2], is_blank=False)]
    for torn_at, count in ((STARTS[2], 2), (STARTS[2] + 1, 3)):
        log = log_of(tmp_path, flipped(DATA, STARTS[1] + BODY_AT))
        log.torn_at = torn_at
        assert len(walked(log)) == count, "what lies after its beginning is not gone on with"


@pytest.mark.parametrize("first", [0, 1])
def test_rejected_records_are_corrupt_with_their_reasons_and_cost_no_other(
    first: int, tmp_path: Path
) -> None:
    log = log_of(tmp_path, DATA)
    starts = [*STARTS, len(DATA)]
    sizes = [stop - start for start, stop in itertools.pairwise(starts)]
    log.rejected = {
        starts[first]: Rejected(sizes[first], "one"),
        starts[first + 1]: Rejected(sizes[first + 1], "two"),
        starts[2] + 1: Rejected(5, "no record begins there"),
        len(DATA): Rejected(5, "nor there"),
    }
    pieces = walked(log)
    assert [piece for piece in pieces if isinstance(piece, Corrupt)] == [
        Corrupt(starts[first], starts[first + 1], "one"),
        Corrupt(starts[first + 1], starts[first + 2], "two"),
    ]
    assert offsets_of(pieces) == STARTS[:first] + STARTS[first + 2 :]
    assert pieces[-1] == End(len(DATA), is_blank=False)


def test_bytes_of_segments_that_are_missing_explain_missing_offsets(tmp_path: Path) -> None:
    """And bytes that are there do not: the second segment begins where the first ends."""
    for base, notes in ((2 * CAPACITY, 0), (CAPACITY, 1)):
        folder = tmp_path / str(base)
        folder.mkdir()
        left = CAPACITY - len(DATA)
        log = log_of(folder, DATA + HEAD.pack(left, MAGIC_BLANK))
        more = b"".join(
            encode_record(
                RecordFields(topic=b"t", log_offset=base + 92 * n, queue_offset=20 + n, body=b"")
            )
            for n in range(2)
        )
        (folder / f"{base:020d}").write_bytes(more.ljust(CAPACITY, b"\0"))
        log.refresh()
        assert len(reject_by_counts(log, lambda _: False, [])) == notes


# --- filler


def test_only_a_blank_record_up_to_the_segments_end_is_filler(
    written: WrittenLog, log: SegmentedLog, overwrite: Overwrite
) -> None:
    last = max(at for at in written.offsets() if at < SEGMENT)
    size = int.from_bytes(log.read(last, 4), "big")
    assert is_filler(log, log.segments[0], last + size)
    assert not is_filler(log, log.segments[0], last)
    assert not is_filler(log, log.segments[0], SEGMENT - 4)
    overwrite(last + size + 3, b"\xff")
    assert not is_filler(log, log.segments[0], last + size)
