"""Converts a RocketMQ `broker.conf` to Penstock's settings, and a store's sizes to lines of a `broker.conf`."""

from pathlib import Path
from typing import Any

from penstock.contracts.geometry import Geometry
from penstock.errors import ConfigError

_BROKER_KEYS = {
    "mappedFileSizeCommitLog": "geometry.segment_bytes",
    "maxHashSlotNum": "geometry.index_slots",
    "maxIndexNum": "geometry.index_entries",
    "maxMessageSize": "log.body_bytes_max",
    "fileReservedTime": "retention.age.reserved_hours",
    "deleteWhen": "retention.age.delete_when",
    "deleteCommitLogFilesInterval": "retention.pause_ms",
    "diskMaxUsedSpaceRatio": "retention.disk-ratio.early_percent",
    "osPageCacheBusyTimeOutMills": "log.busy_ms",
    "transientStorePoolSize": "write.transient-pool.buffers",
}


def _broker_number(name: str, value: str) -> int:
    try:
        number = int(value)
    except ValueError as error:
        raise ConfigError(f"{name} is {value!r} in the broker.conf; it must be a number") from error
    # A broker deletes files from 85 percent on, even if this setting is higher.
    return min(number, 85) if name == "diskMaxUsedSpaceRatio" else number


def from_broker_conf(text: str) -> dict[str, Any]:
    """Return the overrides that correspond to a RocketMQ `broker.conf`; keys without a counterpart are ignored."""
    found: dict[str, Any] = {"profile": "rocketmq", "retention.use": ["age", "disk-ratio"]}
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        name, value = name.strip(), value.strip()
        if not separator or name.startswith("#"):
            continue
        if name in _BROKER_KEYS:
            is_text = name == "deleteWhen"
            found[_BROKER_KEYS[name]] = value if is_text else _broker_number(name, value)
            if name == "fileReservedTime":
                found["retention.disk-ratio.reserved_hours"] = _broker_number(name, value)
        elif name == "mappedFileSizeConsumeQueue":
            found["geometry.queue_entries"] = -(-_broker_number(name, value) // 20)
        elif name == "flushDiskType":
            found["flush.use"] = "sync" if value == "SYNC_FLUSH" else "async"
        elif name == "transientStorePoolEnable" and value == "true":
            found["write.use"] = "transient-pool"
        elif name == "warmMapedFileEnable" and value == "true":
            found["alloc.use"] = "preallocate"
        elif name == "enabledAppendPropCRC" and value == "true":
            found["log.checksum"] = "crc32+record"
    return found


def to_broker_conf(geometry: Geometry, root: Path) -> str:
    """Return the lines of a `broker.conf` that a broker needs to open the store at `root`.

    The lines set only sizes, so they can be added to a broker's own file. Paths and the retention time are
    comments, since the directory may be served from elsewhere.
    """
    # A backslash begins an escape in a properties file.
    path = str(root).replace("\\", "\\\\")
    return "\n".join([
        "# The sizes of the existing files: with other sizes a broker refuses or misreads them.",
        f"mappedFileSizeCommitLog={geometry.segment_bytes}",
        f"mappedFileSizeConsumeQueue={geometry.queue_file_bytes}",
        f"maxHashSlotNum={geometry.index_slots}",
        f"maxIndexNum={geometry.index_entries}",
        "# Where they are.",
        f"# storePathRootDir={path}",
        f"# storePathCommitLog={path}/commitlog",
        "# A broker deletes segments after 72 hours unless this is set.",
        "# fileReservedTime=72",
        "",
    ])  # fmt: skip
