"""The entries of a queue's journal: one fixed layout, written by the queue's owner, checked by all readers.

Layout of an entry (little-endian, 128 bytes)::

    entry := store u64  generation i64  sequence u64  offset i64  count u32  epoch u32
             kind u8  level i8  tries u16  base i64  number i64  reason 64 bytes  crc u32  # CRC-32C of all before

    store       the store's id: an entry of another store's journal is not used
    generation  of the queue: its upper half is how often the topic was deleted, its lower half how often the writer has
                voided the journal, because somebody else had moved the offset or the log was cut
    sequence    of the entry before, plus one
    base        the group has consumed all messages below it
    reason      of a NACK: why, in UTF-8, with zeros after it; zeros in other entries

    kind    offset                             count  level  tries      number
    CLAIM   committed offset then, -1 if none  1 or 0                   of the last event so far
    ACK     first acknowledged offset          how many
    NACK    refused offset                     tries  level  see nack   of this event
    BASE                                                                            # nothing but a new base
    RESET   new base                                                    of this event
    RETRY   offset                                    1 or 0  so far
    OUT     first offset that is delivered    how many
    FREE    first offset that was released     how many, 0 for all that are out

The count of a CLAIM is 1 if somebody else had committed that offset (see `position`), 0 if not. The count of a NACK is
how many tries of this copy have ended: 1, and 1 more for each that ended with its consumer's death. The level of a
RETRY is 1 if the last try ended so, 0 if not. Messages that are out when the queue gets another owner were in the hands
of a consumer that died. The writer takes events in exactly once: refusals and resets. Their numbers increase by one.

A file has one owner: it begins with CLAIM, and all its entries have the same store, generation and epoch. The next
owner writes a new file, so the entries after a torn one are never reached again.
"""

import struct
from enum import IntEnum

from penstock.format.arrays import Bools, RowType, Structs, np
from penstock.format.hashes import crc32c

ENTRY_BYTES = 128
REASON_BYTES = 64
BODY = struct.Struct(f"<QqQqIIBbHqq{REASON_BYTES}s")
CRC = struct.Struct("<I")
assert BODY.size + CRC.size == ENTRY_BYTES
ENTRY = RowType(
    [
        ("store", "<u8"), ("generation", "<i8"), ("sequence", "<u8"), ("offset", "<i8"), ("count", "<u4"),
        ("epoch", "<u4"), ("kind", "u1"), ("level", "i1"), ("tries", "<u2"), ("base", "<i8"),
        ("number", "<i8"), ("reason", f"S{REASON_BYTES}"), ("crc", "<u4"),
    ]
)  # fmt: skip
Entries = Structs

# No queue gets this far; a larger number in a file is no entry of ours, and sums of two numbers stay below 2^63.
NUMBER_MAX = 1 << 61
EPOCH_MAX = 1 << 31
# `tries` of a refusal: the group's own setting counts.
GROUP_SETTING = 0xFFFF


class EntryKind(IntEnum):
    """The kinds of entries."""

    CLAIM = 1
    ACK = 2
    NACK = 3
    BASE = 4
    RESET = 5
    RETRY = 6
    OUT = 7
    FREE = 8


def encode(
    kind: int, *, store: int, generation: int, sequence: int, epoch: int, base: int, offset: int = 0,
    count: int = 0, level: int = 0, tries: int = 0, number: int = 0, reason: bytes = b"",
) -> bytes:  # fmt: skip
    """Return one entry."""
    body = BODY.pack(
        store, generation, sequence, offset, count, epoch, kind, level, tries, base, number, reason
    )
    return body + CRC.pack(crc32c(body))


def valid_entries(raw: bytes, before: Entries | None = None) -> Entries:
    """Return the entries from the beginning of `raw` up to the first that is torn, missing or of another owner.

    Args:
        raw: the content of a file from a boundary between entries on.
        before: the last entry before `raw`, as an array of one; None if `raw` begins at the file's beginning.
    """
    table: Entries = np.frombuffer(raw, ENTRY, count=len(raw) // ENTRY_BYTES)
    if not len(table):
        return table
    first = table[0] if before is None else before[0]
    if before is None and int(first["kind"]) != EntryKind.CLAIM:
        return table[:0]
    start = int(first["sequence"]) + (before is not None)
    if start > NUMBER_MAX or int(first["epoch"]) > EPOCH_MAX:
        return table[:0]
    fits = table["sequence"] == np.arange(start, start + len(table), dtype=np.uint64)
    for name in ("store", "generation", "epoch"):
        fits &= table[name] == first[name]
    for name, least in (("offset", -1), ("base", 0), ("number", 0)):
        fits &= (table[name] >= least) & (table[name] <= NUMBER_MAX)
    fits &= (table["kind"] >= EntryKind.CLAIM) & (table["kind"] <= EntryKind.FREE)
    fits &= (table["kind"] != EntryKind.CLAIM) | (table["sequence"] == np.uint64(first["sequence"]))
    return table[: _checked(raw, _leading(fits))]


def _leading(fits: Bools) -> int:
    """Return how many values are true before the first that is not."""
    wrong = np.flatnonzero(~fits)
    return int(wrong[0]) if len(wrong) else len(fits)


def _checked(raw: bytes, count: int) -> int:
    """Return how many of the first `count` entries have a correct CRC, up to the first that has not."""
    view = memoryview(raw)
    unpack = CRC.unpack_from
    for index in range(count):
        end = (index + 1) * ENTRY_BYTES - CRC.size
        if crc32c(view[end - BODY.size : end]) != unpack(raw, end)[0]:
            return index
    return count
