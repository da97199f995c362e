"""The file `penstock/ranges`: the ranges of the log that Penstock wrote, and their checksums.

Layout: JSON, one object::

    {"about": {"ranges": [{"start": 0, "stop": 4711, "checksum": "crc32"}, {"start": 4711, "stop": null, ...}],
               "perhaps": [[0, 900]], "gaps": [[8192, 65536]], "quarantined": [[500, 700, "<SHA-256>"]],
               "lock_mtime_ns": 1700000000000000000},
     "crc32": CRC-32 of `about` as `json.dumps` writes it}

All numbers but the times are log offsets, and ascend. Only the last range may be open (`stop` is null): it includes
whatever Penstock appends. `perhaps` lists ranges that Penstock or another program may have written. `gaps` lists ranges
that a repair covered with a blank record: queue offsets are missing after them. `quarantined` lists corrupt ranges that
a repair has noted; whether they count depends on the log alone (see `scan`).

The file is written, durably, before the first record of a new range. It answers two questions:

    * Must this record end in a CRC of its own (see `validity.Coverage`), and did Penstock assign its queue offset (see
      `queue_evidence`)? If in doubt, the answer is no: losing the file costs protection, never data.
    * May this record belong to a topic that a broker has deleted (see `dispatch.rebuild`)? If in doubt, the answer is
      no: Penstock may have written it.

`lock_mtime_ns` is the lock file's modification time when this file was written. As in `progress`, it shows whether
another program has opened the store for writing since. If so, an open range ends where the log was known to be durable:
after that offset, the other program may have cut the log and written records of its own.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from penstock.durability.progress import Progress, State
from penstock.durability.side_folder import SideFolder, penstock_wrote_last, read_about, write_about
from penstock.errors import FormatVersionError, OffsetError
from penstock.files import Files
from penstock.format.arrays import Bools, Int64s, np
from penstock.format.names import SIDE_FOLDER
from penstock.format.record import CRC_NAME, CRC_PROPERTY_SIZE
from penstock.format.validity import Coverage
from penstock.log.scan import Checks, scan_segment
from penstock.log.segment import Segment
from penstock.log.segmented_log import Quarantined, SegmentedLog

COVERING = "crc32+record"
Pair = tuple[int, int]

NO_END = 1 << 62
_SIZE_MAX = 1 << 20
# This many consecutive records without a CRC of their own were written by another program.
_LOOKED_AT = 3
_WINDOW_BYTES_MIN = 64 << 10
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
    """A range [start, stop) whose records Penstock wrote, with that checksum."""

    start: int
    stop: int
    checksum: str

    @property
    def is_open(self) -> bool:
        """Whether the range includes whatever is appended."""
        return self.stop >= NO_END


@attrs.frozen(kw_only=True)
class Ranges:
    """The content of `penstock/ranges`. Safe from any thread."""

    written: tuple[WrittenRange, ...] = ()
    perhaps: tuple[Pair, ...] = ()
    gaps: tuple[Pair, ...] = ()
    # By where they begin.
    quarantined: Mapping[int, Quarantined] = attrs.field(factory=dict, hash=False)
    lock_mtime_ns: int = 0

    @property
    def coverage(self) -> Coverage:
        """The ranges in which records must end in a CRC of the whole record."""
        return Coverage.of((r.start, r.stop) for r in self.written if r.checksum == COVERING)

    def is_own(self, log_offset: int) -> bool:
        """Return whether Penstock is known to have written the record that begins at `log_offset`."""
        return any(r.start <= log_offset < r.stop for r in self.written)

    def may_have_own(self, first: int, last: int) -> bool:
        """Return whether Penstock wrote, or may have written, a record from log offset `first` to `last` inclusive."""
        return any(
            start <= last and first < stop for start, stop in (*self._pairs(), *self.perhaps)
        )

    def may_be_own(self, log_offsets: Int64s) -> Bools:
        """Return which records Penstock wrote, or may have written."""
        own = np.zeros(len(log_offsets), np.bool_)
        for start, stop in (*self._pairs(), *self.perhaps):
            own |= (log_offsets >= start) & (log_offsets < stop)
        return own

    def is_one_run(self, first: int, last: int) -> bool:
        """Return whether Penstock certainly wrote everything from log offset `first` to `last`."""
        return any(start <= first and last < stop for start, stop in _joined(self._pairs()))

    def _pairs(self) -> list[Pair]:
        return [(r.start, r.stop) for r in self.written]

    def extended(self, end_offset: int, min_offset: int, checksum: str) -> "Ranges":
        """Return the ranges of a log that ends at `end_offset`, with an open range of `checksum` from there on.

        Ranges before `min_offset`, which are deleted, are left out.
        """
        closed = [
            attrs.evolve(r, stop=min(r.stop, end_offset))
            for r in self.written
            if r.stop > min_offset and r.start < end_offset
        ]
        going_on = bool(closed) and (closed[-1].stop, closed[-1].checksum) == (end_offset, checksum)
        start = closed.pop().start if going_on else end_offset
        newest = WrittenRange(start=start, stop=NO_END, checksum=checksum)
        perhaps = tuple(pair for pair in _cut(self.perhaps, end_offset) if pair[1] > min_offset)
        gaps = tuple(gap for gap in self.gaps if min_offset < gap[1] <= end_offset)
        return attrs.evolve(self, written=(*closed, newest), perhaps=perhaps, gaps=gaps)

    def told(self) -> dict[str, Any]:
        """Return what a copy of the log needs to know, as JSON values; see `followed`."""
        return {
            "ranges": [
                {"start": r.start, "stop": None if r.is_open else r.stop, "checksum": r.checksum}
                for r in self.written
            ],
            "perhaps": [[start, None if stop >= NO_END else stop] for start, stop in self.perhaps],
            "gaps": [list(gap) for gap in self.gaps],
        }

    def followed(self, told: Mapping[str, Any], end: int) -> "Ranges":
        """Return the ranges of a log that ends at `end` and continues with the bytes of another log.

        `told` is what the other log's `told` returned. Raises `ValueError` for anything else.
        """
        try:
            other = _ranges_of(told)
        except _NOT_UNDERSTOOD as error:
            raise ValueError(f"the ranges of a log cannot be understood: {error!r}") from error
        written = [attrs.evolve(r, stop=min(r.stop, end)) for r in self.written if r.start < end]
        for one in other.written:
            start = max(one.start, end)
            if start >= one.stop:
                continue
            if written and (written[-1].stop, written[-1].checksum) == (start, one.checksum):
                start = written.pop().start
            written.append(attrs.evolve(one, start=start))
        after = [(max(start, end), stop) for start, stop in other.perhaps]
        return attrs.evolve(
            self, written=tuple(written), perhaps=tuple(_joined([*_cut(self.perhaps, end), *after])),
            gaps=(*(gap for gap in self.gaps if gap[1] <= end), *(gap for gap in other.gaps if gap[1] > end)),
        )  # fmt: skip

    def ended(self, durable: int, end: int) -> "Ranges":
        """Return the ranges after another program has opened the store.

        The log was durable up to `durable`, and ended at `end` at the latest. Between the two offsets, Penstock or the
        other program may have written the records.
        """
        closed = [attrs.evolve(r, stop=min(r.stop, durable)) for r in self.written]
        doubtful = ((max(start, durable), stop) for start, stop in self._pairs())
        return attrs.evolve(
            self,
            written=tuple(r for r in closed if r.start < r.stop),
            perhaps=tuple(_cut(_joined([*self.perhaps, *doubtful]), end)),
        )


def _cut(pairs: Iterable[Pair], end: int) -> list[Pair]:
    cut = ((start, min(stop, end)) for start, stop in pairs)
    return [(start, stop) for start, stop in cut if start < stop]


def _joined(pairs: Iterable[Pair]) -> list[Pair]:
    """Return the pairs sorted, adjacent ones merged, empty ones removed."""
    joined: list[Pair] = []
    for start, stop in sorted(pair for pair in pairs if pair[0] < pair[1]):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        else:
            joined.append((start, stop))
    return joined


NO_RANGES = Ranges()
ALL_IN_DOUBT = Ranges(perhaps=((0, NO_END),))


def read_ranges(files: Files, root: Path) -> Ranges | None:
    """Return the ranges in the file; no ranges if the file is missing, None if it is not valid."""
    path = root / SIDE_FOLDER / "ranges"
    if not files.exists(path):
        return NO_RANGES
    try:
        about = read_about(files, path, _SIZE_MAX)
        ranges = _ranges_of(about)
        noted = {
            int(a): Quarantined(int(a), int(b), str(d)) for a, b, d in about.get("quarantined", ())
        }
        lock_mtime = int(about["lock_mtime_ns"])
    except _NOT_UNDERSTOOD:
        return None
    noted_edges = [edge for each in noted.values() for edge in each[:2]]
    if noted_edges != sorted(noted_edges):
        return None
    return attrs.evolve(ranges, quarantined=noted, lock_mtime_ns=lock_mtime)


def _ranges_of(about: Mapping[str, Any]) -> Ranges:
    """Return the ranges that `Ranges.told` describes; raises one of `_NOT_UNDERSTOOD` for anything else."""
    written = tuple(
        WrittenRange(start=int(one["start"]), stop=_end(one["stop"]), checksum=str(one["checksum"]))
        for one in about["ranges"]
    )
    perhaps = tuple((int(start), _end(stop)) for start, stop in about["perhaps"])
    gaps = tuple((int(start), int(stop)) for start, stop in about["gaps"])
    edges = [edge for one in written for edge in (one.start, one.stop)]
    others = [edge for pair in (*perhaps, *gaps) for edge in pair]
    if any(start > stop for start, stop in (*perhaps, *gaps)):
        raise ValueError("a range that ends before it begins")
    if edges != sorted(edges) or not all(0 <= edge <= NO_END for edge in (*edges, *others)):
        raise ValueError("offsets that are out of order or out of range")
    return Ranges(written=written, perhaps=perhaps, gaps=gaps)


def _end(stop: Any) -> int:
    return NO_END if stop is None else int(stop)


def write_ranges(files: Files, root: Path, ranges: Ranges) -> None:
    """Replace the file, durably."""
    about = {
        **ranges.told(),
        "quarantined": [list(noted) for noted in ranges.quarantined.values()],
        "lock_mtime_ns": ranges.lock_mtime_ns,
    }
    write_about(files, root / SIDE_FOLDER / "ranges", about)


def known_ranges(files: Files, root: Path, log: SegmentedLog | None = None) -> Ranges:
    """Return the ranges that are certain; the last one is open only if Penstock wrote last.

    Without `log` they are the ranges that Penstock once wrote; another program may have replaced the records since.
    """
    try:
        state = Progress(files, root).read()
    except FormatVersionError:
        return ALL_IN_DOUBT
    ranges = read_ranges(files, root)
    # Where only this file was lost, there is a progress file; without either, Penstock never wrote to this store.
    if ranges is None or (ranges == NO_RANGES and state.lock_mtime_ns):
        ranges = ALL_IN_DOUBT
    if penstock_wrote_last(files, root, state.lock_mtime_ns, ranges.lock_mtime_ns):
        return ranges
    ended = ranges.ended(*_last_known(files, root, state))
    return ended if log is None else _without_replaced(ended, log)


def _last_known(files: Files, root: Path, state: State) -> tuple[int, int]:
    """Return up to where the log was durable when Penstock last wrote, and up to where it had records for certain."""
    clean = SideFolder(files, root).read_clean()
    if clean is not None:
        return clean.log_end, max(clean.log_end, state.flushed_offset, state.visible_offset)
    if not state.lock_mtime_ns:
        # A killed repair leaves this state: it is not known where another program began to write.
        return state.flushed_offset, NO_END
    return state.flushed_offset, max(state.flushed_offset, state.visible_offset)


def _without_replaced(ranges: Ranges, log: SegmentedLog) -> Ranges:
    """Return the ranges without those parts in which another program has replaced Penstock's records."""
    ends = [(r, _own_end(log, r)) for r in ranges.written]
    closed = [attrs.evolve(r, stop=end) for r, end in ends]
    return attrs.evolve(
        ranges,
        written=tuple(r for r in closed if r.start < r.stop),
        perhaps=tuple(_joined([*ranges.perhaps, *((end, r.stop) for r, end in ends)])),
    )


