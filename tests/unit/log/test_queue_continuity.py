"""The counts of queues as evidence: which breaks are corruption, and which are generations that brokers leave."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from penstock.errors import StorageError
from penstock.files import Files
from penstock.format.columns import RecordColumns
from penstock.format.record import (
    BLANK,
    FIXED_SIZE,
    MAGIC_BLANK,
    PREPARED,
    ROLLBACK,
    RecordFields,
    encode_record,
)
from penstock.log.queue_evidence import INNER_BATCH, Due, EntryWitness, QueueGenerations
from penstock.log.resync import Corrupt, End, Valid, reject_by_counts, walk_segment
from penstock.log.segmented_log import SegmentedLog
from penstock.testing import WrittenLog, make_context
from penstock_index.consume_queue import ConsumeQueueDispatcher

SEGMENT = 64 * 1024


class Fake:
    """Queue entries as a test wants them."""

    def __init__(self, places: dict[tuple[bytes, int, int], tuple[int, int]]) -> None:
        self.places = places

    def place(self, topic: bytes, queue: int, queue_offset: int) -> tuple[int, int] | None:
        return self.places.get((topic, queue, queue_offset))

    def within(self, start: int, stop: int) -> Iterator[tuple[str, int, int]]:
        yield from ()

    def end(self, topic: bytes, queue: int) -> int:
        return max((o + 1 for t, q, o in self.places if (t, q) == (topic, queue)), default=0)


class Made(NamedTuple):
    log: SegmentedLog
    places: list[tuple[int, int]]


def make(folder: Path, offsets: list[Any], *, base: int = 0, sealed: bool = False) -> Made:
    """Write a log whose records have these queue offsets; a tuple says (topic, queue, offset, more fields)."""
    folder.mkdir(parents=True)
    data, places = b"", []
    for each in offsets:
        topic, queue, offset, more = (b"t", 0, each, {}) if isinstance(each, int) else each
        at = base + len(data)
        record = encode_record(
            RecordFields(
                topic=topic, body=b"body", queue=queue, queue_offset=offset, log_offset=at, **more
            ),
            crc_property=sealed,
        )
        places.append((at, len(record)))
        data += record
    left = SEGMENT - len(data)
    (folder / f"{base:020d}").write_bytes(data + BLANK.pack(left, MAGIC_BLANK) + bytes(left - 8))
    log = SegmentedLog(Files(), folder, SEGMENT, mapped=False)
    log.refresh()
    return Made(log, places)


def rejected(made: Made, *, own: bool = False, gaps: Any = ()) -> tuple[list[int], int]:
    """Return the numbers of the records that are rejected, and how many notes there are."""
    notes = reject_by_counts(made.log, lambda _: own, gaps)
    numbers = [number for number, (at, _) in enumerate(made.places) if at in made.log.rejected]
    assert len(numbers) == len(made.log.rejected)
    return numbers, len(notes)


@pytest.mark.parametrize(
    ("offsets", "bad", "notes"),
    [
        ([0, 1, 2, 3, 4], [], 0),
        ([0, 1, 77, 3, 4], [2], 0),                       # n, X, n+2
        ([0, 1, 1 << 52, 3, 4], [2], 0),
        ([0, 1, 0, 3, 4], [2], 0),
        ([77, 1, 2, 3], [0], 0),                          # the first of all
        ([0, 1, 77, 88, 4, 5], [2, 3], 0),                # two on end
        ([0, 1, 77, 2, 3], [2], 0),                       # n, X, n+1: a record of another queue
        ([0, 1, 2, 0, 1, 2], [], 1),                      # restart at 0
        ([0, 1, 2, 2, 3], [], 1),                         # repeat
        ([0, 1, 2, 7, 8], [], 1),                         # gap
        ([0, 1, 2, 0, 1, 0, 1, 2], [], 2),
        ([0, 1, 2, 0, 1, 77, 3, 4], [5], 1),                 # corrupt within the second generation
        ([0, 1, 2, 9], [], 0),                            # nobody follows, nothing contradicts
    ],
)  # fmt: skip
def test_breaks_of_a_count(offsets: list[int], bad: list[int], notes: int, tmp_path: Path) -> None:
    assert rejected(make(tmp_path / "log", offsets)) == (bad, notes)


def test_a_log_that_does_not_begin_at_0_may_begin_anywhere_in_a_queue(tmp_path: Path) -> None:
    assert rejected(make(tmp_path / "log", [500, 501, 502], base=SEGMENT)) == ([], 0)
    assert rejected(make(tmp_path / "two", [500, 7, 502], base=SEGMENT)) == ([1], 0)


def test_what_nobody_follows_is_judged_by_entries_and_by_who_wrote_it(tmp_path: Path) -> None:
    made = make(tmp_path / "log", [0, 1, 2, 9])
    last = made.places[3]
    made.log.witness = Fake({(b"t", 0, 3): last})
    assert rejected(made) == ([3], 0)
    made.log.witness = Fake({(b"t", 0, 9): last})
    assert rejected(made, own=True) == ([], 0)
    made.log.witness = None
    assert rejected(made, own=True) == ([3], 0)


def entered(made: Made, stop: int | None = None) -> Fake:
    """Return entries of the queue that point at the first records, one after the other."""
    return Fake({(b"t", 0, number): place for number, place in enumerate(made.places[:stop])})


def test_a_queue_that_penstock_begins_again_at_0_is_a_new_generation(tmp_path: Path) -> None:
    made = make(tmp_path / "log", [0, 1, 2, 0])
    assert rejected(made, own=True) == ([], 0)


def test_an_offset_that_is_missing_leads_to_the_record_that_says_otherwise(tmp_path: Path) -> None:
    """A flipped queue number, topic or transaction flag: the record left its queue, and its entry still knows."""
    other: dict[str, Any] = {"sys_flag": PREPARED}
    for number, moved in enumerate([(b"t", 9, 1, {}), (b"u", 0, 1, {}), (b"t", 0, 0, other)]):
        made = make(tmp_path / f"{number}", [0, moved, 2, 3])
        assert rejected(made)[0] in ([], [1])
        made.log.witness = entered(made)
        assert rejected(made) == ([1], 0)


def test_a_new_generation_is_valid_though_the_entry_of_its_first_record_is_elsewhere(
    tmp_path: Path,
) -> None:
    """5.0 to 5.3.2 enter a record with offset 0 wherever the queue ends, and those after it not at all."""
    made = make(tmp_path / "log", [0, 1, 2, 0, 1])
    made.log.witness = entered(made, 4)
    assert rejected(made) == ([], 1)
    alone = make(tmp_path / "alone", [0, 1, 2, 0])
    alone.log.witness = entered(alone)
    assert rejected(alone) == ([], 1)
    assert rejected(alone, own=True) == ([3], 0)
    flipped = make(tmp_path / "flipped", [0, 1, 2, 3, 0])
    flipped.log.witness = entered(flipped)
    assert rejected(flipped) == ([4], 0), "one flipped bit makes 0 of 4"
    going_on = make(tmp_path / "going on", [0, 1, 2, 0, 4, 5])
    assert rejected(going_on) == ([3], 0)
    going_on.log.witness = entered(going_on)
    assert rejected(going_on) == ([], 1)
    assert rejected(going_on, own=True) == ([3], 0)
    twice = make(tmp_path / "twice", [0, 1, 2, 0, 0, 1])
    twice.log.witness = entered(twice, 5)
    assert rejected(twice) == ([], 2)


def test_an_entry_alone_makes_no_record_corrupt(tmp_path: Path) -> None:
    """A queue file that points at another queue's record is what is wrong: the record is at home there."""
    made = make(tmp_path / "log", [0, (b"u", 0, 0, {}), 2, 3])
    made.log.witness = Fake(
        {(b"t", 0, 1): made.places[1], (b"u", 0, 0): made.places[1], (b"t", 0, 0): made.places[0]}
    )
    assert rejected(made)[0] == []


