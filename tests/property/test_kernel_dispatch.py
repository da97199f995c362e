"""The kernel's work for dispatchers, queue entries, index files, look-ups, against plain Python, and with hostile numbers.

Files and windows lie before a page that nobody may touch, so that an access behind their end ends the process.
"""

import struct
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.guard import guarded, guarded_memory
from tests.lanes import examples
from tests.property.test_kernel_reads import FIELDS, I32, I64

from penstock import _kernel
from penstock.format.columns import ROW
from penstock.format.hashes import index_hash
from penstock.format.properties import NAME_END, PAIR_END
from penstock.format.record import PREPARED, ROLLBACK, RecordFields, encode_record
from penstock.message import StoredMessage
from penstock.read.filters import has_key

HEADER, SLOT, ENTRY = struct.Struct(">qqqqii"), struct.Struct(">i"), struct.Struct(">iqii")
QUEUE_ENTRY = struct.Struct(">qiq")
I32_MAX, I64_MAX = (1 << 31) - 1, (1 << 63) - 1
HUGE = st.one_of(st.integers(-3, 30), I64, st.sampled_from([-I64_MAX - 1, I64_MAX, 1 << 62]))
HUGE32 = st.one_of(st.integers(-3, 30), I32, st.sampled_from([-I32_MAX - 1, I32_MAX]))


# --- queue entries


class Row(NamedTuple):
    """What a batch says of one record."""

    topic: int
    queue: int
    queue_offset: int
    kind: int = 0
    log_offset: int = 0
    size: int = 100
    tag_code: int = 0
    time_ms: int = 0


def rows_of(topic: Any, queue: Any, queue_offset: Any) -> st.SearchStrategy[list[Row]]:
    kind = st.sampled_from([0, 0, 0, PREPARED, 0x8, ROLLBACK])
    return st.lists(
        st.builds(Row, topic, queue, queue_offset, kind, HUGE, HUGE32, HUGE, HUGE), max_size=40
    )


CLOSE = rows_of(st.integers(0, 2), st.integers(0, 2), st.integers(0, 4))
HOSTILE = rows_of(st.integers(0, 2), HUGE32, HUGE)


def kernels_entries(rows: list[Row], topics: int = 3, wide: bool = True) -> Any:
    def column(values: Iterator[int], *, narrow: bool = False) -> Any:
        kind = np.int32 if narrow and not wide else np.int64
        # Every second one of twice as many: columns may have any stride.
        made = np.zeros((len(rows), 2), kind)
        made[:, 0] = list(values)
        return made[:, 0]

    return _kernel.queue_entries(
        column(r.log_offset for r in rows), column((r.size for r in rows), narrow=True),
        column((r.queue for r in rows), narrow=True), column(r.queue_offset for r in rows),
        column((r.kind for r in rows), narrow=True), column(r.tag_code for r in rows),
        column((r.topic for r in rows), narrow=True), column(r.time_ms for r in rows), topics, 65_535, 1 << 58,
    )  # fmt: skip


def plain_entries(rows: list[Row]) -> Any:
    """Entries, times, runs and refused rows, as `queue_entries` is described."""
    cursors: dict[tuple[int, int], list[Row]] = {}
    refused = []
    for number, row in enumerate(rows):
        if row.kind in (PREPARED, ROLLBACK):
            continue
        if 0 <= row.queue <= 65_535 and 0 <= row.queue_offset < 1 << 58:
            cursors.setdefault((row.topic, row.queue), []).append(row)
        else:
            refused.append(number)
    entries, times, runs = b"", list[int](), list[list[int]]()
    for (topic, queue), found in cursors.items():
        following = None
        for row in found:
            if row.queue_offset != following:
                runs.append([topic, queue, row.queue_offset, len(times), row.log_offset])
            following = row.queue_offset + 1
            entries += QUEUE_ENTRY.pack(row.log_offset, row.size, row.tag_code)
            times.append(row.time_ms)
    return entries, times, runs, refused


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(rows=st.one_of(CLOSE, HOSTILE), wide=st.booleans())
@example(rows=[Row(0, 0, I64_MAX), Row(0, 0, -1), Row(0, I32_MAX, 0), Row(0, -1, 0)], wide=False)
@example(rows=[Row(0, 0, 1), Row(0, 0, 2), Row(0, 0, 2), Row(0, 0, 9), Row(0, 0, 3)], wide=True)
def test_queue_entries_are_those_of_the_plain_rules(rows: list[Row], wide: bool) -> None:
    entries, times, runs, refused = kernels_entries(rows, wide=wide)
    plain = plain_entries(rows)
    assert entries == plain[0]
    assert np.frombuffer(times, np.int64).tolist() == plain[1]
    assert np.frombuffer(runs, np.int64).reshape(-1, 5).tolist() == plain[2]
    assert np.frombuffer(refused, np.int64).tolist() == plain[3]


