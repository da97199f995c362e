"""What the compiled kernel does with objects misused, columns that change while they are read, and hostile staged records."""

import contextlib
import copy
import enum
import mmap
import os
import pickle
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import OpenStore, append_record

from penstock import Message, StoredMessage, _kernel
from penstock.format.columns import ROW
from penstock.format.record import MAGIC_BLANK, SIZE_AND_MAGIC, RecordFields, encode_record

ENCODED = encode_record(RecordFields(topic=b"t", body=b"b", properties=b"A\x01b\x02"))


def encoder(**given: Any) -> _kernel.RecordEncoder:
    def cursor(topic: str, queue: int) -> _kernel.QueueCursor:
        return _kernel.QueueCursor(topic, queue, 0)

    return _kernel.RecordEncoder(
        bytes(8),
        **{"crc_property": False, "body_bytes_max": 1 << 22, "make_cursor": cursor, **given},
    )


def refuse(_draft: object) -> None:
    raise AssertionError


OWNERS: dict[str, Callable[[], object]] = {
    "cursor": lambda: _kernel.QueueCursor("t", 0, 0), "encoder": encoder, "batch": lambda: _kernel.Batch(encoder()),
    "extent": lambda: _kernel.Extent(0), "lock": lambda: _kernel.AppendLock(1, lambda: 0),
    "appender": lambda: _kernel.Appender(encoder(), _kernel.AppendLock(1, lambda: 0), refuse),
}  # fmt: skip
COPIES: list[Callable[[Any], object]] = [
    *(lambda value, n=n: pickle.dumps(value, n) for n in range(pickle.HIGHEST_PROTOCOL + 1)),
    copy.copy,
    copy.deepcopy,
]


@pytest.mark.parametrize("name", OWNERS)
def test_what_holds_memory_or_a_lock_is_not_copied(name: str) -> None:
    owner = OWNERS[name]()
    for copied in COPIES:
        with pytest.raises(TypeError):
            copied(owner)


def test_a_store_is_not_copied(open_small: OpenStore) -> None:
    with open_small() as store:
        for copied in COPIES:
            with pytest.raises(TypeError):
                copied(store)


@pytest.mark.parametrize("name", ["QueueCursor", "RecordEncoder", "Batch", "ArrowRows", "AppendLock", "Extent", "Appender"])  # fmt: skip
def test_an_object_that_was_not_made_whole_is_not_there(name: str) -> None:
    kind = getattr(_kernel, name)
    with pytest.raises(TypeError):
        kind.__new__(kind)


def test_records_of_another_log_are_stored_only_where_they_may_be() -> None:
    base = 1 << 20

    def sent(at: int, data: bytes, kind: bytes = b"D") -> bytes:
        return _kernel.frame(kind, at.to_bytes(8, "big"), data)

    def made(at: int, **fields: Any) -> bytes:
        return encode_record(RecordFields(**{"topic": b"t", "body": b"a", "log_offset": at, "store_time_ms": 7, **fields}))  # fmt: skip

    first = made(base + 16)
    second = made(base + 16 + len(first), store_time_ms=5)
    data = first + second
    stop = len(data)
    memory, extent, lock = bytearray(1024), _kernel.Extent(16), _kernel.AppendLock(1, lambda: 0)
    appender = _kernel.Appender(encoder(), lock, refuse)

    def took(frames: bytes, log_offset: int = base + 16, *, end: int = 1024, capacity: int = 1024, most: int = 1024) -> tuple[int, int]:  # fmt: skip
        appender.attach(extent, base, capacity, memoryview(memory), end)
        taken, after = appender.land(frames, log_offset, most, b"", 4)
        return taken, after - log_offset

    whole = sent(base + 16, data)
    limits: list[dict[str, int]] = [{"log_offset": base + 15}, {"end": 15 + stop}, {"capacity": 23 + stop}, {"most": len(first) - 1}]  # fmt: skip
    assert all(took(whole, **limit) == (0, 0) for limit in limits)
    assert took(sent(base + 17, made(base + 17)), base + 17) == (0, 0)
    with lock:
        assert took(whole) == (0, 0)
    for reason in (1, 2, 8):
        appender.refuse(reason)
        assert took(whole) == (0, 0)
        appender.allow(reason)
    garbled = [whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :] for at in range(len(whole))]
    others = [
        b"",
        whole[:-1],
        sent(base + 15, data),
        sent(base + 16, data, b"E"),
        sent(base + 16, b""),
    ]
    others += [sent(base + 16, each) for each in (data[:-1], data + b"x", first + first, data + made(base + 16 + stop, prepared_offset=-1))]  # fmt: skip
    others.append(sent(base + 16, made(base + 16, body=b"b").replace(b"b", b"c")))
    assert all(took(wrong) == (0, 0) for wrong in garbled + others)
    assert (bytes(memory), extent.wrote) == (bytes(1024), 16)
    appender.refuse(4)
    frames = sent(base + 16, first) + sent(base + 16 + len(first), second)
    assert took(frames + b"J", end=16 + stop, capacity=24 + stop) == (len(frames), stop)
    assert bytes(memory) == (bytes(16) + data).ljust(1024, b"\0")
    assert (extent.wrote, extent.committed, appender.last_time_ms) == (16 + stop, 16 + stop, 7)
    appender.detach()
    assert appender.land(sent(base + 16 + stop, b"x"), base + 16 + stop, 1024, b"") == (0, base + 16 + stop)  # fmt: skip


