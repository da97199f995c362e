"""The units of consume queues' extension files, and the addresses that queue entries hold of them.

Layout of a unit (big-endian)::

    0 unit size i16   2 tag code i64   10 store time i64   18 bitmap length i16   20 bitmap

The unit size is 20 plus the length of the bitmap. Penstock writes no bitmap: it is for SQL filters, and RocketMQ
writes one only when those are on. An address is the unit's byte offset in the queue's extension minus 2^63. That is
below any tag hash and any delivery time, so the value of an entry's third field shows which of these it is.
Source: spec section 3.6. Not checksummed: rebuilt from the log.
"""

from penstock.format.arrays import Bools, Int64s, RowType, Structs, np

UNIT = RowType(
    [("size", ">i2"), ("tag_code", ">i8"), ("store_time_ms", ">i8"), ("bitmap_bytes", ">i2")]
)
UNIT_SIZE = 20
assert UNIT.itemsize == UNIT_SIZE
# Written in place of the next unit, in a file that has no room for it.
END_MARK = b"\xff\xff"
# A unit needs this number of free bytes after it; otherwise the writer continues in the next file.
END_BYTES = 4
FILE_BYTES_MIN = UNIT_SIZE + END_BYTES
FILE_BYTES_MAX = 0x7FFFFFFF

Units = Structs

_LONG_MIN = -(1 << 63)
# Tag codes up to here are addresses, as in Java.
ADDRESS_MAX = -(1 << 31) - 1
# Therefore the largest offset that can have an address.
OFFSET_MAX = ADDRESS_MAX + (1 << 63)


def are_addresses(codes: Int64s) -> Bools:
    """Return which tag codes are the address of a unit."""
    return codes <= ADDRESS_MAX


def offsets_of(addresses: Int64s) -> Int64s:
    """Return the byte offsets that addresses represent; all must be addresses."""
    return addresses - _LONG_MIN


def addresses_of(offsets: Int64s) -> Int64s:
    """Return the addresses of byte offsets."""
    return offsets + _LONG_MIN


def make_units(tag_codes: Int64s, store_times: Int64s) -> Units:
    """Return a unit for each pair, without a bitmap."""
    units = np.zeros(len(tag_codes), UNIT.dtype)
    units["size"] = UNIT_SIZE
    units["tag_code"] = tag_codes
    units["store_time_ms"] = store_times
    return units


def are_valid_units(units: Units, positions: Int64s, file_bytes: int) -> Bools:
    """Return which of the units read at these positions of a file are valid."""
    sizes = units["size"].astype(np.int64)
    bitmaps = units["bitmap_bytes"].astype(np.int64)
    fits = positions + sizes + END_BYTES <= file_bytes
    is_code = ~are_addresses(units["tag_code"].astype(np.int64))
    valid: Bools = (bitmaps >= 0) & (sizes == UNIT_SIZE + bitmaps) & fits & is_code
    return valid
