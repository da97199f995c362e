"""A store that follows another one: its log takes only bytes of the other store's log, at the same log offsets.

The process that follows is the only one that writes the store; all others open it read-only. It has the background
work of a store that is open for writing (dispatching, checkpoints, retention, scrubbing), but no extensions, and takes
no messages and no requests of other processes.

Invariants:
    * Only whole records whose CRC is valid are appended. The bytes of an incomplete record wait in memory.
    * Opening changes what an opening for writing does, and not the role. `accept` writes the role, durably, before the
      first byte is appended.
    * Readers see an atomic batch when it is whole. Its first part is in the log before, and stays: a close leaves the
      abort marker then, since the queues lag the log, and the next opening goes on within the batch.
"""

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import attrs

from penstock.contracts import (
    Extension,
    FollowBegin,
    QueueEnd,
    QueueIndex,
    Replica,
    RetentionPolicy,
    SpawnWorker,
)
from penstock.contracts.base import Context, Geometry
from penstock.durability.progress import Progress
from penstock.durability.replica_file import (
    FOLLOWER,
    NO_HISTORY,
    checked,
    new_store_id,
    promoted,
    read_replica,
    write_replica,
    write_status,
)
from penstock.durability.side_folder import NOT_UNDERSTOOD, RemovedTopics, SideFolder
from penstock.durability.written_ranges import NO_RANGES, read_ranges, write_ranges
from penstock.errors import (
    ArgumentError,
    MessageError,
    OffsetError,
    PenstockError,
    ReplicationError,
    StorageError,
    StoreFailedError,
)
from penstock.escape import get_logger
from penstock.files import Files
from penstock.files.lock_file import Lock
from penstock.format import arguments
from penstock.format.columns import Buffer
from penstock.log.copied_bytes import CopiedBytes, CopiedPiece, HeldBatches, Part
from penstock.log.scan import Checks, find_incomplete, read_mark, scan_segment
from penstock.log.segmented_log import SegmentedLog
from penstock.recovery.inspection import OpenState
from penstock.recovery.log_end import LogEnd
from penstock.recovery.restore import claim
from penstock.recovery.store_layout import is_store, no_store, own_profile, write_geometry
from penstock.runtime.clock import Clock
from penstock.store.copying import digest_of
from penstock.store.engine import Engine
from penstock.store.open import Opener, make_opener
from penstock.store.requests import RequestDesk
from penstock.store.store import Store

logger = get_logger(__name__)

# A record has at most this many bytes beside its body.
_BESIDE_BODY_BYTES = 256 << 10
# Records up to this size are taken whatever the configuration says: the master's limit may have been higher once.
_RECORD_BYTES_LEAST = 32 << 20
_CHUNK_BYTES = 4 << 20


def open_follower(
    path: str | os.PathLike[str],
    config: str | os.PathLike[str] | None = None,
    *,
    begin: FollowBegin | None = None,
    cut_at: int | None = None,
    expected: Replica | None = None,
    files: Files | None = None,
    clock: Clock | None = None,
    spawn: SpawnWorker | None = None,
    environ: Mapping[str, str] | None = None,
    **settings: Any,
) -> "FollowedStore":
    """Open the store at `path`, of whatever role, to append the bytes of another store's log.

    Recovers the store as an opening for writing does, and changes nothing else. A follower after a crash that lost its
    log, or a folder that is absent or empty, needs `begin`.

    Args:
        path: the store's folder.
        config: a TOML file.
        begin: where the log of a new copy begins. The store becomes a follower at once; its log must be empty.
        cut_at: a log offset; the log ends at the last record before it from now on. The bytes after it are moved to
            `penstock/saved`. None: the log stays whole.
        expected: the identity that the store must have, for example for a cut. None: any.
        files: the file system; tests pass one that injects faults.
        clock: the clock; tests pass their own.
        spawn: starts background threads.
        environ: environment variables; None for those of the process.
        settings: as for `penstock.open`. Replicator and extensions are not used.

    Raises what `penstock.open` does, and `ArgumentError` if `begin` was given for a log with records, or `cut_at` is
    before the log's begin, and `StorageError` if the store is not the expected one; nothing was changed then.
    """
    call = "open_follower"
    root = arguments.folder(call, "path", path)
    settings |= _geometry(call, begin, cut_at, expected)
    made = make_opener(
        root, config, files, clock, spawn, environ, settings, call=call,
        names=("config", "begin", "cut_at", "expected", "files", "clock", "spawn", "environ"),
    )  # fmt: skip
    opener = FollowingOpener(made, spawn, begin, cut_at, expected)
    if begin is None:
        if not is_store(made.files, made.root):
            raise no_store(made.files, made.root)
    elif cut_at or begin.log_offset < 0 or begin.log_offset % opener.geometry().segment_bytes:
        raise ArgumentError(call, "begin", begin, "one at the begin of a segment")
    return FollowedStore(opener, opener.open_for_writing())


