"""What is refused, and how: a clear error, and nothing written."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore

import penstock
from penstock.errors import (
    ConfigError,
    ConflictError,
    CorruptionError,
    DiskFullError,
    GeometryError,
    MessageError,
    MessageTooLargeError,
    NotAStoreError,
    OffsetError,
    PenstockError,
    PropertyError,
    QueueError,
    ReadOnlyError,
    StoreClosedError,
    StrayFileError,
    TopicError,
    UnknownStrategyError,
)
from penstock.store.open import open_store
from penstock.store.store import Store
from penstock.testing import FaultyFiles, ManualWorkers, SimulatedDisk

REFUSED: dict[str, tuple[type[PenstockError], str, Callable[[Store], Any]]] = {
    "empty topic": (TopicError, "empty", lambda s: s.put("", b"", queue=0)),
    "long topic": (TopicError, "300 UTF-8 bytes", lambda s: s.put("t" * 300, b"", queue=0)),
    "slash": (TopicError, "'/'", lambda s: s.put("a/b", b"", queue=0)),
    "dots": (TopicError, "outside", lambda s: s.put("..", b"", queue=0)),
    "dot": (TopicError, "outside", lambda s: s.put(".", b"", queue=0)),
    "NUL": (TopicError, "control", lambda s: s.put("a\0b", b"", queue=0)),
    "newline": (TopicError, "control", lambda s: s.put("a\nb", b"", queue=0)),
    "surrogate": (TopicError, "UTF-8", lambda s: s.put("a\ud800", b"", queue=0)),
    "topic no text": (TopicError, "string", lambda s: s.put(7, b"", queue=0)),  # type: ignore[arg-type] # the point
    "queue negative": (QueueError, "-1", lambda s: s.put("t", b"", queue=-1)),
    "queue too large": (QueueError, "65535", lambda s: s.put("t", b"", queue=65536)),
    "queue no number": (QueueError, "True", lambda s: s.put("t", b"", queue=True)),
    "property 0x01": (PropertyError, "0x01", lambda s: s.put("t", b"", queue=0, properties={"a": "b\x01"})),
    "property 0x02": (PropertyError, "0x02", lambda s: s.put("t", b"", queue=0, tag="x\x02")),
    "property name": (PropertyError, "0x01", lambda s: s.put("t", b"", queue=0, properties={"a\x01": "b"})),
    "property empty": (PropertyError, "empty", lambda s: s.put("t", b"", queue=0, properties={"a": ""})),
    "property no text": (PropertyError, "int", lambda s: s.put("t", b"", queue=0, properties={"a": 1})),  # type: ignore[dict-item] # the point
    "property surrogate": (PropertyError, "UTF-8", lambda s: s.put("t", b"", queue=0, properties={"a": "\ud800"})),
    "tag surrogate": (PropertyError, "UTF-8", lambda s: s.put("t", b"", queue=0, tag="\ud800")),
    "key surrogate": (PropertyError, "UTF-8", lambda s: s.put("t", b"", queue=0, keys=["\ud800"])),
    "reserved name": (PropertyError, "tag=", lambda s: s.put("t", b"", queue=0, properties={"TAGS": "x"})),
    "one string of keys": (PropertyError, "list", lambda s: s.put("t", b"", queue=0, keys="k")),
    "empty key": (PropertyError, "empty", lambda s: s.put("t", b"", queue=0, keys=[""])),
    "blank key": (PropertyError, "space", lambda s: s.put("t", b"", queue=0, keys=["  "])),
    "long properties": (MessageTooLargeError, "limit is 32747", lambda s: s.put("t", b"", queue=0, properties={"a": "x" * 32767})),
    "body over the limit": (MessageTooLargeError, "limit is 4194304", lambda s: s.put("t", b"x" * (4 << 20 | 1), queue=0)),
    "record over a segment": (MessageTooLargeError, "one segment", lambda s: s.put("t", b"x" * 65536, queue=0)),
    "body no bytes": (MessageError, "encode it", lambda s: s.put("t", "text", queue=0)),  # type: ignore[arg-type] # the point
    "flag too large": (MessageError, "field", lambda s: s.put("t", b"", queue=0, flag=1 << 31)),
    "born host": (MessageError, "address:port", lambda s: s.put("t", b"", queue=0, born_host="nowhere")),
    "delay negative": (MessageError, "1 to 18", lambda s: s.put("t", b"", queue=0, delay_level=-3)),
    "delay no number": (MessageError, "delay_level", lambda s: s.put("t", b"", queue=0, delay_level="3")),  # type: ignore[arg-type] # the point
    "delay of a long topic": (TopicError, "300 UTF-8 bytes", lambda s: s.put("t" * 300, b"", queue=0, delay_level=3)),
    "delay property": (PropertyError, "delay_level=", lambda s: s.put("t", b"", queue=0, properties={"DELAY": "3"})),
    "atomic batch too large": (
        MessageTooLargeError, "atomic",
        lambda s: s.put_many([penstock.Message("t", b"x" * 1000, queue=0)] * 70, atomic=True),
    ),
    "offset negative": (OffsetError, "-1", lambda s: s.at(-1)),
    "offset beyond": (OffsetError, "outside", lambda s: s.at(1 << 40)),
    "no message id": (PenstockError, "32 or 56", lambda s: s.get("xyz")),
    "other host's id": (OffsetError, "no message of the store has the id", lambda s: s.get("0A000001" + "00002A9F" + "00" * 8)),
    "bad boundary": (PenstockError, "lower", lambda s: s.offset_at("t", 0, 0 / 1000, boundary="up")),
    "bad group": (MessageError, "group", lambda s: s.commit_offset("a@b", "t", 0, offset=1)),
    "bad column": (ConfigError, "store_time", lambda s: s.to_arrow("good", columns=["time"])),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_and_nothing_is_written(case: str, open_small: OpenStore) -> None:
    kind, text, job = REFUSED[case]
    with open_small() as store:
        store.put("good", b"first", queue=0)
        before = store.stats()["log_end_offset"]
        with pytest.raises(kind, match=re.escape(text)):
            job(store)
        assert store.stats()["log_end_offset"] == before
        assert store.put("good", b"second", queue=0).queue_offset == 1
        assert list(store.topics()) == ["good"]


BAD_CONFIG: dict[str, tuple[dict[str, Any], type[PenstockError], str]] = {
    "unknown strategy": ({"flush": "snyc"}, UnknownStrategyError, "did you mean 'sync'"),
    "unknown key": ({"flush.interval": 1}, ConfigError, "there is no setting flush.interval"),
    "nearest key": ({"log.checksums": "crc32"}, ConfigError, "did you mean log.checksum"),
    "option of no strategy": (
        {"flush.snyc.timeout_ms": 1},
        UnknownStrategyError,
        "did you mean 'sync'",
    ),
    "dispatcher twice": (
        {"index": ["consume-queue", "hash-index", "hash-index"]},
        ConfigError,
        "names a strategy twice",
    ),
    "policy twice": ({"retention": ["age", "age"]}, ConfigError, "names a strategy twice"),
    "extension twice": ({"extensions": ["messaging"] * 2}, ConfigError, "names a strategy twice"),
    "wrong type": ({"flush.sync.timeout_ms": "soon"}, ConfigError, "must be of type int"),
    "unknown checksum": ({"log.checksum": "md5"}, ConfigError, "crc32+record"),
    "unknown profile": ({"profile": "big"}, ConfigError, "embedded"),
    "segment size": ({"geometry.segment_bytes": 5000}, ConfigError, "multiple of 4096"),
    "no queues": ({"index": ["hash-index"]}, ConfigError, "must be a queue index"),
    "retention hours": ({"retention.age.delete_when": "25"}, ConfigError, "hours 0 to 23"),
}


@pytest.mark.parametrize("case", BAD_CONFIG)
def test_bad_configuration_opens_and_writes_nothing(case: str, tmp_path: Path) -> None:
    settings, kind, text = BAD_CONFIG[case]
    with pytest.raises(kind, match=re.escape(text)):
        penstock.open(tmp_path / "store", environ={}, **settings)
    assert not (tmp_path / "store" / "commitlog").exists()


def test_strategies_that_make_no_sense_together_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConflictError, match="every put waits") as raised:
        penstock.open(tmp_path, environ={}, write="transient-pool", flush="sync")
    assert (raised.value.kind, raised.value.name) == ("write", "transient-pool")


# --- a closed store, a reader, a second writer


def test_another_geometry_is_refused_naming_both(open_small: OpenStore) -> None:
    open_small().close()
    with pytest.raises(GeometryError, match=r"131072.*65536"):
        open_small(**{"geometry.segment_bytes": 131072})


def test_a_closed_store_says_so_and_a_reader_takes_nothing(
    open_small: OpenStore, tmp_path: Path
) -> None:
    store = open_small()
    put = store.put
    store.close()
    store.close()
    for job in (lambda: put("t", b""), lambda: store.read("t", 0), store.topics, store.flush):
        with pytest.raises(StoreClosedError):
            job()
    with penstock.open(tmp_path / "store", read_only=True) as reader:
        assert reader.recovery is None
        with pytest.raises(ReadOnlyError):
            reader.put("t", b"", queue=0)


# --- a folder that is none


def test_reading_makes_no_store() -> None:
    disk = SimulatedDisk()
    with pytest.raises(NotAStoreError):
        open_store(Path("/store"), files=disk, environ={}, read_only=True)
    assert disk.plan.total == 0


@pytest.mark.parametrize("call", ["create", "sync", "rename", "make_folder"])
def test_an_opening_that_fails_lets_go_of_the_store(call: str) -> None:
    disk, root = SimulatedDisk(), Path("/store")
    disk.plan.fail(call, errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output error"):
        open_store(root, files=disk, spawn=ManualWorkers(), environ={})
    with open_store(root, files=disk, spawn=ManualWorkers(), environ={}) as store:
        store.put("t", b"x", queue=0)


@pytest.mark.parametrize("left", ["abort.new", "checkpoint.new"])
def test_what_a_first_opening_left_that_was_cut_short_is_no_stranger(
    left: str, tmp_path: Path
) -> None:
    """A power cut may leave the file that was to become a mark, and not the folder of the log."""
    root = tmp_path / "s"
    root.mkdir()
    (root / left).write_bytes(b"")
    with penstock.open(root, environ={}) as store:
        store.put("t", b"x", queue=0)
    with penstock.open(root, environ={}) as store:
        assert [m.body for m in store.scan("t")] == [b"x"]
        assert not list(store.verify(deep=True))


STRAYS: dict[str, tuple[Callable[[Path], object], type[PenstockError], str]] = {
    "stray name": (lambda c: (c / "notes").write_text("x"), StrayFileError, "20 digits"),
    "short file": (lambda c: (c / f"{65536:020d}").write_bytes(b"x"), CorruptionError, "65536"),
    "no offset": (lambda c: (c / f"{1 << 63:020d}").write_bytes(bytes(65536)), StrayFileError, "20 digits"),
    "odd base": (lambda c: (c / f"{70000:020d}").write_bytes(bytes(65536)), StrayFileError, "multiple"),
    "link": (lambda c: (c / f"{65536:020d}").symlink_to("/etc/passwd"), StrayFileError, "regular file"),
}  # fmt: skip


@pytest.mark.parametrize("case", STRAYS)
def test_stray_files_are_refused_and_left_alone(
    case: str, open_small: OpenStore, tmp_path: Path
) -> None:
    with open_small() as store:
        store.put("t", b"x", queue=0)
    make, kind, text = STRAYS[case]
    commitlog = tmp_path / "store" / "commitlog"
    make(commitlog)
    before = sorted(os.listdir(commitlog))
    with pytest.raises(kind, match=text):
        open_small()
    assert sorted(os.listdir(commitlog)) == before
    with penstock.open(tmp_path / "store", read_only=True) as store:
        assert [m.body for m in store.scan("t")] == [b"x"]


@pytest.mark.parametrize(
    "name", ["commitlog", "consumequeue", "index", "checkpoint", "timerlog", "timerwheel"]
)
def test_a_link_in_place_of_a_part_is_not_followed(
    name: str, open_small: OpenStore, tmp_path: Path
) -> None:
    with open_small() as store:
        store.put("t", b"x", queue=0, keys=["k"])
        store.put("t", b"later", queue=0, delay=1000)
    part = tmp_path / "store" / name
    part.rename(tmp_path / "elsewhere")
    part.symlink_to(tmp_path / "elsewhere")
    with pytest.raises((StrayFileError, NotAStoreError), match=name):
        open_small()


# --- a disk that is full


def test_a_full_disk_refuses_the_message_and_heals_without_a_restart(open_small: OpenStore) -> None:
    files = FaultyFiles()
    with open_small(files=files) as store:
        # All within the first segment: a segment as small as this has all its blocks from its first put on.
        for _ in range(50):
            store.put("t", b"x" * 1000, queue=0)
        files.plan.fail("allocate", errno.ENOSPC)
        with pytest.raises(DiskFullError, match="without a restart"):
            for _ in range(20):
                store.put("t", b"x" * 1000, queue=0)
        stored = store.max_offset("t", 0)
        with pytest.raises(DiskFullError):
            store.put_many([penstock.Message("t", b"y" * 1000, queue=0)] * 200)
        assert store.max_offset("t", 0) == stored
        assert sum(1 for _ in store.scan("t")) == stored
        files.plan.heal()
        assert store.put("t", b"again", queue=0).queue_offset == stored
        assert not list(store.verify())


def test_a_directory_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.plan.fail("create", errno.EROFS)
    with pytest.raises(OSError, match="Read-only"):
        penstock.open(tmp_path / "store", files=files)
