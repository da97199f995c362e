"""A million of everything the compiled kernel makes leaves nothing behind: no memory, no reference."""

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import OpenStore

import penstock
from penstock import Message, StoredMessage, _kernel
from penstock.errors import MessageError
from penstock.format.columns import ROW
from penstock.format.record import RecordFields, encode_record

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quiet")]


MANY = 1_000_000
BATCH = 1000
# What an allocator keeps for the next of a kind; a leak of 8 bytes each would be 7.6 MiB.
LEFT_KIB = 4096
RECORD = encode_record(
    RecordFields(
        topic=b"topic", body=b"b" * 40, properties=b"TAGS\x01tag\x02KEYS\x01k\x02A\x01b\x02"
    )
)


def resident_kib() -> int:
    """Return the memory of this process that no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def encoder(body_bytes_max: int = 1 << 20) -> _kernel.RecordEncoder:
    return _kernel.RecordEncoder(
        bytes(8), crc_property=True, body_bytes_max=body_bytes_max,
        make_cursor=lambda topic, queue: _kernel.QueueCursor(topic, queue, 0),
    )  # fmt: skip


def batches() -> Callable[[], None]:
    made = encoder()
    messages = [Message("t", b"body", tag="tag", keys=("k",), properties={"a": "b"})] * BATCH

    def work() -> None:
        batch = _kernel.Batch(made)
        for message in messages:
            batch.add(message)
        batch.stamp([(0, 0)], 1)
        list(batch.receipts(1, penstock.PutStatus.PUT_OK, penstock.Durability.ACCEPTED))

    return work


def refused() -> Callable[[], None]:
    made = encoder()
    wrong = [Message("t", b"b", flag=1.5), Message("t", b"b", keys=("a\x01",)), Message("t", 5)]  # type: ignore[arg-type] # on purpose

    def work() -> None:
        batch = _kernel.Batch(made)
        for number in range(BATCH // 10):
            with pytest.raises((MessageError, TypeError)):
                batch.add(wrong[number % 3])

    return work


def stored() -> Callable[[], None]:
    def work() -> None:
        for message in [StoredMessage(RECORD) for _ in range(BATCH)]:
            _ = (
                message.topic,
                message.body,
                message.keys,
                message.properties,
                message.born_host,
                message.record,
            )

    return work


def columns() -> Callable[[], None]:
    window = RECORD * BATCH
    starts = np.arange(BATCH, dtype=np.int64) * len(RECORD)

    def work() -> None:
        rows = np.frombuffer(_kernel.parse(window, starts), ROW)
        _kernel.body_column(window, rows)
        _kernel.topic_column(window, rows)
        _kernel.property_column(window, rows, b"TAGS")
        _kernel.pair_columns(window, rows, b"TAGS")
        _kernel.indexed(window, rows)
        _kernel.topics(window, rows)
        _kernel.scan(window, 0, 0, b"")

    return work


MAKERS = {
    "batches": (batches, 1),
    "refused": (refused, 10),
    "stored": (stored, 1),
    "columns": (columns, 1),
}


@pytest.mark.night
@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_a_million_leave_no_memory(name: str) -> None:
    make, less = MAKERS[name]
    work = make()
    rounds = MANY // BATCH // less
    for _ in range(rounds // 10):
        work()
    gc.collect()
    before = resident_kib()
    for _ in range(rounds):
        work()
    gc.collect()
    assert resident_kib() - before < LEFT_KIB


@pytest.mark.night
@pytest.mark.slow
def test_a_million_puts_and_reads_leave_no_memory_and_no_reference(open_small: OpenStore) -> None:
    given = {
        "geometry.segment_bytes": 1 << 20,
        "retention.use": ["size"],
        "retention.size.bytes_max": 4 << 20,
    }
    with open_small(flush="none", **given) as store:
        topic, tag, key, body = (
            f"{word}-{os.getpid()}" for word in ("topic", "tag", "key", "body")
        )
        keys, data = (key,), body.encode()
        held = (topic, tag, key, keys, data)

        def work(count: int) -> None:
            for _ in range(count):
                store.put(topic, data, queue=0, tag=tag, keys=keys)
            store.retain()
            end = store.max_offset(topic, 0)
            for message in store.read(topic, 0, end - 1000, 1000).messages:
                assert message.body == data

        for _ in range(10):
            work(BATCH * 10)
        gc.collect()
        before, references = resident_kib(), [sys.getrefcount(each) for each in held]
        for _ in range(MANY // BATCH // 10):
            work(BATCH * 10)
        gc.collect()
        assert resident_kib() - before < 2 * LEFT_KIB
        # Names of topics are held in other places too, which come and go.
        after = [sys.getrefcount(each) for each in held]
        assert after[1:] == references[1:]
        assert after[0] < references[0] + BATCH


def test_large_batches_leave_no_memory() -> None:
    """The memory of a batch is kept for the next one, but not that of one large message for ever."""
    made = encoder(64 << 20)

    def work(messages: list[Message]) -> None:
        batch = _kernel.Batch(made)
        for message in messages:
            batch.add(message)

    many, large = [Message("t", b"body")] * 50_000, [Message("t", bytes(40 << 20))]
    before = resident_kib()
    work(large)
    assert resident_kib() - before < LEFT_KIB
    work(many)
    before = resident_kib()
    for _ in range(8):
        work(many)
    assert resident_kib() - before < LEFT_KIB
