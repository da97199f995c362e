"""Logs that tests write byte by byte: plain records, chains of them, and records with marks of atomic batches."""

import struct
import threading
from pathlib import Path
from typing import Any

from penstock.files import File, Files
from penstock.format.record import RecordFields, encode_record
from penstock.log.segmented_log import SegmentedLog
from penstock.testing.kit import SMALL

CAPACITY = 4096


HEAD = struct.Struct(">ii")


class Held(Files):
    """Makes the second segment only when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_go_on = threading.Event(), threading.Event()

    def create(self, path: Path) -> File:
        if path.name.endswith(f"{SMALL.segment_bytes:020d}"):
            self.asked.set()
            self.may_go_on.wait()
        return super().create(path)


class CountedLog(SegmentedLog):
    """Counts what is read."""

    read_sizes: list[int]

    def read_from(self, segment: Any, log_offset: int, size: int, **how: Any) -> Any:
        self.read_sizes.append(size)
        return super().read_from(segment, log_offset, size, **how)


def log_of(folder: Path, data: bytes, *, length: int = CAPACITY) -> CountedLog:
    (folder / f"{0:020d}").write_bytes(data.ljust(length, b"\0"))
    log = CountedLog(Files(), folder, CAPACITY, mapped=False)
    log.refresh()
    log.read_sizes = []
    return log


def record(at: int, body: bytes, queue_offset: int = 0) -> bytes:
    fields = RecordFields(topic=b"t", body=body, log_offset=at, queue_offset=queue_offset)
    return encode_record(fields)


def chain(*bodies: bytes) -> tuple[bytes, list[int]]:
    """Return records one after the other, and where each begins."""
    data, places = b"", list[int]()
    for number, body in enumerate(bodies):
        places.append(len(data))
        data += record(len(data), body, number)
    return data, places


def flipped(data: bytes, position: int) -> bytes:
    """Return the bytes with one bit changed."""
    changed = bytearray(data)
    changed[position] ^= 1
    return bytes(changed)


# Of the body of a record of this module, from where the record begins.
BODY_AT = 90
# Of one record of `marked_log`.
MARKED_SIZE = len(record(0, b"12"))


def marked_log(folder: Path, numbers: list[int], times: list[int] | None = None) -> CountedLog:
    """Return a log of records that have these numbers in PREPAREDTRANSACTIONOFFSET."""
    data = b"".join(
        encode_record(
            RecordFields(
                topic=b"t",
                body=b"12",
                queue_offset=row,
                log_offset=row * MARKED_SIZE,
                prepared_offset=number,
                store_time_ms=times[row] if times else 5,
            )
        )
        for row, number in enumerate(numbers)
    )
    return log_of(folder, data)
