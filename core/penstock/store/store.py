"""The public class `Store`: put, read, find, follow; see `penstock.open`."""

import atexit
import inspect
import itertools
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, NoReturn, Self, Unpack, cast

from penstock._kernel import Batch, Producer
from penstock.contracts import (
    Dispatcher,
    Extension,
    GroupLag,
    PutOptions,
    QueueReader,
)
from penstock.contracts.dispatcher import Finding
from penstock.contracts.foreign import LMQ_OFFSETS, ROCKSDB_CONFIG, Foreign
from penstock.dispatch.tail_follower import pick_indexes
from penstock.durability.side_folder import RemovedTopicsFile
from penstock.errors import (
    ForeignContentError,
    ForkedStoreError,
    ReadOnlyError,
    StorageError,
    StoreFailedError,
)
from penstock.escape import get_logger
from penstock.files.lock_file import leave_in_child
from penstock.format import arguments
from penstock.format.names import check_queue, check_topic, is_hidden_progress
from penstock.integrity.verification import Tally, Verification
from penstock.log.commit_log import STOPPED
from penstock.log.segmented_log import SegmentedLog
from penstock.message import Durability, Message, Receipt, StoreStats
from penstock.read.queues import TopicSpace, has_queues, served, space_by_topic
from penstock.recovery.log_end import RecoveryReport
from penstock.retention.runner import RetentionForecast
from penstock.runtime.waking import Wakes
from penstock.runtime.workers import (
    HandlerThread,
    is_interrupt,
    is_main_thread,
    is_signal_handler,
    run_aside,
)
from penstock.store.batches import append_encoded
from penstock.store.consumer_offsets import ConsumerOffsets, check_group, check_known, check_offset
from penstock.store.engine import Engine
from penstock.store.extension_calls import ExtensionCalls
from penstock.write.validation import (
    add_copy,
    check_messages,
    check_wait,
    encode_messages,
    listed,
    rewritten,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.store.lowlevel import LowLevelStore


logger = get_logger(__name__)

# Logged, since the caller gets the error for which the opening failed.
_NOT_CLOSED = "%s could not be closed cleanly after its opening failed"
# Processes of one verification; more than a machine has cores only cost memory.
_JOBS_MAX = 4096


class Store(ExtensionCalls, Producer):
    """A message store, returned by `penstock.open`. Safe from any thread.

    Attributes:
        path: the store's folder.
        recovery: the report of the recovery at opening; None for a store opened read-only.
    """

    # What closes the store for a signal handler that is within a call, and why that has failed.
    _closer: HandlerThread | None = None
    _late_error: BaseException | None = None

    def __init__(
        self,
        path: Path,
        log: SegmentedLog,
        dispatchers: Sequence[Dispatcher],
        *,
        engine: Engine | None,
        offsets: ConsumerOffsets,
        outlook: RetentionForecast,
        verification: Verification,
        wakes: Wakes,
        removed_topics: RemovedTopicsFile,
        extensions: Sequence[Extension] = (),
        published: Callable[[], int | None] = lambda: None,
        not_understood: Sequence[Foreign] = (),
        opened_at: str | None = None,
    ) -> None:
        queue_index: QueueReader
        queue_index, key_index = pick_indexes(dispatchers)
        self._not_understood = tuple(not_understood)
        queue_index = served(queue_index, log, path, not_understood)
        super().__init__(
            log,
            queue_index,
            key_index,
            live=engine is None,
            published=published,
            wakes=wakes,
            removed_before=lambda topic: removed_topics.read().before_of(topic),
        )
        self.path = path
        self.recovery: RecoveryReport | None = None
        self._engine = engine
        self._offsets = offsets
        self._outlook = outlook
        self._verification = verification
        self._extensions = extensions
        self._removed_topics = removed_topics
        self._opened_at = opened_at
        # Reentrant: a signal handler may close the store while its own thread does.
        self._closing = threading.RLock()
        if engine is not None:
            self._opened_by = engine.files.process_id()
            self._produce_by(engine.log.appender)
            leave_in_child(self)

    def _attach(self, lowlevel: "LowLevelStore", announce: Callable[[], None] = lambda: None) -> None:  # fmt: skip
        """Attach the extensions, once the store is open, and announce it; closes the store if one of these raises.

        They and their threads get an object of their own: if they had this one, nobody would notice that the program
        has dropped it.
        """
        self._lowlevel, self._kept = lowlevel, weakref.ref(lowlevel)
        try:
            for each in self._extensions:
                each.attach(lowlevel)
            announce()
        except BaseException:
            try:
                self._close_here()
            except Exception:
                logger.exception(_NOT_CLOSED, self.path)
            raise

    def _give_up(self) -> None:
        """Release a store whose opening has failed, unless it is closed; its lock once its last thread has ended."""
        with self._closing:
            if self._closed or self._engine is None:
                return
            try:
                if "_lowlevel" in vars(self):
                    self._detach()
            finally:
                try:
                    self._engine.abandon()
                except Exception:
                    logger.exception(_NOT_CLOSED, self.path)
                finally:
                    self.leave()

    @property
    def lowlevel(self) -> "LowLevelStore":
        """The calls for extensions, Spark and tools; `LowLevelStore` lists them."""
        kept = self._kept()
        if kept is None or not kept.keeps_open:
            # Of its own, so that this object is not dropped, which closes the store, while that one is in use.
            kept = type(self._lowlevel)(self, keeps_open=True)
            self._kept = weakref.ref(kept)
        return kept

    def leave(self) -> None:
        """Disable the store in a forked child: every call is refused from now on, and close does nothing."""
        if self._engine is not None:
            self._engine.log.appender.refuse(STOPPED)
        self._closer = self._late_error = None
        if not self._closed:
            self._closed, self._why_closed = True, ForkedStoreError(self.path, self._opened_by)

    def _leave_if_forked(self, engine: Engine) -> None:
        """Call `leave` if the process was forked without Python's knowledge (in C, by another language's runtime)."""
        if engine.log.appender.is_in_child:
            self.leave()

    # Not for type checkers, which would then let any name pass.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Say of a missing name that `lowlevel` has it, if so."""
            kind, lowlevel = type(self).__name__, type(self.__dict__.get("_lowlevel"))
            hint = (
                ", but store.lowlevel has it" if kind == "Store" and hasattr(lowlevel, name) else ""
            )
            text = f"{kind!r} object has no attribute {name!r}{hint}"
            raise AttributeError(text, name=name, obj=self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "read-only" if self._engine is None else "for writing"
        return f"<Store {str(self.path)!r}, {state}>"

    @property
    def read_only(self) -> bool:
        """Whether the store was opened read-only."""
        return self._engine is None

    def _writer(self) -> Engine:
        """Return the writing half; raises if messages may not be put."""
        engine = self._engine
        if (
            self._closed
            or engine is None
            or engine.log.appender.refusals
            or engine.log.appender.is_in_child
        ):
            engine = self._owner()
        if (refusal := engine.log.refusal) is not None:
            raise ReadOnlyError(refusal)
        return engine

    def _check_writable(self) -> None:
        self._writer()

    def _owner(self) -> Engine:
        """Return the writing half, even while a retention policy refuses puts; raises if it cannot be used."""
        engine = self._engine
        if engine is not None:
            self._leave_if_forked(engine)
        self._check_open()
        if engine is None:
            raise ReadOnlyError
        if engine.flusher.failure is not None:
            raise engine.flusher.failure
        return engine

    def _make_readable(self, needed: Dispatcher | None = None) -> None:
        super()._make_readable()
        engine = self._engine
        if engine is not None:
            engine.show_written()
            # A failing dispatcher would answer without the records that it has not processed.
            engine.follower.require(needed or engine.queue_index)

    def _show(self) -> None:
        super()._show()
        if self._engine is not None:
            self._engine.show_written()

    def _show_all(self) -> None:
        """Like `_make_readable`, for callers that report the dispatchers' progress themselves."""
        self._show()
        if self._engine is not None:
            self._engine.follower.catch_up()

    # --- putting

    def _put_rewritten(self, message: Message) -> Receipt:
        """Store what takes the place of a message with a delay or a partition key; see `Producer`."""
        engine = self._writer()
        batch = Batch(engine.log.encoder)
        made = rewritten(batch, message)
        if isinstance(made, tuple):
            add_copy(batch, *made)
            time_ms, known = append_encoded(engine, batch, wait=message.wait)
            return batch.receipts(time_ms, *known)[0]
        return self.put(
            made.topic, made.body, queue=made.queue, tag=made.tag, keys=made.keys, properties=made.properties,
            flag=made.flag, wait=made.wait, born_time_ms=made.born_time_ms, born_host=made.born_host,
        )  # fmt: skip

    def submit(self, topic: str, body: bytes, **options: Unpack[PutOptions]) -> "Future[Receipt]":
        """Append one message; the future is done when it is durable, under any flush policy, and its copies are known.

        The arguments are those of `put`; `wait` has no effect. The message is in the log when this returns.
        """
        engine = self._writer()
        options["wait"] = False
        receipt = self.put(topic, body, **options)
        future: Future[Receipt] = Future()
        future.set_running_or_notify_cancel()

        end = receipt.log_offset + receipt.size

        def notify() -> None:
            failure = engine.flusher.outcome(end)
            if future.done():
                return
            if failure is None and engine.copying is not None and engine.copying.gate is not None:
                engine.copying.submitted(receipt, future)
            elif failure is None:
                future.set_result(receipt._replace(durability=Durability.ON_DISK))
            else:
                future.set_exception(failure)

        engine.flusher.add_waiter(end, notify)
        engine.request_flush()
        return future

    def put_many(self, messages: Iterable[Message], *, atomic: bool = False) -> Sequence[Receipt]:
        """Append many messages under one lock, consecutive in the log; one receipt each.

        Stores all messages or none: if a message cannot be stored, or the disk is full, no message is stored. The
        batch may span multiple segments, and a crash may leave its first messages; with `atomic` it is stored in one
        segment or refused, and also after a crash all messages are there or none. A flush policy that waits does so
        once for the whole batch, and only if a message requests it.

        Raises:
            ArgumentError: `messages` is not an iterable of `Message`; nothing was stored.
            MessageError: a message cannot be stored; a note names it, and nothing was stored.
        """
        engine, given = self._writer(), listed(messages)
        atomic = arguments.flag("put_many", "atomic", atomic)
        try:
            batch = encode_messages(engine.log.encoder, given)
        except TypeError:
            # The kernel refuses what is no message; this finds the words.
            check_messages(given)
            raise
        engine.log.check_put(batch.largest)
        wait = any(check_wait(message.wait) for message in given)
        time_ms, known = append_encoded(engine, batch, atomic=atomic, wait=wait)
        return batch.receipts(time_ms, *known)

    def put_arrow(
        self, table: "pa.Table", *, atomic: bool = False, wait: bool = True
    ) -> "pa.Table":
        """Append the rows of an Arrow table; returns their receipts as a table.

        The columns `topic` (string) and `body` (binary or string) are required. The columns `queue`, `tag`, `keys`
        (space-separated string, or list of strings), `properties` (map of strings), `flag` and
        `born_time` (timestamp, or integer milliseconds) are optional; others are refused. Rows are encoded from the
        columns, without a Python object per row. Stores all rows or none, like `put_many`.
        """
        from penstock.write import from_arrow  # noqa: PLC0415 - pyarrow is an extra, and slow to import

        engine = self._writer()
        atomic = arguments.flag("put_arrow", "atomic", atomic)
        wait = arguments.flag("put_arrow", "wait", wait)
        from_arrow.check_table("put_arrow", table)
        batch = from_arrow.encode_table(engine.log.encoder, table)
        engine.log.check_put(batch.largest)
        time_ms, known = append_encoded(engine, batch, atomic=atomic, wait=wait)
        return from_arrow.receipts(batch, time_ms, *known)

    # --- consumer offsets

    def commit_offset(self, group: str, topic: str, queue: int, *, offset: int) -> None:
        """Commit durably that a group has read a queue up to, but not including, `offset` (any integer type).

        Raises `MessageError` for an invalid group, topic or queue, and `CommitError` if the store has no such
        queue or the offset is after the queue's end. Nothing is written if it raises.
        """
        self._owner()
        check_group(group)
        topic, queue = check_topic(topic), check_queue(queue)
        # The ends of the queues are known only once all records are dispatched.
        self._make_readable()
        end = check_known(self._queue_index, group, topic, queue, offset)
        self._offsets.put(group, topic, queue, check_offset(group, topic, queue, offset, end))

    def committed_offset(self, group: str, topic: str, queue: int) -> int | None:
        """Return the offset a group reads next; None if it never committed one."""
        self._check_offsets()
        return self._offsets.get(group, topic, queue)

    def groups(self, *, system: bool = False) -> list[GroupLag]:
        """Return the committed offset, and the lag, of each group in each queue, sorted, where it has one.

        With `system` also the groups and topics that RocketMQ and Penstock keep for themselves, such as
        `%RETRY%<group>`, where nacked messages are redelivered.

        What a consumer acknowledged in the last second may not be in it yet; `Consumer.lag` has it. Invalid entries are
        left out; `stats()["offsets_set_aside"]` names them.
        """
        system = arguments.flag("groups", "system", system)
        self._check_offsets()
        self._make_readable()
        end = self._queue_index.max_offset
        return [
            GroupLag(group, topic, queue, offset, max(end(topic, queue) - offset, 0))
            for (group, topic), queues in sorted(self._offsets.groups().items())
            if system or not is_hidden_progress(group, topic)
            for queue, offset in sorted(queues.items())
        ]

    def _check_offsets(self) -> None:
        self._check_open()
        elsewhere = [
            each for each in self._not_understood if each.kind in (LMQ_OFFSETS, ROCKSDB_CONFIG)
        ]
        if elsewhere:
            listed = [(each.kind.name, each.text) for each in elsewhere]
            raise ForeignContentError(self.path, "committed offsets cannot be read", listed)

    # --- the whole

    def flush(self) -> int:
        """Make all messages put so far durable; returns the log offset up to which the log is durable.

        Raises `StoreFailedError` if that fails; from then on the store takes no more writes.
        """
        return self._owner().flusher.flush()

    def retain(self) -> int:
        """Delete the segments that the retention policies expire; returns how many were deleted."""
        return _run_deletion(self._owner().run_retention)

    def space(
        self, below: int = 0, on_progress: Callable[[int], None] = lambda _: None
    ) -> list[TopicSpace]:
        """Return the log space that each topic uses, the largest first; changes nothing.

        Args:
            below: also report how much of it is before this log offset.
            on_progress: called during the work with the number of queues done.
        """
        self._make_readable()
        arguments.function("space", "on_progress", on_progress)
        below = arguments.whole("space", "below", below)
        return space_by_topic(self._queue_index, below, on_progress)

    def discard_before(self, *, log_offset: int = 0, time: float | datetime | timedelta = 0) -> int:
        """Delete the segments that end at or before a log offset, or were last written before a time.

        Ignores the retention policies. Never deletes the last segment, nor one that is still being read; syncs log,
        queues and index first where that is needed. Returns how many were deleted.

        Args:
            log_offset: delete what ends at or before it; 0 or less deletes nothing.
            time: delete what was last written before it: a `datetime` with a time zone, Unix seconds, or a `timedelta`:
                so long ago.

        Raises:
            ArgumentError: an argument has a wrong type or value; nothing was deleted.
            StorageError: a sync or a deletion failed; segments before that one are deleted.
        """
        retention = self._owner().retention
        call = "discard_before"
        offset = arguments.whole(call, "log_offset", log_offset, arguments.INT64_MIN)
        before_ms = arguments.moment_ms(call, "time", time, up=True)
        return _run_deletion(lambda: retention.delete_before(offset, before_ms))

    def stats(self) -> StoreStats:
        """Return figures about the store as a dictionary; `StoreStats` says what each means.

        Offsets are in bytes. The number of queues includes only queues of the log below `dispatched_offset`.
        """
        self._show_all()
        if self.read_only:
            self._log.refresh()
        segments = self._log.segments
        is_known = has_queues(self._queue_index)
        figures: StoreStats = {
            "path": str(self.path),
            "read_only": self.read_only,
            "log_min_offset": self._log.min_offset,
            "log_end_offset": self._log_end() if is_known else None,
            "dispatched_offset": self._dispatched_offset() if is_known else None,
            "segments": len(segments),
            "log_bytes": sum(segment.capacity for segment in segments),
            "queues": len(self._queue_index.queues()) if is_known else None,
            "damaged_reads": self._damaged_reads,
            "offsets_set_aside": self._offsets.set_aside(),
            "not_understood": [
                {
                    "kind": each.kind.name,
                    "text": each.text,
                    "stops_writing": each.kind.stops_writing,
                }
                for each in self._not_understood
            ],
        }
        if self._engine is not None:
            figures.update(cast(StoreStats, self._engine.stats()))
        return figures

    def verify(
        self,
        on_progress: Callable[[Tally], None] = lambda _: None,
        *,
        deep: bool = False,
        jobs: int = 1,
    ) -> Iterator[Finding]:
        """Check log, queues and index against each other and return the findings; changes nothing.

        Args:
            on_progress: called during the work with the counts so far.
            deep: also compare sealed segments with their digests, and check the checkpoint and Penstock's own files.
            jobs: the number of processes that share the segments. They are spawned, so a script that uses more
                than one must guard its own code with `if __name__ == "__main__"`.
        """
        self._show_all()
        arguments.function("verify", "on_progress", on_progress)
        deep = arguments.flag("verify", "deep", deep)
        jobs = arguments.whole("verify", "jobs", jobs, 1, _JOBS_MAX)
        failing = self._engine.follower.failing(self.path) if self._engine is not None else []
        # It keeps the store while it is read.
        own = (
            finding for one in (self,) for each in one._extensions for finding in each.findings()
        )
        run = self._verification.run(on_progress, deep=deep, jobs=jobs)
        return itertools.chain(failing, run, own)

    def _log_end(self) -> int:
        if self._engine is not None:
            return self._engine.log.end_offset
        return self._dispatched_offset()

    def _dispatched_offset(self) -> int:
        # The last record may be of a deleted topic; another process may not have published the last entry.
        return max(self._queue_index.end_log_offset(), self._complete_offset())

    def close(self) -> None:
        """Close the store; one opened for writing is then durable and marked clean, otherwise this raises the reason.

        Does nothing while another thread closes it. A signal handler may call it: if it has interrupted a call of this
        store, which may hold what the close needs, a thread closes the store, and the handler waits for a second. The
        next close in the main thread, or the end of the process, waits until the store is closed, and raises why that
        has failed.
        """
        if self._engine is not None:
            self._leave_if_forked(self._engine)
        called = self._called_within(sys._getframe())
        if any(map(is_signal_handler, called)):
            self._close_aside()
        else:
            self._close_here(is_outside=not called and is_main_thread())

    def _close_here(self, *, is_outside: bool = False) -> None:
        # Not within a call, which the thread may wait for.
        waits = is_outside and self._closer is not None and self._closer.is_alive()
        if self._closed and not waits and not (is_outside and self._late_error):
            return
        if not self._closing.acquire(blocking=waits):
            # Another thread is closing it: it may wait for this one, such as a consumer's handler.
            return
        try:
            error, self._late_error = self._late_error, None
            if not self._closed:
                self._close()
            elif error is not None:
                raise error
        finally:
            self._closing.release()

    def _close_aside(self) -> None:
        """Let a thread close the store, and wait for it as long as a signal handler may."""
        if self._closed:
            return
        closer = self._closer
        if closer is None or not closer.is_alive():
            # In this order: a second signal may come in between.
            atexit.register(self._close_at_exit)
            self._closer = closer = HandlerThread(self._close_in_turn)
        if not closer.run_shortly():
            self._close_here()

    def _close_in_turn(self) -> None:
        with self._closing:
            try:
                if not self._closed:
                    self._close()
            except BaseException as error:
                # The next close raises it, or that at the end of the process.
                self._late_error = error
                return
            self._late_error = None
        atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        if self._engine is not None:
            self._leave_if_forked(self._engine)
        self._close_here(is_outside=True)

    def _called_within(self, frame: FrameType | None) -> list[FrameType]:
        """Return the program's frames that a call of this store has called, or interrupted it, in the main thread.

        The stack shows them, at no cost for the calls themselves.
        """
        frames, last = list[FrameType](), 0
        while frame is not None and is_main_thread():
            is_own = str(frame.f_globals.get("__name__")).startswith("penstock")
            if is_own and self._is_part(frame.f_locals.get("self")):
                last = len(frames)
            elif not is_own:
                frames.append(frame)
            frame = frame.f_back
        return frames[:last]

    def _is_part(self, owner: object) -> bool:
        """Return whether this is the store, a part of its engine, or what an extension has made for its users."""
        if isinstance(owner, Store):
            return vars(owner) is vars(self)
        parts = [] if self._engine is None else [self._engine, *vars(self._engine).values()]
        return getattr(owner, "_store", owner) is self._lowlevel or (
            owner is not None and any(owner is part for part in parts)
        )

    def _close(self) -> None:
        if self._engine is None:
            self._detach()
            super().close()
            return
        # A signal handler may call this during an append of its own thread, which would continue after the close.
        self._engine.log.lock.refuse_within()
        self._detach()
        # If close is interrupted here, puts only check first whether they are allowed.
        self._engine.log.appender.refuse(STOPPED)
        self._closed = self._engine.is_interrupted = True
        try:
            self._engine.close()
        finally:
            # An interrupt may leave the close incomplete; close may then be called again.
            self._closed = not self._engine.is_interrupted

    def __del__(self) -> None:
        engine = self.__dict__.get("_engine")
        if engine is not None:
            self._leave_if_forked(engine)
        if self.__dict__.get("_closed", True) or self._opened_at is None:
            return
        try:
            # At the end of the process the close would wait for threads that run no more; the next open recovers the
            # store.
            if not sys.is_finalizing() and "_lowlevel" in self.__dict__:
                # The garbage collector may run in any thread, also in one that the close waits for.
                run_aside(self._lowlevel.close)
        finally:
            place = f", opened at {self._opened_at}," if self._opened_at else ""
            text = f"the store {self.path}{place} was dropped without a close; call close(), or open it in a `with`"
            warnings.warn(text, ResourceWarning, source=self, stacklevel=2)

    def _detach(self) -> None:
        """End the work of the extensions, which may still put."""
        for each in reversed(self._extensions):
            try:
                each.detach()
            except Exception as error:
                if is_interrupt(error):
                    raise
                logger.exception("extension %r failed in detach; the store is closed anyway", each.name)  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except StoreFailedError as failure:
            # An error raised in the block takes precedence; otherwise the caller must get this one.
            if kind is None:
                raise
            if self._closer is not None:
                # Such as the end of a handler: it is told at the end of the process.
                self._late_error = failure


# A `TypeError` names the class in which a function was written; users know this one.
for _name, _call in inspect.getmembers(Store, inspect.isfunction):
    _call.__qualname__ = f"{Store.__name__}.{_name}"


def _run_deletion(job: Callable[[], int]) -> int:
    try:
        return job()
    except OSError as error:
        raise StorageError(
            f"a segment could not be deleted ({error}); no other data is affected, and the next retention run "
            f"retries it"
        ) from error


def place_of_program() -> str:
    """Return file and line of the program that called Penstock; empty in a thread that another package started."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and _is_within(frame.f_globals.get("__name__", ""), "penstock"):
        frame = frame.f_back
    if frame is None or _is_within(frame.f_globals.get("__name__", ""), "concurrent"):
        return ""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_within(module: str, package: str) -> bool:
    return module.partition(".")[0] == package
