"""`python -m penstock.rescue STORE`: reads a log with plain Python, where the compiled kernel does not load.

Uses only `penstock.format.record`, the readable definition of the format: no kernel, no queues, no index, no
lock. It reads the files of `commitlog/` in order of name, accepts each record whose lengths, log offset and CRC are
correct, and skips anything else up to the next such record. It changes nothing.

After corrupt bytes, the only evidence for a record is that it contains its own log offset, although a body may hold the
bytes of another record. `penstock repair` has more evidence (see `resync`). Tests compare the kernel's with this one.
"""

import argparse
import base64
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TextIO

from penstock.format.properties import KEYS, TAGS, decode_properties
from penstock.format.record import (
    CRC_MASK,
    CRC_PROPERTY_SIZE,
    FIXED_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
    MalformedRecordError,
    RecordFields,
    body_crc,
    crc32,
    crc_property,
    decode_record,
)

_BLANK, *_MAGICS = (
    magic.to_bytes(4, "big", signed=True) for magic in (MAGIC_BLANK, MAGIC_V1, MAGIC_V2)
)


class Found(NamedTuple):
    """A valid record: its fields, and whether it ends with a CRC of the whole record."""

    fields: RecordFields
    has_own_crc: bool


class Gap(NamedTuple):
    """Bytes [start, stop) of the log that are not a valid record; `is_blank` for filler and unwritten bytes."""

    start: int
    stop: int
    is_blank: bool


def record_at(data: bytes | memoryview, position: int, log_offset: int) -> Found | None:
    """Return the valid record at a position of a segment's bytes, or None.

    Args:
        data: the segment.
        position: where the record begins in it.
        log_offset: the log offset of that position.
    """
    if len(data) - position < FIXED_SIZE:
        return None
    size, magic = SIZE_AND_MAGIC.unpack_from(data, position)
    if magic not in (MAGIC_V1, MAGIC_V2) or not FIXED_SIZE <= size <= len(data) - position:
        return None
    record = bytes(data[position : position + size])
    try:
        fields = decode_record(record)
    except MalformedRecordError:
        return None
    if fields.log_offset != log_offset or fields.crc != body_crc(fields.body):
        return None
    covered = record[:-CRC_PROPERTY_SIZE]
    own = len(fields.properties) >= CRC_PROPERTY_SIZE
    own = own and record.endswith(crc_property(crc32(covered) & CRC_MASK))
    return Found(fields, own)


def walk(data: bytes | memoryview, base_offset: int) -> Iterator[Found | Gap]:
    """Yield the valid records of a segment, and the gaps between them, in order.

    Args:
        data: the segment's bytes.
        base_offset: log offset of the first byte.
    """
    position = 0
    while position < len(data):
        found = record_at(data, position, base_offset + position)
        if found is not None:
            yield found
            position += found.fields.size
            continue
        following = _next(data, position, base_offset)
        yield Gap(
            base_offset + position, base_offset + following, _is_blank(data, position, following)
        )
        position = following


def _is_blank(data: bytes | memoryview, start: int, stop: int) -> bool:
    head = bytes(data[start : start + SIZE_AND_MAGIC.size])
    if len(head) == SIZE_AND_MAGIC.size and SIZE_AND_MAGIC.unpack(head)[1] == MAGIC_BLANK:
        return stop == len(data)
    return not bytes(data[start:stop]).strip(b"\0")


def _next(data: bytes | memoryview, position: int, base_offset: int) -> int:
    """Return the position of the next valid record after `position`, or the end of the data."""
    raw = bytes(data)
    candidates = [position + 1] * len(_MAGICS)
    while True:
        places = [raw.find(magic, at + 4) for magic, at in zip(_MAGICS, candidates, strict=True)]
        ahead = [place - 4 for place in places if place >= 0]
        if not ahead:
            return len(raw)
        at = min(ahead)
        if record_at(raw, at, base_offset + at) is not None:
            return at
        candidates = [at + 1] * len(_MAGICS)


def segments(store: Path) -> list[Path]:
    """Return the segment files of a store, the oldest first."""
    names = (
        path for path in (store / "commitlog").iterdir() if path.name.isdecimal() and path.is_file()
    )
    return sorted(names, key=lambda path: int(path.name))


def read(paths: Iterable[Path]) -> Iterator[Found | str]:
    """Yield the valid records of a log's segments, and a sentence for each range that should have some and has none."""
    # Zeros count only if a record follows: otherwise they are not written yet.
    end, zeros = -1, list[str]()
    for path in paths:
        data, base = path.read_bytes(), int(path.name)
        if 0 <= end < base:
            yield f"{path}: log offsets {end} to {base} are missing"
        end = base + len(data)
        for part in walk(data, base):
            if isinstance(part, Found):
                yield from zeros
                zeros.clear()
                yield part
                continue
            text = f"{path}: log offsets {part.start} to {part.stop} are not a valid record"
            if not part.is_blank:
                yield text
            elif not data.startswith(_BLANK, part.start - base + 4):
                zeros.append(text)


def as_json(found: Found) -> dict[str, object]:
    """Return a record as plain values; the body as base64."""
    fields = found.fields
    properties = decode_properties(fields.properties)
    return {
        "topic": fields.topic.decode("utf-8", "replace"),
        "queue": fields.queue,
        "queue_offset": fields.queue_offset,
        "log_offset": fields.log_offset,
        "store_time_ms": fields.store_time_ms,
        "born_time_ms": fields.born_time_ms,
        "tag": properties.pop(TAGS, ""),
        "keys": [key for key in properties.pop(KEYS, "").split(" ") if key],
        "properties": properties,
        "flag": fields.flag,
        "sys_flag": fields.sys_flag,
        "has_own_crc": found.has_own_crc,
        "body_base64": base64.b64encode(fields.body).decode(),
    }


def main(arguments: list[str] | None = None, out: TextIO = sys.stdout) -> int:
    """Print every message as a line of JSON, then a summary on stderr; returns 1 if any range is corrupt, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m penstock.rescue",
        description="Print every message of a store's log as a line of JSON, with plain Python only: for a "
        "machine on which Penstock's compiled kernel does not load. Changes nothing.",
    )
    parser.add_argument("store", type=Path, help="the store's folder, which contains commitlog/")
    parser.add_argument("--topic", help="only messages of this topic")
    parser.add_argument("--count", action="store_true", help="print no messages, only count them")
    given = parser.parse_args(arguments)
    messages = corrupt = 0
    try:
        paths = segments(given.store)
    except OSError as error:
        parser.error(f"{given.store} is not a message store: {error}")
    for part in read(paths):
        if isinstance(part, str):
            corrupt += 1
            sys.stderr.write(part + "\n")
        elif given.topic is None or part.fields.topic == given.topic.encode():
            messages += 1
            if not given.count:
                out.write(json.dumps(as_json(part)) + "\n")
    sys.stderr.write(f"{messages} messages in {len(paths)} segments, {corrupt} corrupt ranges\n")
    return 1 if corrupt else 0


if __name__ == "__main__":
    sys.exit(main())