def scanned_entries(rows: list[Row], topics: int = 3) -> Any:
    """What `row_entries` makes of the same rows; these lie before a page that nobody may touch."""
    fields = np.zeros(len(rows), ROW)
    fields["log_offset"], fields["size"] = [r.log_offset for r in rows], [r.size for r in rows]
    fields["queue"], fields["queue_offset"] = (
        [r.queue for r in rows],
        [r.queue_offset for r in rows],
    )
    # The bits beside the transaction's say nothing of an entry.
    fields["sys_flag"] = [r.kind | 0x13 for r in rows]
    fields["store_ms"] = [r.time_ms for r in rows]
    columns = [
        np.array([getattr(r, name) for r in rows], np.int64).tobytes()
        for name in ("topic", "tag_code")
    ]
    held: list[Any] = [guarded(each) for each in (fields.tobytes(), *columns)]
    return _kernel.row_entries(held[0], held[1], held[2], topics, 65_535, 1 << 58)


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(rows=st.one_of(CLOSE, HOSTILE))
@example(rows=[Row(0, 0, I64_MAX), Row(0, 0, -1), Row(0, I32_MAX, 0), Row(0, -1, 0)])
@example(rows=[Row(0, 0, 1), Row(0, 0, 2), Row(0, 0, 2), Row(0, 0, 9), Row(0, 0, 3)])
@example(rows=[])
def test_entries_of_scanned_rows_are_those_of_the_plain_rules(rows: list[Row]) -> None:
    runs, refused = scanned_entries(rows)
    entries, times, expected, left_out = plain_entries(rows)
    assert [[topic, queue, at, offset] for topic, queue, at, offset, _, _ in runs] == [
        [topic, queue, at, offset] for topic, queue, at, _, offset in expected
    ]
    starts = [start for _, _, _, start, _ in expected]
    for run, start, stop in zip(runs, starts, [*starts[1:], len(times)], strict=False):
        assert run[4] == entries[20 * start : 20 * stop]
        assert np.frombuffer(run[5], np.int64).tolist() == times[start:stop]
    assert np.frombuffer(refused, np.int64).tolist() == left_out


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("size", [0, 7, 8, 24])
def test_scanned_rows_without_as_many_topics_and_codes_are_refused(place: int, size: int) -> None:
    given_: list[Any] = [bytes(2 * _kernel.ROW_BYTES), bytes(16), bytes(16)]
    given_[place] = bytes(size)
    with pytest.raises(ValueError, match="rows"):
        _kernel.row_entries(given_[0], given_[1], given_[2], 1, 10, 10)


