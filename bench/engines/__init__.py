"""Every engine that is measured, by name: what it is, its settings, and its approximate speed.

A name is an engine with one set of settings, so each of Penstock's strategy sets has its own name.
"""

import importlib
from collections.abc import Mapping
from typing import Any

import attrs

from bench.engines.contract import Engine

_QUEUES_ONLY = ["consume-queue"]
# Nothing is deleted because of a full disk or the hour; reads return as much as is requested.
_ROCKETMQ: dict[str, Any] = {
    "messageIndexEnable": False,
    "flushDiskType": "ASYNC_FLUSH",
    "diskMaxUsedSpaceRatio": 99,
    "cleanFileForciblyEnable": False,
    "fileReservedTime": 87600,
    "deleteWhen": "25",
    "maxTransferCountOnMessageInMemory": 1000,
    "maxTransferCountOnMessageInDisk": 1000,
    "maxTransferBytesOnMessageInMemory": 64 << 20,
    "maxTransferBytesOnMessageInDisk": 64 << 20,
}


@attrs.frozen(kw_only=True)
class Entry:
    """One engine with its settings.

    Attributes:
        kind: which class drives it, see `make`; "rocketmq" has a JVM, "before" runs another checkout's packages.
        settings: the settings it is opened with.
        words: a description for people.
        share: the part of the messages that a turn gives it: slow engines get fewer, so that turns last equally long.
        warm: number of turns that are not counted.
    """

    kind: str
    settings: Mapping[str, Any]
    words: str
    share: float = 1.0
    warm: int = 1


def _ours(words: str, **settings: Any) -> Entry:
    return Entry(kind="penstock", settings=settings, words=words)


def _java(words: str, **settings: Any) -> Entry:
    return Entry(kind="rocketmq", settings=_ROCKETMQ | settings, words=words, warm=5)


ENGINES: dict[str, Entry] = {
    "penstock": _ours("Penstock, default (mapped, async), queues", index=_QUEUES_ONLY),
    "penstock-crc32": _ours(
        "Penstock, no CRC over whole records", index=_QUEUES_ONLY, **{"log.checksum": "crc32"}
    ),
    "penstock-index": _ours("Penstock, default, queues and hash index"),
    "penstock-preallocate": _ours(
        "Penstock, segments created and prefaulted ahead", index=_QUEUES_ONLY, alloc="preallocate"
    ),
    "penstock-1gib": _ours("Penstock, RocketMQ's file sizes", index=_QUEUES_ONLY, profile="rocketmq"),
    "penstock-1gib-index": _ours("Penstock, RocketMQ's file sizes, hash index", profile="rocketmq"),
    "penstock-sync": _ours(
        "Penstock, sync, plain writes", index=_QUEUES_ONLY, flush="sync", write="file"
    ),
    "penstock-sync-crc32": _ours(
        "Penstock, sync, no CRC over whole records", index=_QUEUES_ONLY, flush="sync", write="file",
        **{"log.checksum": "crc32"},
    ),
    "penstock-sync-mapped": _ours("Penstock, sync, mapped", index=_QUEUES_ONLY, flush="sync"),
    "penstock-alone": _ours("Penstock, default, queues, no extensions", index=_QUEUES_ONLY, extensions=[]),
    # Run on the packages of another checkout, see `bench.before`.
    "penstock-before": Entry(
        kind="before", words="Penstock of another commit, default, queues",
        settings={"index": _QUEUES_ONLY},
    ),
    "consumer": Entry(kind="consumer", settings={"index": _QUEUES_ONLY}, words="Penstock's consumer group"),
    "sqlite-queue": Entry(
        kind="sqlite-queue", settings={"journal": "WAL"}, words="queue table of SQLite, WAL, FULL", share=0.5
    ),
    "sqlite-queue-delete": Entry(
        kind="sqlite-queue", settings={"journal": "DELETE"}, words="queue table of SQLite, rollback journal, FULL",
        share=0.1,
    ),
    "litequeue": Entry(kind="litequeue", settings={}, words="litequeue, WAL, NORMAL", share=0.02),
    "redis-always": Entry(
        kind="redis", settings={"appendfsync": "always"}, words="redis stream, appendfsync always", share=0.5
    ),
    "redis-everysec": Entry(
        kind="redis", settings={"appendfsync": "everysec"}, words="redis stream, appendfsync everysec", share=0.5
    ),
    "rocketmq": _java("RocketMQ 5.3.3 store, ASYNC_FLUSH, queues"),
    "rocketmq-index": _java(
        "RocketMQ 5.3.3 store, ASYNC_FLUSH, queues and index", messageIndexEnable=True
    ),
    "rocketmq-sync": _java("RocketMQ 5.3.3 store, SYNC_FLUSH", flushDiskType="SYNC_FLUSH"),
    "sqlite": Entry(
        kind="sqlite", settings={"synchronous": "OFF"}, words="SQLite, WAL, no sync", share=0.2
    ),
    "sqlite-index": Entry(
        kind="sqlite", settings={"synchronous": "OFF", "by_key": True},
        words="SQLite, WAL, no sync, index on the key", share=0.2,
    ),
    "sqlite-sync": Entry(kind="sqlite", settings={"synchronous": "FULL"}, words="SQLite, WAL, sync"),
    "lmdb": Entry(kind="lmdb", settings={"sync": False}, words="LMDB, no sync", share=0.5),
    "lmdb-sync": Entry(kind="lmdb", settings={"sync": True}, words="LMDB, sync"),
    "rocksdb": Entry(kind="rocksdb", settings={"sync": False}, words="RocksDB, no sync", share=0.5),
    "rocksdb-sync": Entry(kind="rocksdb", settings={"sync": True}, words="RocksDB, sync"),
    "plain": Entry(kind="plain", settings={"sync": False}, words="a plain append file"),
    "plain-sync": Entry(kind="plain", settings={"sync": True}, words="a plain append file, sync"),
    "pwrite": Entry(kind="pwrite", settings={}, words="`pwrite` of the records' bytes, 1 MiB at a time"),
    "numpy": Entry(kind="numpy", settings={}, words="numpy, imported"),
}  # fmt: skip


# Each is imported only where it is used: a cold start must not include the others.
_CLASSES = {
    "penstock": ("penstock", "PenstockEngine"),
    "before": ("penstock", "PenstockEngine"),
    "consumer": ("consumer", "ConsumerEngine"),
    "sqlite": ("sqlite", "SqliteEngine"),
    "sqlite-queue": ("sqlite_queue", "SqliteQueueEngine"),
    "litequeue": ("litequeue", "LitequeueEngine"),
    "redis": ("redis", "RedisEngine"),
    "lmdb": ("lmdb", "LmdbEngine"),
    "rocksdb": ("rocks", "RocksEngine"),
    "plain": ("plain", "PlainEngine"),
    "pwrite": ("plain", "PwriteEngine"),
}


def make(name: str) -> Engine:
    """Return the engine of that name, not opened; an engine in a JVM is not created here."""
    module, cls = _CLASSES[ENGINES[name].kind]
    made: Engine = getattr(importlib.import_module(f"bench.engines.{module}"), cls)(
        ENGINES[name].settings
    )
    return made
