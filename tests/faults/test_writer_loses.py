"""A writer plugin that loses bytes: nothing of it gets a queue entry or is marked clean."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock.contracts import SegmentChannel, SegmentWriter
from penstock.errors import CorruptionError, PenstockError, StorageError, StoreFailedError
from penstock.files import File
from penstock.files.blocks import Blocks
from penstock.format.columns import Buffer
from penstock.message import Message
from penstock.store.store import Store
from penstock.testing import ManualWorkers, open_store
from penstock_alloc.writers import FileChannel, FileWriter, MmapChannel, MmapWriter

HOWS = ["drops", "cuts short", "zeros", "shifts"]
# How many writes go well first.
GOOD = 3


def spoilt(how: str, data: Buffer) -> bytes:
    raw = bytes(data)
    return {
        "drops": b"",
        "cuts short": raw[: len(raw) // 2],
        "zeros": bytes(len(raw)),
        "shifts": b"\0" + raw[:-1],
    }[how]


def losing(base: type[SegmentWriter], how: str) -> type[SegmentWriter]:
    """Return a writer that loses bytes of every write but the first few; "mmap" or "file" underneath."""
    channel: Any = MmapChannel if base is MmapWriter else FileChannel

    class LosingChannel(channel):  # type: ignore[misc] # one of two
        count, buffer = 0, None

        def write(self, position: int, data: Buffer, sizes: Sequence[int] = ()) -> None:
            type(self).count += 1
            is_good = type(self).count <= GOOD
            super().write(position, bytes(data) if is_good else spoilt(how, data))

    class LosingWriter(base):  # type: ignore[misc, valid-type] # one of two
        name: ClassVar[str] = "under-test"

        def __init__(self, options: Any, context: Any) -> None:
            super().__init__(options, context)
            self.commits_at_once = True

        def open(self, file: File, capacity: int, position: int) -> SegmentChannel:
            clock = self.context.clock
            blocks = Blocks(file, capacity, position, clock.monotonic_ms, mapped=base is MmapWriter)
            return LosingChannel(file, capacity, blocks)

    return LosingWriter


def put(store: Store, at: int, batch: int) -> Sequence[Any]:
    if batch == 1:
        return [store.put("t", b"%d:" % at + b"x" * 50, queue=0, keys=[f"k{at}"])]
    return store.put_many(
        [Message("t", b"%d-%d:" % (at, n) + b"x" * 50, queue=0) for n in range(batch)]
    )


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("base", [MmapWriter, FileWriter], ids=["mmap", "file"])
@pytest.mark.parametrize("batch", [1, 20, 600], ids=lambda n: f"batch of {n}")
@pytest.mark.parametrize("how", HOWS)
def test_what_was_lost_gets_no_queue_entry_and_is_never_marked_clean(
    how: str, batch: int, base: type[SegmentWriter], flush: str, tmp_path: Path
) -> None:
    """The close was clean, and queue offset 0 was given twice."""
    settings: dict[str, Any] = {"flush": flush, "write": "under-test", "retention": [], "geometry.segment_bytes": 1 << 20}  # fmt: skip
    store = open_store(tmp_path / "s", strategies=[losing(base, how)], **settings)
    # The follower may find the loss between two puts.
    with contextlib.suppress(StoreFailedError):
        for at in range(GOOD + 2):
            put(store, at, batch)
    with pytest.raises(StorageError, match="cannot be read back"):
        store.close()
    assert (tmp_path / "s" / "abort").exists()
    assert not (tmp_path / "s" / "penstock" / "clean").exists()
    reopen(tmp_path / "s", GOOD * batch, settings)


def reopen(path: Path, sure: int, settings: dict[str, Any]) -> None:
    """Open with a writer that works: refused, or recovered with all that was sure and no offset given twice."""
    sizes: dict[str, Any] = {"geometry.segment_bytes": 1 << 20}
    with open_store(path, read_only=True, **sizes) as reader:
        seen = [m.queue_offset for m in reader.scan("t")]
        assert seen == list(range(len(seen)))
    settings = {**settings, "write": "mmap"}
    try:
        store = open_store(path, **settings)
    except CorruptionError:
        return
    with store:
        # Of a batch that was cut short some records may be there: nobody was told that they are not.
        there = [m.queue_offset for m in store.scan("t")]
        assert there == list(range(len(there)))
        assert len(there) >= sure
        assert store.put("t", b"next", queue=0).queue_offset == len(there)
        assert not list(store.verify(deep=True))


def test_readers_are_told_what_the_log_lacks(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"write": "under-test", "retention": []}
    store = open_store(
        tmp_path / "s", strategies=[losing(MmapWriter, "drops")], spawn=ManualWorkers(), **settings
    )
    for at in range(GOOD + 2):
        put(store, at, 1)
    for reading in (lambda: store.read("t", 0, GOOD), lambda: store.max_offset("t", 0), lambda: list(store.scan("t"))):  # fmt: skip
        with pytest.raises(PenstockError, match="missing from the log"):
            reading()
    assert "cannot be read back" in store.stats()["failure"]
    with pytest.raises(StoreFailedError):
        store.close()
