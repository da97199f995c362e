"""The driver's part: appends a batch exactly once, even if processes are killed; and the files of its decisions.

This module does not import pyspark. In `penstock/sink/` of a store, or of a dataset's folder::

    made            exists once the store, or all shards of the dataset, have existed
    lock            held by the process that commits; one at a time
    staging/        encoded rows of tasks, before the commit (see `rows`)
    decision        the one batch that is decided and not complete yet
    ledger/<name>   for each application the last batch that is completely in the store
    progress-<of>   in each store: how many rows of the decided batch it has; <of> is "store" for a batch of the store
                    itself, "dataset" for a batch of the dataset that has this store as a shard

Each is one line, a CRC-32C and JSON, written atomically. Under the root's lock, in this order:
    1. complete the batch that another commit has decided and not completed;
    2. if the application's batch is in the ledger, delete the staged files and stop; raise if it is a stream's, and
       is not the last one with as many rows, since Spark repeats no other. Else check every staged file,
       wait until no process writes the stores, open them, check that their topics take the rows, and record the
       decision. It is never revoked: the batch will be in the stores;
    3. for each shard, under its store's lock: flush the store; record where the batch begins; append; flush; record
       that the shard is complete;
    4. record the batch in the ledger, delete the decision, delete the staged files.

Why every row is there once: each record has a number that no other record has. After a crash, the progress file gives
the log offset at which the batch begins. The records with its numbers from there on are those that were appended, in
order; other records may be between them, such as delayed messages that the store delivered while it was open, and
after them. The rest is appended after the progress was recorded again. The progress file states only what is durable,
being written after a flush; a root has one decision at a time.
"""

import hashlib
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import attrs

import penstock
from penstock.errors import CorruptionError, MessageError, StorageError, StoreLockedError
from penstock.escape import get_logger
from penstock.files import Files, Lock, read_line, write_line
from penstock.staged import MARK_MAX, MARK_MIN, StagedBatch, StagedFile
from penstock_spark.errors import StaleCheckpointError
from penstock_spark.stores import MADE, keep_folder, lost

logger = get_logger(__name__)

FOLDER = Path("penstock") / "sink"
# What the name of a staged file ends with.
SUFFIX = ".staged"
# They mostly wait for disks, or are within calls that let other threads run.
THREADS = 8
# So many staged files are held open between their check and their append, at most.
_OPEN_MAX = 128
_PAUSES_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_BIG = 1 << 63
_ADVICE = "see 'What is on disk' in the sink's documentation"

_T = TypeVar("_T")
_One = TypeVar("_One")


# --- the files


@attrs.frozen
class Part:
    """One staged file: its name, the task that wrote it, and the number of rows for each shard."""

    name: str
    task: int
    rows: tuple[tuple[int, int], ...]

    def rows_of(self, shard: int) -> int:
        """Return how many rows it has for a shard."""
        return dict(self.rows).get(shard, 0)


@attrs.frozen
class Decision:
    """A batch that will be in the store: its staged files in order.

    Attributes:
        app: the application.
        batch: its number within the application.
        mark: the number of the first record, see `LowLevelStore.put_staged`; unique to this batch.
        parts: the staged files in the order in which they are appended.
        is_alone: the application writes this one batch only, and will not repeat it.
    """

    app: str
    batch: int
    mark: int
    parts: tuple[Part, ...]
    is_alone: bool = False

    def rows_of(self, shard: int) -> int:
        """Return how many rows a shard gets."""
        return sum(part.rows_of(shard) for part in self.parts)

    def mark_of(self, shard: int) -> int:
        """Return the mark of the first record of a shard; the marks of the shards follow each other."""
        return self.mark + sum(n for part in self.parts for s, n in part.rows if s < shard)

    def to_json(self) -> dict[str, Any]:
        """Return the facts to write."""
        parts = [[part.name, part.task, part.rows] for part in self.parts]
        return {
            "app": self.app, "batch": self.batch, "mark": self.mark, "alone": self.is_alone,
            "parts": parts,
        }  # fmt: skip

    @classmethod
    def of(cls, found: dict[str, Any]) -> Self:
        """Parse written facts; raise `ValueError`, `TypeError` or `KeyError` if they are invalid."""
        parts = tuple(
            Part(
                _name(name),
                _whole(task),
                tuple((_whole(shard), _whole(rows)) for shard, rows in counts),
            )
            for name, task, counts in found["parts"]
        )
        mark = _whole(found["mark"])
        if not MARK_MIN <= mark <= MARK_MAX:
            raise ValueError(f"mark {mark}")
        return cls(str(found["app"]), _whole(found["batch"]), mark, parts, bool(found["alone"]))


