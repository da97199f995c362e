"""What a RocketMQ `broker.conf` asks for, as settings of ours."""

from typing import Any

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
    # In Java the level of 85 acts first, whatever this one says.
    return min(number, 85) if name == "diskMaxUsedSpaceRatio" else number


def from_broker_conf(text: str) -> dict[str, Any]:
    """Return overrides that a RocketMQ `broker.conf` asks for; keys without a meaning here are passed over."""
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
