"""Ranges of several queues and topics, read through the log once: as Arrow columns, and as messages."""

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import CorruptionError, Message, QueueSpan
from penstock.testing import ManualWorkers

SMALL: dict[str, Any] = {
    "geometry.segment_bytes": 16384,
    "geometry.queue_entries": 50,
    "flush": "sync",
}
WAITING = "SCHEDULE_TOPIC_XXXX"
COLUMNS = ["topic", "queue", "queue_offset", "log_offset", "body"]


def opened(root: Path, *, read_only: bool = True) -> penstock.Store:
    return penstock.open(root, environ={}, read_only=read_only, **({} if read_only else SMALL))


def fill(root: Path, count: int = 400, seed: int = 1) -> list[tuple[Any, ...]]:
    chance = random.Random(seed)
    sent: list[tuple[Any, ...]] = []
    with opened(root, read_only=False) as store:
        for _ in range(count):
            topic, queue = chance.choice(["a", "bb", "ccc"]), chance.randrange(3)
            body = chance.randbytes(chance.randrange(300))
            receipt = store.put(topic, body, queue=queue, tag=("x", "y")[len(sent) % 2])
            sent.append((topic, queue, receipt.queue_offset, receipt.log_offset, body))
    return sent


def spans_of(store: penstock.Store) -> list[QueueSpan]:
    return [
        QueueSpan(b.topic, b.queue, b.min_offset, b.max_offset) for b in store.lowlevel.bounds()
    ]


def read(store: penstock.Store, spans: list[QueueSpan], **more: Any) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for batch in store.lowlevel.arrow_spans(spans, COLUMNS, **more):
        assert batch.num_rows <= more.get("rows", 1 << 20)
        found += [tuple(row.values()) for row in batch.to_pylist()]
    return found


