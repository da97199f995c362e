"""The consumer of a group: delivers messages, takes the answers, and keeps its place in the group.

Locks: `_lock` protects what is in flight, and is held for microseconds, or for one record of an answer; reading
messages, syncing and giving queues back happen without it. It is reentrant: a queue may be found lost under it.
"""

import atexit
import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from types import FrameType, TracebackType
from typing import Protocol, Self
from weakref import WeakMethod

from penstock.contracts import Consumer, Context, GroupLag, OpenStore, Pending, Stoppable
from penstock.contracts.messaging import AnsweredMessages
from penstock.errors import (
    ArgumentError,
    ConsumerClosedError,
    ForkedStoreError,
    PenstockError,
    StorageError,
)
from penstock.escape import get_logger
from penstock.files.lock_file import leave_in_child
from penstock.format import arguments
from penstock_messaging.consuming.answers import (
    Answers,
    BoundAcks,
    RetryRules,
    Tickets,
    level_for,
    reason_text,
)
from penstock_messaging.consuming.assigned_queues import AssignedQueues
from penstock_messaging.consuming.consumed_message import LATE, OUT, HandedMessage
from penstock_messaging.consuming.consumer_options import CheckedOptions
from penstock_messaging.consuming.fetching import Fetcher
from penstock_messaging.consuming.in_flight import Handling, Holder, InFlight
from penstock_messaging.consuming.queue_rights import GroupMembership, OnQueue
from penstock_messaging.consuming.workers import HandlerRun

logger = get_logger(__name__)

# How often a consumer looks for new topics and members, records progress, and syncs unawaited acknowledgements.
STEP_S = 1.0
# A look for new queues lists all of them. The next look is this many times as long away, if others are put.
_LOOK_PAUSE = 20
_LIMIT_MAX = 1_000_000
# A year; more is as good as without end.
_TIMEOUT_MAX_S = 365 * 86_400.0


class MakeClaims(Protocol):
    """Makes a consumer's membership in its group."""

    def __call__(
        self, on_claimed: OnQueue, on_wanted_back: OnQueue, wake: Callable[[], None]
    ) -> GroupMembership:
        """Return it.

        Args:
            on_claimed: called with each queue that was taken.
            on_wanted_back: called with each queue that must be given back.
            wake: called when another consumer in this process joins or leaves: `step` is to be called soon.
        """


class _Hand:
    """The message that a thread got last, one at a time."""

    __slots__ = ("is_left", "message")

    def __init__(self) -> None:
        self.message: HandedMessage | None = None
        # Whether the iteration that delivered it has ended.
        self.is_left = False


def _topics(call: str, topics: tuple[str, ...]) -> tuple[str, ...]:
    """Return names of topics; refuses a pattern, which would silently be no topic's name."""
    names = arguments.texts(call, "topics", topics)
    for name in names:
        if "*" in name:
            expected = "names of topics, not patterns; none at all for all topics"
            raise ArgumentError(call, "topics", name, expected)
    return names


