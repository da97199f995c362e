"""Which ranges of the log Penstock wrote, and with which checksum: the file `penstock/ranges`.

Layout: JSON, one object::

    {"about": {"ranges": [{"start": 0, "stop": 4711, "checksum": "crc32"}, {"start": 4711, "stop": null, ...}],
               "gaps": [[8192, 65536], ...], "lock_mtime_ns": 1700000000000000000},
     "crc32": CRC-32 of `about` as `json.dumps` writes it}

`gaps` are ranges of the log that a repair covered with a blank record: queue offsets are missing after them.
Ranges ascend and do not overlap. Only the last one may be open (`stop` is null): it goes on as far as Penstock
does. It is written, durably, before the first record of a new range, and read by all who decide whether a
record is valid (see `validity.Coverage`).

`lock_mtime_ns` is when the lock file was last written when the file was: as in `progress`, it tells whether any
other program has opened the store for writing since. Once another program has opened the store for writing, an open range ends where the log was known to be durable
before: behind that the other program may have cut the log and written records of its own. Losing the file
costs protection, never data: a range that is not known to be covered is checked by what every store has.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import attrs

from penstock.errors import FormatVersionError, OffsetError
from penstock.files import Files
from penstock.log import SegmentedLog
from penstock.progress import SIDE_FOLDER, Progress, SideFolder, lock_mtime_ns
from penstock.record import FIXED_SIZE, crc32
from penstock.validity import Coverage, is_valid

COVERING = "crc32+record"
_NO_END = 1 << 62
_SIZE_MAX = 1 << 20
# So many records of a range are looked at before another program's log is taken for ours.
_LOOKED_AT = 3
_NOT_UNDERSTOOD = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
    OSError,
)


@attrs.frozen(kw_only=True)
class WrittenRange:
    """Records that begin in [start, stop) were written by Penstock, with that checksum."""

    start: int
    stop: int
    checksum: str

    @property
    def is_open(self) -> bool:
        """Whether it goes on with whatever is appended."""
        return self.stop >= _NO_END


@attrs.frozen(kw_only=True)
class Ranges:
    """What `penstock/ranges` says."""

    written: tuple[WrittenRange, ...] = ()
    gaps: tuple[tuple[int, int], ...] = ()
    lock_mtime_ns: int = 0

    @property
    def coverage(self) -> Coverage:
        """Where records must end in a CRC of the whole record."""
        return Coverage.of((r.start, r.stop) for r in self.written if r.checksum == COVERING)

    def is_own(self, log_offset: int) -> bool:
        """Return whether Penstock is known to have written the record that begins there."""
        return any(r.start <= log_offset < r.stop for r in self.written)

    def extended(self, end_offset: int, min_offset: int, checksum: str) -> "Ranges":
        """Return them for a log that ends at `end_offset` and goes on with a checksum; without what is deleted."""
        closed = [
            attrs.evolve(r, stop=min(r.stop, end_offset))
            for r in self.written
            if r.stop > min_offset and r.start < end_offset
        ]
        going_on = bool(closed) and (closed[-1].stop, closed[-1].checksum) == (end_offset, checksum)
        start = closed.pop().start if going_on else end_offset
        newest = WrittenRange(start=start, stop=_NO_END, checksum=checksum)
        gaps = tuple(gap for gap in self.gaps if min_offset < gap[1] <= end_offset)
        return attrs.evolve(self, written=(*closed, newest), gaps=gaps)


NO_RANGES = Ranges()


def read_ranges(files: Files, root: Path) -> Ranges | None:
    """Return what the file says; nothing where there is none, None where it cannot be understood."""
    path = root / SIDE_FOLDER / "ranges"
    if not files.exists(path):
        return NO_RANGES
    try:
        whole = json.loads(files.read_whole(path, _SIZE_MAX))
        about = whole["about"]
        if whole["crc32"] != _crc(about):
            return None
        written = tuple(
            WrittenRange(
                start=int(one["start"]),
                stop=_NO_END if one["stop"] is None else int(one["stop"]),
                checksum=str(one["checksum"]),
            )
            for one in about["ranges"]
        )
        gaps = tuple((int(start), int(stop)) for start, stop in about["gaps"])
        lock_mtime = int(about["lock_mtime_ns"])
    except _NOT_UNDERSTOOD:
        return None
    edges = [edge for one in written for edge in (one.start, one.stop)]
    if edges != sorted(edges):
        return None
    return Ranges(written=written, gaps=gaps, lock_mtime_ns=lock_mtime)


def write_ranges(files: Files, root: Path, ranges: Ranges) -> None:
    """Replace the file, durably."""
    listed = [
        {"start": r.start, "stop": None if r.is_open else r.stop, "checksum": r.checksum}
        for r in ranges.written
    ]
    about = {
        "ranges": listed,
        "gaps": [list(gap) for gap in ranges.gaps],
        "lock_mtime_ns": ranges.lock_mtime_ns,
    }
    text = json.dumps({"about": about, "crc32": _crc(about)})
    files.write_whole(root / SIDE_FOLDER / "ranges", text.encode())


def _crc(about: object) -> int:
    return crc32(json.dumps(about).encode())


def known_ranges(files: Files, root: Path, log: SegmentedLog) -> Ranges:
    """Return the ranges that may be believed, the last one open only while Penstock wrote last."""
    ranges = read_ranges(files, root) or NO_RANGES
    try:
        state = Progress(files, root).read()
    except FormatVersionError:
        return NO_RANGES
    now = lock_mtime_ns(files, root)
    if now != 0 and now in (state.lock_mtime_ns, ranges.lock_mtime_ns):
        return ranges
    clean = SideFolder(files, root).read_clean()
    durable = state.flushed_offset if clean is None else clean.log_end
    closed = (attrs.evolve(r, stop=min(r.stop, max(durable, r.start))) for r in ranges.written)
    written = tuple(r for r in closed if r.start < r.stop and _is_still_there(log, r))
    return attrs.evolve(ranges, written=written)


def _is_still_there(log: SegmentedLog, written: WrittenRange) -> bool:
    """Return whether the log still has what was written, and not another program's log from the same offset on."""
    if written.checksum != COVERING:
        return True
    records = list(_first_records(log, written))
    return not records or any(is_valid(r, at, is_covered=True) for at, r in records)


def _first_records(log: SegmentedLog, written: WrittenRange) -> Iterator[tuple[int, bytes]]:
    """Yield the first few records of a range that are valid by what every store has."""
    bases = [s.base_offset for s in log.segments if written.start <= s.base_offset < written.stop]
    at = written.start if log.find(written.start) is not None else min(bases, default=-1)
    for _ in range(_LOOKED_AT):
        segment = log.find(at) if at < written.stop else None
        if segment is None or segment.end_offset - at < FIXED_SIZE:
            return
        try:
            size = int.from_bytes(log.read(at, 4), "big", signed=True)
            if not FIXED_SIZE <= size <= segment.end_offset - at:
                return
            record = bytes(log.read(at, size))
        except (OffsetError, OSError):
            return
        if not is_valid(record, at):
            return
        yield at, record
        at += size


def watch_coverage(files: Files, root: Path, log: SegmentedLog) -> None:
    """Let a log that is only read know what is covered, now and whenever it asks again."""

    def read() -> Coverage:
        return known_ranges(files, root, log).coverage

    log.read_coverage = read
    log.coverage = read()