def test_whole_records_end_where_their_sizes_say() -> None:
    record = encode_record(RecordFields(topic=b"t", body=b"a"))
    size, filler = len(record), SIZE_AND_MAGIC.pack(20, MAGIC_BLANK) + bytes(12)
    data = record * 3 + filler
    ends = (0, size, 2 * size, 3 * size, len(data))
    for most in range(len(data) + 9):
        end = max(each for each in ends if each <= most)
        assert _kernel.whole_end(data, most) == end
        assert _kernel.whole_end(memoryview(data)[:most], 1 << 62) == end
    for none in (
        b"",
        bytes(40),
        b"\xff" * 40,
        SIZE_AND_MAGIC.pack(7, MAGIC_BLANK) * 9,
        SIZE_AND_MAGIC.pack(-8, MAGIC_BLANK) * 9,
    ):
        assert _kernel.whole_end(none, len(none)) == 0
    assert _kernel.whole_end(data, -1) == 0


def test_frames_that_cannot_be_are_refused() -> None:
    for kind in (b"", b"ab"):
        with pytest.raises(ValueError, match="one byte"):
            _kernel.frame(kind, b"")
    for start in (-1, 4, 1 << 62):
        with pytest.raises(ValueError, match="outside"):
            _kernel.frame_end(b"abc", start, {})


def test_a_draft_without_a_message_encodes_nothing() -> None:
    with pytest.raises(ValueError, match="draft has no message"):
        _kernel.Draft.__new__(_kernel.Draft).encode(0, 0)


@pytest.mark.parametrize("cursor", [None, "negative"])
def test_a_lane_that_is_none_is_refused(cursor: str | None) -> None:
    made = None if cursor is None else _kernel.QueueCursor("t", -1, 0)
    batch = _kernel.Batch(encoder(make_cursor=lambda _topic, _queue: made))
    with pytest.raises(ValueError, match="make_cursor must return"):
        batch.add(Message("t", b"", queue=0))
    assert len(batch) == 0


def test_numbers_of_rows_that_cannot_be_are_refused() -> None:
    bounds, none = np.zeros(2, np.int32), (np.zeros(2, np.int32), b"", 0)
    for count in (-1, (1 << 31) - 1, (1 << 63) - 1):
        with pytest.raises(ValueError, match="rows at once"):
            _kernel.ArrowRows(encoder(), count, none, none)
        with pytest.raises(ValueError, match="properties at once"):
            _kernel.ArrowRows(encoder(), 1, none, none, pairs=(bounds, 0, none, none, count))
    with pytest.raises(ValueError, match="sector_bytes is 0"):
        _kernel.scan(ENCODED, 0, _kernel.TORN, b"", sector_bytes=0)
    rows = np.frombuffer(_kernel.parse(ENCODED, np.zeros(1, np.int64)), ROW)
    for name in (b"", b"A\x01b", b"\x02"):
        with pytest.raises(ValueError, match="no property can be named"):
            _kernel.named(ENCODED, rows, name)
        with pytest.raises(ValueError, match="no property can be named"):
            _kernel.property_column(ENCODED, rows, name)


