"""The segmented log: ordered segments of one size as one space of bytes.

Knows files and positions, nothing of records. A byte of the log has one address, its log offset; the
segment that holds it follows by arithmetic. Files that others may shorten (a foreign directory, read
only) are read with plain reads, own files through maps.

One writer, many readers: the list of segments is replaced, never changed in place.
"""

import errno
import itertools
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.contracts import SegmentInfo
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


class Rejected(NamedTuple):
    """A record whose own bytes are valid, and whose place in its queue shows that it is corrupt (see `queue_continuity`)."""

    size: int
    reason: str


class Witness(Protocol):
    """What queue entries say of records; see `entry_witness`, `resync` and `queue_continuity`."""

    def place(self, topic: bytes, queue: int, queue_offset: int) -> tuple[int, int] | None:
        """Return log offset and size of the record that an entry points at, or None where there is no entry."""

    def end(self, topic: bytes, queue: int) -> int:
        """Return the queue offset after a queue's last entry; 0 for no such queue."""


class SegmentedLog:
    """The segments of one folder. See the module for what holds."""

    def __init__(self, files: Files, folder: Path, segment_bytes: int, *, mapped: bool) -> None:
        self._files = files
        self.folder = folder
        self.segment_bytes = segment_bytes
        self._mapped = mapped
        self._segments: tuple[Segment, ...] = ()
        # No new lease is granted below it.
        self._retired_to = 0
        # Held while the list is replaced: a roll, retention and a refresh may come together.
        self._changing = threading.Lock()
        self._committing = threading.Lock()
        self._readable = Readable(files.descriptors_max // 8)
        # What is known of the records, for all who decide whether one is valid (see `validity`, `resync`).
        self.coverage = NO_COVERAGE
        self.read_coverage: Callable[[], Coverage] | None = None
        self.rejected: Mapping[int, Rejected] = {}
        self.witness: Witness | None = None
        # Where a torn tail begins that the next opening for writing cuts off: what lies after it is no message.
        self.torn_at: int | None = None

    def renew_coverage(self) -> bool:
        """Read again which ranges are covered, where another process may note new ones; return whether any changed."""
        before = self.coverage
        if self.read_coverage is not None:
            self.coverage = self.read_coverage()
        return self.coverage != before

    @property
    def is_mapped(self) -> bool:
        """Whether files are mapped: they are this process's own, and nobody else shortens them."""
        return self._mapped

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, oldest first."""
        return self._segments

    @property
    def min_offset(self) -> int:
        """Log offset of the first byte that is still served; 0 when there is no segment."""
        segments = self._segments
        return max(segments[0].base_offset, self._retired_to) if segments else 0

    @property
    def committed_offset(self) -> int:
        """Log offset behind the last byte that readers may see."""
        segments = self._segments
        for segment in reversed(segments):
            # Committed oldest first: one that has nothing may have an unfinished one before it.
            if segment.committed_position or segment is segments[0]:
                return segment.base_offset + segment.committed_position
        return 0

    def load(self, *, repair: bool) -> list[str]:
        """Take in the files of the folder; with `repair` an empty last one is removed.

        Returns what was mended. Raises for a file that does not belong there, as the Java store does.
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
                mended.append(f"removed {empty.path.name}, an empty last segment that a crash left")
        self.close()
        self._segments = tuple(self._checked(entry) for entry in found)
        self._note_gaps()
        return mended

    def refresh(self) -> None:
        """Take in the files again, where another process writes.

        One that is half made, or was cut short, is taken in too: it reads as zeros behind its end.
        """
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

    def _checked(self, entry: Entry) -> Segment:
        if not entry.is_file:
            raise StrayFileError(entry.path, "it is a link or no regular file")
        if not _is_name(entry.name):
            raise StrayFileError(entry.path, "its name is not a log offset of 20 digits or more")
        if entry.size != self.segment_bytes:
            raise CorruptionError(
                entry.path, entry.size, f"a segment of {self.segment_bytes} bytes", f"{entry.size}",
                "restore it from a copy, or move it out of the store",
            )  # fmt: skip
        base = int(entry.name)
        if base % self.segment_bytes:
            raise StrayFileError(
                entry.path, f"its name is not a multiple of the segment size {self.segment_bytes}"
            )
        return Segment(self._files, entry.path, base, self.segment_bytes, self._readable)

    def _note_gaps(self) -> None:
        for before, after in zip(self._segments, self._segments[1:], strict=False):
            if before.end_offset != after.base_offset:
                logger.warning(
                    "segments missing between %s and %s", before.path.name, after.path.name
                )

    def path_of(self, base_offset: int) -> Path:
        """Return the path of the segment that begins at `base_offset`."""
        return self.folder / segment_name(base_offset)

    def next_free_base(self, ahead: int = 0) -> int:
        """Return where the next new segment begins, `ahead` further ones being made at once."""
        last = self._segments[-1].end_offset if self._segments else 0
        return last + ahead * self.segment_bytes

    def add(self, segment: Segment) -> None:
        """Append a segment to the list."""
        segment.readable = self._readable
        with self._changing:
            self._segments = (*self._segments, segment)

    def find(self, log_offset: int) -> Segment | None:
        """Return the segment that holds a byte; None where there is none."""
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
        """Return the base of the first segment behind the one that holds `log_offset`, or None."""
        return next((s.base_offset for s in self._segments if s.base_offset > log_offset), None)

    @contextmanager
    def lease(self, log_offset: int) -> Iterator[Segment]:
        """Hold the segment of a byte while its bytes are looked at."""
        segment = self.find(log_offset)
        if segment is None or not segment.lease.hold():
            raise OffsetError(log_offset, self.min_offset, self.committed_offset)
        try:
            yield segment
        finally:
            segment.lease.release()

    def read(self, log_offset: int, size: int) -> Buffer:
        """Return `size` bytes within one segment; on a mapped log they are a view into it."""
        segment = self.find(log_offset)
        if segment is None:
            raise OffsetError(log_offset, self.min_offset, self.committed_offset)
        return self.read_from(segment, log_offset, size)

    def read_from(
        self, segment: Segment, log_offset: int, size: int, *, is_copied: bool = False
    ) -> Buffer:
        """Return `size` bytes of a segment that is already found, and held if it may go; on request as a copy.

        `OffsetError` when another process has taken the segment away, or uses its file again.
        """
        try:
            is_mapped = self._mapped and not is_copied
            return take(segment, log_offset - segment.base_offset, size, mapped=is_mapped)
        except FileNotFoundError as error:
            self.refresh()
            raise OffsetError(log_offset, self.min_offset, self.committed_offset) from error

    def read_into(self, pieces: Sequence[tuple[int, memoryview]]) -> None:
        """Fill pieces of memory with the bytes from these ascending log offsets on, all of one segment.

        `OffsetError` as `read_from`, and for such as lie outside of it.
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
            segment.read_into((log_offset - base, memory) for log_offset, memory in pieces)
        except FileNotFoundError as error:
            self.refresh()
            raise OffsetError(first, self.min_offset, self.committed_offset) from error

    def commit(self) -> int:
        """Hand every written byte to the system, oldest first; returns the committed offset."""
        with self._committing:
            segments = self._segments
            first = len(segments)
            # Only the last few are being written, however long the log is.
            while first and segments[first - 1].channel is not None:
                first -= 1
            for segment in segments[first:]:
                segment.commit()
        return self.committed_offset

    def flush(self, from_offset: int) -> int:
        """Make durable every committed byte behind `from_offset`; returns the offset reached.

        On an `OSError` nothing is known of those bytes and no position of this log has moved past them.
        """
        reached = from_offset
        for segment in self._segments:
            if segment.end_offset <= from_offset:
                continue
            segment.flush()
            self.check_there([segment])
            reached = segment.base_offset + segment.flushed_position
            if segment.flushed_position < segment.capacity:
                break
            if segment is not self._segments[-1]:
                segment.seal()
        return max(reached, from_offset)

    def flushed_to(self, log_offset: int) -> None:
        """Note that all before `log_offset` was made durable by the segments' descriptors; full ones are sealed."""
        for segment in reversed(self._segments):
            if segment.channel is None:
                return
            if segment.base_offset < log_offset:
                segment.flushed_to(min(log_offset - segment.base_offset, segment.capacity))

    def check_there(self, segments: Iterable[Segment] | None = None) -> None:
        """Raise if a segment, or one of these, was taken away from under the store."""
        for segment in self._segments if segments is None else segments:
            if not self._files.exists(segment.path):
                raise OSError(errno.ENOENT, "the segment was removed", str(segment.path))

    def truncate(self, log_offset: int, keep_in: Path | None = None) -> list[str]:
        """Cut the log at `log_offset`: segments behind it go, bytes behind it are erased, durably.

        With `keep_in`, a folder, segments that are not all zero go there instead.
        """
        segments = self._segments
        going = [s for s in segments[1:] if s.base_offset >= log_offset]
        # The last first, one by one: a power cut in between leaves no gap with records after it.
        mended = [self._remove(segment, keep_in) for segment in reversed(going)][::-1]
        kept = segments[: len(segments) - len(going)]
        self._segments = kept
        if kept and log_offset < kept[-1].end_offset:
            position = max(log_offset - kept[-1].base_offset, 0)
            kept[-1].erase(position)
            kept[-1].set_position(position)
        return mended

    def _remove(self, segment: Segment, keep_in: Path | None) -> str:
        """Remove a segment behind the log's end, or move it to a folder if it holds anything."""
        name = segment.path.name
        is_fresh = not any(take(segment, 0, 8, mapped=False))
        is_kept = keep_in is not None and not segment.is_zero()
        segment.close()
        if keep_in is not None and is_kept:
            self._files.rename(segment.path, self._files.unused(keep_in / name))
            self._files.sync_folder(keep_in)
            self._files.sync_folder(self.folder)
            return f"moved segment {name}, behind the end of the log, to {keep_in}"
        self._files.remove(segment.path)
        self._files.sync_folder(self.folder)
        what = "made ahead and not used" if is_fresh else "behind the end of the log"
        return f"removed segment {name}, {what}"

    def count_before_offset(self, log_offset: int) -> int:
        """Return how many of the oldest segments lie wholly before a log offset; never the last."""
        return sum(segment.end_offset <= log_offset for segment in self._segments[:-1])

    def count_before_time(self, time_ms: int) -> int:
        """Return how many of the oldest segments were last written before a time; never the last."""
        count = 0
        for segment in self._segments[:-1]:
            if segment.last_write_ms() >= time_ms:
                break
            count += 1
        return count

    def sync_from(self, log_offset: int) -> None:
        """Sync the files that hold bytes behind `log_offset`, whoever wrote them."""
        for segment in self._segments:
            if segment.end_offset > log_offset:
                segment.sync()

    def infos(self) -> list[SegmentInfo]:
        """Return what retention policies are told, oldest first."""
        segments = self._segments
        times = plausible([segment.last_write_ms() for segment in segments])
        return [
            SegmentInfo(s.base_offset, s.capacity, time_ms, s.path)
            for s, time_ms in zip(segments, times, strict=True)
        ]

    def retire_first(self, now_ms: int, force_after_ms: int) -> Segment | None:
        """Take the oldest segment out of the log; its file may go when this returns it.

        Returns None while readers hold it: no new lease is granted from the first call on, and after
        `force_after_ms` the holders are passed over (their views stay valid until they drop them).
        The bound moves before the first lease is refused: what `min_offset` says afterwards was served until then.
        """
        with self._changing:
            first = self._segments[0]
            self._retired_to = first.end_offset
            if not first.lease.retire(now_ms, force_after_ms):
                return None
            self._segments = self._segments[1:]
        first.close()
        return first

    def close(self) -> None:
        """Let go of all files."""
        for segment in self._segments:
            segment.close()


def plausible(times_ms: list[int]) -> list[int]:
    """Return when each segment was last written, oldest first, as far as that can be true.

    One from before computers had this format (a clock that began in 1970) is as young as the next one that
    can be true; and none was written before the one that lies before it.
    """
    found = list(times_ms)
    for at in reversed(range(len(found) - 1)):
        if found[at] < _FIRST_TIME_MS:
            found[at] = found[at + 1]
    return list(itertools.accumulate(found, max))


def _is_name(name: str) -> bool:
    return len(name) >= NAME_DIGITS and name.isascii() and name.isdigit()
