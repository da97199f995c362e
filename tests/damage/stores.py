"""A small store of every kind of record, what is in it, and ways to open and read a damaged copy of it."""

import functools
import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from penstock.config import sources
from penstock.config.sources import build_config
from penstock.files import Files
from penstock.format.record import MalformedRecordError, decode_record
from penstock.format.validity import check
from penstock.log import record_reader
from penstock.log.record_reader import RecordReader
from penstock.message import Message, StoredMessage
from penstock.plugins.registry import load_registry
from penstock.store.open import Opener
from penstock.store.store import Store
from penstock.testing import ManualClock
from penstock.testing.kit import copy_store

LONG = "long-" * 26
SIZES = {
    "geometry.segment_bytes": 4096,
    "geometry.queue_entries": 16,
    "geometry.index_slots": 8,
    "geometry.index_entries": 64,
    "log.store_host": "[2001:db8::7]:10911",
    "retention.use": [],
}
GROUP = ("readers", "short")


class Made(NamedTuple):
    """A store at `path`; `records` has each record by its log offset, `end` is where they end."""

    path: Path
    records: dict[int, bytes]
    end: int

    def files(self) -> list[Path]:
        """Every file but the lock, by name."""
        found = (path for path in self.path.rglob("*") if path.is_file() and path.name != "lock")
        return sorted(found, key=str)

    def copy(self, path: Path) -> "Made":
        """Return a copy; file times and with them the clean mark stay good."""
        shutil.rmtree(path, ignore_errors=True)
        copy_store(self.path, path)
        return Made(path, self.records, self.end)


@contextmanager
def told(what: str) -> Iterator[None]:
    """Say what was tried if it fails: of thousands that one test tries."""
    try:
        yield
    except BaseException as error:
        error.add_note(what)
        raise


def log_of(made: Made) -> bytes:
    """Return the bytes of the log up to where its records end."""
    segments = sorted((made.path / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in segments)[: made.end]


def messages() -> list[Message]:
    """Return messages of every kind: V1 and V2, IPv4 and IPv6, with and without tag, keys and body."""
    return [
        Message(
            (LONG, "short", "short")[number % 3], b"%d:" % number + bytes([number]) * (number * 29 % 200),
            queue=number % 2, tag=("", "red", "gr\u00fcn")[number % 3],
            keys=["same", f"key-{number}"] if number % 4 else [],
            properties={"number": str(number)} if number % 5 == 0 else {},
            born_host="[fe80::1]:5" if number % 4 == 1 else "10.0.0.9:77", born_time_ms=1_600_000_000_000,
            flag=number,
        )
        for number in range(18)
    ]  # fmt: skip


def note_all(store: Store) -> None:
    """Bring queues and checkpoints up to the log, as the threads of a store do after a while."""
    # No caller can ask for that, nor see when it has happened.
    engine = store._engine
    assert engine is not None
    engine.follower.catch_up()
    engine.checkpoints.write()


def make(path: Path, *, crashed: bool = False, **settings: Any) -> Made:
    """Make the store, closed cleanly, or left as a killed process leaves it."""
    place = path.with_name(path.name + "-live") if crashed else path
    with opened(place, **settings) as store:
        store.put_many(messages())
        for message in messages()[:2]:
            store.put(message.topic, b"", queue=message.queue)
        store.commit_offset(*GROUP, queue=1, offset=3)
        store.flush()
        end = store.stats()["log_end_offset"]
        records = {
            m.log_offset: m.record for topic in store.topics(system=True) for m in store.scan(topic)
        }
        assert len(records) == 20
        if crashed:
            note_all(store)
            copy_store(place, path)
    return Made(path, records, end)


@functools.cache
def _settings(items: tuple[tuple[str, Any], ...]) -> tuple[Any, Any]:
    registry = load_registry()
    given = sources.gather(None, {}, {k: list(v) if k.endswith("use") else v for k, v in items})
    return build_config(given, registry), registry


@contextmanager
def opened(
    path: Path, *, read_only: bool = False, files: Files | None = None, **settings: Any
) -> Iterator[Store]:
    """Open a store; plugins and settings are looked up once a process, so that this is cheap."""
    asked = {} if read_only else {**SIZES, **settings}
    items = tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in sorted(asked.items()))
    config, registry = _settings(items)
    opener = Opener(path, config, registry, files or Files(), ManualClock(), None)
    store = opener.open_for_reading() if read_only else opener.open_for_writing()
    try:
        yield store
    finally:
        store.close()


def _plainly(
    record: bytes, log_offset: int, topic: bytes | None, queue: int, ordinal: int, ranges: bytes
) -> StoredMessage | None:
    """Do what the kernel's `message` does, by the plain check and the plain decoder."""
    pairs = [struct.unpack_from("=qq", ranges, at) for at in range(0, len(ranges), 16)]
    is_covered = any(start <= log_offset < stop for start, stop in pairs)
    try:
        check(record, log_offset, is_covered=is_covered)
    except MalformedRecordError:
        return None
    return StoredMessage(record) if is_at(record, topic, queue, ordinal) else None


def is_at(record: bytes, topic: bytes | None, queue: int, ordinal: int) -> bool:
    """Say whether a valid record is the one with that ordinal in this queue; of any topic if it is None."""
    fields = decode_record(record)
    found = (fields.topic, fields.queue, fields.queue_offset)
    return topic is None or found == (topic, queue, ordinal)


@contextmanager
def read_plainly() -> Iterator[None]:
    """Let records be read one by one, and checked by the plain check instead of the kernel."""
    with (
        patch.object(RecordReader, "leading", lambda *_, **__: []),
        patch.object(record_reader, "_kernel", SimpleNamespace(message=_plainly)),
    ):
        yield


def read_all(store: Store) -> dict[int, StoredMessage]:
    """Return every message by its log offset, read in three ways that must agree."""
    found: dict[int, StoredMessage] = {}
    for topic, queues in store.topics(system=True).items():
        scanned = list(store.scan(topic))
        offsets = [message.log_offset for message in scanned]
        assert offsets == sorted(set(offsets)), "in the order of the log, each once"
        found |= {message.log_offset: message for message in scanned}
        several = set()
        for queue in queues:
            first = store.min_offset(topic, queue)
            with read_plainly():
                result = store.read(topic, queue, first, 1000)
            assert store.read(topic, queue, first, 1000) == result, "whole ranges at once"
            several |= {message.log_offset for message in result.messages}
        assert several == set(offsets), "by queue and in order"
    return found


def find_all(store: Store) -> dict[str, list[int]]:
    """Return for every key the log offsets that looking it up gives."""
    keys = ["same", *(f"key-{number}" for number in range(18))]
    return {
        f"{topic}#{key}": [m.log_offset for m in store.find(key, topic)]
        for topic in (LONG, "short")
        for key in keys
    }


def flip(path: Path, bit: int) -> None:
    """Turn over one bit; as on a medium that decays, the file's time stays as it was."""
    times = path.stat()
    with path.open("r+b", buffering=0) as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