@pytest.mark.slow
def test_many_queues_are_told_apart_without_the_lock() -> None:
    rows = [Row(n % 3, n * 7919 % 60_000, n // 5000, log_offset=n) for n in range(20_000)]
    entries, times, runs, refused = kernels_entries(rows)
    plain = plain_entries(rows)
    assert b"".join(run[4] for run in scanned_entries(rows)[0]) == entries
    assert (entries, len(times), refused) == (plain[0], 8 * len(rows), b"")
    assert np.frombuffer(runs, np.int64).reshape(-1, 5).tolist() == plain[2]


@pytest.mark.parametrize("entries", [kernels_entries, scanned_entries])
@pytest.mark.parametrize("topic", [-1, 3, I32_MAX, I64_MAX])
def test_a_topic_that_is_none_of_the_batch_is_refused(entries: Any, topic: int) -> None:
    with pytest.raises(ValueError, match="topic"):
        entries([Row(0, 0, 0), Row(topic, 0, 0)])


@pytest.mark.parametrize(
    "column",
    [
        np.zeros(3), np.zeros(2, np.int64), np.zeros(4, np.int64), np.zeros(3, np.int16), np.zeros(3, ">i8"),
        np.zeros(3, np.uint64), np.zeros((3, 1), np.int64), b"abc",
    ],
    ids=["floats", "short", "long", "i16", "big-endian", "unsigned", "2d", "bytes"],
)  # fmt: skip
def test_what_is_no_column_of_the_batch_is_refused(column: Any) -> None:
    entries: Any = _kernel.queue_entries
    good = [np.zeros(3, np.int64) for _ in range(8)]
    for place in range(1, 8):
        given_: list[Any] = [*good[:place], column, *good[place + 1 :]]
        with pytest.raises((ValueError, BufferError)):
            entries(*given_, 1, 10, 10)


@pytest.mark.slow
@given(rows=st.lists(st.tuples(HUGE, HUGE32, HUGE), max_size=30), rest=st.integers(0, 19))
def test_entries_are_taken_apart_as_they_were_put_together(
    rows: list[tuple[int, int, int]], rest: int
) -> None:
    rows = [*rows, (0, I32_MAX, 0), (-1, -1, -1), (-1, 0, 7)]
    data = b"".join(QUEUE_ENTRY.pack(*row) for row in rows) + b"\xff" * rest
    offsets, sizes, codes, least = _kernel.entry_columns(guarded(data))
    places = [-1 if size == I32_MAX else at - (at == -1 and size <= 0) for at, size, _ in rows]
    assert np.frombuffer(offsets, np.int64).tolist() == places
    there = [row[1] if 0 < row[1] < I32_MAX else 0 for row in rows]
    assert np.frombuffer(sizes, np.int64).tolist() == there
    assert np.frombuffer(codes, np.int64).tolist() == [row[2] for row in rows]
    assert least == min([0, *(row[2] for row in rows)])


# --- index files

SLOTS, ENTRIES = 5, 12
SIZE = HEADER.size + SLOT.size * SLOTS + ENTRY.size * ENTRIES
Key = tuple[int, int, int]
KEYS = st.lists(st.tuples(HUGE32, HUGE, HUGE), max_size=14)
FILES = st.builds(
    lambda head, slots, entries: b"".join([
        HEADER.pack(*head), *(SLOT.pack(slot) for slot in slots), *(ENTRY.pack(*each) for each in entries)
    ]),
    st.tuples(HUGE, HUGE, HUGE, HUGE, HUGE32, HUGE32),
    st.lists(HUGE32, min_size=SLOTS, max_size=SLOTS),
    st.lists(st.tuples(HUGE32, HUGE, HUGE32, HUGE32), min_size=ENTRIES, max_size=ENTRIES),
)  # fmt: skip


def plain_add(file: bytearray, key: Key, slots: int = SLOTS, entries: int = ENTRIES) -> bool:
    """Add one key as `IndexFile.putKey` does (spec section 4.4); counts and chains that cannot be right are 1 and none."""
    head = list(HEADER.unpack_from(file))
    number = max(head[5], 1)
    if number >= entries:
        return False
    hash_, log_offset, time_ms = key
    slot_at = HEADER.size + SLOT.size * (hash_ % slots)
    (previous,) = SLOT.unpack_from(file, slot_at)
    previous = previous if 0 <= previous < number else 0
    is_after = head[0] > 0 and time_ms > head[0]
    seconds = min((time_ms - head[0]) // 1000, I32_MAX) if is_after else 0
    at = HEADER.size + SLOT.size * slots + ENTRY.size * number
    ENTRY.pack_into(file, at, hash_, log_offset, seconds, previous)
    SLOT.pack_into(file, slot_at, number)
    if number == 1:
        head[0], head[2] = time_ms, log_offset
    used = (head[4] + (previous == 0) + (1 << 31)) % (1 << 32) - (1 << 31)
    HEADER.pack_into(file, 0, head[0], time_ms, head[2], log_offset, used, number + 1)
    return True


def kernels_add(memory: Any, keys: list[Key], first: int = 0, *, backwards: bool = False) -> int:
    rows = np.arange(len(keys))[:: -1 if backwards else 1]
    hashes = np.array([key[0] for key in keys], np.int32)
    offsets = np.array([key[1] for key in keys], np.int64)[:: -1 if backwards else 1]
    times = np.array([key[2] for key in keys], np.int64)[:: -1 if backwards else 1]
    return _kernel.index_file_add(memory, SLOTS, ENTRIES, rows, hashes, offsets, times, first)


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(
    file=st.one_of(st.just(bytes(SIZE)), FILES),
    keys=KEYS,
    first=st.integers(0, 14),
    backwards=st.booleans(),
)
def test_keys_are_added_as_one_by_one(
    file: bytes, keys: list[Key], first: int, backwards: bool
) -> None:
    first = min(first, len(keys))
    plain, memory = bytearray(file), guarded_memory(file)
    added = 0
    for key in keys[first:]:
        if not plain_add(plain, key):
            break
        added += 1
    assert kernels_add(memory, keys, first, backwards=backwards) == added
    assert bytes(memory) == bytes(plain)


def test_keys_beyond_the_memory_or_the_batch_are_refused() -> None:
    keys = [(1, 2, 3)] * 3
    with pytest.raises(ValueError, match="too few"):
        kernels_add(bytearray(SIZE - 1), keys)
    with pytest.raises(BufferError):
        kernels_add(bytes(SIZE), keys)
    with pytest.raises(ValueError, match="first is 4"):
        kernels_add(bytearray(SIZE), keys, 4)
    ones = np.ones(2, np.int64)
    for row in (-1, 2, I64_MAX):
        memory = bytearray(SIZE)
        with pytest.raises(ValueError, match="row"):
            _kernel.index_file_add(memory, SLOTS, ENTRIES, np.array([0, row]), ones, ones, ones)
        assert not any(memory), "nothing was added before the refusal"
    for slots, entries in ((0, 1), (-1, 1), (1, 0), (1 << 40, 1), (1, 1 << 40)):
        with pytest.raises(ValueError, match="index file"):
            _kernel.index_file_add(bytearray(SIZE), slots, entries, ones, ones, ones, ones)


@given(keys=KEYS)
def test_links_are_those_that_adding_gives(keys: list[Key]) -> None:
    keys, file = keys[: ENTRIES - 1], bytearray(SIZE)
    for key in keys:
        plain_add(file, key)
    start = HEADER.size + SLOT.size * SLOTS
    entries = bytes(file[start + ENTRY.size : start + ENTRY.size * (len(keys) + 1)])
    slots, previous = _kernel.index_file_links(guarded(entries), SLOTS)
    wanted = struct.unpack_from(f">{SLOTS}i", file, HEADER.size)
    assert np.frombuffer(slots, np.int32).tolist() == list(wanted)
    assert np.frombuffer(previous, np.int32).tolist() == [
        each[3] for each in ENTRY.iter_unpack(entries)
    ]


def plain_find(file: bytes, hash_: int, begin_ms: int, end_ms: int) -> Iterator[int]:
    """What may have that key and time, newest first; a chain leads downwards, or ends."""
    if len(file) < HEADER.size:
        return
    base_ms, last_ms, first, _, _, count = HEADER.unpack_from(file)
    slot_at = HEADER.size + SLOT.size * (hash_ % SLOTS)
    if count <= 1 or base_ms > end_ms or last_ms < begin_ms or slot_at + SLOT.size > len(file):
        return
    (number,), bound = SLOT.unpack_from(file, slot_at), ENTRIES
    while 0 < number < bound:
        at = HEADER.size + SLOT.size * SLOTS + ENTRY.size * number
        if at + ENTRY.size > len(file):
            return
        found, log_offset, seconds, previous = ENTRY.unpack_from(file, at)
        at_ms = base_ms + 1000 * seconds
        is_timed = at_ms - 1000 <= end_ms and (at_ms + 1000 > begin_ms or seconds == I32_MAX)
        if found == hash_ and log_offset >= 0 and (log_offset == first or base_ms <= 0 or is_timed):
            yield log_offset
        bound, number = number, previous


TIMES = st.one_of(st.integers(-(1 << 62), 1 << 62), st.integers(-5000, 20_000))


@pytest.mark.slow
@settings(max_examples=examples(500), deadline=None)
@given(file=FILES, hash_=HUGE32, begin_ms=TIMES, end_ms=TIMES, size=st.integers(0, SIZE))
def test_a_hostile_index_file_is_searched_as_plainly(
    file: bytes, hash_: int, begin_ms: int, end_ms: int, size: int
) -> None:
    for part in (file, file[:size]):
        found, number = _kernel.index_file_find(
            guarded(part), SLOTS, ENTRIES, hash_, begin_ms, end_ms
        )
        assert found == list(plain_find(part, hash_, begin_ms, end_ms))
        assert number == 0


def test_entries_are_found_by_their_times_and_the_first_at_any_time() -> None:
    """The seconds of the first entry have another base: only its record tells its time."""
    memory = bytearray(SIZE)
    assert kernels_add(memory, [(7, n, 1000 + 100_000 * n) for n in range(4)]) == 4
    found, number = _kernel.index_file_find(memory, SLOTS, ENTRIES, 7, 150_000, 250_000)
    assert (found, number) == ([2, 0], 0)


def test_a_file_that_ends_after_its_first_entry_has_that_entry() -> None:
    memory = bytearray(SIZE)
    assert kernels_add(memory, [(7, 5, 1000)]) == 1
    end = HEADER.size + SLOT.size * SLOTS + ENTRY.size * 2
    for size, expected in ((end, [5]), (end - 1, []), (HEADER.size - 1, []), (0, [])):
        part = guarded(bytes(memory[:size]))
        assert _kernel.index_file_find(part, SLOTS, ENTRIES, 7, 0, 2000) == (expected, 0)


def test_a_long_chain_is_found_in_parts_and_in_full() -> None:
    count = 5000
    size = HEADER.size + SLOT.size + ENTRY.size * (count + 1)
    memory, rows = guarded_memory(bytes(size)), np.arange(count)
    times = np.arange(1, count + 1, dtype=np.int64)
    hashes = np.full(count, 7, np.int32)
    assert _kernel.index_file_add(memory, 1, count + 1, rows, hashes, rows, times) == count
    found, number, calls = list[int](), 0, 0
    while calls == 0 or number:
        some, number = _kernel.index_file_find(memory, 1, count + 1, 7, 0, 1 << 40, number)
        found, calls = found + some, calls + 1
    assert found == list(range(count))[::-1]
    assert calls > 1


@pytest.mark.parametrize("number", [-I64_MAX, -1, ENTRIES, ENTRIES + 1, I32_MAX, I64_MAX])
def test_a_number_to_go_on_with_that_is_no_entry_finds_nothing(number: int) -> None:
    file = bytearray(SIZE)
    plain_add(file, (7, 5, 5))
    plain_add(file, (7, 6, 6))
    assert _kernel.index_file_find(guarded(bytes(file)), SLOTS, ENTRIES, 7, 0, 9, number) == ([], 0)


def test_loops_and_chains_that_lead_upwards_end() -> None:
    """A chain of two entries that name each other, and one that names itself."""
    for previous in (1, 2, 3, ENTRIES - 1, I32_MAX, -1):
        file = bytearray(SIZE)
        for number in range(3):
            plain_add(file, (7, number, number))
        at = HEADER.size + SLOT.size * SLOTS + 2 * ENTRY.size
        ENTRY.pack_into(file, at, 7, 1, 0, previous)
        found, _ = _kernel.index_file_find(guarded(bytes(file)), SLOTS, ENTRIES, 7, -9, 9)
        assert found == ([2, 1, 0] if previous == 1 else [2, 1])


TEXTS = st.text(st.characters(codec=None), max_size=12)


@given(topic=TEXTS, key=TEXTS)
@example(topic="t", key="\ud800")
@example(topic="\U0001f600", key="polygenelubricants")
def test_a_key_has_the_hash_of_its_text(topic: str, key: str) -> None:
    assert _kernel.key_hash(topic, key) == index_hash(f"{topic}#{key}")


# --- records found again

WORDS = st.lists(st.sampled_from(["a", "b", "ab", "ключ", ""]), max_size=4).map(" ".join)


def keyed(fields: RecordFields, keys: str, unique: str, topic: str) -> bytes:
    pairs = {"KEYS": keys, "UNIQ_KEY": unique}
    text = "".join(f"{name}{NAME_END}{value}{PAIR_END}" for name, value in pairs.items())
    made = attrs.evolve(fields, topic=topic.encode(), properties=text.encode(), log_offset=4096)
    return encode_record(made)


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(
    fields=FIELDS,
    keys=WORDS,
    unique=WORDS,
    key=WORDS,
    topic=st.sampled_from(["t", "тема"]),
    begin_ms=I64,
    end_ms=I64,
)
def test_a_record_is_found_by_key_where_its_texts_say_so(
    fields: RecordFields, keys: str, unique: str, key: str, topic: str, begin_ms: int, end_ms: int
) -> None:
    record = keyed(fields, keys, unique, topic)
    message, window = StoredMessage(record), guarded(b"123" + record)
    found = _kernel.record_with_key(window, 3, 4096, b"t", key.encode(), begin_ms, end_ms, b"")
    is_timed = begin_ms <= message.store_time_ms <= end_ms
    wanted = topic == "t" and is_timed and has_key(message, key)
    assert found == (message if wanted else None)
    everything = _kernel.record_with_key(
        window, 3, 4096, topic.encode(), key.encode(), -I64_MAX - 1, I64_MAX, b""
    )
    assert (everything is not None) == has_key(message, key)


@pytest.mark.slow
@given(
    fields=FIELDS, position=HUGE, log_offset=st.sampled_from([4096, 4095]), cut=st.integers(0, 60)
)
def test_what_is_no_valid_record_there_is_told_apart(
    fields: RecordFields, position: int, log_offset: int, cut: int
) -> None:
    record = keyed(fields, "a", "", "t")
    window = guarded(record[: len(record) - cut])
    found = _kernel.record_with_key(
        window, position, log_offset, b"t", b"a", -I64_MAX, I64_MAX, b""
    )
    is_there = position == 0 and log_offset == 4096 and cut == 0
    assert (found is False) == (not is_there)


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None)
@given(
    fields=FIELDS,
    wrong=st.sampled_from(["", "size", "offset", "queue", "ordinal", "topic", "position"]),
    by=HUGE,
)
def test_the_time_of_a_record_is_told_where_it_is_the_one_asked_for(
    fields: RecordFields, wrong: str, by: int
) -> None:
    fields = attrs.evolve(fields, log_offset=4096)
    record = encode_record(fields)
    asked: dict[str, Any] = {
        "position": 0, "offset": 4096, "size": len(record), "topic": fields.topic, "queue": fields.queue,
        "ordinal": fields.queue_offset,
    }  # fmt: skip
    right = dict(asked)
    if wrong == "topic":
        asked["topic"] = fields.topic + b"x"
    elif wrong:
        asked[wrong] = by
    seen = _kernel.record_time(guarded(record), *asked.values())
    assert seen == (fields.store_time_ms if asked == right else None)
    assert (
        _kernel.record_time(guarded(record), 0, 4096, len(record), None, 9, 9)
        == fields.store_time_ms
    )


# --- references


def test_no_call_keeps_or_loses_a_reference() -> None:
    column: Any = np.zeros(3, np.int64)
    memory, key = bytearray(SIZE), "k" * 40
    record = keyed(BLANK, "a", "", "t")
    bad = np.zeros(3, np.int16)
    columns: list[Any] = [column] * 8

    def work() -> None:
        add: Any = _kernel.index_file_add
        entries: Any = _kernel.queue_entries
        entries(*columns, 1, 10, 10)
        with pytest.raises(ValueError, match="column"):
            entries(*columns[:7], bad, 1, 10, 10)
        add(memory, SLOTS, ENTRIES, *columns[:4])
        with pytest.raises(ValueError, match="first is"):
            add(memory, SLOTS, ENTRIES, *columns[:4], 9)
        _kernel.index_file_find(memory, SLOTS, ENTRIES, 0, 0, 1)
        _kernel.index_file_links(memory, 3)
        _kernel.entry_columns(memory)
        _kernel.key_hash(key, key)
        _kernel.record_with_key(record, 0, 4096, b"t", b"a", -I64_MAX, I64_MAX, b"")
        _kernel.record_time(record, 0, 4096, len(record), b"t", 0, 0)

    work()
    counts = [sys.getrefcount(each) for each in (column, memory, key, record, bad)]
    for _ in range(50):
        work()
    assert [sys.getrefcount(each) for each in (column, memory, key, record, bad)] == counts
    memory.append(0)  # a buffer that is still held refuses this


BLANK = RecordFields(
    topic=b"t", body=b"b", queue=0, flag=0, queue_offset=0, sys_flag=0, born_time_ms=1, born_host=bytes(8),
    store_time_ms=2, store_host=bytes(8), reconsume_times=0, prepared_offset=0, properties=b"", is_v2=False,
)  # fmt: skip
