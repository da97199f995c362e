"""The end of a writing store: the clean close, and the release of files and lock in every case."""

from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.contracts import Dispatcher
from penstock.dispatch.deleted_topics import listed_topics
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


class Shutdown:
    """Closes the parts of a store that is open for writing. One thread at a time."""

    def __init__(
        self,
        root: Path,
        files: Files,
        log: CommitLog,
        flusher: LogFlusher,
        follower: TailFollower,
        dispatchers: Sequence[Dispatcher],
        progress: Progress,
        side: SideFolder,
        wakes: Wakes,
        crew: WorkerGroup,
        lock: Lock,
    ) -> None:
        self.root = root
        self.files = files
        self.log = log
        self.flusher = flusher
        self.follower = follower
        self.dispatchers = dispatchers
        self.progress = progress
        self.side = side
        self.wakes = wakes
        self.crew = crew
        self.lock = lock

    def close_cleanly(self, write_checkpoint: Callable[[], None]) -> None:
        """Dispatch and sync everything, then mark the store as cleanly closed; raises if a step fails."""
        self.log.stop()
        self.flusher.flush()
        self.follower.finish()
        # A store whose records cannot be read back has failed, and is never marked clean.
        self.flusher.check()
        write_checkpoint()
        if self.follower.progress < self.log.end_offset:
            names = ", ".join(self.follower.troubles) or "a dispatcher"
            raise StorageError(
                f"{names} lags the log, so the store {self.root} stays marked as not cleanly closed; "
                f"no data is lost, and the next open for writing dispatches the missing records"
            )
        self.log.log.check_there()
        self.flusher.close()
        # Before the fingerprint is taken: this changes the files' times.
        self.log.tail.give_back()
        for dispatcher in self.dispatchers:
            dispatcher.give_back()
        self.log.log.close()
        self.log.tail.close()
        digest = fingerprint(self.files, vouched_for(self.root))
        parts = {
            d.name: part for d in self.dispatchers if (part := d.closing_summary()) is not None
        }
        # Before the clean-close file, without which the manifest is not used.
        write_manifest(self.files, self.root, digest, parts)
        self.side.write_clean(
            CleanClose(
                log_end=self.log.end_offset, last_time_ms=self.log.last_time_ms, digest=digest,
                topics=tuple(sorted(listed_topics(self.files, self.root) or ())),
            )
        )  # fmt: skip
        if self.files.exists(self.root / "abort"):
            self.files.remove(self.root / "abort")
        self.files.sync_folder(self.root)

    def release_all(self) -> None:
        """Release everything now, or once the last thread that could still write has ended."""
        self.crew.stop()
        if self.crew.hanging():
            self.crew.when_ended(self.release)
        else:
            self.release()

    def release(self) -> None:
        """Close all files and release the lock, in whatever state the store is."""
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
                    # An exception from one plugin must not prevent the release of the other files and of the lock.
                    logger.exception("%s failed; the next open for writing recovers from it", close)
        finally:
            self.lock.release()