def test_a_batch_that_was_appended_takes_no_more() -> None:
    batch = _kernel.Batch(encoder())
    batch.add(Message("t", b"1", queue=0))
    batch.stamp([(0, 0)], 1)
    receipts = batch.receipts(1, "ok", "on disk")  # type: ignore[arg-type] # words of this test
    for add in (
        lambda: batch.add(Message("t", b"2", queue=0)),
        lambda: batch.add_record(_kernel.QueueCursor("t", 0, 0), ENCODED, has_crc=False),
    ):
        with pytest.raises(BufferError, match="it was appended"):
            add()
    assert isinstance(batch.cursors, tuple)
    assert receipts[0].queue_offset == 0


def test_rows_of_many_properties_are_left_to_the_other_way_in() -> None:
    sealing = encoder(crc_property=True)
    for count, taken in ((64, 1), (65, 0), (40_000, 0)):
        names = [f"n{number:06d}" for number in range(count)]
        texts = (np.arange(0, 7 * count + 1, 7, dtype=np.int32), "".join(names).encode(), 0)
        one = (np.array([0, 1], np.int32), b"t", 0)
        bounds = np.array([0, count], np.int32)
        columns = _kernel.ArrowRows(sealing, 1, one, one, pairs=(bounds, 0, texts, texts, count))
        assert _kernel.Batch(sealing).add_columns(columns) == taken


def flipped(change: Callable[[], None], work: Callable[[], None], rounds: int) -> None:
    """Do some work again and again while another thread changes what it works on."""
    is_over = threading.Event()

    def changes() -> None:
        while not is_over.is_set():
            change()

    thread = threading.Thread(target=changes)
    thread.start()
    try:
        for _ in range(rounds):
            work()
    finally:
        is_over.set()
        thread.join()


@pytest.mark.slow
def test_a_text_that_changes_meanwhile_fits_its_column() -> None:
    sound, broken = (
        encode_record(RecordFields(topic=b"t", body=b"", properties=b"A\x01" + byte * 32_000 + b"\x02"))
        for byte in (b"a", b"\xff")
    )  # fmt: skip
    window = bytearray(sound * 50)
    rows = np.frombuffer(_kernel.parse(window, np.arange(50, dtype=np.int64) * len(sound)), ROW)
    memory = memoryview(window)
    seen = []

    def changes() -> None:
        memory[:] = broken * 50
        memory[:] = sound * 50

    def reads() -> None:
        _, offsets, values = _kernel.property_column(memory, rows, b"A")
        ends = np.frombuffer(offsets, np.int32)
        seen.append(int(ends[-1]) <= len(values))
        values[: ends[-1]].decode()

    flipped(changes, reads, 60)
    assert all(seen)


def test_a_header_that_changes_meanwhile_is_no_message() -> None:
    # With both hosts of IPv6 the topic would begin 24 bytes later, its length would be two letters.
    fields = RecordFields(topic=b"t" * 200, body=b"b" * 200_000, properties=b"", is_v2=True)
    record = encode_record(fields)
    window = mmap.mmap(-1, len(record))
    window[:] = record

    def changes() -> None:
        for _ in range(1000):
            window[39] = 0x30
            window[39] = 0

    def reads() -> None:
        found = _kernel.message(memoryview(window), 0, None, 0, 0, b"")
        assert found is None or found.topic == "t" * 200

    flipped(changes, reads, 400)


