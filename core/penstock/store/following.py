"""A store that follows another one: its log takes only bytes that the other store's log has, at the same log offsets.

The process that follows is the only one that writes the store; all others open it read-only. It has the background work of a
store that is open for writing (dispatching, checkpoints, retention, scrubbing), and no extensions: it takes no messages.
Consumer offsets and topics are copied by the replication, beside the log.

Invariants:
    * Only whole records whose CRCs are right are appended. The bytes of an incomplete record wait in memory.
    * An atomic batch is shown to readers when it is whole; a part of it is cut off by recovery, and by `close`.
    * The role is durable before the first byte is appended.
"""

import contextlib
import hashlib
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import attrs

from penstock.contracts import SpawnWorker
from penstock.durability.replica_file import FOLLOWER, MASTER, Replica, ReplicaFile
from penstock.durability.side_folder import lock_mtime_ns
from penstock.durability.written_ranges import Ranges, write_ranges
from penstock.errors import (
    ArgumentError,
    ConfigError,
    OffsetError,
    PenstockError,
    StoreClosedError,
    StoreFailedError,
)
from penstock.escape import get_logger
from penstock.files import Files
from penstock.files.lock_file import Lock, leave_in_child
from penstock.format import arguments
from penstock.format.columns import Buffer
from penstock.format.names import check_topic
from penstock.log.copied_bytes import CopiedBytes, CopiedPiece
from penstock.log.held_batches import HeldBatches
from penstock.log.segmented_log import SegmentedLog
from penstock.recovery.cutting import (
    begin_log,
    complete_cut,
    cut_log,
    lower_progress,
    newest_before,
)
from penstock.recovery.inspection import OpenState
from penstock.recovery.log_end import RecoveryReport
from penstock.recovery.restore import sync_names_up
from penstock.recovery.store_layout import check_layout, is_store
from penstock.runtime.clock import Clock
from penstock.store.engine import Engine
from penstock.store.open import Opener, import_for_threads, make_opener

logger = get_logger(__name__)

# A record with the largest body has at most this many bytes beside it.
_BESIDE_BODY_BYTES = 256 << 10
# Bodies up to this size are taken whatever the configuration says: the master's may have been larger once.
_BODY_BYTES_LEAST = 32 << 20
_DIGEST_BYTES = 4 << 20


def open_follower(
    path: str | os.PathLike[str],
    config: str | os.PathLike[str] | None = None,
    *,
    replica: Replica | None = None,
    files: Files | None = None,
    clock: Clock | None = None,
    segment_bytes: int | None = None,
    spawn: SpawnWorker | None = None,
    environ: Mapping[str, str] | None = None,
    **settings: Any,
) -> "FollowedStore":
    """Open the store at `path` to append copied bytes to its log; creates it if there is none.

    Args:
        path: the store's folder.
        config: a TOML file, as for `penstock.open`.
        replica: the role to record before anything else changes; it must be that of a follower. None: the store must be a
            follower already, or never have been replicated; then it becomes one, of a new history.
        files: the file system; tests pass one that injects faults.
        clock: the clock; tests pass their own.
        segment_bytes: the size of the log's segments, which must be the master's.
        spawn: starts background threads.
        environ: environment variables; None for those of the process.
        settings: as for `penstock.open`.

    Raises:
        ConfigError: the store is a master and no `replica` is given, or a setting is invalid.
        GeometryError: the store has segments of another size.
        StoreLockedError: another process writes the store.
    """
    root = arguments.folder("open_follower", "path", path)
    if segment_bytes is not None:
        settings["geometry.segment_bytes"] = segment_bytes
    like = make_opener(
        root, config, files, clock, spawn, environ, settings, call="open_follower",
        names=("config", "replica", "files", "clock", "segment_bytes", "spawn", "environ"),
    )  # fmt: skip
    return FollowedStore(like, replica)