class GroupConsumer:
    """A member of a group, or a broadcast reader (`contracts.Consumer`). Safe from any thread.

    Attributes:
        group: the group's name.
        options: its options.
    """

    def __init__(
        self,
        context: Context,
        store: OpenStore,
        group: str,
        options: CheckedOptions,
        make_claims: MakeClaims,
        rules: RetryRules,
        *,
        retry_topic: str | None,
        on_closed: Callable[["GroupConsumer"], None] = lambda _: None,
    ) -> None:
        self.group, self.options = group, options
        self._context, self._store = context, store
        self._on_closed = on_closed
        self._now_ns = context.clock.monotonic_ns
        self._lock = threading.RLock()
        self._in_flight = InFlight(
            ack_wait_ns=int(options.ack_wait * 1e9), out_max=options.max_in_flight,
            ordered=options.ordered, answers=not options.broadcast, is_last=rules.is_last,
        )  # fmt: skip
        self._fetcher = Fetcher(store, self._in_flight, self._lock, options.tag)
        self._queues = AssignedQueues(
            self, store, self._in_flight, self._lock, self._fetcher, retry_topic, self.rouse
        )
        self._answers = Answers(
            self, self._lock, self._in_flight, self._queues, rules, self._now_ns, ordered=options.ordered
        )  # fmt: skip
        self._claims = make_claims(self._queues.add, self._queues.want_back, self.wake)
        # One for each thread that waits; how many wait, and whether one may wait for another's answer.
        self._waiters = deque([store.waiter()])
        self._rouser = store.waiter()
        self._waiting, self._waits_for_answer = 0, False
        self._hands: dict[int, _Hand] = {}
        self._failure: PenstockError | None = None
        # Whether no more messages are delivered: it is closing, or has failed.
        self._is_over = self._is_closing = self._is_closed = False
        # Whether a signal handler has closed it in the middle of a call, so that the rest of the close is left to do.
        self._is_close_due = False
        self._closing = threading.Lock()
        self._worker: Stoppable | None = None
        # What the worker is to do now, and when it looks for members and queues the next time.
        self._is_asked = self._is_to_read = self._is_to_look = False
        self._step_at_ns = self._look_at_ns = 0
        self._run: HandlerRun | None = None
        self._process = context.files.process_id()
        self._at_exit = partial(_call, WeakMethod(self._end_at_exit))
        leave_in_child(self)

    def start(self) -> None:
        """Join the group."""
        try:
            self._claims.start()
            # A program that ends without `close` ends cleanly, too.
            atexit.register(self._at_exit)
            self._worker = self._context.spawn(f"penstock-consumer-{self.group}", self._step)
        except BaseException:
            self._close_from(sys._getframe(1))
            raise

    def wake(self) -> None:
        """Look for members and queues now. Safe from any thread."""
        self._is_asked = True
        self._wake_worker()

    def read_ahead(self) -> None:
        """Called before a wait for the disk: read the next messages meanwhile, if there are probably more."""
        if self._fetcher.may_read_ahead and not self._is_to_read:
            self._is_to_read = True
            self._wake_worker()

    def _look_for_queues(self) -> None:
        """Called when something was put, and nothing was found: look for a topic or queue that is new."""
        if not self._is_to_look:
            self._is_to_look = True
            self._wake_worker()

    def _wake_worker(self) -> None:
        worker = self._worker
        if worker is not None:
            worker.wake()

    def leave(self) -> None:
        """Refuse every call, in a forked child: the queues belong to the parent."""
        # Another thread of the parent may have held the lock. As the standard library does with its own locks.
        self._lock._at_fork_reinit()  # type: ignore[attr-defined] # not in the stubs
        self._failure = ForkedStoreError(self._context.root, self._process)
        self._is_over = self._is_closing = self._is_closed = True
        self._queues.leave()

    def _step(self) -> float | None:
        is_between = self._is_to_read or self._is_to_look
        if self._is_to_read:
            self._fetcher.fetch_ahead()
            self._is_to_read = False
        now_ns = self._now_ns()
        if self._is_to_look and now_ns >= self._look_at_ns:
            self._look(now_ns)
        if is_between and not self._is_asked and now_ns < self._step_at_ns:
            until_ns = self._look_at_ns if self._is_to_look else self._step_at_ns
            return max(min(until_ns, self._step_at_ns) - self._now_ns(), 0) / 1e9
        self._is_asked = False
        self._step_at_ns = self._now_ns() + int(STEP_S * 1e9)
        try:
            if not self._is_closing:
                self._claims.step()
                self._expire()
                self._queues.record()
        except Exception as error:
            logger.exception("the consumer of group %s stopped", self.group)
            failure = StorageError(
                f"the consumer of group {self.group} stopped: {error}; what was acknowledged with sync=True is not "
                f"affected, and what was not acknowledged is redelivered: close it, and make a new one"
            )
            failure.__cause__ = error
            self._failure = self._failure or failure
            self._is_over = True
            self.rouse()
            return None
        return STEP_S

    def _look(self, now_ns: int) -> None:
        self._is_to_look = False
        # If this fails, the next step does as well, and says so.
        with contextlib.suppress(PenstockError, OSError):
            self._is_asked |= not self._is_closing and self._claims.has_new()
        self._look_at_ns = now_ns + (self._now_ns() - now_ns) * _LOOK_PAUSE

    def _expire(self) -> None:
        with self._lock:
            has_more = self._in_flight.mend(self._fetcher.queues, self._now_ns())
            has_more |= self._in_flight.expire(self._now_ns())
        self._queues.hand_back_leaving()
        if has_more:
            self.rouse()

    def rouse(self) -> None:
        """Make all threads that wait look again."""
        self._rouser.interrupt()

    @property
    def forked(self) -> ForkedStoreError | None:
        """Why nothing can be answered in a forked child; None elsewhere."""
        return self._failure if isinstance(self._failure, ForkedStoreError) else None

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_closing:
            raise ConsumerClosedError(self.group)

    # --- delivering

    def _take(self, limit: int, by: object) -> list[HandedMessage]:
        """Deliver messages that are fetched."""
        with self._lock:
            if self._is_over:
                self._check()
            found = self._in_flight.take(limit, self._now_ns(), by)
            return self._answers.hand_out(found) if found and not self.options.broadcast else found

    def take(self, limit: int = 1) -> list[HandedMessage]:
        """Deliver up to `limit` messages that were read ahead; neither reads nor waits."""
        return self._take(arguments.whole("take", "limit", limit, 1, _LIMIT_MAX), None)

    def gather(self, limit: int = 1) -> list[HandedMessage]:
        """Deliver up to `limit` messages that are there, reading ahead; does not wait for new ones."""
        limit = arguments.whole("gather", "limit", limit, 1, _LIMIT_MAX)
        found = self._gather(limit, None, None)
        if not found:
            self._look_for_queues()
        return found

    def _gather(self, limit: int, by: object, until_ns: int | None) -> list[HandedMessage]:
        found = self._take(limit, by)
        while not found and self._fetcher.fetch(limit):
            found = self._take(limit, by)
            if until_ns is not None and self._now_ns() >= until_ns:
                break
        return found

    def _await(self, limit: int, by: object, until_ns: int | None) -> list[HandedMessage]:
        """Deliver messages, waiting for the first one."""
        try:
            waiter = self._waiters.pop()
        except IndexError:
            waiter = self._store.waiter()
        with self._lock:
            self._waiting += 1
        was_woken = True
        try:
            while True:
                # Before the check: an answer after it ends the rest.
                self._waits_for_answer = True
                waiter.ask()
                found = self._gather(limit, by, until_ns)
                if found:
                    waiter.go_on()
                    return found
                if was_woken:
                    self._look_for_queues()
                rest_s = self._rest_s(until_ns)
                if until_ns is not None and self._now_ns() >= until_ns:
                    return []
                was_woken = waiter.rest(rest_s)
                # Most often there is something: then nothing need be asked.
                found = self._gather(limit, by, until_ns)
                if found:
                    waiter.go_on()
                    return found
        finally:
            with self._lock:
                self._waiting -= 1
                if not self._waiting:
                    self._waits_for_answer = False
            self._waiters.append(waiter)

    def _rest_s(self, until_ns: int | None) -> float | None:
        """Return for how long there is nothing to do; None until something happens."""
        with self._lock:
            flight = self._in_flight
            self._waits_for_answer = (
                flight.is_full or self.options.ordered or self._queues.has_limit()
            )
            due_ns, now_ns = flight.due_ns(), self._now_ns()
        times = [each for each in (due_ns, until_ns) if each is not None]
        return max(min(times) - now_ns, 0) / 1e9 if times else None

    def poll(self, limit: int = 1, timeout: float | timedelta | None = None) -> list[HandedMessage]:
        """Deliver up to `limit` messages; see `contracts.Consumer.poll`."""
        if type(limit) is not int or not 1 <= limit <= _LIMIT_MAX:
            limit = arguments.whole("poll", "limit", limit, 1, _LIMIT_MAX)
        if timeout is not None:
            timeout = arguments.seconds("poll", "timeout", timeout, 0, _TIMEOUT_MAX_S)
        try:
            hand = self._hand()
            found = self._take(limit, None)
            if not found:
                until_ns = None if timeout is None else self._now_ns() + int(timeout * 1e9)
                found = self._await(limit, None, until_ns)
            hand.message = found[0] if len(found) == 1 else None
            if self._is_close_due:
                self._check()
            return found
        finally:
            if self._is_close_due:
                self._close_at_end()

    def poll_for(self, by: Handling, timeout: float) -> list[HandedMessage]:
        """Deliver one message to a handler, waiting for it up to `timeout` seconds."""
        return self._take(1, by) or self._await(1, by, self._now_ns() + int(timeout * 1e9))

    def __iter__(self) -> Iterator[HandedMessage]:
        """Deliver messages without end; see `contracts.Consumer`."""
        hand, by = self._hand(), object()
        lock, take_one, now_ns = self._lock, self._in_flight.take_one, self._now_ns
        is_recorded = not self.options.broadcast
        try:
            while True:
                # As `_take`, without a call for each message.
                with lock:
                    if self._is_over:
                        self._check()
                    message = take_one(now_ns(), by)
                    if (
                        message is not None
                        and is_recorded
                        and not self._answers.hand_out([message])
                    ):
                        message = None
                hand.message = message = message or self._await(1, by, None)[0]
                if self._is_close_due:
                    return
                yield message
        except ConsumerClosedError:
            return
        finally:
            hand.is_left = True
            self._leave_iteration(hand, by)
            if self._is_close_due:
                self._close_at_end()

    def _hand(self) -> _Hand:
        """Return what this thread has in hand; what an iteration left there is released first."""
        hand = self._hands.setdefault(threading.get_ident(), _Hand())
        if hand.is_left:
            hand.is_left = False
            if hand.message is not None and hand.message.state in (OUT, LATE):
                self.release(hand.message)
        return hand

    def _leave_iteration(self, hand: _Hand, by: object) -> None:
        """Release what an iteration has delivered, except the message in hand: an exception may come that nacks it."""
        with self._lock:
            given = [each for each in self._in_flight.delivered_to(by) if each is not hand.message]
            self._answers.release(given)
        if given and not self._is_closing:
            self.rouse()

    # --- answers

    def ack(self, messages: AnsweredMessages, *, sync: bool = True) -> None:
        """Acknowledge one message or many; see `contracts.Consumer.ack`."""
        try:
            if type(messages) is HandedMessage:
                self._answers.ack_one(messages, sync=sync)
            else:
                self._answers.ack(self._answers.checked("ack", messages), sync=sync)
            if self._waits_for_answer:
                self._answered()
        finally:
            if self._is_close_due:
                self._close_at_end()

    def begin_ack(self, messages: AnsweredMessages) -> Callable[[], None]:
        """Acknowledge as `ack` with `sync=False`; return a function that waits for the disk, or raises as `ack`."""
        wait = self._answers.begin_ack(self._answers.checked("ack", messages))
        if self._waits_for_answer:
            self._answered()
        return wait

    def nack(
        self,
        messages: AnsweredMessages,
        *,
        delay: float | timedelta | None = None,
        reason: str | BaseException | None = None,
    ) -> None:
        """Nack messages; see `contracts.Consumer.nack`."""
        try:
            given = self._answers.checked("nack", messages)
            self._answers.nack(given, level_for(delay), reason_text(reason))
            self._answered()
        finally:
            if self._is_close_due:
                self._close_at_end()

    def release(self, messages: AnsweredMessages) -> None:
        """Give messages back unanswered; see `contracts.Consumer.release`."""
        try:
            self._answers.release(self._answers.checked("release", messages))
            self._answered()
        finally:
            if self._is_close_due:
                self._close_at_end()

    def extend(self, messages: AnsweredMessages) -> None:
        """Restart `ack_wait`; see `contracts.Consumer.extend`."""
        self._answers.extend(self._answers.checked("extend", messages))

    # --- answers that a transaction gives

    def is_of(self, store: OpenStore) -> bool:
        """Return whether this is a consumer of an open store: of this object, not of another one of the same folder."""
        return self._store is store

    def bind(self, messages: list[HandedMessage], holder: Holder) -> None:
        """Bind messages to a transaction, all or none; see `Answers.bind`."""
        self._check()
        self._answers.bind(messages, holder)

    def bound_acks(self, messages: list[HandedMessage]) -> list[BoundAcks]:
        """Return what the acknowledgements of bound messages are, by queue; see `Answers.bound_acks`."""
        return self._answers.bound_acks(messages)

    def record_bound(self, messages: list[HandedMessage]) -> tuple[Tickets, list[Exception]]:
        """Record the acknowledgements of bound messages; see `Answers.record_bound`."""
        recorded = self._answers.record_bound(messages)
        self._answered()
        return recorded

    def give_back(self, messages: list[HandedMessage], holder: Holder) -> None:
        """Unbind messages from a transaction: they count as delivered again."""
        self._answers.give_back(messages, holder)
        self._answered()

    def _answered(self) -> None:
        """Let another thread have what an answer made room for."""
        self._waits_for_answer = False
        self.rouse()

    def __dir__(self) -> list[str]:
        """Return the names for programs: those of `contracts.Consumer`."""
        return sorted({*dir(Consumer), *Consumer.__annotations__} - {"begin_ack", "gather", "take"})

    def __repr__(self) -> str:
        queues = ", ".join(f"{topic}/{queue}" for topic, queue in self.assignment())
        state = "closed" if self._is_closed else f"with queues {queues or 'none yet'}"
        return f"<consumer of group {self.group!r}, {state}>"

    # --- the handler

    def run(
        self,
        handler: Callable[[HandedMessage], object],
        *,
        handler_timeout: float | timedelta | None = None,
    ) -> None:
        """Call `handler` for each message until `close`; see `contracts.Consumer.run`."""
        arguments.function("run", "handler", handler)
        by = Handling()
        if handler_timeout is not None:
            limit_s = arguments.seconds("run", "handler_timeout", handler_timeout, 0.001, _TIMEOUT_MAX_S)  # fmt: skip
            by = Handling(int(limit_s * 1e9))
        with self._lock:
            self._check()
            if self._run is not None:
                expected = "called once at a time; `workers` is the number of threads"
                raise StorageError(f"run of the consumer of group {self.group} must be {expected}")
            self._run = run = HandlerRun(
                self, handler, by, self._context.spawn, self.options.workers
            )
        try:
            run.run()
        finally:
            self._run = None
            if self._is_closing:
                self._close_from(sys._getframe(1))

    # --- the place in the queues

    def seek(
        self,
        topic: str,
        queue: int | None = None,
        *,
        offset: int | None = None,
        time: float | datetime | timedelta | None = None,
    ) -> None:
        """Continue elsewhere; see `contracts.Consumer.seek`."""
        self._check()
        self._queues.seek(topic, queue, offset, time)

    def pause(self, *topics: str) -> None:
        """Deliver nothing more of these topics; see `contracts.Consumer.pause`."""
        with self._lock:
            self._in_flight.pause(_topics("pause", topics))

    def resume(self, *topics: str) -> None:
        """Undo `pause`; see `contracts.Consumer.resume`."""
        with self._lock:
            self._in_flight.resume(_topics("resume", topics))
        self.rouse()

    def lag(self) -> list[GroupLag]:
        """Return how far the group is; see `contracts.Consumer.lag`."""
        self._check()
        return self._queues.lag()

    def assignment(self) -> list[tuple[str, int]]:
        """Return the queues that this consumer has; see `contracts.Consumer.assignment`."""
        return self._queues.assignment()

    def pending(self) -> list[Pending]:
        """Return the messages that are delivered; see `contracts.Consumer.pending`."""
        wait_ns = int(self.options.ack_wait * 1e9)
        with self._lock:
            now_ns = self._now_ns()
            # No time ends what is bound to a transaction.
            bound = dict.fromkeys(self._in_flight.bound, now_ns + wait_ns)
            return [
                Pending(
                    each.flight.topic, each.flight.queue, each.offset,
                    (now_ns - each.since_ns) / 1e9, max(until_ns - now_ns, 0) / 1e9,
                )
                for each, until_ns in (bound | self._in_flight.out).items()
            ]  # fmt: skip

    # --- the end

    def close(self) -> None:
        """Release everything that was not answered and leave the group; see `contracts.Consumer.close`."""
        self._close_from(sys._getframe(1))

    def _close_at_end(self) -> None:
        """Close at the end of a call; a failure is logged, since the call itself may have succeeded."""
        try:
            self._close_from(sys._getframe(2))
        except (PenstockError, OSError):
            logger.exception("closing the consumer of group %s failed", self.group)

    def _close_from(self, caller: FrameType | None) -> None:
        """Close; in the middle of another call of this thread, leave the rest to the end of that call."""
        self._is_over = self._is_closing = True
        if self._is_closed:
            return
        self.rouse()
        run = self._run
        if run is not None and not run.end():
            # Called by a handler, or in the thread of `run`, which closes when the handlers have returned.
            return
        if self._is_within_call(caller):
            self._is_close_due = True
            return
        with self._closing:
            if run is not None:
                run.wait()
            if not self._is_closed:
                self._close()

    def _is_within_call(self, frame: FrameType | None) -> bool:
        """Return whether a signal handler with this caller has interrupted a call of this consumer.

        Such a call may hold any lock. The stack shows it, at no cost for the calls themselves.
        """
        while frame is not None:
            if frame.f_globals.get("__package__") == __package__:
                # A wait of `begin_ack` belongs to the answers.
                owner = frame.f_locals.get("self")
                if owner is self or owner is self._answers:
                    return True
            frame = frame.f_back
        return False

    def _end_at_exit(self) -> None:
        """Deliver nothing more, and count nothing as tried; waits for no thread."""
        self._is_over = self._is_closing = True
        # Nobody could act on a failure: it counts as a death.
        with contextlib.suppress(BaseException):
            self._queues.free()

    def _close(self) -> None:
        atexit.unregister(self._at_exit)
        if self._worker is not None:
            self._worker.stop()
        try:
            self._queues.close()
        finally:
            self._claims.stop()
        self._is_closed = True
        self._on_closed(self)

    def __enter__(self) -> Self:
        """Return the consumer."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; after an exception in the block, nack the message in hand first."""
        if isinstance(error, Exception):
            # The exception of the block is the one to be seen.
            with contextlib.suppress(PenstockError, OSError):
                self._refuse_in_hand(error)
        try:
            self._close_from(sys._getframe(1))
        except (PenstockError, OSError):
            if error is None:
                raise
            logger.exception("closing the consumer of group %s failed", self.group)

    def _refuse_in_hand(self, error: Exception) -> None:
        hand = self._hands.get(threading.get_ident())
        message = None if hand is None else hand.message
        if message is not None and message.state in (OUT, LATE):
            self.nack(message, reason=error)

    def stats(self) -> dict[str, int]:
        """Return figures: queues, messages delivered, and whether it has failed."""
        with self._lock:
            return {
                "queues": len(self._fetcher.queues),
                "in_flight": len(self._in_flight.out),
                "failed": int(self._failure is not None),
            }


def _call(method: WeakMethod[Callable[[], None]]) -> None:
    """Call a method, if its object is still there."""
    found = method()
    if found is not None:
        found()