@pytest.mark.parametrize("size", [1, _kernel.ROW_BYTES - 1, _kernel.ROW_BYTES + 1])
def test_bytes_that_are_no_whole_rows_are_refused(size: int) -> None:
    rows: Any = bytes(size)
    offsets = np.zeros(2, np.int64)
    calls: list[Callable[[], object]] = [
        lambda: _kernel.topics(ENCODED, rows),
        lambda: _kernel.indexed(ENCODED, rows),
        lambda: _kernel.own_crcs(ENCODED, rows),
        lambda: _kernel.valid_rows(ENCODED, rows, offsets, 0, b""),
        lambda: _kernel.body_column(ENCODED, rows),
        lambda: _kernel.row_entries(rows, b"", b"", 1, 1, 1),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="no rows of"):
            call()


@pytest.mark.slow
def test_rows_that_change_meanwhile_lead_nowhere() -> None:
    fields = RecordFields(
        topic=b"t", body=b"b" * 300_000, properties=b"TAGS\x01" + b"x" * 25 + b"\x02"
    )
    record = encode_record(fields, crc_property=True)
    rows = np.frombuffer(_kernel.parse(record, np.zeros(100, np.int64)), ROW)
    sizes, right = rows["size"], rows["size"].copy()
    covered, offsets = np.array([0, 1000], np.int64).tobytes(), np.zeros(100, np.int64)

    def changes() -> None:
        sizes[:] = 2**31 - 1
        sizes[:] = right

    def asks() -> None:
        assert len(_kernel.valid_rows(record, rows, offsets, _kernel.CRC, covered)) == len(rows)

    flipped(changes, asks, 20)


def test_key_rows_that_change_meanwhile_lead_nowhere() -> None:
    slots, entries, count = 1000, 30_000, 20_000
    memory = bytearray(40 + 4 * slots + 20 * entries)
    rows, one = np.zeros(count, np.int64), np.zeros(1, np.int64)
    hashes = np.zeros(count, np.int64)

    def changes() -> None:
        rows[-1000:] = 1 << 45
        rows[-1000:] = 0

    def adds() -> None:
        memory[36:40] = bytes(4)
        with contextlib.suppress(ValueError):
            _kernel.index_file_add(memory, slots, entries, rows, hashes, one, one)

    flipped(changes, adds, 200)


class Word(enum.StrEnum):
    TOPIC = "t"
    KEY = "k"


def test_texts_of_any_kind_are_found_as_they_were_put(open_small: OpenStore) -> None:
    with open_small() as store:
        store.put(Word.TOPIC, b"1", queue=0, keys=[Word.KEY])
        assert [m.body for m in store.find(Word.KEY, Word.TOPIC)] == [b"1"]
        assert store.find("", "t") == []


class OwnMessage(Message):
    pass


class OwnStored(StoredMessage):
    pass


def test_messages_of_a_subclass_stay_that_in_a_pickle() -> None:
    for made in (OwnMessage("t", b"b", keys=["k"]), OwnStored(ENCODED)):
        again = pickle.loads(pickle.dumps(made))
        assert type(again) is type(made)
        assert again == made


@pytest.mark.slow
def test_a_staged_text_that_ends_in_zero_is_no_torn_record(
    open_small: OpenStore, tmp_path: Path
) -> None:
    """A record of ours that ends in zero would be taken for one that a power cut tore, and all after it with it."""
    made = encoder()
    batch = _kernel.Batch(made)
    hostile = encode_record(RecordFields(topic=b"t", body=b"staged", properties=b"A\x01b\x00"))
    batch.add_record(made.cursor_of("t", 0), hostile, has_crc=False)
    assert bytes(batch).endswith(b"A\x01b\x00\x02")
    assert StoredMessage(bytes(batch)).properties == {"A": "b\x00"}
    child = os.fork()
    if child == 0:
        try:
            store = open_small(path=tmp_path / "killed", **{"log.checksum": "crc32"})
            store.put("t", b"first", queue=0)
            append_record(store, "t", b"staged", b"A\x01b\x00")
            for number in range(5):
                store.put("t", b"%d" % number, queue=0)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    with open_small(path=tmp_path / "killed", **{"log.checksum": "crc32"}) as store:
        assert len(list(store.scan("t"))) == 7


def test_a_batch_that_was_never_begun_takes_no_put() -> None:
    with pytest.raises(NotImplementedError):
        _kernel.BatchProducer().put("t", b"b", queue=0)
