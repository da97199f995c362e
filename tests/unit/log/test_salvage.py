"""A walk that goes on after corruption: every byte of a segment is valid, corrupt, or after the end."""

import itertools
from pathlib import Path

import pytest
from tests.unit.log.test_resync import chain, flip_body
from tests.unit.log.test_scan import CAPACITY, HEAD, log_of

from penstock.format.record import MAGIC_BLANK, RecordFields, encode_record
from penstock.format.validity import Coverage
from penstock.log.salvage import Corrupt, End, Piece, Valid, reject_by_counts, walk_segment
from penstock.log.segmented_log import Rejected, SegmentedLog

DATA, PLACES = chain(b"a" * 50, b"b" * 60, b"c" * 70, b"d")


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


def test_a_segment_without_corruption_is_one_piece_and_an_end(tmp_path: Path) -> None:
    valid, end = walked(log_of(tmp_path, DATA))
    assert isinstance(valid, Valid)
    assert valid.columns.log_offsets.tolist() == PLACES
    assert end == End(len(DATA), is_blank=False)


def test_a_blank_record_is_an_end_of_its_own(tmp_path: Path) -> None:
    log = log_of(tmp_path, DATA + HEAD.pack(CAPACITY - len(DATA), MAGIC_BLANK))
    assert walked(log)[-1] == End(len(DATA), is_blank=True)


@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_corrupt_record_costs_no_other(tmp_path: Path, row: int) -> None:
    spoilt = bytearray(DATA)
    flip_body(spoilt, PLACES[row])
    pieces = walked(log_of(tmp_path, bytes(spoilt)))
    assert [p for p in pieces if isinstance(p, Corrupt)] == [Corrupt(PLACES[row], PLACES[row + 1])]
    found = [at for p in pieces if isinstance(p, Valid) for at in p.columns.log_offsets.tolist()]
    assert found == PLACES[:row] + PLACES[row + 1 :]


def test_a_torn_tail_is_not_looked_into(tmp_path: Path) -> None:
    log = log_of(tmp_path, DATA)
    log.torn_at = PLACES[2]
    valid, end = walked(log)
    assert isinstance(valid, Valid)
    assert valid.columns.log_offsets.tolist() == PLACES[:2]
    assert end == End(PLACES[2], is_blank=False)


def test_what_the_counts_reject_is_corrupt_with_its_reason(tmp_path: Path) -> None:
    log = log_of(tmp_path, DATA)
    size = PLACES[2] - PLACES[1]
    log.rejected = {PLACES[1]: Rejected(size, "why"), 7: Rejected(9, "at no record")}
    corrupt = [p for p in walked(log) if isinstance(p, Corrupt)]
    assert corrupt == [Corrupt(PLACES[1], PLACES[2], "why")]


def test_a_record_that_breaks_the_count_of_its_queue_is_rejected(tmp_path: Path) -> None:
    spoilt = bytearray(DATA)
    spoilt[PLACES[1] + 27] ^= 8
    log = log_of(tmp_path, bytes(spoilt))
    assert reject_by_counts(log, lambda _: True, []) == []
    assert list(log.rejected) == [PLACES[1]]
    whole = log_of(tmp_path, DATA)
    reject_by_counts(whole, lambda _: True, [])
    assert whole.rejected == {}


def test_two_rejected_records_on_end_leave_the_valid_ones_round_them(tmp_path: Path) -> None:
    log = log_of(tmp_path, DATA)
    sizes = [stop - start for start, stop in itertools.pairwise([*PLACES, len(DATA)])]
    log.rejected = {
        PLACES[1]: Rejected(sizes[1], "one"), PLACES[2]: Rejected(sizes[2], "two"),
        PLACES[2] + 1: Rejected(5, "no record begins there"), len(DATA): Rejected(5, "nor there"),
    }  # fmt: skip
    first, *corrupt, last, end = walked(log)
    assert isinstance(first, Valid)
    assert isinstance(last, Valid)
    assert corrupt == [
        Corrupt(PLACES[1], PLACES[2], "one"), Corrupt(PLACES[2], PLACES[3], "two"),
    ]  # fmt: skip
    assert [p.columns.log_offsets.tolist() for p in (first, last)] == [PLACES[:1], PLACES[3:]]
    assert end == End(len(DATA), is_blank=False)


def test_what_lies_after_a_torn_tail_begins_is_not_gone_on_with(tmp_path: Path) -> None:
    spoilt = bytearray(DATA)
    flip_body(spoilt, PLACES[1])
    for torn_at, pieces in ((PLACES[2], 2), (PLACES[2] + 1, 3)):
        log = log_of(tmp_path, bytes(spoilt))
        log.torn_at = torn_at
        assert len(walked(log)) == pieces


def test_counts_are_not_taken_where_every_record_has_a_crc_of_its_own(tmp_path: Path) -> None:
    log = log_of(tmp_path, DATA)
    log.rejected = {0: Rejected(1, "from before")}
    log.coverage = Coverage.of([(0, CAPACITY)])
    assert reject_by_counts(log, lambda _: True, []) == []
    assert log.rejected == {}


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


def test_the_first_record_of_a_segment_may_be_rejected(tmp_path: Path) -> None:
    log = log_of(tmp_path, DATA)
    log.rejected = {0: Rejected(PLACES[1], "why")}
    first, last, _ = walked(log)
    assert first == Corrupt(0, PLACES[1], "why")
    assert isinstance(last, Valid)
    assert last.columns.log_offsets.tolist() == PLACES[1:]