def test_prepared_and_rolled_back_messages_and_inner_batches_count_as_the_format_says(
    tmp_path: Path,
) -> None:
    prepared, rolled_back = {"sys_flag": PREPARED}, {"sys_flag": ROLLBACK}
    batch = {"sys_flag": INNER_BATCH, "properties": b"INNER_NUM\x013\x02"}
    made = make(tmp_path / "log", [
        0, (b"t", 0, 0, prepared), 1, (b"t", 0, 0, rolled_back), (b"t", 0, 2, batch), 5, 6,
    ])  # fmt: skip
    assert rejected(made) == ([], 0)
    assert rejected(make(tmp_path / "none", [(b"t", 0, 0, prepared)])) == ([], 0)


def test_of_a_number_of_messages_nine_digits_count(tmp_path: Path) -> None:
    batch = {"sys_flag": INNER_BATCH, "properties": b"INNER_NUM\x011234567890\x02"}
    made = make(tmp_path / "log", [0, (b"t", 0, 1, batch), 1 + 123_456_789])
    assert rejected(made) == rejected(made, own=True) == ([], 0)


def test_a_gap_that_lost_bytes_or_a_repair_explain_is_no_new_generation(tmp_path: Path) -> None:
    made = make(tmp_path / "log", [0, 1, 2, 3, 4])
    file = next((tmp_path / "log").iterdir())
    data = bytearray(file.read_bytes())
    at = made.places[2][0]
    data[at + 84 : at + 88] = b"\xff" * 4
    file.write_bytes(data)
    made.log.refresh()
    assert rejected(made, own=True) == ([], 0)
    lone = make(tmp_path / "gap", [(b"t", 0, 3, {}), (b"t", 0, 4, {})], base=0)
    assert rejected(lone, own=True, gaps=[]) == ([], 1)
    again = make(tmp_path / "again", [3, 4], base=SEGMENT)
    (tmp_path / "again" / f"{0:020d}").write_bytes((tmp_path / "log" / f"{0:020d}").read_bytes())
    again.log.refresh()
    assert rejected(again, own=True, gaps=[(made.places[4][0], SEGMENT)])[0] == []


