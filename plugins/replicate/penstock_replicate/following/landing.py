"""Where a master's bytes go: into the follower's log, then on disk, then the files beside it.

Invariants:
    * Bytes are appended in the order of the log, without a gap: `position` is the next byte that is taken.
    * What is said to be flushed was synced before.
    * A file beside the log is written after the log that it speaks of is on disk.

The event loop's thread appends. One worker thread syncs, as long as anything is unsynced, and writes the files beside the log.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from penstock.errors import StorageError
from penstock.escape import get_logger
from penstock_replicate.beside.waiting_sides import WaitingSides
from penstock_replicate.following.standing import Standing

logger = get_logger(__name__)

# While much is missing, a sync of each chunk would take the disk's time from the copying.
FAR_BEHIND_BYTES = 8 << 20
FAR_BEHIND_PAUSE_S = 0.25
# How many files beside the log may wait for the worker; their contents replace each other there.
_SIDES_MAX = 64


class Landing:
    """One follower's log while it is followed. Used by the event loop's thread."""

    def __init__(self, store: FollowedStore, standing: Standing) -> None:
        self.store = store
        self._standing = standing
        self._sides = WaitingSides(store.files, store.root)
        self._incoming: deque[tuple[str, bytes, int]] = deque()
        self._unsynced = asyncio.Event()
        self._pool = ThreadPoolExecutor(1, "penstock-follow-sync")
        self.position = store.end_offset
        # Called in the event loop's thread after a sync; set by a session.
        self.on_flushed: Callable[[], None] = lambda: None
        self._note_ends()

    @property
    def end_offset(self) -> int:
        """The end of the log, whole records only."""
        return self._standing.end_offset

    @property
    def flushed_offset(self) -> int:
        """How far the log is on disk."""
        return self._standing.flushed_offset

    @property
    def is_empty(self) -> bool:
        """Whether the log has no byte yet, so that it may begin anywhere."""
        return self.store.end_offset == self.store.min_offset == self.position

    def _note_ends(self) -> None:
        self._standing.end_offset = self.store.end_offset
        self._standing.flushed_offset = min(self.store.flushed_offset, self.store.end_offset)

    def restart(self) -> None:
        """Forget an incomplete record and files that wait: another connection sends them again."""
        self.store.forget()
        self._incoming.clear()
        self.position = self.store.end_offset
        self._note_ends()

    def begin_at(self, log_offset: int) -> None:
        """Let the empty log begin there."""
        self.store.begin_at(log_offset)
        self.position = log_offset
        self._note_ends()

    def take(self, log_offset: int, data: bytes | memoryview) -> None:
        """Append bytes at `position`; raises `CorruptionError` if they are no valid records, `StorageError` if the disk fails."""
        assert log_offset == self.position
        before = self._standing.end_offset
        self._standing.end_offset = self.store.feed(log_offset, data)
        self.position = log_offset + len(data)
        self._standing.received_bytes += len(data)
        if self._standing.end_offset > before:
            self._unsynced.set()

    def take_side(self, name: str, data: bytes) -> None:
        """Take a file beside the log, which speaks of the log up to `position`."""
        self._incoming.append((name, data, self.position))
        if len(self._incoming) > _SIDES_MAX:
            self._incoming.popleft()
        self._unsynced.set()

    def cut(self, log_offset: int) -> None:
        """Remove the log from there on; its bytes are saved."""
        self.store.cut(log_offset)
        self.restart()

    async def sync_forever(self) -> None:
        """Sync whenever anything is not on disk; raises `StorageError` if the disk fails."""
        loop = asyncio.get_running_loop()
        while True:
            await self._unsynced.wait()
            self._unsynced.clear()
            flushed = await loop.run_in_executor(self._pool, self.store.flush)
            self._standing.flushed_offset = max(flushed, self._standing.flushed_offset)
            self.on_flushed()
            if self._incoming or self._sides.first_end is not None:
                await loop.run_in_executor(self._pool, self._write_sides, flushed)
            if self._standing.lag_bytes > FAR_BEHIND_BYTES:
                await asyncio.sleep(FAR_BEHIND_PAUSE_S)

    def _write_sides(self, flushed: int) -> None:
        """Write the files that are due; runs in the worker thread, the only one that touches them."""
        while self._incoming:
            name, data, log_end = self._incoming.popleft()
            try:
                self._sides.add(name, data, log_end)
            except ValueError as error:
                logger.warning("a file from the master is not written: %s", error)
        try:
            self._sides.write(flushed)
        except StorageError as error:
            logger.warning("%s", error)
            self._standing.last_error = str(error)

    def close(self) -> None:
        """Sync what is left, write what is due, and close the log."""
        self._pool.shutdown()
        try:
            self._standing.flushed_offset = flushed = self.store.flush()
            self._write_sides(flushed)
        finally:
            self.store.close()