def _geometry(call: str, begin: object, cut_at: object, expected: object) -> dict[str, int]:
    """Check the arguments of `open_follower`; return the settings of a new copy."""
    if cut_at is not None:
        arguments.whole(call, "cut_at", cut_at)
    if expected is not None:
        arguments.instance(call, "expected", expected, Replica, "a Replica or None")
    if begin is None:
        return {}
    given = arguments.instance(call, "begin", begin, FollowBegin, "a FollowBegin or None")
    size = given.segment_bytes
    return {} if size is None else {"geometry.segment_bytes": size}


def promote(
    path: str | os.PathLike[str],
    config: str | os.PathLike[str] | None = None,
    *,
    files: Files | None = None,
    clock: Clock | None = None,
    spawn: SpawnWorker | None = None,
    environ: Mapping[str, str] | None = None,
    **settings: Any,
) -> Replica:
    """Make the copy at `path` a master, which takes messages; return its new identity. No process may be following.

    That is one durable step: a crash leaves a follower or a master. The begin of an atomic batch, whose rest the old
    master has not sent, is cut off. The arguments are those of `penstock.open`.

    Raises:
        StorageError: the store does not follow another one; nothing was changed.
        StoreLockedError: a process follows with it.
        Otherwise as `penstock.open`.
    """
    made = make_opener(
        arguments.folder("promote", "path", path), config, files, clock, spawn, environ, settings, call="promote",
        names=("config", "files", "clock", "spawn", "environ"),
    )  # fmt: skip
    opener = PromotingOpener(made, spawn)
    with FollowedStore(opener, opener.open_for_writing()) as store:
        replica = store._promote()
        try:
            store.close()
        except PenstockError as error:
            # It has happened, whatever comes after it.
            logger.warning("%s is a master now, and was not closed cleanly: %s", store.root, error)
    return replica


class RecordEnd(NamedTuple):
    """Where a record of a log ends, or a segment begins, and the store time of the record before it."""

    offset: int
    time_ms: int