def _own_end(log: SegmentedLog, written: WrittenRange) -> int:
    """Return where a covered range ends in the current log: where another program cut the log and continued."""
    if written.checksum != COVERING:
        return written.stop
    segments = [
        s for s in log.segments
        if s.base_offset < written.stop and s.end_offset > written.start
    ]  # fmt: skip
    if not segments:
        return written.stop
    # The last segment that begins with Penstock's records: the other program continued in it, or in the next one.
    last = None
    try:
        for segment in segments:
            if _others_from(log, segment, written, _LOOKED_AT) is not None:
                break
            last = segment
        found = None if last is None else _others_from(log, last, written)
    except (OffsetError, OSError):
        # The segment was deleted meanwhile.
        return written.stop
    if last is None:
        return written.start
    return min(last.end_offset, written.stop) if found is None else found


def _others_from(
    log: SegmentedLog, segment: Segment, written: WrittenRange, most: int | None = None
) -> int | None:
    """Return the log offset of another program's first record in a range's part of a segment, or None.

    With `most`, only the first `most` records are checked. Such records pass the checks that every store has, and do
    not end in their own CRC. `_LOOKED_AT` of them in a row are not corruption. Fewer of them, at the end of the
    records, count only if none looks like a record of Penstock's with a corrupt CRC.
    """
    others: list[tuple[int, int]] = []
    for offset, size, is_own in itertools.islice(_valid_records(log, segment, written), most):
        others = [] if is_own else [*others, (offset, size)]
        if len(others) == _LOOKED_AT:
            break
    if not others or (
        len(others) < _LOOKED_AT and any(_looks_own(log, segment, *other) for other in others)
    ):
        return None
    return others[0][0]


