"""Converts a RocketMQ `broker.conf` to Penstock's settings, and a store's sizes to lines of a `broker.conf`."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.contracts.base import Geometry
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


# The other integers of the file that are read; all but one have 32 bits.
_LONG = "osPageCacheBusyTimeOutMills"
# Key, what separates it from its value, and the value; a backslash keeps the character after it.
_PAIR = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CHARACTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANK = " \t\f"
# A byte order mark of UTF-8, read as Latin-1 and as UTF-8.
_MARKS = ("\u00ef\u00bb\u00bf", "\ufeff")
_FLUSH_TYPES = {"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"}


def _properties(text: str) -> dict[str, str]:
    """Return the pairs of a properties file as Java's `Properties.load` reads them; the last one of a name counts."""
    for mark in _MARKS:
        text = text.removeprefix(mark)
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        pair = _PAIR.fullmatch(line)
        assert pair is not None
        found[_unescaped(pair[1])] = _unescaped(pair[2])
    return found


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the lines that are neither empty nor comments, joined where a backslash continues them."""
    lines = iter(re.split(r"\r\n|\r|\n", text))
    for each in lines:
        line = each.lstrip(_BLANK)
        if not line or line[0] in "#!":
            continue
        # An even number of backslashes stands for themselves.
        while (len(line) - len(line.rstrip("\\"))) % 2:
            line = line[:-1] + next(lines, "").lstrip(_BLANK)
        yield line


def _unescaped(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        word = found[1]
        if word == "u":
            raise ConfigError(
                f"{text[:80]!r} in the broker.conf has an escape without four hexadecimal digits; a broker refuses the "
                "file. Write \\\\ for a backslash"
            )
        return chr(int(word[1:], 16)) if len(word) > 1 else _CHARACTERS.get(word, word)

    return _ESCAPE.sub(character, text)


def _broker_number(name: str, value: str) -> int:
    limit = 1 << (63 if name == _LONG else 31)
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", value) or not -limit <= int(value) < limit:
        raise ConfigError(
            f"{name} is {value[:80]!r} in the broker.conf; it must be a whole number of {limit.bit_length()} bits, "
            "without spaces after it: a broker takes no other, and uses its default"
        )
    # A broker deletes files from 85 percent on, even if this setting is higher, and never from less than 10.
    return max(10, min(int(value), 85)) if name == "diskMaxUsedSpaceRatio" else int(value)


def _flush_type(value: str) -> str:
    if value not in _FLUSH_TYPES:
        raise ConfigError(
            f"flushDiskType is {value[:80]!r} in the broker.conf; it must be one of: {', '.join(_FLUSH_TYPES)}"
        )
    return _FLUSH_TYPES[value]


def from_broker_conf(text: str) -> dict[str, Any]:
    """Return the overrides that correspond to a RocketMQ `broker.conf`; keys without a counterpart are ignored.

    The file is read as a broker reads it, in Latin-1. Raises `ConfigError` for a value that a broker does not take.
    """
    found: dict[str, Any] = {"profile": "rocketmq", "retention.use": ["age", "disk-ratio"]}
    for name, value in _properties(text).items():
        # As Java's `parseBoolean`.
        is_true = value.lower() == "true"
        if name in _BROKER_KEYS:
            is_text = name == "deleteWhen"
            found[_BROKER_KEYS[name]] = value if is_text else _broker_number(name, value)
            if name == "fileReservedTime":
                found["retention.disk-ratio.reserved_hours"] = _broker_number(name, value)
        elif name == "mappedFileSizeConsumeQueue":
            found["geometry.queue_entries"] = -(-_broker_number(name, value) // 20)
        elif name == "flushDiskType":
            found["flush.use"] = _flush_type(value)
        elif name == "transientStorePoolEnable" and is_true:
            found["write.use"] = "transient-pool"
        elif name == "warmMapedFileEnable" and is_true:
            found["alloc.use"] = "preallocate"
        elif name == "enabledAppendPropCRC" and is_true:
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