class FollowingOpener(Opener):
    """Opens a store once, for the bytes of another log."""

    follows: ClassVar[bool] = True

    def __init__(
        self, like: Opener, spawn: SpawnWorker | None, begin: FollowBegin | None = None, cut_at: int | None = None,
        expected: Replica | None = None,
    ) -> None:  # fmt: skip
        super().__init__(like.root, like.asked, like.registry, like.files, like.clock, spawn)
        self._begin, self._cut_at, self._expected = begin, cut_at, expected
        self.spawn: SpawnWorker = self._spawn

    def check_role(self, call: str) -> None:
        """Raise `CorruptionError` if the role cannot be read, `StorageError` if the store is not the expected one."""
        if self._expected not in (None, read_replica(self.files, self.root)):
            raise StorageError(
                f"{self.root} was promoted or accepted meanwhile; nothing was changed"
            )

    def extensions(self, context: Context) -> list[Extension]:
        """Return none: they would put."""
        return []

    def _open_locked(self, lock: Lock, geometry: Geometry, *, is_new: bool, began: int) -> Store:
        if self._begin is not None:
            self._begin_log(self._begin, geometry)
            is_new = not is_store(self.files, self.root)
        return super()._open_locked(lock, geometry, is_new=is_new, began=began)

    def _build(
        self, lock: Lock, log: SegmentedLog, context: Context, end: LogEnd, found: OpenState,
        policies: list[RetentionPolicy],
    ) -> tuple[Engine, Store]:  # fmt: skip
        engine, store = super()._build(lock, log, context, end, found, policies)
        self.held = HeldBatches(log.segment_bytes, part_of_batch(log, end))
        engine.flusher.shown = self.held.shown
        self.engine = engine
        self.desk = RequestDesk(context, engine.wakes)
        return engine, store

    def _inspect(self, log: SegmentedLog, geometry: Geometry, *, is_new: bool) -> OpenState:
        found = super()._inspect(log, geometry, is_new=is_new)
        kept = self._kept(log, found.end)
        if kept is None:
            return found
        saved = self._cut(log, geometry, found, kept)
        found = super()._inspect(log, geometry, is_new=is_new)
        found.saved_to = str(saved)
        return found

    def _kept(self, log: SegmentedLog, end: LogEnd) -> RecordEnd | None:
        """Return where the log is to end from now on; None to leave it as it is."""
        at = self._cut_at
        if at is None or at >= end.offset:
            return None
        if at < log.min_offset:
            raise ArgumentError(
                "open_follower", "cut_at", at, f"at least {log.min_offset}, where the log begins"
            )
        return record_end(log, at)

    def _cut(
        self, log: SegmentedLog, geometry: Geometry, found: OpenState, kept: RecordEnd
    ) -> Path:
        """Let the log end earlier, in a segment that replaces the last one; return where what it loses is saved.

        A crash before the end leaves a log that ends there, or later, where a segment ends, or where it did.
        """
        end, files, side = kept.offset, self.files, found.side_folder
        segment = log.find(end)
        assert segment is not None
        claim(files, found, geometry, self.profile)
        data, known = bytes(log.read(end, segment.end_offset - end)), found.end.offset - end
        # A torn tail, too.
        saved = side.save(f"cut-{end}", data[: max(known, len(data.rstrip(b"\0")))])
        state = found.progress.read()
        lowered = attrs.evolve(
            state, flushed_offset=min(state.flushed_offset, end), visible_offset=min(state.visible_offset, end),
            last_time_ms=min(state.last_time_ms, kept.time_ms),
            dispatched={name: min(reached, end) for name, reached in state.dispatched.items()},
            left_out=state.without(state.dispatched, end),
        )  # fmt: skip
        side.note_lost_end()
        side.renew_id()
        # First: a log that ends before what is durable is corrupt.
        found.progress.replace(lowered)
        log.truncate(segment.end_offset, side.saved)
        fresh = side.path / "new-segment"
        with files.create(fresh) as file:
            file.resize(segment.capacity)
            for at in range(0, end - segment.base_offset, _CHUNK_BYTES):
                size = min(_CHUNK_BYTES, end - segment.base_offset - at)
                file.pwrite(segment.pread(size, at), at)
            file.sync_all()
        files.rename(fresh, segment.path)
        files.sync_folder(log.folder)
        logger.warning(
            "%s was cut at log offset %d; what came after it is in %s", self.root, end, saved
        )
        return saved

    def _begin_log(self, begin: FollowBegin, geometry: Geometry) -> None:
        """Make the store a follower whose empty log begins at a log offset; each step may be the last of a crash."""
        files, root = self.files, self.root
        folder, side = root / "commitlog", SideFolder(files, root)
        log = SegmentedLog(files, folder, geometry.segment_bytes, mapped=False)
        log.load(repair=False)
        with contextlib.closing(log):
            if not all(segment.is_zero() for segment in log.segments):
                raise ArgumentError("open_follower", "begin", begin, "None for a log with records")
        replica = read_replica(files, root)
        if replica is not None and replica.role != FOLLOWER:
            raise ArgumentError(
                "open_follower", "begin", begin, "None for a store that is a master"
            )
        if replica is None:
            replica = Replica(history=NO_HISTORY, store=new_store_id(), role=FOLLOWER)
            write_replica(files, root, replica)
        side.make()
        if not files.exists(side.path / "geometry.json"):
            write_geometry(files, root, geometry, own_profile(files, root) or self.profile)
        progress = Progress(files, root)
        state = progress.read()
        if state.flushed_offset:
            # No byte is known to be durable: none is there.
            progress.replace(attrs.evolve(
                state, flushed_offset=0, visible_offset=0, dispatched={}, left_out=state.without([], 0)
            ))  # fmt: skip
        path = log.path_of(begin.log_offset) if begin.log_offset else None
        present = [each.path for each in files.entries(folder)] if files.is_folder(folder) else []
        for other in present:
            if other != path:
                files.remove(other)
        if path is not None and path not in [segment.path for segment in log.segments]:
            files.make_folder_durably(folder)
            fresh = side.path / "new-segment"
            with files.create(fresh) as file:
                file.resize(geometry.segment_bytes)
                file.sync_all()
            files.rename(fresh, path)
        if files.is_folder(folder):
            files.sync_folder(folder)