def promote(
    path: str | os.PathLike[str],
    config: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Replica:
    """Make the follower at `path`, which no process has open, a master: in a new epoch, which begins at its recovered end."""
    return open_follower(path, config, **settings).promote()


class FollowingOpener(Opener):
    """Opens a store once, for copied bytes."""

    follows: ClassVar[bool] = True

    def __init__(self, like: Opener, replica: Replica | None) -> None:
        super().__init__(like.root, like.asked, like.registry, like.files, like.clock, like.spawn)
        self._given = replica
        self._file = ReplicaFile(like.files, like.root)

    def check_role(self, what: str = "") -> None:
        """Raise `ConfigError` if the store is a master and is not told to follow."""
        found = self._file.read() if self._given is None else None
        if found is not None and found.role == MASTER:
            raise ConfigError(
                f"the store {self.root} is a master (epoch {found.epoch}), and does not become a follower by itself; nothing was "
                f"changed. Tell it which history to follow, or follow into an empty folder"
            )

    def _take_role(self, found: OpenState) -> None:
        if found.end.offset < found.state.flushed_offset:
            # A part of a batch will be cut off, which is durable: a crash in between must not look like a loss.
            lower_progress(self.files, self.root, found.end.offset)
        replica = self._given or self._file.read()
        if replica is None:
            replica = Replica(history=secrets.token_hex(16), role=FOLLOWER)
        if replica != self._file.read():
            self._file.write(replica)

    def _note_range(self, found: OpenState, log: SegmentedLog) -> None:
        """Record that it is not known who writes the records after the log's end."""
        followed = found.ranges.followed(found.end.offset, log.min_offset)
        found.ranges = attrs.evolve(followed, lock_mtime_ns=lock_mtime_ns(self.files, self.root))
        write_ranges(self.files, self.root, found.ranges)
        log.coverage = found.ranges.coverage

    def open_engine(self, lock: "_KeptLock") -> tuple[Engine, RecoveryReport, Ranges]:
        """Return the recovered and started engine, which releases `lock` at its end."""
        began = self.clock.monotonic_ms()
        is_new = not is_store(self.files, self.root)
        complete_cut(self.files, self.root, self.geometry())
        engine, _, found, end = self._claim(lock, self.geometry(), is_new=is_new)
        lock.is_used = True
        try:
            report = self._start(engine, found, end, began)
        except BaseException:
            engine.abandon()
            raise
        self.registry.fire("penstock_store_opened", root=str(self.root), report=report)
        return engine, report, found.ranges


class _KeptLock(Lock):
    """The lock of a store whose engine is replaced: it stays held when an engine releases it.

    An engine releases it when its last thread has ended, which may be after its close: until then a thread may still write.

    Attributes:
        is_used: an engine has it.
    """

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._guard = threading.Lock()
        self._is_last = False
        self.is_used = False

    def release(self) -> None:
        """The engine has ended."""
        with self._guard:
            self.is_used = False
            if self._is_last:
                self._lock.release()

    def release_after_use(self) -> None:
        """Release the lock itself, now or when the engine has ended."""
        with self._guard:
            self._is_last = True
            if not self.is_used:
                self._lock.release()

    def has_name(self, path: Path) -> bool:
        """See `Lock`."""
        return self._lock.has_name(path)

    def leave(self) -> None:
        """Do nothing: the lock itself is left."""

    def __del__(self) -> None:
        """Do nothing, for the same reason."""


class FollowedStore:
    """A store that is open for copied bytes.

    One thread at a time appends, cuts and closes; the properties, `flush`, `read` and `digest` are safe from any thread.

    Attributes:
        root: the store's folder.
        files: the file system.
        clock: the clock.
        segment_bytes: the size of a segment.
        recovery: the report of the recovery at opening, or of the latest `cut` or `begin_at`.
    """

    def __init__(self, like: Opener, replica: Replica | None) -> None:
        """Open the store that `like` would open."""
        if replica is not None and replica.role != FOLLOWER:
            raise ArgumentError("open_follower", "replica", replica, "that of a follower")
        self.root = like.root
        self.files = like.files
        self.clock = like.clock
        self._like = like
        self._replica_file = ReplicaFile(like.files, like.root)
        self._is_closed = False
        opener = FollowingOpener(like, replica)
        opener.check_strategies()
        import_for_threads()
        check_layout(self.files, self.root, writes=True)
        opener.check_role()
        self.geometry = opener.geometry()
        self.segment_bytes = self.geometry.segment_bytes
        self._record_bytes_max = (
            max(opener.config.log.body_bytes_max, _BODY_BYTES_LEAST) + _BESIDE_BODY_BYTES
        )
        is_new = not is_store(self.files, self.root)
        self.files.make_folder(self.root)
        if is_new:
            sync_names_up(self.files, self.root)
        self._lock = _KeptLock(opener.lock())
        try:
            opener.check_role()
            self._attach(opener)
        except BaseException:
            self._lock.release_after_use()
            raise
        leave_in_child(self)

    def _attach(self, opener: FollowingOpener) -> None:
        """Recover the store, and begin where its log ends."""
        self._engine, self.recovery, self._ranges = opener.open_engine(self._lock)
        self._log = self._engine.log
        found = self._replica_file.read()
        assert found is not None
        self._replica = found
        self._held = HeldBatches(self.segment_bytes)
        end = self._log.end_offset
        self._stream = CopiedBytes(self.segment_bytes, self._record_bytes_max, end)
        self._stream.coverage = self._log.log.coverage
        shown, visible = self._held.shown, self._engine.following.visible_offset
        self._engine.follower.visible = lambda: shown(visible())

    # --- what is there

    @property
    def replica(self) -> Replica:
        """The store's role, history and epochs."""
        return self._replica

    def note_replica(self, replica: Replica) -> None:
        """Write role, history and epochs durably, unless they are unchanged; the role must stay that of a follower."""
        self._check_open()
        if replica.role != FOLLOWER:
            raise ArgumentError("note_replica", "replica", replica, "that of a follower")
        if replica != self._replica:
            self._replica_file.write(replica)
            self._replica = replica

    @property
    def min_offset(self) -> int:
        """Log offset of the first byte that is there; 0 if the log is empty and did not begin elsewhere."""
        return self._log.log.min_offset

    @property
    def end_offset(self) -> int:
        """Log offset after the last whole record."""
        return self._log.end_offset

    @property
    def next_offset(self) -> int:
        """Log offset of the next byte that `feed` takes: `end_offset`, and the bytes of an incomplete record."""
        return self._stream.next_offset

    @property
    def visible_offset(self) -> int:
        """Log offset up to which records are in queues and index."""
        return self._engine.follower.progress

    @property
    def flushed_offset(self) -> int:
        """Every byte of the log below it is durable."""
        return self._engine.flusher.flushed_offset

    @property
    def syncs_each(self) -> bool:
        """Whether the flush policy is one whose puts wait, so that what was appended is to be synced at once."""
        return self._engine.policy.appender_waits

    @property
    def held_from(self) -> int | None:
        """Where an atomic batch begins that is not whole, so it is not shown; None if there is none."""
        return self._held.begin

    @property
    def last_time_ms(self) -> int:
        """Store time of the newest record; 0 if there is none."""
        return self._log.last_time_ms

    @property
    def failure(self) -> StoreFailedError | None:
        """Why the store takes no more bytes until it is opened again; None if it takes them."""
        return self._engine.flusher.failure

    @property
    def ranges(self) -> Ranges:
        """Which parts of the log Penstock is known to have written; see `note_coverage`."""
        return self._ranges

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosedError
        self._engine.flusher.check()

    def read(self, log_offset: int, size: int) -> bytes:
        """Return the log's bytes from an offset on: at most `size`, and to the end of their segment or of the log."""
        log, end = self._log.log, self._log.end_offset
        if not log.min_offset <= log_offset < end:
            raise OffsetError(log_offset, log.min_offset, end)
        self._engine.show_written()
        with log.lease(log_offset) as segment:
            stop = min(log_offset + size, segment.end_offset, end)
            return bytes(log.read_from(segment, log_offset, max(stop - log_offset, 0)))

    def digest(self, start: int, stop: int) -> bytes:
        """Return the SHA-256 of the log's bytes in [start, stop); raises `OffsetError` if some are not there."""
        log, end = self._log.log, self._log.end_offset
        if not log.min_offset <= start <= stop <= end:
            raise OffsetError(start if start < log.min_offset else stop, log.min_offset, end)
        self._engine.show_written()
        made, at = hashlib.sha256(), start
        while at < stop:
            with log.lease(at) as segment:
                limit = min(at + _DIGEST_BYTES, stop, segment.end_offset)
                made.update(log.read_from(segment, at, limit - at))
            at = limit
        return made.digest()

    def stats(self) -> dict[str, object]:
        """Return the figures of the store."""
        return {
            "role": self._replica.role,
            "history": self._replica.history,
            "epoch": self._replica.epoch,
            "master": self._replica.master,
            "log_min_offset": self.min_offset,
            "log_end_offset": self.end_offset,
            "visible_offset": self.visible_offset,
            "waiting_bytes": self.next_offset - self._stream.end_offset,
            "held_from": self.held_from,
            **self._engine.stats(),
        }

    # --- appending

    def append(self, log_offset: int, data: Buffer) -> int:
        """Append whole records, and filler at segment ends; returns the new end.

        Raises:
            ArgumentError: the bytes end within a record or filler; nothing was appended.
            Otherwise as `feed`.
        """
        pieces = self._take(log_offset, data)
        if self._stream.next_offset != self._stream.end_offset:
            self.forget_waiting()
            raise ArgumentError("append", "data", len(data), "bytes of whole records and filler")
        return self._write(pieces)

    def feed(self, log_offset: int, data: Buffer) -> int:
        """Append bytes that may begin and end within a record; returns the new end of whole records.

        The bytes must follow those of the last call (`next_offset`), or begin at `end_offset` again.

        Raises:
            OffsetError: they do neither; nothing was appended.
            CorruptionError: they are not what a log has there; its `position` is the log offset. Nothing was appended, and
                the bytes that waited are forgotten.
            DiskFullError: as much was appended as there was room for, up to `end_offset`.
            StoreFailedError: the store takes no more bytes.
        """
        return self._write(self._take(log_offset, data))

    def _take(self, log_offset: int, data: Buffer) -> list[CopiedPiece]:
        self._check_open()
        if not self._log.log.segments and log_offset > 0 and self._stream.next_offset == 0:
            raise OffsetError(log_offset, 0, 1, "copied log offset; the log is empty (begin_at)")
        return self._stream.take(log_offset, data)

    def _write(self, pieces: list[CopiedPiece]) -> int:
        """Append checked pieces; returns the new end."""
        engine, log = self._engine, self._log
        try:
            for at, data, records in pieces:
                end = at + len(data)
                if records is not None:
                    self._held.add(records, end, engine.follower.progress)
                    newest_ms = int(records.store_times_ms.max())
                    log.append_raw(at, data, newest_ms=newest_ms, is_whole=True)
                elif len(data):
                    log.append_raw(at, data, is_whole=True)
                else:
                    log.end_segment(at)
        except BaseException:
            self.forget_waiting()
            raise
        if pieces:
            engine.settle(log.end_offset, wait=False)
        return log.end_offset

    def forget_waiting(self) -> None:
        """Forget the bytes of an incomplete record, as after a lost connection; `feed` begins at `end_offset` again."""
        self._stream.forget(self._log.end_offset)

    def flush(self) -> int:
        """Make everything appended durable; returns the log offset reached."""
        self._check_open()
        return self._engine.flusher.flush()

    # --- beside the log

    def remove_topic(self, topic: str, before: int) -> None:
        """Remove a topic with its records before the log's end, which must be `before`; nothing if that was done before."""
        self._check_open()
        topic = check_topic(topic)
        if before <= self._engine.removed_topics.read().before_of(topic):
            return
        end = self._log.end_offset
        if before != end:
            raise OffsetError(before, end, end + 1, f"log offset of the removal of {topic}")
        self._engine.remove_queues(topic)

    def note_coverage(self, told: Ranges) -> None:
        """Record which parts of its log a Penstock master wrote, and with which checksums; for bytes from the end on.

        Without it, as from a RocketMQ master, no record is expected to end in a CRC of its own.
        """
        self._check_open()
        ranges = self._ranges.told(told, self._log.end_offset)
        if ranges != self._ranges:
            write_ranges(self.files, self.root, ranges)
            self._ranges = ranges
            self._log.log.coverage = self._stream.coverage = ranges.coverage

    # --- changes of the log's ends

    def begin_at(self, log_offset: int) -> None:
        """Let an empty log begin at a segment border; nothing if it ends there already."""
        self._check_open()
        log = self._log.log
        if log.segments and log.min_offset != self.end_offset:
            raise ArgumentError("begin_at", "log_offset", log_offset, "called for an empty log")
        if log_offset < 0 or log_offset % self.segment_bytes:
            expected = f"a segment border, a multiple of {self.segment_bytes}"
            raise ArgumentError("begin_at", "log_offset", log_offset, expected)
        if log_offset != self.end_offset:
            with self._reopened():
                self._leave_engine()
                begin_log(self.files, self.root, self.geometry, log_offset)

    def cut(self, log_offset: int) -> Path | None:
        """Cut the log at the beginning of a record; queues and index are cut, too.

        Bytes of whole segments are moved to `penstock/saved`, others are copied there.

        Returns:
            The copied file, or that folder; None if the log ends there already.

        Raises:
            OffsetError: no record begins there; nothing was changed.
        """
        self._check_open()
        self.forget_waiting()
        low, end = self.min_offset, self.end_offset
        if log_offset == end:
            return None
        if not low <= log_offset < end:
            raise OffsetError(log_offset, low, end)
        self._engine.show_written()
        newest_ms = newest_before(self._log.log, log_offset)
        with self._reopened():
            self._leave_engine()
            saved = cut_log(self.files, self.root, self.geometry, log_offset, end, newest_ms)
        logger.warning("%s: cut at log offset %d; the bytes up to %d are in %s", self.root, log_offset, end, saved)  # fmt: skip
        return saved

    def _leave_engine(self) -> None:
        """Stop the engine with everything durable that can be, but not marked as closed: the next one recovers."""
        engine = self._engine
        try:
            engine.flusher.flush()
            engine.dispatched_offset()
            engine.checkpoints.write()
        finally:
            engine.abandon()
        engine.crew.check_ended()

    @contextlib.contextmanager
    def _reopened(self) -> Iterator[None]:
        """Recover the store after a change of its files; closed if that fails."""
        try:
            yield
            self._attach(FollowingOpener(self._like, None))
        except BaseException:
            self._is_closed = True
            self._lock.release_after_use()
            raise

    # --- the end

    def promote(self) -> Replica:
        """Close the store and make it a master, in a new epoch that begins at its end; returns the new role.

        Bytes that wait, and a part of an atomic batch, are not kept.
        """
        self._check_open()
        self._end(self._become_master)
        return self._replica

    def _become_master(self) -> None:
        replica = self._replica.promoted(self._log.end_offset)
        self._replica_file.write(replica)
        self._replica = replica

    def close(self) -> None:
        """Close cleanly; a second call does nothing. Raises the reason if that is not possible."""
        if not self._is_closed:
            self._end(lambda: None)

    def _end(self, last: Callable[[], None]) -> None:
        try:
            if self._held.begin is not None and self.failure is None:
                # A clean close may not leave a part of a batch: recovery cuts it off.
                self._leave_engine()
                self._attach(FollowingOpener(self._like, None))
            self._engine.close()
            last()
        finally:
            self._is_closed = True
            self._lock.release_after_use()

    def leave(self) -> None:
        """Called in a forked child: the store is its parent's."""
        self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # An error of the block is more telling than one of the close.
        with contextlib.suppress(PenstockError) if error[0] else contextlib.nullcontext():
            self.close()
