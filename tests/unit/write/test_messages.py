"""Messages on their way in: what is refused by name, what a full disk took in part, what an extension makes of them."""

import errno
import shutil
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest
from tests.conftest import OpenStore

from penstock import Message
from penstock._kernel import Batch, QueueCursor, RecordEncoder
from penstock.contracts import SegmentChannel
from penstock.errors import (
    DiskFullError,
    MessageError,
    MessageTooLargeError,
    PluginError,
    QueueError,
    StoreFailedError,
    TopicError,
)
from penstock.files import File
from penstock.files.blocks import Blocks
from penstock.format.columns import Buffer
from penstock.testing import FaultyFiles, ManualWorkers, SimulatedDisk, open_store
from penstock.testing.platter import Survival
from penstock.write.validation import rewritten
from penstock_alloc.writers import FileChannel, FileWriter


class HalfFull(FaultyFiles):
    """Takes a part of what is written next, and has no room for the rest; `heals` says whether it takes zeros then."""

    def __init__(self, *, heals: bool, share: float = 2 / 3) -> None:
        super().__init__()
        self.heals, self.share = heals, share
        self.is_armed = self.is_full = False

    def _wrap(self, file: File) -> File:
        return HalfFullFile(file.path, file.detach(), self)


class HalfFullFile(File):
    def __init__(self, path: Path, fd: int, files: HalfFull) -> None:
        super().__init__(path, fd)
        self.disk = files

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        files = self.disk
        if files.is_armed and self.path.parent.name == "commitlog":
            if not files.is_full:
                super().pwrite(memoryview(data)[: int(len(data) * files.share)], position)
            if not (files.is_full and files.heals):
                files.is_full = True
                raise OSError(errno.ENOSPC, "no room")
        super().pwrite(data, position)


@pytest.mark.parametrize(("write", "count"), [("mmap", 300), ("file", 3), ("file", 100)])
def test_nothing_of_a_batch_comes_back_that_a_full_disk_took_in_part(
    write: str, count: int, tmp_path: Path
) -> None:
    files = HalfFull(heals=True)
    batch = [Message("t", b"refused-%d" % number, queue=0) for number in range(count)]
    # No background thread makes or renames a file while the store is copied.
    workers = ManualWorkers()
    with open_store(tmp_path / "s", files=files, write=write, spawn=workers) as store:
        store.put("t", b"first", queue=0)
        files.is_armed = True
        with pytest.raises(DiskFullError):
            store.put_many(batch)
        files.is_armed = False
        store.put("t", b"later---0", queue=0)
        store.topics()
        shutil.copytree(tmp_path / "s", tmp_path / "crashed")
    with open_store(tmp_path / "crashed") as store:
        assert [m.body for m in store.scan("t")] == [b"first", b"later---0"]
        assert not list(store.verify())


class LateWriter(FileWriter):
    """Says after a write, and a sync of it, that the disk is full."""

    name: ClassVar[str] = "late"

    def open(self, file: File, capacity: int, position: int) -> SegmentChannel:
        return LateChannel(file, capacity, Blocks(file, capacity, position))


class LateChannel(FileChannel):
    def write(self, position: int, data: Buffer, sizes: Sequence[int] = ()) -> None:
        super().write(position, data, sizes)
        if b"refused" in bytes(data):
            self.flush()
            raise OSError(errno.ENOSPC, "no room")


@pytest.mark.parametrize("survival", [Survival.PROCESS, Survival.NONE])
@pytest.mark.parametrize("count", [1, 3])
def test_messages_do_not_come_back_if_their_writer_failed_after_it_had_written_them(
    count: int, survival: Survival
) -> None:
    """The next append would have written over them; a crash came first."""
    disk, root = SimulatedDisk(), Path("/s")
    store = open_store(
        root, files=disk, strategies=[LateWriter], write="late", flush="none", spawn=ManualWorkers()
    )
    store.put("t", b"first", queue=0)
    store.flush()
    batch = [Message("t", b"refused-%d" % number, queue=0) for number in range(count)]
    with pytest.raises(DiskFullError):
        store.put_many(batch) if count > 1 else store.put("t", b"refused", queue=0)
    with open_store(root, files=SimulatedDisk.after(disk.image(), survival, Random(0))) as store:
        assert [m.body for m in store.scan("t")] == [b"first"]
        assert store.put("t", b"later", queue=0).queue_offset == 1