class PromotingOpener(FollowingOpener):
    """Opens a follower that becomes a master, without the begin of an atomic batch that is not whole."""

    def check_role(self, call: str) -> None:
        """Raise `StorageError` if the store is no follower."""
        replica = read_replica(self.files, self.root)
        if replica is None or replica.role != FOLLOWER:
            raise StorageError(f"{self.root} is no copy that follows a master; nothing was changed")
        if replica.history == NO_HISTORY:
            raise StorageError(f"{self.root} has nothing of a master yet; nothing was changed")

    def _kept(self, log: SegmentedLog, end: LogEnd) -> RecordEnd | None:
        part = part_of_batch(log, end)
        return None if part is None else record_end(log, part[0])


def record_end(log: SegmentedLog, stop: int) -> RecordEnd:
    """Return the last one in a log up to `stop`, an offset in it; the time is 0 if there is no record before."""
    segment = log.find(stop)
    assert segment is not None
    base = segment.base_offset
    found = RecordEnd(base, record_end(log, base - 1).time_ms if base > log.min_offset else 0)
    for records, _, _ in scan_segment(log, segment, base, segment.end_offset, Checks(log.coverage)):
        ends = records.log_offsets + records.sizes
        count = int(ends.searchsorted(stop, "right"))
        if count:
            found = RecordEnd(int(ends[count - 1]), int(records.store_times_ms[count - 1]))
        if count < len(records):
            break
    return found


def part_of_batch(log: SegmentedLog, end: LogEnd) -> Part | None:
    """Return begin and end of the atomic batch within which a log ends; None if it does not."""
    if end.last is None:
        return None
    last, number = end.last
    begin, mark = find_incomplete(log, last, end.offset, number), read_mark(number)
    if begin is None or mark is None:
        return None
    return begin, begin - begin % log.segment_bytes + mark.end


