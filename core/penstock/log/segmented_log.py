"""The segmented log: ordered segments of one size as one range of bytes.

It handles files and positions, not records. A byte of the log has one address, its log offset, from which
its segment is computed. Files that other programs may shorten (a foreign directory, read only) are read
with plain reads, Penstock's own files through maps.

One writer, many readers: the list of segments is replaced, never changed in place.
"""

import errno
import itertools
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.contracts import SegmentInfo
from penstock.contracts.dispatcher import WITHOUT_REPAIR
from penstock.errors import CorruptionError, OffsetError, StrayFileError
from penstock.escape import get_logger
from penstock.files import Entry, Files
from penstock.format.columns import Buffer
from penstock.format.names import NAME_DIGITS, segment_name
from penstock.format.validity import NO_COVERAGE, Coverage
from penstock.log.segment import Readable, Segment, take

logger = get_logger(__name__)

# The year 2000, in Unix milliseconds.
_FIRST_TIME_MS = 946_684_800_000
# A file's time may be ahead by this much: clocks differ a little, for example that of a file server.
_AHEAD_MS = 10 * 60 * 1000
# Log offsets are signed 64-bit numbers; two more segments have room behind the last.
_BASE_MAX = (1 << 63) - (1 << 33)
# As the present time, for callers that know none: no time is in the future.
_NEVER = 1 << 63


class Rejected(NamedTuple):
    """A record whose bytes pass all checks, but whose queue offset shows that it is corrupt (see `queue_evidence`)."""

    size: int
    reason: str


class Quarantined(NamedTuple):
    """A corrupt range [start, stop) within one segment, and the SHA-256 of its bytes."""

    start: int
    stop: int
    digest: str


class Witness(Protocol):
    """Evidence about records from queue entries; see `queue_evidence` and `resync`."""

    def place(self, topic: bytes, queue: int, queue_offset: int) -> tuple[int, int] | None:
        """Return log offset and size of the record that an entry points at, or None if there is no entry."""

    def end(self, topic: bytes, queue: int) -> int:
        """Return the queue offset after a queue's last entry; 0 if there is no such queue."""

    def within(self, start: int, stop: int) -> Iterator[tuple[str, int, int]]:
        """Yield topic, queue and queue offset of the entries that point at log offsets in [start, stop)."""