def test_a_record_that_ends_in_its_own_crc_is_what_was_written(tmp_path: Path) -> None:
    made = make(tmp_path / "log", [0, 1, 77, 3, 4], sealed=True)
    assert rejected(made, own=True)[0] == []


def test_a_rejected_record_is_a_corrupt_range_for_every_walk(tmp_path: Path) -> None:
    made = make(tmp_path / "log", [0, 1, 77, 3, 4])
    assert rejected(made) == ([2], 0)
    (segment,) = made.log.segments
    pieces = list(walk_segment(made.log, segment))
    at, size = made.places[2]
    assert [(p.start, p.stop) for p in pieces if isinstance(p, Corrupt)] == [(at, at + size)]
    stops = [p.stop for p in pieces if not isinstance(p, End)]
    assert [p.start for p in pieces] == [0, *stops], "each piece begins where the one before ends"
    seen = [o for p in pieces if isinstance(p, Valid) for o in p.columns.log_offsets.tolist()]
    assert seen == [made.places[n][0] for n in (0, 1, 3, 4)]


def test_of_many_breaks_only_the_last_sixteen_wait_for_what_follows(tmp_path: Path) -> None:
    odd = [1000 + 2 * n for n in range(17)]
    made = make(tmp_path / "log", [0, 1, *odd, 18, 19])
    assert rejected(made) == (list(range(3, 19)), 0)
    assert rejected(make(tmp_path / "own", [0, 1, *odd, 18, 19]), own=True)[0] == list(range(2, 19))


def generations_of(made: Made, due: Due | None, *, own: bool, gaps: Any = ()) -> QueueGenerations:
    return QueueGenerations(made.log, lambda _queue: due, lambda _at: own, gaps)


def columns_of(made: Made, first: int, stop: int) -> RecordColumns:
    places = np.array([at for at, _ in made.places[first:stop]], np.int64)
    return RecordColumns.parse(bytes(made.log.read(0, SEGMENT)), places, 0)


@pytest.mark.parametrize(
    ("first", "is_bad"), [(3, False), (12, False), (13, True), (1, True), (2, False)]
)
def test_records_before_the_scan_explain_as_many_offsets_as_fit_into_their_bytes(
    first: int, is_bad: bool, tmp_path: Path
) -> None:
    made = make(tmp_path / "log", [first])
    generations = generations_of(made, Due(2, unseen_bytes=11 * FIXED_SIZE - 1), own=True)
    generations.add(columns_of(made, 0, 1))
    assert bool(generations.finish().rejected) == is_bad


