"""The driver's part: appends a batch exactly once, even if processes are killed. This module does not import pyspark.

Under the root's lock, in this order:
    1. complete the batch that another commit has decided and not completed;
    2. if the application's batch is in the ledger, delete the staged files and stop. Else check every staged file,
       wait until no process writes the stores, and record the decision. A decision is never revoked: the batch will
       be in the stores;
    3. for each shard, under its store's lock: flush the store; record where the batch begins; append; flush; record
       that the shard is complete;
    4. record the batch in the ledger, delete the decision, delete the staged files.

Why every row is there once: each record has a number that no other record has. After a crash, the progress file gives
the log offset at which the batch begins. The consecutive records with the right numbers from there on are those that
were appended; other records may have been appended after them. The rest is appended after the progress was recorded
again. The progress file states only what is durable, since it is written after a flush, and a root has one decision at
a time.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import attrs

import penstock
from penstock.errors import CorruptionError, StorageError, StoreLockedError
from penstock.escape import get_logger
from penstock.files import Files
from penstock.staged import MARK_MAX, MARK_MIN, StagedBatch, StagedFile
from penstock_spark.sink.ledger import BatchProgress, Decision, Ledger, Part, ShardProgress
from penstock_spark.sink.staging import SUFFIX
from penstock_spark.stores.dataset import lost

logger = get_logger(__name__)
_Taken = TypeVar("_Taken")
_One = TypeVar("_One")
_Made = TypeVar("_Made")
# They mostly wait for disks, or are within calls that let other threads run.
THREADS = 8
# So many staged files are held open between their check and their append, at most.
_HELD_MAX = 128
_PAUSES_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)


class HeldLock(Protocol):
    """A lock that this process holds."""

    def release(self) -> None:
        """Release the lock."""


@attrs.frozen(kw_only=True)
class Patience:
    """How long to wait for a lock that another process holds, and how to wait."""

    timeout_s: float = 60.0
    now_s: Callable[[], float] = time.monotonic
    sleep_s: Callable[[float], None] = time.sleep

    def until(self, take: Callable[[], _Taken]) -> _Taken:
        """Call `take` until it succeeds; raise the last `StoreLockedError` when the time is over."""
        end = self.now_s() + self.timeout_s
        tries = 0
        while True:
            try:
                return take()
            except StoreLockedError:
                if self.now_s() >= end:
                    raise
            self.sleep_s(_PAUSES_S[min(tries, len(_PAUSES_S) - 1)])
            tries += 1


_NOW = Patience(timeout_s=0)


class SinkCommitter:
    """Commits batches to one root: a store, or a dataset of several stores. Not thread-safe.

    Args:
        root: the folder of the store or of the dataset.
        shards: the stores, in the dataset's order; the root itself for a store.
        open_store: opens one for writing, or raises `StoreLockedError`.
        files: the file system.
        patience: the waiting for locks that other processes hold.
        mark: returns the number of a batch's first record.
        threads: how many staged files are checked, and how many shards appended to, at a time.
    """

    def __init__(
        self,
        root: Path,
        shards: Sequence[Path],
        open_store: Callable[[Path], penstock.Store],
        *,
        files: Files,
        patience: Patience,
        mark: Callable[[], int] = lambda: MARK_MIN + secrets.randbelow(MARK_MAX - MARK_MIN),
        threads: int = 1,
    ) -> None:
        self._root = root
        self._shards = list(shards)
        self._open_store = open_store
        self._files = files
        self._patience = patience
        self._mark = mark
        self._threads = threads
        self.ledger = Ledger(files, root)
        self._progress = [
            ShardProgress(files, shard, is_own=shard == root) for shard in self._shards
        ]

    def prepare(self) -> None:
        """Create the folders that tasks and commits need, and record that all stores exist."""
        self.ledger.make()
        for progress in self._progress:
            progress.make()

    # --- what the driver asks for

    def commit(
        self, app: str, batch: int, parts: Sequence[Part], *, is_alone: bool = False
    ) -> bool:
        """Append a batch; return False if the store has it already.

        Raises if that is not possible now. If the batch was already decided, the next commit of any query completes
        it.
        """
        if not parts and is_alone and not self.ledger.has_decision():
            return True
        with self._locked():
            self._finish_pending()
            if not is_alone and self.ledger.last_batch(app) >= batch:
                self._tidy(parts)
                return False
            ordered = tuple(sorted(parts, key=lambda part: (part.task, part.name)))
            decision = Decision(app, batch, self._mark(), ordered, is_alone)
            if not parts:
                # Nothing to append; but if the batch is repeated, the ledger must have it.
                self.ledger.note_batch(decision)
                return True
            staged = self._checked(decision)
            self._patience.until(partial(self._check_free, decision))
            self.ledger.decide(decision)
            self._complete_now(decision, staged)
        return True

    def _complete_now(self, decision: Decision, staged: dict[str, StagedFile]) -> None:
        try:
            self._complete(decision, staged)
        except (penstock.PenstockError, OSError) as error:
            error.add_note(
                "The batch is decided: the next commit to this store, by any query, appends the rest of it. "
                "Do not write it again under another name."
            )
            raise

    def finish_pending(self) -> None:
        """Complete the batch that another commit has decided and not completed."""
        if self.ledger.has_decision():
            with self._locked():
                self._finish_pending()

    def abandon(self, parts: Sequence[Part]) -> None:
        """Delete the staged files of a failed batch, unless the batch is decided."""
        try:
            with self._locked(_NOW):
                self._remove(self._without_decided(parts))
        except (StoreLockedError, CorruptionError):
            # Another commit is in progress, perhaps of this batch. Files that no decision names are deleted by age.
            logger.info("staged files of a failed batch are left in %s", self.ledger.staging)

    def collect(self, older_than_ns: int) -> int:
        """Delete staged files that were last written before a time and that no decision names; return their number."""
        if not self._old(older_than_ns):
            return 0
        try:
            with self._locked(_NOW):
                old = self._without_decided(self._old(older_than_ns))
                self._remove(old)
        except StoreLockedError:
            # There is always a next time.
            return 0
        return len(old)

    def _without_decided(self, parts: Sequence[Part]) -> list[Part]:
        decision = self.ledger.decision()
        kept = {part.name for part in decision.parts} if decision else set()
        return [part for part in parts if part.name not in kept]

    def _old(self, older_than_ns: int) -> list[Part]:
        return [
            Part(entry.name, 0, ())
            for entry in self._files.entries(self.ledger.staging)
            if entry.is_file and entry.name.endswith(SUFFIX) and entry.mtime_ns < older_than_ns
        ]

    # --- steps

    def _check_free(self, decision: Decision) -> None:
        """Raise if a store of the batch is open for writing or missing; the batch must not be decided then."""
        for shard, path in enumerate(self._shards):
            if decision.rows_of(shard):
                self._check_there(path)
                if self._files.is_locked(path / "lock"):
                    raise StoreLockedError(path, self._holder(path))

    def _check_there(self, path: Path) -> None:
        """Raise for a store that no longer exists, since opening it would create an empty one in its place."""
        if not self._files.exists(path / "commitlog"):
            raise lost(path, self._root)

    def _holder(self, path: Path) -> str:
        try:
            holder = self._files.read_whole(path / "penstock" / "holder", 4096)
        except OSError:
            return "another program"
        return holder.decode("utf-8", "replace")

    @contextmanager
    def _locked(self, patience: Patience | None = None) -> Iterator[None]:
        lock = (patience or self._patience).until(self._take)
        try:
            yield
        finally:
            lock.release()

    def _take(self) -> HeldLock:
        lock = self._files.lock(self.ledger.lock)
        if lock is None:
            raise StoreLockedError(
                self.ledger.folder, "another commit of a Spark sink is in progress"
            )
        return lock

    def _checked(self, decision: Decision) -> dict[str, StagedFile]:
        """Check every staged file of a decision to its last byte, and return those that stay open.

        Their number is limited, since each needs a descriptor. The others are opened again when they are appended.
        """
        most = min(_HELD_MAX, self._files.descriptors_max // 4)
        held, rest = decision.parts[:most], decision.parts[most:]
        names = [part.name for part in held]
        found = dict(zip(names, self._each(self._read, held), strict=True))
        self._each(self._check, rest)
        return found

    def _check(self, part: Part) -> None:
        """Raise if a staged file is incomplete; its file is closed again."""
        with self._read(part):
            pass

    def _each(self, job: Callable[[_One], _Made], several: Sequence[_One]) -> list[_Made]:
        """Call `job` for each item in some threads; if one raises, the error is raised after all have ended."""
        if self._threads == 1 or len(several) <= 1:
            return [job(one) for one in several]
        with ThreadPoolExecutor(min(self._threads, len(several))) as pool:
            return list(pool.map(job, several))

    def _read(self, part: Part) -> StagedFile:
        path = self.ledger.staging / part.name
        try:
            file = StagedFile.read(self._files, path)
        except FileNotFoundError as error:
            raise StorageError(
                f"the staged file {path} is gone: it is older than stagingRetention, was deleted by hand, or "
                f"this machine does not see the folder that the tasks write to"
            ) from error
        found: dict[int, int] = {}
        for batch in file.batches:
            found[batch.group] = found.get(batch.group, 0) + len(batch)
        if found != dict(part.rows):
            raise CorruptionError(path, 0, f"rows by shard {dict(part.rows)}", f"{found}")
        return file

    def _finish_pending(self) -> None:
        decision = self.ledger.decision()
        if decision is not None:
            logger.info("finishing batch %d of %s", decision.batch, decision.app)
            # A killed predecessor may have left files that a power failure can still remove. If the decision is
            # lost after its rows are appended, they are appended again; likewise for the note of a complete batch.
            self.ledger.keep()
            self._complete(decision, None)

    def _complete(self, decision: Decision, staged: dict[str, StagedFile] | None) -> None:
        """Complete a decided batch; each step may be repeated."""
        if decision.is_alone or self.ledger.last_batch(decision.app) < decision.batch:
            shards = range(len(self._shards))
            self._each(lambda shard: self._apply(decision, shard, staged), shards)
            self.ledger.note_batch(decision)
        self.ledger.drop_decision()
        self._tidy(decision.parts)

    def _apply(self, decision: Decision, shard: int, staged: dict[str, StagedFile] | None) -> None:
        """Append the rows of a shard that its store does not have yet."""
        rows, mark, progress = (
            decision.rows_of(shard),
            decision.mark_of(shard),
            self._progress[shard],
        )
        if rows == 0:
            return
        noted = progress.read(mark)
        if noted is not None and noted.is_complete:
            return
        self._check_there(self._shards[shard])
        with self._patience.until(lambda: self._open_store(self._shards[shard])) as store:
            # What is counted, and where the rest begins, must outlive the machine before a note says so.
            begin = store.flush()
            done = 0
            if noted is not None:
                done = noted.done + _counted(store, noted, rows, progress.path)
            progress.write(BatchProgress(mark, begin, done, is_complete=False))
            for batch in self._batches(decision, shard, staged, done):
                store.lowlevel.put_staged(batch, first_mark=mark + done)
                done += len(batch)
            end = store.flush()
            progress.write(BatchProgress(mark, end, done, is_complete=True))

    def _batches(
        self, decision: Decision, shard: int, staged: dict[str, StagedFile] | None, skipped: int
    ) -> Iterator[StagedBatch]:
        """Yield a shard's batches in order, without the first `skipped` rows."""
        for part in decision.parts:
            count = part.rows_of(shard)
            if skipped >= count:
                skipped -= count
                continue
            file = (staged or {}).get(part.name) or self._read(part)
            for batch in file.batches:
                if batch.group == shard:
                    if skipped < len(batch):
                        yield batch.behind(skipped) if skipped else batch
                    skipped = max(skipped - len(batch), 0)

    def _tidy(self, parts: Sequence[Part]) -> None:
        """Delete the staged files of a batch that is in the store; a failure is logged, since the batch is complete."""
        try:
            self._remove(parts)
        except OSError as error:
            logger.warning("staged files are left in %s: %s", self.ledger.staging, error)

    def _remove(self, parts: Sequence[Part]) -> None:
        """Delete staged files; files that a power failure restores are deleted by age later."""
        for part in parts:
            with suppress(FileNotFoundError):
                self._files.remove(self.ledger.staging / part.name)


def _counted(store: penstock.Store, noted: BatchProgress, rows: int, path: Path) -> int:
    try:
        return store.lowlevel.count_marked(noted.begin, noted.mark + noted.done, rows - noted.done)
    except StorageError as error:
        raise StorageError(
            f"a commit was interrupted, and how many rows of its batch are in {store.path} is unknown: {error}. Nothing "
            f"was appended. To append the whole batch, even if rows of it are there already, delete {path}"
        ) from error
