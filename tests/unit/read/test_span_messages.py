"""Messages of several queues and topics, in the order of the log, read through the log once."""

import random
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore

from penstock import QueueSpan
from penstock.read import span_messages
from penstock.store.store import Store


def fill(store: Store, count: int = 300) -> list[tuple[str, int, int, bytes]]:
    chance, sent = random.Random(3), []
    for number in range(count):
        topic, queue = chance.choice(["a", "bb"]), chance.randrange(3)
        body = b"%d" % number + bytes(chance.randrange(200))
        receipt = store.put(topic, body, queue=queue, tag=("x", "y")[number % 2])
        sent.append((topic, queue, receipt.queue_offset, body))
    return sent


def spans_of(store: Store) -> list[QueueSpan]:
    return [QueueSpan(b.topic, b.queue, b.min_offset, b.max_offset) for b in store.bounds()]


def read(store: Store, spans: list[QueueSpan], **more: Any) -> list[tuple[str, int, int, bytes]]:  # fmt: skip
    return [(m.topic, m.queue, m.queue_offset, m.body) for m in store.scan_spans(spans, **more)]


@pytest.mark.parametrize("read_only", [False, True])
def test_messages_of_all_queues_come_in_the_order_of_the_log(
    open_small: OpenStore, read_only: bool
) -> None:
    with open_small() as store:
        sent = fill(store)
        if not read_only:
            assert read(store, spans_of(store)) == sent
    with open_small(read_only=True) as store:
        assert read(store, spans_of(store)) == sent
        some = [QueueSpan("a", 1, 3, 9), QueueSpan("bb", 0, 0, 2)]
        assert read(store, some) == [
            m for m in sent if any(m[:2] == s[:2] and s.start <= m[2] < s.stop for s in some)
        ]
        assert read(store, spans_of(store), tags=["y"]) == sent[1::2]
        assert read(store, [QueueSpan("a", 1, 4, 4)]) == []


def test_a_corrupt_record_is_skipped_and_counted_and_no_other(
    open_small: OpenStore, tmp_path: Path
) -> None:
    with open_small() as store:
        sent = fill(store, 60)
        at = store.read("a", 0, 4, 1).messages[0]
        lost = (at.topic, at.queue, at.queue_offset, at.body)
        position = at.log_offset + at.size - 20
    path = next((tmp_path / "store" / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    with open_small(read_only=True) as store:
        assert read(store, spans_of(store)) == [m for m in sent if m != lost]
        assert store.damaged_reads == 1


def test_few_messages_are_in_memory_at_once() -> None:
    """The limits are what bounds the memory of an export."""
    assert span_messages._ROWS <= 4096
    assert span_messages._BYTES <= 4 << 20
