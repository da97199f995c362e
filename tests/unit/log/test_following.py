"""What the dispatchers are given is the log, every record once and in order, over every border."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock import Message
from penstock.contracts.dispatcher import DispatchBatch
from penstock.format.record import CRC_PROPERTY_SIZE
from penstock.store.store import Store
from penstock.testing import ManualWorkers, open_store
from penstock_index.consume_queue import ConsumeQueueDispatcher

SEGMENT = 64 * 1024


WRITERS: dict[str, dict[str, Any]] = {
    "mmap": {"write": "mmap"},
    "file": {"write": "file"},
    "transient-pool": {"write": "transient-pool", "write.transient-pool.lock_memory": False},
}


class HearingQueues(ConsumeQueueDispatcher):
    """Notes log offset, size and queue offset of each record that it is given."""

    heard: ClassVar[list[tuple[int, int, int]]] = []

    def dispatch(self, batch: DispatchBatch) -> None:
        assert batch.start_offset == self.progress, "batches run on from each other"
        offsets = batch.log_offsets.tolist()
        assert all(offset < batch.end_offset for offset in offsets)
        rows = zip(offsets, batch.sizes.tolist(), batch.queue_offsets.tolist(), strict=True)
        self.heard.extend(rows)
        super().dispatch(batch)


def hearing(path: Path, **given: Any) -> Store:
    HearingQueues.heard.clear()
    return open_store(path, strategies=[HearingQueues], spawn=ManualWorkers(), **given)


def walked(path: Path) -> list[tuple[int, int, int]]:
    """Return log offset, size and queue offset of every record, from the log's own bytes."""
    found = []
    for segment in sorted((path / "commitlog").iterdir()):
        data, at = segment.read_bytes(), 0
        while int.from_bytes(data[at + 4 : at + 8], "big") == 0xDAA320A7:
            size = int.from_bytes(data[at : at + 4], "big")
            queue_offset = int.from_bytes(data[at + 20 : at + 28], "big")
            found.append((int(segment.name) + at, size, queue_offset))
            at += size
    return found


# Of a record of topic "t" without properties and body.
BARE = 91 + len("t") + CRC_PROPERTY_SIZE


def room_of(store: Store) -> int:
    """Return how many bytes the newest segment has left."""
    return SEGMENT - int(store.stats()["log_end_offset"]) % SEGMENT


def singles(store: Store) -> Iterator[None]:
    """Records of many sizes, and some that end as near a segment's border as they may, or too near."""
    for number in range(500):
        store.put("t", b"s" * (number * 37 % 900), queue=number % 3)
        yield
    for left in range(16):
        if room_of(store) > 2000:
            store.put("t", bytes(room_of(store) - 1500), queue=0)
            yield
        store.put("t", bytes(room_of(store) - BARE - left), queue=0)
        yield
        store.put("t", b"after the border", queue=0)
        yield


def few(store: Store) -> Iterator[None]:
    for number in range(60):
        store.put_many([Message("t", b"f" * (number * n % 400), queue=n % 3) for n in range(20)])
        yield


def batches(store: Store) -> Iterator[None]:
    for number in range(6):
        store.put_many([Message("t", b"b" * (n % 90), queue=n % 3) for n in range(600 + number)])
        yield


def mixed(store: Store) -> Iterator[None]:
    ways = [singles(store), few(store), batches(store)]
    while ways:
        for way in list(ways):
            for _ in range(7):
                if next(way, ways) is ways:
                    ways.remove(way)
                    break
            yield


STORIES: dict[str, Callable[[Store], Iterator[None]]] = {
    "singles": singles, "few": few, "batches": batches, "mixed": mixed,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 7, 8])
@pytest.mark.parametrize("count", [1, 3, 60])
@pytest.mark.parametrize("how", ["put", "put_many", "atomic"])
def test_the_last_record_of_a_segment_leaves_room_for_the_blank_one(
    how: str, count: int, left: int, tmp_path: Path
) -> None:
    """That is 8 bytes: with 8 it stays in the segment, with 7 it begins the next."""
    # With extensions, a record that is put leaves room for copies, too.
    given: dict[str, Any] = {"extensions.use": []}
    with open_store(tmp_path / "s", spawn=ManualWorkers(), **given) as store:
        assert store.put("t", b"", queue=0).size == BARE
        rest = SEGMENT - BARE - (count - 1) * BARE - BARE - left
        messages = [Message("t", b"", queue=0)] * (count - 1) + [Message("t", bytes(rest), queue=0)]
        if how == "put":
            receipts = [store.put("t", message.body, queue=0) for message in messages]
        else:
            receipts = list(store.put_many(messages, atomic=how == "atomic"))
        fits = left >= 8
        last = SEGMENT - left - BARE - rest if fits else SEGMENT
        if how == "atomic" and not fits:
            last = SEGMENT + (count - 1) * BARE
        assert receipts[-1].log_offset == last
        store.put("t", b"after the border", queue=0)
        found = walked(tmp_path / "s")
        assert len(found) == count + 2
        assert [m.log_offset for m in store.scan("t")] == [offset for offset, _, _ in found]
        assert not list(store.verify())


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 10_000])
@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("writer", WRITERS)
def test_dispatchers_get_the_log(writer: str, story: str, every: int, tmp_path: Path) -> None:
    given: dict[str, Any] = WRITERS[writer]
    with hearing(tmp_path / "s", **given) as store:
        for step, _ in enumerate(STORIES[story](store)):
            if step % every == 0:
                store.flush()
                store.topics()
        store.flush()
        store.topics()
        assert HearingQueues.heard == walked(tmp_path / "s")
        assert not list(store.verify())
        assert len(list((tmp_path / "s" / "commitlog").iterdir())) > 2