def _valid_records(
    log: SegmentedLog, segment: Segment, written: WrittenRange
) -> Iterator[tuple[int, int, bool]]:
    """Yield log offset and size of each valid record of a range in a segment, and whether it ends in its own CRC."""
    start = max(segment.base_offset, written.start)
    for scanned in scan_segment(
        log, segment, start, segment.end_offset, Checks(), window_bytes=_WINDOW_BYTES_MIN
    ):
        valid = scanned.records
        columns = (valid.log_offsets, valid.sizes, valid.end_in_own_crc())
        for offset, size, is_own in zip(*(column.tolist() for column in columns), strict=True):
            if offset >= written.stop:
                return
            yield offset, size, is_own


def _looks_own(log: SegmentedLog, segment: Segment, offset: int, size: int) -> bool:
    """Return whether a valid record ends in text that looks like the CRC of a whole record."""
    place = offset + size - CRC_PROPERTY_SIZE
    text = bytes(log.read_from(segment, place, CRC_PROPERTY_SIZE))
    return text.startswith(CRC_NAME) and text.endswith(b"\x02")


def watch_coverage(files: Files, root: Path, log: SegmentedLog) -> None:
    """Set coverage and quarantined ranges of a log that is only read, now and whenever the log renews its coverage."""

    def read_coverage() -> Coverage:
        ranges = known_ranges(files, root, log)
        log.quarantined = ranges.quarantined
        return ranges.coverage

    log.read_coverage = read_coverage
    log.coverage = read_coverage()