@attrs.frozen
class BatchProgress:
    """Progress of a batch in one shard: its first `done` rows are before log offset `begin`."""

    mark: int
    begin: int
    done: int
    is_complete: bool

    def to_json(self) -> dict[str, Any]:
        """Return the facts to write."""
        return attrs.asdict(self)

    @classmethod
    def of(cls, found: dict[str, Any]) -> Self:
        """Parse written facts."""
        mark, begin, done = (_whole(found[name]) for name in ("mark", "begin", "done"))
        return cls(mark, begin, done, bool(found["is_complete"]))


def _rows_in(parts: Sequence[Part]) -> int:
    return sum(rows for part in parts for _, rows in part.rows)


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _BIG:
        raise ValueError(f"{value!r} is not a count")
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not the name of a staged file")
    return value


class Ledger:
    """The small files of one root. A caller that changes them must hold the root's lock. Not thread-safe."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self._root = root
        self.folder = root / FOLDER
        self.staging = self.folder / "staging"
        self.lock = self.folder / "lock"
        self._decision = self.folder / "decision"
        self._apps = self.folder / "ledger"
        self._made = root / MADE

    def make(self) -> None:
        """Create the folders durably; the stores must exist."""
        for folder in (self.staging, self._apps):
            keep_folder(self._files, folder, self._root)
        if not self._files.exists(self._made):
            write_line(self._files, self._made, {})

    # --- the decision

    def has_decision(self) -> bool:
        """Return whether a batch is decided and not complete."""
        return self._files.exists(self._decision)

    def decision(self) -> Decision | None:
        """Return the batch that is decided and not complete, or None."""
        return read_line(self._files, self._decision, Decision.of, _ADVICE)

    def decide(self, decision: Decision) -> None:
        """Write a decision durably; after this, the batch will be in the store."""
        write_line(self._files, self._decision, decision.to_json())

    def keep(self) -> None:
        """Sync decision and last batches, which a killed predecessor may have written without a sync."""
        self._files.sync_folder(self.folder)
        self._files.sync_folder(self._apps)

    def drop_decision(self) -> None:
        """Delete the decision durably, since its batch is complete."""
        self._files.remove(self._decision)
        self._files.sync_folder(self.folder)

    # --- applications

    def _path_of(self, app: str) -> Path:
        return self._apps / hashlib.sha256(app.encode()).hexdigest()[:40]

    def last_batch(self, app: str) -> int:
        """Return the last batch of an application that is in the store; -1 for none."""
        return self.last(app)[0]

    def last(self, app: str) -> tuple[int, int]:
        """Return the last batch of an application that is in the store, and its number of rows; -1 and 0 for none."""

        def parse(found: dict[str, Any]) -> tuple[int, int]:
            if found["app"] != app:
                raise ValueError(f"it is of application {found['app']!r}, not {app!r}")
            return _whole(found["batch"]), _whole(found["rows"])

        return read_line(self._files, self._path_of(app), parse, _ADVICE) or (-1, 0)

    def note_batch(self, decision: Decision) -> None:
        """Record that a batch is in the store."""
        if not decision.is_alone and decision.batch > self.last_batch(decision.app):
            rows = _rows_in(decision.parts)
            facts = {"app": decision.app, "batch": decision.batch, "rows": rows}
            write_line(self._files, self._path_of(decision.app), facts)


class ShardProgress:
    """The file with the progress of a root's batch in one store; the holder of the root's lock writes it."""

    def __init__(self, files: Files, shard: Path, *, is_own: bool) -> None:
        self._files = files
        self._shard = shard
        self.path = shard / FOLDER / f"progress-{'store' if is_own else 'dataset'}"

    def make(self) -> None:
        """Create the file's folder durably."""
        keep_folder(self._files, self.path.parent, self._shard)

    def read(self, mark: int) -> BatchProgress | None:
        """Return the progress of the batch with that mark; None if it was not begun."""
        found = read_line(self._files, self.path, BatchProgress.of, _ADVICE)
        return found if found is not None and found.mark == mark else None

    def write(self, progress: BatchProgress) -> None:
        """Write the progress durably."""
        write_line(self._files, self.path, progress.to_json())


