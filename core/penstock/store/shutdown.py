"""The end of a writing store: a clean close, and letting go whatever happened."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from penstock.contracts import Dispatcher
from penstock.dispatch.tail_follower import TailFollower
from penstock.durability.log_flusher import LogFlusher
from penstock.durability.manifest import write_manifest
from penstock.durability.progress import Progress
from penstock.durability.side_folder import CleanClose, SideFolder, fingerprint, vouched_for
from penstock.errors import StorageError
from penstock.escape import get_logger
from penstock.files import Files
from penstock.files.lock_file import Lock
from penstock.log.commit_log import CommitLog
from penstock.runtime.waking import Wakes
from penstock.runtime.workers import WorkerGroup

logger = get_logger(__name__)


class Ending(ABC):
    """What a writing store does at its end; the parts are those of the engine."""

    root: Path
    files: Files
    log: CommitLog
    flusher: LogFlusher
    follower: TailFollower
    dispatchers: Sequence[Dispatcher]
    progress: Progress
    side: SideFolder
    lock: Lock
    wakes: Wakes
    crew: WorkerGroup

    @abstractmethod
    def _stop(self) -> None:
        """End the work in the background."""

    @abstractmethod
    def mark(self) -> None:
        """Sync derived files, then write down how far everything is durable."""

    def _close_cleanly(self) -> None:
        """Bring everything up and to the disk, and only then say that the store is closed; raises why not."""
        self.log.stop()
        self.flusher.flush()
        self.follower.catch_up()
        # What cannot be read back stops the store: it is never marked clean.
        self.flusher.check()
        self.mark()
        if self.follower.progress < self.log.end_offset:
            names = ", ".join(self.follower.troubles) or "a dispatcher"
            raise StorageError(
                f"{names} is behind the log, so the store is left marked as not cleanly closed; "
                f"nothing is lost, the next open brings it up"
            )
        self.log.log.check_there()
        self.flusher.close()
        # Before the files are vouched for: their times change.
        self.log.tail.give_back()
        for dispatcher in self.dispatchers:
            dispatcher.give_back()
        self.log.log.close()
        self.log.tail.close()
        digest = fingerprint(self.files, vouched_for(self.root))
        parts = {
            d.name: part for d in self.dispatchers if (part := d.closing_summary()) is not None
        }
        # Before the mark that makes it count.
        write_manifest(self.files, self.root, digest, parts)
        self.side.write_clean(
            CleanClose(
                log_end=self.log.end_offset, last_time_ms=self.log.last_time_ms, digest=digest
            )
        )
        if self.files.exists(self.root / "abort"):
            self.files.remove(self.root / "abort")
        self.files.sync_folder(self.root)

    def abandon(self) -> None:
        """Let go of a store that could not be opened wholly."""
        try:
            self._stop()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Release everything now, or when the last thread that could still write has ended."""
        self.crew.stop()
        if self.crew.hanging():
            self.crew.when_ended(self.release)
        else:
            self.release()

    def release(self) -> None:
        """Let go of files and lock, whatever state the store is in."""
        try:
            parts = [
                self.flusher.close,
                self.log.log.close,
                self.log.tail.close,
                self.progress.close,
                self.wakes.close,
            ]
            for close in (*parts, *(dispatcher.close for dispatcher in self.dispatchers)):
                try:
                    close()
                except Exception:
                    # One plugin's mistake must not keep the others, and the lock, from being let go.
                    logger.exception("%s failed; the next open mends it", close)
        finally:
            self.lock.release()