@pytest.mark.parametrize(("count", "share"), [(1, 1), (3, 2 / 3)])
def test_a_store_that_cannot_take_back_what_a_full_disk_took_stops(
    count: int, share: float, tmp_path: Path
) -> None:
    files = HalfFull(heals=False, share=share)
    store = open_store(tmp_path / "s", files=files, write="file")
    store.put("t", b"first", queue=0)
    files.is_armed = True
    batch = [Message("t", b"refused-%d" % number, queue=0) for number in range(count)]
    with pytest.raises(StoreFailedError, match="could not be erased"):
        store.put_many(batch) if count > 1 else store.put("t", b"refused", queue=0)
    with pytest.raises(StoreFailedError):
        store.put("t", b"later", queue=0)
    with pytest.raises(StoreFailedError):
        store.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "given", [{"flag": None}, {"flag": ""}, {"born_time_ms": 0.0}, {"reconsume_times": 1 << 80}]
)
@pytest.mark.parametrize("count", [1, 60])
def test_numbers_that_are_none_are_refused_whatever_the_batch(
    given: dict[str, Any], count: int, open_small: OpenStore
) -> None:
    with open_small() as store:
        # The first finds no segment, the second does.
        for _ in range(2):
            with pytest.raises(
                MessageError, match=r"message 0: a number (must be a whole number|does not fit)"
            ):
                store.put_many([Message("t", b"x", **given)] * count)
            store.put("t", b"y", queue=0)


def test_a_message_that_is_refused_is_named_by_its_place_in_the_batch(
    open_small: OpenStore,
) -> None:
    with open_small() as store:
        for place in (0, 1, 3000):
            batch = [Message("t", b"x", queue=0)] * place + [
                Message("a/b", b"x", queue=0),
                Message("t", b"x", queue=0),
            ]
            with pytest.raises(MessageError, match="a/b") as raised:
                store.put_many(batch)
            said = [f"it is message {place} of the batch; nothing was stored"]
            assert raised.value.__notes__ == said
        assert store.topics() == {}


@pytest.mark.parametrize(("message", "text", "kind"), [
    (Message("a/b", b"", queue=0), b"", TopicError), (Message("t", b"", queue=-1), b"", QueueError),
    (Message("t", "text", queue=0), b"", MessageError), (Message("t", b"", queue=0, flag=1 << 31), b"", MessageError),  # type: ignore[arg-type] # refused
    (Message("t", b"", queue=0, born_host="nowhere"), b"", MessageError), (Message("t", bytes(5 << 20), queue=0), b"", MessageTooLargeError),
    (Message("t", b"", queue=0), bytes(40_000), MessageTooLargeError), (Message("t", bytes(70_000), queue=0), b"", MessageTooLargeError),
])  # fmt: skip
def test_a_copy_that_cannot_be_stored_is_refused_and_nothing_is_stored(
    open_small: OpenStore, message: Message, text: bytes, kind: type[Exception]
) -> None:
    given: Any = [(Message("t", b"before", queue=0), b""), (message, text)]
    with open_small() as store:
        with pytest.raises(kind):
            store.lowlevel.put_copies(given)
        assert store.topics() == {}


# --- messages that request more than to be stored


def batch(rewrite: Any = None) -> Batch:
    encoder = RecordEncoder(
        bytes(8), crc_property=False, body_bytes_max=100,
        make_cursor=lambda topic, queue: QueueCursor(topic, queue, 0), rewrite=rewrite,
        time_ms=lambda: 77,
    )  # fmt: skip
    return Batch(encoder)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"delay_level": "3"}, "delay_level"),
        ({"delay_level": None}, "delay_level"),
        ({"delay_level": False}, "delay_level"),
        ({"delay_level": 1 << 70}, "delay_level"),
        ({"delay": "3"}, "delay"),
        ({"delay": 1 << 70}, "delay"),
        ({"deliver_at": "tomorrow"}, "deliver_at"),
        ({"deliver_at": float("nan")}, "deliver_at"),
        ({"deliver_at": datetime(2026, 1, 1)}, "with a time zone"),
    ],
)
def test_a_delay_that_is_none_is_refused(given: dict[str, Any], reason: str) -> None:
    made = batch(lambda m: m)
    with pytest.raises(MessageError, match=reason):
        made.add(Message("t", b"x", **given))
    assert len(made) == 0


def test_without_anyone_to_ask_it_is_refused() -> None:
    with pytest.raises(MessageError, match="no extension is used here"):
        rewritten(batch(), Message("t", b"x", partition_key="k"))


def test_an_answer_that_requests_more_is_refused_and_does_not_go_round_in_circles() -> None:
    for answer in (lambda m: m, lambda m: (m, b"")):
        made = batch(answer)
        with pytest.raises(PluginError, match="still has"):
            made.add(Message("t", b"x", partition_key="k"))
        assert len(made) == 0