# --- the commit


@attrs.frozen(kw_only=True)
class Patience:
    """How long to wait for a lock that another process holds, and how to wait."""

    timeout_s: float = 60.0
    now_s: Callable[[], float] = time.monotonic
    sleep_s: Callable[[float], None] = time.sleep

    def until(self, acquire: Callable[[], _T]) -> _T:
        """Call `acquire` until it succeeds; raise the last `StoreLockedError` when the time is over."""
        end = self.now_s() + self.timeout_s
        tries = 0
        while True:
            try:
                return acquire()
            except StoreLockedError:
                if self.now_s() >= end:
                    raise
            self.sleep_s(_PAUSES_S[min(tries, len(_PAUSES_S) - 1)])
            tries += 1


_NOW = Patience(timeout_s=0)


@attrs.frozen(eq=False)
class _Checked:
    """What a commit has checked before its decision.

    Attributes:
        files: the staged files that are open, by name; the others are opened again.
        stores: the stores that are open, by shard; the others are opened again.
        queues: topic and queue of the rows of each shard.
    """

    files: dict[str, StagedFile] = attrs.Factory(dict)
    stores: dict[int, penstock.Store] = attrs.Factory(dict)
    queues: dict[int, set[tuple[str, int]]] = attrs.Factory(dict)

    def note_queues(self, file: StagedFile) -> None:
        """Note the queues of a file."""
        for batch in file.batches:
            self.queues.setdefault(batch.group, set()).update(batch.cursors)


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
        self,
        app: str,
        batch: int,
        parts: Sequence[Part],
        *,
        is_alone: bool = False,
        is_stream: bool = False,
    ) -> bool:
        """Append a batch; return False if the store has it already.

        Raises if that is not possible now. If the batch was decided, the next commit of any query completes it.

        Args:
            app: the application.
            batch: the number of the batch within it.
            parts: the staged files.
            is_alone: see `Decision`.
            is_stream: raise `StaleCheckpointError` unless a batch that the store has is the last one, repeated.
        """
        if not parts and is_alone and not self.ledger.has_decision():
            return True
        with self._locked():
            self._finish_pending()
            last, rows = (-1, 0) if is_alone else self.ledger.last(app)
            if last >= batch:
                if is_stream and (last, rows) != (batch, _rows_in(parts)):
                    raise StaleCheckpointError(app, batch, _rows_in(parts), last, rows)
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
            with ExitStack() as stack:
                self._open_all(decision, staged, stack)
                self.ledger.decide(decision)
                self._complete_now(decision, staged)
        return True

    def _complete_now(self, decision: Decision, staged: "_Checked") -> None:
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
        lock = (patience or self._patience).until(self._acquire)
        try:
            yield
        finally:
            lock.release()

    def _acquire(self) -> Lock:
        lock = self._files.lock(self.ledger.lock)
        if lock is None:
            raise StoreLockedError(
                self.ledger.folder, "another commit of a Spark sink is in progress"
            )
        return lock

    def _open_all(self, decision: Decision, checked: _Checked, stack: ExitStack) -> None:
        """Open the stores of a batch, and raise if one of them refuses its rows; some stay open, until `stack` ends."""
        shards = [shard for shard in range(len(self._shards)) if decision.rows_of(shard)]
        kept, rest = shards[: self._threads], shards[self._threads :]

        def check(shard: int) -> penstock.Store:
            store = stack.enter_context(self._open(shard))
            try:
                # From the greatest on, so that a topic without it grows once.
                for topic, queue in sorted(checked.queues[shard], reverse=True):
                    store.lowlevel.check_puts(topic, queue)
            except MessageError as error:
                error.add_note(
                    f"{store.path} refuses rows of batch {decision.batch} of {decision.app!r}. The batch is not "
                    f"decided, and none of its rows is written. Their queues are those of column 'partition' or "
                    f"option partitions: change these or the topic, and write the batch again."
                )
                raise
            return store

        # Only so many at a time.
        self._each(lambda shard: check(shard).close(), rest)
        checked.stores.update(zip(kept, self._each(check, kept), strict=True))

    def _open(self, shard: int) -> penstock.Store:
        self._check_there(self._shards[shard])
        return self._patience.until(lambda: self._open_store(self._shards[shard]))

    def _checked(self, decision: Decision) -> _Checked:
        """Check every staged file of a decision to its last byte, and return those that stay open.

        Their number is limited, since each needs a descriptor. The others are opened again when they are appended.
        """
        most = min(_OPEN_MAX, self._files.descriptors_max // 4)
        opened, rest = decision.parts[:most], decision.parts[most:]
        found = _Checked()
        for part, file in zip(opened, self._each(self._read, opened), strict=True):
            found.files[part.name] = file
            found.note_queues(file)

        def check(part: Part) -> None:
            with self._read(part) as file:
                found.note_queues(file)

        self._each(check, rest)
        return found

    def _each(self, job: Callable[[_One], _T], several: Sequence[_One]) -> list[_T]:
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

    def _complete(self, decision: Decision, staged: _Checked | None) -> None:
        """Complete a decided batch; each step may be repeated."""
        if decision.is_alone or self.ledger.last_batch(decision.app) < decision.batch:
            shards = range(len(self._shards))
            self._each(lambda shard: self._apply(decision, shard, staged), shards)
            self.ledger.note_batch(decision)
        self.ledger.drop_decision()
        self._tidy(decision.parts)

    def _apply(self, decision: Decision, shard: int, staged: _Checked | None) -> None:
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
        checked = staged or _Checked()
        with checked.stores.get(shard) or self._open(shard) as store:
            # Counted messages, and the offset where the rest begins, must be durable before a note names them.
            begin = store.flush()
            done = 0
            if noted is not None:
                done = noted.done + _counted(store, noted, rows, progress.path)
            progress.write(BatchProgress(mark, begin, done, is_complete=False))
            try:
                for batch in self._batches(decision, shard, checked, done):
                    store.lowlevel.put_staged(batch, first_mark=mark + done)
                    done += len(batch)
            except MessageError as error:
                error.add_note(
                    f"{store.path} refuses rows of batch {decision.batch} of {decision.app!r}, which is decided and "
                    f"blocks all others. Change the topic with `penstock topic alter` or `create`, and the next commit "
                    f"appends the rest. To abandon the batch, see 'Cleaning up' in the sink's documentation."
                )
                raise
            end = store.flush()
            progress.write(BatchProgress(mark, end, done, is_complete=True))

    def _batches(
        self, decision: Decision, shard: int, staged: _Checked, skipped: int
    ) -> Iterator[StagedBatch]:
        """Yield a shard's batches in order, without the first `skipped` rows."""
        for part in decision.parts:
            count = part.rows_of(shard)
            if skipped >= count:
                skipped -= count
                continue
            file = staged.files.get(part.name) or self._read(part)
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
            f"a commit was interrupted, and how many rows of its batch are in {store.path} is unknown: {error}. "
            f"Nothing was appended. To append the whole batch, even if rows of it are there already, delete {path}"
        ) from error