class FollowedStore:
    """A store that takes the bytes of another store's log; get it from `penstock.open_follower`.

    One thread at a time calls `accept`, `feed`, `forget` and `close`; all else is safe from any thread.

    Attributes:
        root: the store's folder.
        files: the file system.
        clock: the clock.
        spawn: starts a background thread, which ends with the store.
        segment_bytes: the size of a segment.
        replica: the store's identity; None if it was never copied.
        recovery: the report of the recovery at the opening.
        is_wanted: another process waits until this one closes the store, to promote it.
    """

    def __init__(self, opener: FollowingOpener, store: Store) -> None:
        self._store, self._engine = store, opener.engine
        self.root, self.files, self.clock = opener.root, opener.files, opener.clock
        self.spawn = opener.spawn
        self.recovery = store.recovery
        self.replica = read_replica(self.files, self.root)
        self._log = self._engine.log
        self.segment_bytes = self._log.log.segment_bytes
        body_bytes_max = opener.config.log.body_bytes_max
        self._record_max = max(body_bytes_max + _BESIDE_BODY_BYTES, _RECORD_BYTES_LEAST)
        self._stream = CopiedBytes(self.segment_bytes, self._record_max, self._log.end_offset)
        self._is_accepted = False
        self._held = opener.held
        self.is_wanted = False
        self._desk = opener.desk
        self._desk.attach(self)

    # --- what is there

    @property
    def min_offset(self) -> int:
        """The log offset of the first byte that is there."""
        return self._log.log.min_offset

    @property
    def end_offset(self) -> int:
        """The log offset after the last whole record or filler."""
        return self._log.end_offset

    @property
    def next_offset(self) -> int:
        """The log offset of the next byte that `feed` takes: `end_offset`, and the bytes of an incomplete record."""
        return self._stream.next_offset

    @property
    def flushed_offset(self) -> int:
        """Every byte of the log before it is durable."""
        return self._engine.flusher.flushed_offset

    @property
    def shown_offset(self) -> int:
        """Where readers stop at the latest: `end_offset`, or the begin of an atomic batch that is not whole."""
        return self._held.shown(self.end_offset)

    @property
    def is_empty(self) -> bool:
        """Whether the log has no byte."""
        return self.min_offset == self.end_offset

    @property
    def syncs_each(self) -> bool:
        """Whether puts wait for a sync under the flush policy, so that what was fed is to be flushed at once."""
        return self._engine.policy.waits

    @property
    def failure(self) -> StoreFailedError | None:
        """Why the store takes no more bytes until it is opened again; None if it takes them."""
        return self._engine.flusher.failure

    def read(self, log_offset: int, size: int) -> bytes:
        """Return up to `size` bytes of one segment from `log_offset` on; raises `OffsetError` if none is there."""
        log, end = self._log.log, self.end_offset
        if not log.min_offset <= log_offset < end:
            raise OffsetError(log_offset, log.min_offset, end)
        self._engine.show_written()
        with log.lease(log_offset) as segment:
            stop = min(log_offset + size, segment.end_offset, end)
            return bytes(log.read_from(segment, log_offset, stop - log_offset, is_copied=True))

    def digest(self, start: int, stop: int) -> bytes:
        """Return the SHA-256 of the bytes from `start` to `stop`; raises `OffsetError` if not all are there."""
        if not start <= stop <= self.end_offset:
            raise OffsetError(stop, self.min_offset, self.end_offset)
        return digest_of(self.read, start, stop)

    def publish(self, status: Mapping[str, Any]) -> None:
        """Replace the status for other processes (`penstock/replica-status`); a failure is no error."""
        with contextlib.suppress(OSError):
            write_status(self.files, self.root, status)

    # --- following

    def accept(self, replica: Replica, ranges: Mapping[str, Any]) -> None:
        """Make the store a follower, durably, of a master that has accepted it; only then `feed` takes bytes.

        Args:
            replica: the store's new identity, with the role "follower".
            ranges: what the master's `ReplicatedLog.ranges` returned.

        Raises:
            ReplicationError: the master has told an identity or ranges that cannot be; nothing was changed.
        """
        self._store._owner()
        if replica.role != FOLLOWER:
            raise ArgumentError("accept", "replica", replica, "that of a follower")
        try:
            checked(replica)
            known = read_ranges(self.files, self.root) or NO_RANGES
            followed = known.followed(ranges, self.end_offset)
        except (ValueError, TypeError, AttributeError) as error:
            raise ReplicationError(self.root, str(replica.master), str(error)) from error
        # In this order: a crash in between leaves the old role, whose next opening notes ranges of its own from there.
        write_ranges(self.files, self.root, followed)
        # Of the file: an interrupt may have come before the attribute was set.
        if replica != read_replica(self.files, self.root):
            write_replica(self.files, self.root, replica)
        self.replica = replica
        self._log.log.coverage = self._stream.coverage = followed.coverage
        self._is_accepted = True

    def feed(self, log_offset: int, data: Buffer) -> int:
        """Append the whole records of the master's next bytes; return the new `end_offset`.

        The bytes begin at `next_offset`, or again at `end_offset`. They may end within a record.

        Raises:
            OffsetError: they begin elsewhere; nothing was appended.
            CorruptionError: no log has these bytes there; its `position` is the log offset. Nothing was appended.
            DiskFullError: as much was appended as there was room for, up to `end_offset`.
            StoreFailedError: the store takes no more bytes.
        """
        self._store._owner()
        if not self._is_accepted:
            raise StorageError(f"no master has accepted {self.root} yet; nothing was appended")
        try:
            pieces = self._stream.take(log_offset, data)
            for piece in pieces:
                self._append(piece)
        except OffsetError:
            raise
        except BaseException:
            self.forget()
            raise
        end = self._stream.end_offset
        if pieces:
            self._log.appender.appended(end)
        return end

    def land(self, frames: bytes, log_offset: int) -> tuple[int, int]:
        """Append, in one step, the records in the frames with which some bytes begin, where the log ends.

        Takes frames as they come most often: whole, short, with whole and valid records, none of an atomic batch, that
        fit into the segment. Nothing is said about the rest: it is for `feed`. With `syncs_each`, `flush` must follow.

        Args:
            frames: frames, as `contracts.frame` makes them. The payload of one of kind "D" is a log offset (big-endian
                i64) and the log's bytes there.
            log_offset: where the first one is to begin.

        Returns:
            How many bytes were taken, and the log offset of the next byte to take.

        Raises:
            StoreFailedError: the store takes no more bytes.
        """
        self._store._owner()
        stream, held = self._stream, self._held.parts
        if held or not (
            self._is_accepted and log_offset == stream.end_offset == stream.next_offset
        ):
            return 0, log_offset
        try:
            taken, stream.end_offset = self._log.land(frames, log_offset, self._record_max)
            if taken and (self._engine.hears_appends or not self.syncs_each):
                self._log.appender.appended(stream.end_offset)
        except BaseException:
            self.forget()
            raise
        return taken, stream.end_offset

    def _append(self, piece: CopiedPiece) -> None:
        at, data, records = piece
        going_on = None if records is None else self._held.begin(records, at + len(data))
        self._log.append_copied(at, data, records)
        if self._held.parts:
            self._held.end(going_on, self.end_offset, self._engine.flusher.visible_offset)

    def remove_topics(self, told: Mapping[str, Any]) -> None:
        """Remove the topics that the master has removed, durably; called before a byte after their removal is fed.

        Args:
            told: all of them, as in the master's `ReplicatedLog.removed_topics`.

        Raises:
            ReplicationError: that cannot be; or the copy's queues of a topic lack messages of the log that the master's
                have, or have messages that they lack. Nothing was changed.
            StoreFailedError: the queues could not be removed; the next opening completes that.
        """
        engine, master = self._store._owner(), str(self.replica and self.replica.master)
        low, end = self.min_offset, self.end_offset
        known = engine.removed_topics.read()
        try:
            removed = RemovedTopics.of(told)
        except NOT_UNDERSTOOD as error:
            raise ReplicationError(self.root, master, f"its removed topics: {error}") from error
        before = {topic: removed.before_of(topic) for topic in {*removed.topics, *known.topics}}
        changed = [topic for topic in before if before[topic] != known.before_of(topic)]
        for topic in changed:
            hidden = min(known.before_of(topic), end)
            if max(before[topic], low) < hidden or low < before[topic] < end:
                text = f"topic {topic} was not removed there when it was here"
                raise ReplicationError(self.root, master, text, needs_copy=True)
        engine.removed_topics.write(removed)
        for topic in changed:
            if max(before[topic], known.before_of(topic)) > low:
                engine.remove_queues(topic, before[topic])
            engine.remove_offsets(topic)

    def keep_ends(self, told: Sequence[Sequence[Any]]) -> None:
        """Let queues go on where the master's do, durably.

        Args:
            told: as the master's `ReplicatedLog.lone_ends` returned it. A queue of which this log has records, or had
                some, does not change.

        Raises:
            ReplicationError: that cannot be; nothing was changed.
            StoreFailedError: the queues could not be written.
            OSError: likewise; a later call completes that.
        """
        engine = self._store._owner()
        try:
            ends = [QueueEnd.of(each) for each in told]
        except (TypeError, ValueError, MessageError) as error:
            master = str(self.replica and self.replica.master)
            raise ReplicationError(self.root, master, f"its ends of queues: {error}") from error
        index = engine.queue_index
        if ends and type(index).keep_end is QueueIndex.keep_end:
            text = "%s: %d queues without records begin at 0 after a promotion: dispatcher %s cannot keep their ends"
            logger.warning(text, self.root, len(ends), index.name)
        for end in ends:
            if end.log_offset < self.min_offset:
                index.keep_end(end)
        engine.checkpoints.write(again=True)

    def forget(self) -> None:
        """Forget the bytes of an incomplete record, as after a lost connection; `feed` begins at `end_offset` again."""
        self._stream.forget()
        self._stream.end_offset = self.end_offset

    def commit(self) -> int:
        """Pass what was appended to the system, so that it survives this process; return the log offset reached."""
        self._engine.show_written()
        return self._engine.flusher.committed_offset

    def flush(self, timeout_ms: int = -1) -> int:
        """Make everything durable that was fed; return the log offset reached, a lower one after `timeout_ms`."""
        return self._store._owner().flusher.flush(timeout_ms)

    # --- the end

    def let_go(self) -> None:
        """Ask this process to close the store; another process calls it by a request."""
        self.is_wanted = True

    def _promote(self) -> Replica:
        """Become a master, in one durable step; see `promote`."""
        assert self.replica is not None
        self.flush()
        self.replica = promoted(self.replica, self.end_offset)
        write_replica(self.files, self.root, self.replica)
        return self.replica

    def close(self) -> None:
        """Close the store; a second call does nothing. Raises the reason if it cannot be closed cleanly."""
        engine = self._engine
        self._desk.detach()
        is_whole = self.shown_offset == self.end_offset
        if is_whole or self._store._closed or engine.flusher.failure is not None:
            self._store.close()
            return
        try:
            self.flush()
            engine.follower.catch_up()
            engine.checkpoints.write()
        finally:
            self._store._closed = True
            engine.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # An error of the block is more telling than one of the close.
        with contextlib.suppress(PenstockError) if error[0] else contextlib.nullcontext():
            self.close()