@pytest.mark.parametrize(
    ("missing", "size", "late", "notes"),
    [
        (3, 2 * FIXED_SIZE, 0, 0), (4, 2 * FIXED_SIZE, 0, 1), (3, 2 * FIXED_SIZE - 1, 0, 1), (1, 1, 0, 0),
        (1, 0, 0, 1), (3, 2 * FIXED_SIZE, 1, 1), (-1, 500, 0, 1),
    ],
)  # fmt: skip
def test_lost_bytes_before_a_record_explain_as_many_offsets_as_may_have_begun_in_them(
    missing: int, size: int, late: int, notes: int, tmp_path: Path
) -> None:
    """A range that ends right where the record begins counts, one that ends later does not yet."""
    made = make(tmp_path / "log", [0, 1, 2 + missing, 3 + missing])
    end = made.places[2][0] + late
    generations = generations_of(made, Due(0), own=False, gaps=[(end - size, end)])
    generations.add(columns_of(made, 0, 2))
    generations.add(columns_of(made, 2, 4))
    assert len(generations.finish().notes) == notes


def test_lost_bytes_are_used_up_by_the_first_records_of_the_queue_after_them(
    tmp_path: Path,
) -> None:
    made = make(tmp_path / "log", [0, 1, 3, 4, 6, 7])
    generations = generations_of(made, Due(0), own=False)
    generations.add(columns_of(made, 0, 2))
    generations.lose(0, 500)
    generations.add(columns_of(made, 2, 4))
    generations.add(columns_of(made, 4, 6))
    assert [note.log_offset for note in generations.finish().notes] == [made.places[4][0]]


def test_missing_offsets_are_looked_up_as_far_as_a_limit(tmp_path: Path) -> None:
    """Entry 300 points at a record that says otherwise, and from offset 45 on it is within the limit of 256."""
    for due, bad in ((45, [0]), (44, [])):
        made = make(tmp_path / str(due), [(b"u", 0, 7, {}), due - 1])
        places = {(b"t", 0, 300): made.places[0], (b"t", 0, due - 1): made.places[1]}
        made.log.witness = Fake(places)
        generations = generations_of(made, None, own=False)
        generations.add(columns_of(made, 0, 2))
        found = generations.finish().rejected
        assert [n for n, (at, _) in enumerate(made.places) if at in found] == bad


def test_a_record_at_the_place_of_an_entry_must_fit_and_state_its_own_place(tmp_path: Path) -> None:
    """A hostile entry costs nothing: what it points at is no evidence."""
    for wrong in ((SEGMENT - FIXED_SIZE + 1, FIXED_SIZE), (0, FIXED_SIZE - 1), (5, 100), (SEGMENT, 100)):  # fmt: skip
        made = make(tmp_path / f"{wrong[0]}-{wrong[1]}", [0, 1, 3, 4])
        made.log.witness = Fake({(b"t", 0, 2): wrong, (b"t", 0, 4): made.places[3]})
        assert rejected(made) == ([], 1)


# --- entries of a queue index as evidence


class Unreadable:
    """A queue index whose files cannot be read."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def place(self, topic: str, queue: int, queue_offset: int) -> tuple[int, int] | None:
        raise self.error

    def max_offset(self, topic: str, queue: int) -> int:
        raise self.error


def test_an_entry_tells_where_its_record_is_and_what_is_none_or_unreadable_nothing(
    written: WrittenLog, tmp_path: Path
) -> None:
    options = ConsumeQueueDispatcher.Options()
    index = ConsumeQueueDispatcher(options, make_context(tmp_path / "queues"))
    for batch in written.batches():
        index.dispatch(batch)
    witness = EntryWitness(index)
    size = int.from_bytes(written.view.read(0, 4), "big")
    assert witness.place(b"topic-0", 0, 0) == (0, size)
    assert witness.end(b"topic-0", 0) == 84
    for topic, queue, offset in (
        (b"../x", 0, 0), (b"topic-0", -1, 0), (b"topic-0", 0, -1), (b"topic-0", 0, 84),
    ):  # fmt: skip
        assert witness.place(topic, queue, offset) is None
    for topic, queue in ((b"\xff", 0), (b"topic-0", -1), (b"none", 0)):
        assert witness.end(topic, queue) == 0
    index.close()
    for error in (OSError("no"), StorageError("no")):
        unreadable: Any = Unreadable(error)
        assert EntryWitness(unreadable).place(b"topic-0", 0, 3) is None
        assert EntryWitness(unreadable).end(b"topic-0", 0) == 0
