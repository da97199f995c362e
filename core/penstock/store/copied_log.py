"""The log of a store that is open for writing, as a replicator sees it."""

import contextlib
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from penstock.contracts import LentFile
from penstock.durability.log_flusher import LogFlusher
from penstock.durability.removed_topics import RemovedTopicsFile
from penstock.errors import OffsetError
from penstock.files import Files
from penstock.format.record import BORN_IPV6, MAGIC_V1, MAGIC_V2
from penstock.log.commit_log import CommitLog
from penstock.log.segment import Segment

# The beginning of a record, up to its SYSFLAG: size, magic, CRC, queue, flag, queue offset, log offset, system flag.
_HEAD = struct.Struct(">iiiiiqqi")
_TIME = struct.Struct(">q")
# The position of the store time, with a BORNHOST of 8 bytes and of 20.
_TIME_AT, _TIME_AT_IPV6 = 56, 68
# How many pairs of log offset and time are remembered, and at least how far apart they are.
_TIMES_MAX, _TIMES_APART_MS = 2048, 50


class CopiedLog:
    """Implements `contracts.ReplicatedLog`. Safe from any thread."""

    def __init__(
        self,
        root: Path,
        files: Files,
        log: CommitLog,
        flusher: LogFlusher,
        removed_topics: RemovedTopicsFile,
    ) -> None:
        self.root = root
        self._files = files
        self._log = log
        self._flusher = flusher
        self._removed_topics = removed_topics
        # Set by the engine.
        self.visible: Callable[[], int] = lambda: 0
        # Log offsets, ascending, and the store time of a record before each. Replaced, never changed.
        self._times: tuple[list[int], list[int]] = [], []

    @property
    def segment_bytes(self) -> int:
        """See `contracts.ReplicatedLog`."""
        return self._log.log.segment_bytes

    @property
    def min_offset(self) -> int:
        """See `contracts.ReplicatedLog`."""
        return self._log.log.min_offset

    @property
    def visible_offset(self) -> int:
        """See `contracts.ReplicatedLog`."""
        return self.visible()

    @property
    def flushed_offset(self) -> int:
        """See `contracts.ReplicatedLog`."""
        return self._flusher.flushed_offset

    @property
    def wrote_offset(self) -> int:
        """See `contracts.ReplicatedLog`."""
        return self._flusher.wrote_offset

    def read(self, log_offset: int, size: int) -> bytes:
        """See `contracts.ReplicatedLog`."""
        end = self._check(log_offset)
        if log_offset == end:
            return b""
        with self._log.log.lease(log_offset) as segment:
            count = min(max(size, 0), end - log_offset, segment.end_offset - log_offset)
            return bytes(self._log.log.read_from(segment, log_offset, count))

    @contextlib.contextmanager
    def lend_file(self, log_offset: int) -> Iterator[LentFile]:
        """See `contracts.ReplicatedLog`."""
        end = self._check(log_offset)
        if log_offset == end:
            yield LentFile(None, 0, 0)
            return
        with self._log.log.lease(log_offset) as segment:
            file = self._files.open(segment.path)
            try:
                count = min(end, segment.end_offset) - log_offset
                yield LentFile(file.descriptor, log_offset - segment.base_offset, count)
            finally:
                file.close()

    def _check(self, log_offset: int) -> int:
        """Return the visible offset; raises `OffsetError` if there is no byte to read."""
        end = self.visible()
        if not self.min_offset <= log_offset <= end:
            raise OffsetError(log_offset, self.min_offset, end + 1, "log offset of a copy")
        return end

    def removed_topics(self) -> Sequence[tuple[str, int]]:
        """See `contracts.ReplicatedLog`."""
        return self._removed_topics.read().removals

    # --- times

    def note_time(self, log_offset: int, time_ms: int) -> None:
        """Remember that a record before `log_offset` has this store time; called by one thread, with ascending offsets."""
        offsets, times = self._times
        if offsets and (log_offset <= offsets[-1] or time_ms < times[-1] + _TIMES_APART_MS):
            return
        kept = _TIMES_MAX // 2 if len(offsets) >= _TIMES_MAX else len(offsets)
        first = len(offsets) - kept
        self._times = [*offsets[first:], log_offset], [*times[first:], time_ms]

    def time_ms_at(self, log_offset: int) -> int:
        """See `contracts.ReplicatedLog`."""
        try:
            end = self._check(log_offset)
            if log_offset < end:
                with self._log.log.lease(log_offset) as segment:
                    found = self._time_in(segment, log_offset)
                if found:
                    return found
            offsets, times = self._times
            at = bisect_right(offsets, log_offset)
            if at:
                return times[at - 1]
            with self._log.log.lease(max(log_offset - 1, 0)) as segment:
                return self._time_in(segment, segment.base_offset)
        except (OffsetError, OSError):
            return 0

    def _time_in(self, segment: Segment, log_offset: int) -> int:
        """Return the store time of a record that begins at `log_offset`; 0 if none does."""
        room = segment.end_offset - log_offset
        data = bytes(self._log.log.read_from(segment, log_offset, min(room, _TIME_AT_IPV6 + 8)))
        if len(data) < _TIME_AT_IPV6 + _TIME.size:
            return 0
        _, magic, _, _, _, _, own_offset, flags = _HEAD.unpack_from(data)
        # A record holds its own log offset.
        if magic not in (MAGIC_V1, MAGIC_V2) or own_offset != log_offset:
            return 0
        at = _TIME_AT_IPV6 if flags & BORN_IPV6 else _TIME_AT
        return int(_TIME.unpack_from(data, at)[0])
