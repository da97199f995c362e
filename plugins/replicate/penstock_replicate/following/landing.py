"""Where a master's bytes go: into the follower's log, then on disk, then the files beside it.

Invariants:
    * Bytes are appended in the order of the log, without a gap: `position` is the next byte that is taken.
    * What is said to be flushed was synced before.
    * A file beside the log is written after the log that it speaks of is on disk.

The event loop's thread appends. One worker thread syncs while anything is unsynced, with pauses, and writes the files beside the log.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from penstock.durability.replica_file import Replica
from penstock.durability.written_ranges import NO_END, Ranges, WrittenRange
from penstock.errors import StorageError
from penstock.escape import get_logger
from penstock.format.columns import Buffer
from penstock.store.following import FollowedStore
from penstock_replicate.beside.side_names import check_size
from penstock_replicate.beside.waiting_sides import WaitingSides
from penstock_replicate.following.standing import Standing
from penstock_replicate.wire.frames import CoverageNote, Removed

logger = get_logger(__name__)

# A put at the master is answered by what was received, so a sync of each is not worth the time that it takes from the disk, and from
# the thread that receives. A follower whose flush policy syncs each put makes no such pause.
SYNC_PAUSE_S = 0.05
# While much is missing, a sync of each chunk would take the disk's time from the copying.
FAR_BEHIND_BYTES = 8 << 20
FAR_BEHIND_PAUSE_S = 0.25


class Landing:
    """One follower's log while it is followed. Used by the event loop's thread."""

    def __init__(self, store: FollowedStore, standing: Standing) -> None:
        self.store = store
        self._standing = standing
        self._sides = WaitingSides(store.files, store.root)
        # By name, the newest only: what a master sends faster than this disk takes it must not fill the memory.
        self._incoming: dict[str, tuple[bytes | None, int]] = {}
        self._unsynced = asyncio.Event()
        self._pool = ThreadPoolExecutor(1, "penstock-follow-sync")
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
    def position(self) -> int:
        """Log offset of the next byte that is taken."""
        return self.store.next_offset

    @property
    def is_empty(self) -> bool:
        """Whether the log has no byte yet, and may begin anywhere."""
        return self.position == 0

    def _note_ends(self) -> None:
        self._standing.end_offset = self.store.end_offset
        self._standing.history = self.store.replica.history
        self._standing.epoch = self.store.replica.epoch
        self._standing.flushed_offset = min(self.store.flushed_offset, self.store.end_offset)

    def restart(self) -> None:
        """Forget an incomplete record and files that wait: another connection sends them again."""
        self.store.forget_waiting()
        self._incoming.clear()
        self._note_ends()
        # The last connection may have ended within a sync, or before the files that waited for it were written.
        self._unsynced.set()

    def begin_at(self, log_offset: int) -> None:
        """Let the empty log begin there."""
        self._await_worker()
        self.store.begin_at(log_offset)
        self._note_ends()

    def _await_worker(self) -> None:
        """Wait until a sync that runs has ended: the store is about to change more than its end."""
        self._pool.submit(lambda: None).result()

    def take(self, log_offset: int, data: Buffer) -> None:
        """Append bytes at `position`; raises `CorruptionError` if they are no valid records, `StorageError` if the disk fails."""
        before = self._standing.end_offset
        self._standing.end_offset = self.store.feed(log_offset, data)
        self._standing.received_bytes += len(data)
        if self._standing.end_offset > before:
            self._unsynced.set()

    def take_side(self, name: str, data: bytes) -> None:
        """Take a file beside the log, which speaks of the log up to `position`."""
        self.take_file(name, data, self.position)

    def take_file(self, name: str, data: bytes, log_end: int) -> None:
        """Take a file beside the log, which speaks of the log up to `log_end` at most."""
        try:
            check_size(name, data)
        except ValueError as error:
            # Not the error itself, which holds the file's content for as long as a handler keeps the record.
            logger.warning("a file from the master is not written: %s", str(error))
            return
        self._incoming[name] = data, log_end
        self._unsynced.set()

    def take_removed(self, removed: Removed) -> None:
        """Remove a topic's records before the log's end."""
        self.store.remove_topic(removed.topic, removed.before)

    def take_coverage(self, note: CoverageNote) -> None:
        """Record which records of the master's log end in a CRC of their own."""
        written = tuple(
            WrittenRange(start=start, stop=NO_END if stop is None else stop, checksum=checksum)
            for start, stop, checksum in note.written
        )
        perhaps = tuple((start, NO_END if stop is None else stop) for start, stop in note.perhaps)
        self.store.note_coverage(Ranges(written=written, perhaps=perhaps, gaps=note.gaps))

    def cut(self, log_offset: int) -> None:
        """Remove the log from there on; its bytes are saved."""
        self._await_worker()
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
            elif not self.store.syncs_each:
                await asyncio.sleep(SYNC_PAUSE_S)

    def _write_sides(self, flushed: int) -> None:
        """Write the files that are due; runs in the worker thread, the only one that touches them."""
        for name in tuple(self._incoming):
            # Another thread may forget them at this moment.
            data, log_end = self._incoming.pop(name, (None, 0))
            if data is None:
                continue
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
        try:
            self._finish()
        finally:
            self.store.close()

    def promote(self) -> Replica:
        """Do the same, and make the store a master."""
        self._finish()
        return self.store.promote()

    def _finish(self) -> None:
        self._pool.shutdown()
        if self.store.failure is None:
            self._standing.flushed_offset = flushed = self.store.flush()
            self._write_sides(flushed)