class SegmentedLog:
    """The segments of one folder. One writer, many readers; see the module."""

    def __init__(self, files: Files, folder: Path, segment_bytes: int, *, mapped: bool) -> None:
        self._files = files
        self.folder = folder
        self.segment_bytes = segment_bytes
        self._mapped = mapped
        self._segments: tuple[Segment, ...] = ()
        # No new lease is granted below this log offset.
        self._retired_to = 0
        # The segment that was removed last.
        self._retired: Segment | None = None
        # Held while the list is replaced: a roll, retention and a refresh may come together.
        self._changing = threading.Lock()
        self._committing = threading.Lock()
        self._readable = Readable(files.descriptors_max // 8)
        # Facts about the records, for all code that decides whether a record is valid (see `validity`, `resync`).
        self.coverage = NO_COVERAGE
        self.read_coverage: Callable[[], Coverage] | None = None
        self.rejected: Mapping[int, Rejected] = {}
        self.witness: Witness | None = None
        # The corrupt ranges that a repair has noted, by where they begin (see `scan.quarantined_at`).
        self.quarantined: Mapping[int, Quarantined] = {}
        # Those among them whose bytes were once compared.
        self.matching: set[Quarantined] = set()
        # Where a torn tail begins, which the next opening for writing cuts off; bytes after it are not messages.
        self.torn_at: int | None = None
        # Returns the log offset from which valid records are not shown to readers; see `recovery.inspection`.
        self.hidden_from: Callable[[], int | None] | None = None

    def renew_coverage(self) -> bool:
        """Read again which ranges are covered, because another process may add some; return whether any changed."""
        before = self.coverage
        if self.read_coverage is not None:
            self.coverage = self.read_coverage()
        return self.coverage != before

    @property
    def is_mapped(self) -> bool:
        """Whether files are read through maps: only this process writes them, so nobody shortens them."""
        return self._mapped

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, oldest first."""
        return self._segments

    @property
    def min_offset(self) -> int:
        """Log offset of the first byte that can still be read; 0 if there is no segment."""
        segments = self._segments
        return max(segments[0].base_offset, self._retired_to) if segments else 0

    def present_min_offset(self) -> int:
        """Return `min_offset` after a look at the first segment's file, which another process may have deleted."""
        first = self._segments[:1]
        if first and not self._files.exists(first[0].path):
            self.refresh()
        return self.min_offset

    @property
    def committed_offset(self) -> int:
        """Log offset after the last byte that readers may see."""
        segments = self._segments
        if segments and (committed := segments[-1].extent.committed):
            # Nearly always, and asked for many times for each message.
            return segments[-1].base_offset + committed
        for segment in reversed(segments):
            # Segments are committed oldest first: if this one has no committed byte, the one before may be incomplete.
            if segment.committed_position or segment is segments[0]:
                return segment.base_offset + segment.committed_position
        return 0

    def load(self, *, repair: bool) -> list[str]:
        """Read the list of segments from the folder; with `repair` an empty last file is removed.

        Returns a description of each repair. Raises `StrayFileError` for a file that does not belong there, as the Java
        store does, and `CorruptionError` for a segment of the wrong size.
        """
        if not self._files.is_folder(self.folder):
            return []
        found = [entry for entry in self._files.entries(self.folder) if not entry.is_folder]
        mended = []
        if found and found[-1].is_file and found[-1].size == 0 and _is_name(found[-1].name):
            empty = found.pop()
            if repair:
                self._files.remove(empty.path)
                self._files.sync_folder(self.folder)
                mended.append(f"removed {empty.path.name}, an empty last segment left by a crash")
        self.close()
        self._segments = tuple(self._make_segment(entry) for entry in found)
        self.note_gaps()
        return mended

    def refresh(self) -> None:
        """Read the list of segments again, because another process writes.

        A partly created or truncated file is included: it reads as zeros after its end. In the process that writes, the
        list is right: it changes with the log, and a file that was created ahead is no segment yet.
        """
        if self._mapped:
            return
        with self._changing:
            known = {segment.base_offset: segment for segment in self._segments}
            found = []
            for entry in self._files.entries(self.folder):
                base = int(entry.name) if entry.is_file and _is_name(entry.name) else -1
                if base in known:
                    found.append(known.pop(base))
                elif base >= 0 and base % self.segment_bytes == 0:
                    found.append(
                        Segment(self._files, entry.path, base, self.segment_bytes, self._readable)
                    )
            self._segments = tuple(found)
            for gone in known.values():
                gone.close()

    def spans(self) -> list[tuple[int, int]]:
        """Return first and end offset of each segment, oldest first."""
        return [(segment.base_offset, segment.end_offset) for segment in self._segments]

    def _make_segment(self, entry: Entry) -> Segment:
        """Return the segment of a file; raises if its type, name or size is wrong."""
        if not entry.is_file:
            raise StrayFileError(entry.path, "it is not a regular file")
        if not _is_name(entry.name):
            raise StrayFileError(entry.path, "its name is not a log offset of 20 digits or more")
        if entry.size != self.segment_bytes:
            raise CorruptionError(
                entry.path, entry.size, f"a segment of {self.segment_bytes} bytes", f"{entry.size}",
                f"`penstock repair PATH` shows what can be done; or {WITHOUT_REPAIR}",
            )  # fmt: skip
        base = int(entry.name)
        if base % self.segment_bytes:
            raise StrayFileError(
                entry.path, f"its name is not a multiple of the segment size {self.segment_bytes}"
            )
        return Segment(self._files, entry.path, base, self.segment_bytes, self._readable)

    def note_gaps(self) -> None:
        """Log a warning for each place where segments are missing between others."""
        for before, after in zip(self._segments, self._segments[1:], strict=False):
            if before.end_offset != after.base_offset:
                logger.warning(
                    "%s: segments are missing between %s and %s; their messages cannot be read, others are not "
                    "affected",
                    self.folder, before.path.name, after.path.name,
                )  # fmt: skip

    def path_of(self, base_offset: int) -> Path:
        """Return the path of the segment that begins at `base_offset`."""
        return self.folder / segment_name(base_offset)

    def next_free_base(self, ahead: int = 0) -> int:
        """Return where the next new segment begins, or with `ahead` the segment that many places after it."""
        last = self._segments[-1].end_offset if self._segments else 0
        return last + ahead * self.segment_bytes

    def add(self, segment: Segment) -> None:
        """Append a segment to the list."""
        segment.readable = self._readable
        with self._changing:
            self._segments = (*self._segments, segment)

    def find(self, log_offset: int) -> Segment | None:
        """Return the segment that holds a byte; None if there is none."""
        segments = self._segments
        if not segments:
            return None
        guess = (log_offset - segments[0].base_offset) // self.segment_bytes
        if 0 <= guess < len(segments) and segments[guess].base_offset <= log_offset:
            segment = segments[guess]
        else:
            at = bisect_right([s.base_offset for s in segments], log_offset) - 1
            if at < 0:
                return None
            segment = segments[at]
        return segment if segment.base_offset <= log_offset < segment.end_offset else None

    def next_base(self, log_offset: int) -> int | None:
        """Return the base offset of the first segment that begins after `log_offset`, or None."""
        return next((s.base_offset for s in self._segments if s.base_offset > log_offset), None)

    def lease(self, log_offset: int) -> "HeldSegment":
        """Hold the segment of a byte while its bytes are read; raises `OffsetError` if it is not there."""
        return HeldSegment(self, log_offset)

    def read(self, log_offset: int, size: int) -> Buffer:
        """Return `size` bytes within one segment; on a mapped log they are a view into it."""
        segment = self.find(log_offset)
        if segment is None:
            raise OffsetError(log_offset, self.min_offset, self.committed_offset)
        return self.read_from(segment, log_offset, size)

    def read_from(
        self, segment: Segment, log_offset: int, size: int, *, is_copied: bool = False
    ) -> Buffer:
        """Return `size` bytes of a segment, with `is_copied` as a copy. The caller holds it if it may be deleted.

        Raises `OffsetError` if another process has deleted the segment or reuses its file.
        """
        try:
            is_mapped = self._mapped and not is_copied
            return take(segment, log_offset - segment.base_offset, size, mapped=is_mapped)
        except FileNotFoundError as error:
            self.refresh()
            raise OffsetError(log_offset, self.min_offset, self.committed_offset) from error

    def read_into(self, pieces: Sequence[tuple[int, memoryview]]) -> None:
        """Fill buffers with the bytes from these log offsets on, which must ascend and be in one segment.

        Raises `OffsetError` like `read_from`, and if a byte is outside of that segment.
        """
        first = pieces[0][0]
        last = pieces[-1][0] + len(pieces[-1][1])
        segment = self.find(first)
        if segment is None:
            raise OffsetError(first, self.min_offset, self.committed_offset)
        base, end = segment.base_offset, segment.end_offset
        if last > end:
            raise OffsetError(last, base, end)
        try:
            segment.read_into([(log_offset - base, memory) for log_offset, memory in pieces])
        except FileNotFoundError as error:
            self.refresh()
            raise OffsetError(first, self.min_offset, self.committed_offset) from error

    def commit(self) -> int:
        """Pass every written byte to the system, oldest first; return the committed offset."""
        with self._committing:
            segments = self._segments
            first = len(segments)
            # Only the last few are being written, however long the log is.
            while first and segments[first - 1].channel is not None:
                first -= 1
            for segment in segments[first:]:
                segment.commit()
        return self.committed_offset

    def sync_channel(self, segment: Segment, log_offset: int) -> None:
        """Make the committed bytes of a segment that is being written durable, and its name if `log_offset` is its end.

        After an `OSError` it is not known which of those bytes are durable.
        """
        assert segment.channel is not None
        segment.channel.flush()
        self.check_there([segment])
        if log_offset == segment.end_offset:
            self._files.sync_folder(self.folder)

    def flushed_to(self, log_offset: int) -> None:
        """Note that all bytes before `log_offset` are durable; seal full segments."""
        for segment in reversed(self._segments):
            if segment.channel is None:
                return
            if segment.base_offset < log_offset:
                segment.flushed_to(min(log_offset - segment.base_offset, segment.capacity))

    def check_there(self, segments: Iterable[Segment] | None = None) -> None:
        """Raise `OSError` (ENOENT) if the file of any of these segments, by default all, was removed."""
        for segment in self._segments if segments is None else segments:
            if not self._files.exists(segment.path):
                raise OSError(errno.ENOENT, "the segment was removed", str(segment.path))

    def truncate(self, log_offset: int, keep_in: Path | None = None) -> list[str]:
        """Cut the log at `log_offset`: delete segments after it and erase bytes after it, durably.

        With `keep_in`, a folder, segments that are not all zero are moved there instead. Returns a description of each
        removal.
        """
        segments = self._segments
        removed = [s for s in segments[1:] if s.base_offset >= log_offset]
        # From the last one back: a power cut in between leaves no gap with records after it.
        mended = [self._remove(segment, keep_in) for segment in reversed(removed)][::-1]
        kept = segments[: len(segments) - len(removed)]
        self._segments = kept
        if kept and log_offset < kept[-1].end_offset:
            position = max(log_offset - kept[-1].base_offset, 0)
            kept[-1].erase(position)
            kept[-1].set_position(position)
        return mended

    def _remove(self, segment: Segment, keep_in: Path | None) -> str:
        """Remove a segment after the log's end, or move it to a folder if it is not all zero; return what was done."""
        name = segment.path.name
        is_fresh = not any(take(segment, 0, 8, mapped=False))
        is_kept = keep_in is not None and not segment.is_zero()
        segment.close()
        if keep_in is not None and is_kept:
            self._files.rename(segment.path, self._files.unused(keep_in / name))
            self._files.sync_folder(keep_in)
            self._files.sync_folder(self.folder)
            return f"moved segment {name}, after the end of the log, to {keep_in}"
        self._files.remove(segment.path)
        self._files.sync_folder(self.folder)
        what = "created ahead and not used" if is_fresh else "after the end of the log"
        return f"removed segment {name}, {what}"

    def count_before_offset(self, log_offset: int) -> int:
        """Return how many of the oldest segments end at or before a log offset; the last segment never counts."""
        return sum(segment.end_offset <= log_offset for segment in self._segments[:-1])

    def count_before_time(self, time_ms: int, now_ms: int = _NEVER) -> int:
        """Return how many of the oldest segments were last written before a time; the last segment never counts."""
        older = itertools.takewhile(
            lambda info: info.last_write_ms < time_ms, self.infos(now_ms)[:-1]
        )
        return len(list(older))

    def sync_from(self, log_offset: int) -> None:
        """Sync the files that hold bytes after `log_offset`, whichever program wrote them."""
        for segment in self._segments:
            if segment.end_offset > log_offset:
                segment.sync()

    def infos(self, now_ms: int = _NEVER) -> list[SegmentInfo]:
        """Return the facts about each segment for retention policies, oldest first, at a time."""
        segments = self._segments
        given = [segment.last_write_ms() for segment in segments]
        return [
            SegmentInfo(s.base_offset, s.capacity, time_ms, s.path, file_ms > now_ms + _AHEAD_MS)
            for s, file_ms, time_ms in zip(segments, given, plausible(given, now_ms), strict=True)
        ]

    def retire_first(self, base_offset: int, now_ms: int, force_after_ms: int) -> Segment | None:
        """Remove the oldest segment, which begins at `base_offset`; if it is returned, its file may be deleted.

        Returns None while readers hold it. After an interrupt the same call again returns the same segment. No new
        lease is granted from the first call on, and after `force_after_ms` the segment is returned although it is held
        (views of it stay valid until their readers drop them). `min_offset` moves before the first lease is refused, so
        no byte at or after `min_offset` is ever refused.
        """
        with self._changing:
            first = self._segments[0]
            if first.base_offset == base_offset:
                self._retired_to = first.end_offset
                if not first.lease.retire(now_ms, force_after_ms):
                    return None
                self._retired = first
                self._segments = self._segments[1:]
        retired = self._retired
        assert retired is not None
        retired.close()
        return retired

    def close(self) -> None:
        """Close all segments."""
        for segment in self._segments:
            segment.close()


class HeldSegment:
    """A lease on the segment of a byte, as a context manager; a generator would take three times as long."""

    __slots__ = ("_log", "_log_offset", "_segment")

    def __init__(self, log: SegmentedLog, log_offset: int) -> None:
        self._log, self._log_offset = log, log_offset

    def __enter__(self) -> Segment:
        """Hold and return the segment; raises `OffsetError` if it is not there."""
        segment = self._log.find(self._log_offset)
        if segment is None or not segment.lease.hold():
            raise OffsetError(self._log_offset, self._log.min_offset, self._log.committed_offset)
        self._segment = segment
        return segment

    def __exit__(self, *error: object) -> None:
        """Release it."""
        self._segment.lease.release()


def plausible(times_ms: list[int], now_ms: int = _NEVER) -> list[int]:
    """Return the plausible times at which the segments were last written, oldest first.

    A time before the year 2000 (a clock that started in 1970), or after `now_ms` (one that was ahead), is replaced by
    the next plausible time, since segments are written in their order. A time before that of the previous segment is
    replaced by the previous segment's time.
    """
    found = list(times_ms)
    following = min(found[-1], now_ms) if found else 0
    for at, time_ms in reversed(list(enumerate(found))):
        if _FIRST_TIME_MS <= time_ms <= now_ms + _AHEAD_MS:
            following = time_ms
        found[at] = following
    return list(itertools.accumulate(found, max))


def _is_name(name: str) -> bool:
    is_number = len(name) >= NAME_DIGITS and name.isascii() and name.isdigit()
    return is_number and int(name) <= _BASE_MAX