def messages_of(
    store: penstock.Store, spans: list[QueueSpan], **more: Any
) -> list[tuple[Any, ...]]:
    return [
        (m.topic, m.queue, m.queue_offset, m.log_offset, m.body)
        for m in store.lowlevel.scan_spans(spans, **more)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("more", [{}, {"rows": 7}, {"size": 500}, {"verify": False}])
def test_rows_and_messages_come_in_the_order_of_the_log(
    tmp_path: Path, more: dict[str, Any], read_only: bool
) -> None:
    sent = fill(tmp_path / "s")
    with opened(tmp_path / "s", read_only=read_only) as store:
        assert read(store, spans_of(store), **more) == sent
        some = [QueueSpan("bb", 1, 3, 9), QueueSpan("a", 0, 0, 2), QueueSpan("a", 2, 5, 5)]
        wanted = [row for row in sent if any(
            row[:2] == span[:2] and span.start <= row[2] < span.stop for span in some
        )]  # fmt: skip
        assert read(store, some, **more) == wanted
        if not more:
            assert messages_of(store, spans_of(store)) == sent
            assert messages_of(store, some) == wanted
            assert messages_of(store, spans_of(store), tags=["y"]) == sent[1::2]


@pytest.mark.slow
def test_bounds_are_what_is_said_of_each_queue(tmp_path: Path) -> None:
    root = tmp_path / "s"
    writing: list[penstock.QueueBounds] = []
    for seed in range(4):
        fill(root, 150, seed)
        if seed:
            with opened(root, read_only=False) as store:
                store.discard_before(log_offset=seed * 16384)
                writing = store.lowlevel.bounds()
        with opened(root) as store:
            found = store.lowlevel.bounds()
            for b in found:
                assert b.min_offset == store.min_offset(b.topic, b.queue)
                assert b.max_offset == store.max_offset(b.topic, b.queue)
                rows = store.to_arrow(b.topic, ["size", "log_offset"], queue=b.queue)
                sizes, offsets = rows["size"].to_pylist(), rows["log_offset"].to_pylist()
                assert min(sizes) <= b.record_bytes <= max(sizes)
                assert (b.first_log_offset, b.last_log_offset) == (offsets[0], offsets[-1])
            assert [b.topic for b in store.lowlevel.bounds(lambda topic: topic == "bb")] == [
                "bb"
            ] * 3
            if seed:
                assert [b[:4] for b in writing] == [b[:4] for b in found]


def test_the_advice_for_a_wrong_entry_mends_it(tmp_path: Path) -> None:
    """It was to open the store for writing, which does not read the entries of a store that was closed cleanly."""
    fill(tmp_path / "s", 60)
    path = min((tmp_path / "s" / "consumequeue" / "a" / "0").iterdir())
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(40)
        file.write(b"\x7f" * 20)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    opened(tmp_path / "s", read_only=False).close()
    with opened(tmp_path / "s") as store, pytest.raises(CorruptionError) as caught:
        read(store, spans_of(store))
    assert "`penstock repair PATH --apply` rebuilds the queues" in str(caught.value)
    penstock.repair(tmp_path / "s", apply=True)
    with opened(tmp_path / "s") as store:
        assert len(read(store, spans_of(store))) == 60


def test_a_queue_that_is_gone_is_told_of_once(tmp_path: Path) -> None:
    fill(tmp_path / "s", 60)
    with opened(tmp_path / "s") as store:
        spans = spans_of(store)
        shutil.rmtree(tmp_path / "s" / "consumequeue" / "bb")
        lost: list[QueueSpan] = []
        read(store, spans, lost=lambda span, _: lost.append(span))
        assert sorted(lost) == [span for span in spans if span.topic == "bb"]


def test_delayed_messages_are_found_by_their_tags(tmp_path: Path) -> None:
    """The code of their queue entries is the time at which they are due, and no tag's hash."""
    with penstock.open(tmp_path, environ={}, spawn=ManualWorkers()) as store:
        for n in range(9):
            store.put("t", b"%d" % n, tag=("a", "b")[n % 2], delay_level=10)
        expected = {m.body for m in store.scan(WAITING) if m.tag == "b"}
        assert len(expected) == 4
        (queue,) = store.topics(system=True)[WAITING]
        assert {m.body for m in store.scan(WAITING, tag="b")} == expected
        assert {m.body for m in store.read(WAITING, queue, tag="b").messages} == expected
        assert {*store.to_arrow(WAITING, tag="b")["body"].to_pylist()} == expected
        spans = [QueueSpan(WAITING, queue, 0, 9)]
        assert {m.body for m in store.lowlevel.scan_spans(spans, tags=["b"])} == expected
        (batch,) = store.lowlevel.arrow_spans(spans, ["body"], tags=["b"])
        assert {*batch["body"].to_pylist()} == expected


def test_tags_and_keys_pick_rows(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "s", environ={}) as store:
        store.put_many(
            [
                Message("t", b"%d" % n, queue=0, tag=["", "Aa", "BB", "c"][n % 4], keys=[f"k{n % 5}", f"{n}"] if n % 3 else [])
                for n in range(60)
            ]
        )  # fmt: skip
        span = [QueueSpan("t", 0, 0, 60)]

        def bodies(**more: Any) -> list[int]:
            return [int(row[4]) for row in read(store, span, **more)]

        assert bodies(tags=["Aa", "c"]) == [n for n in range(60) if n % 4 in (1, 3)]
        assert bodies(keys=["k2", "59"]) == [
            n for n in range(60) if n % 3 and (n % 5 == 2 or n == 59)
        ]
        assert bodies(keys=["k2 7"]) == [7]
        assert bodies(keys=["k2"], tags=["BB"]) == [
            n for n in range(60) if n % 3 and n % 5 == 2 and n % 4 == 2
        ]
        assert bodies(tags=["none"]) == []
        (batch,) = store.lowlevel.arrow_spans(span, ["tag", "keys"])
        assert [tuple(row.values()) for row in batch.slice(0, 2).to_pylist()] == [
            (None, None),
            ("Aa", ["k1", "1"]),
        ]


def test_a_message_that_is_corrupt_is_skipped_and_counted_and_no_other(tmp_path: Path) -> None:
    sent = fill(tmp_path / "s", 60)
    lost = next(row for row in sent if row[:3] == ("a", 0, 4))
    path = next((tmp_path / "s" / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    data[lost[3] + 89] ^= 1
    path.write_bytes(data)
    with opened(tmp_path / "s") as store:
        assert messages_of(store, spans_of(store)) == [row for row in sent if row != lost]
        assert store.lowlevel.damaged_reads == 1
