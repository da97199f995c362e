"""The processes of `test_consumer_kills`: consumers on stores opened read-only, and a writer that puts and consumes as well.

Each runs until it is killed, or until SIGTERM, which ends it cleanly. SIGUSR1 makes it fork, wherever it just is; the child tries to
go on consuming and putting, and then lives on until it is killed, so that it would keep whatever lock it has inherited.
"""

import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from tests.crash.writer import SMALL
from tests.night.kills.consumer_checks import GroupRules
from tests.night.kills.consumer_faults import die_at_random
from tests.night.kills.consumer_trace import Trace

import penstock
from penstock import Message, Store
from penstock.aio.consumer import AsyncConsumer
from penstock.aio.store import AsyncStore
from penstock.errors import ConsumerClosedError, LostQueueError, PenstockError
from penstock_messaging.groups.owned_queue import OwnedQueue
from penstock_messaging.groups.taking import Groups

TOPIC, QUEUES = "orders", 6
# A topic that is deleted and created again; only the group "moved" consumes it.
FLEETING, FLEETING_QUEUES, MOVED = "fleeting", 3, "moved"
GROUPS = {
    "plain": GroupRules(ordered=False, ack_wait_s=2.0, max_retries=2),
    "ordered": GroupRules(ordered=True, ack_wait_s=2.0, max_retries=1),
    MOVED: GroupRules(ordered=False, ack_wait_s=2.0, max_retries=1, moved=True),
}
STYLES = ("batches", "one by one", "handler", "asyncio")
# The shortest of the 18 levels: a second.
SOON = 1
# How long a child may take to be refused; it lives on for as long as an alarm lets it.
CHILD_TRIES_S, CHILD_LIVES_S = 20, 900
HANDLED = {signal.SIGTERM, signal.SIGUSR1}
_PAUSE_S = 0.02
# What is traced before a call and after it.
_ACK, _NACK, _RELEASE = ("acking", "acked"), ("nacking", "nacked"), ("releasing", "released")


def topics_of(group: str) -> list[str]:
    """Return the topics that a group consumes, without that of its retries."""
    return [TOPIC, FLEETING] if group == MOVED else [TOPIC]


class _Failure(Exception):  # noqa: N818 - what a program raises
    """An exception of the program that consumes."""


def watch_queues(trace: Trace) -> None:
    """Trace which queues this process takes, after it has, and gives back, before it does."""
    claim, hand_back = Groups.claim, OwnedQueue.hand_back

    def traced_claim(self: Groups, group: str, topic: str, queue: int, **rest: Any) -> Any:
        owned = claim(self, group, topic, queue, **rest)
        if owned is not None:
            about: dict[str, Any] = {
                "group": group,
                "topic": topic,
                "queue": queue,
                "epoch": owned.epoch,
            }
            vars(owned)["traced"] = about
            trace.add("taken", **about)
        return owned

    def traced_hand_back(self: Any) -> None:
        trace.add("back", **vars(self)["traced"])
        hand_back(self)

    Groups.claim = traced_claim  # type: ignore[method-assign] # traced
    OwnedQueue.hand_back = traced_hand_back  # type: ignore[method-assign] # traced


class Consuming:
    """One member of a group at work. `run` is called by one thread; forks happen in the main thread."""

    def __init__(self, store: Store, group: str, style: str, trace: Trace, seed: str) -> None:
        self.store, self.group, self.style = store, group, style
        self.trace = trace
        self.chance = random.Random(seed)
        self.consumer: Any = None
        self.in_hand: Any = None
        self.is_ending = False

    def run(self) -> None:
        """Consume until told to end, as one member after another."""
        while not self.is_ending:
            with suppress(_Failure, ConsumerClosedError), self._member() as consumer:
                # A consumer that was being made when the end came.
                if self._ends():
                    return
                {
                    "batches": self._batches,
                    "one by one": self._one_by_one,
                    "handler": self._handler,
                    "asyncio": self._asyncio,
                }[self.style](consumer)

    def _ends(self) -> bool:
        return self.is_ending

    def close(self) -> None:
        """Make `run` end."""
        self.is_ending = True
        consumer = self.consumer
        if consumer is not None:
            self._closing()
            consumer.close()

    @contextmanager
    def _member(self) -> Iterator[Any]:
        rules = GROUPS[self.group]
        with self.store.consumer(
            self.group, topics_of(self.group), ack_wait=rules.ack_wait_s, ordered=rules.ordered, max_retries=rules.max_retries,
            max_in_flight=64, workers=2 if self.style == "handler" else 1,
        ) as consumer:  # fmt: skip
            self.consumer = consumer
            self.trace.add("joined", group=self.group)
            try:
                yield consumer
            except BaseException:
                self._closing()
                raise
            self._closing()

    def _closing(self) -> None:
        self.trace.add("closing", group=self.group)

    # --- ways to consume

    def _batches(self, consumer: Any) -> None:
        for _ in range(self.chance.randrange(50, 500)):
            self._move(consumer)
            since_ns = time.monotonic_ns()
            messages = consumer.poll(self.chance.randrange(1, 17), 0.2)
            for message in messages:
                self._out(message, since_ns)
            if messages:
                self._answer_batch(consumer, messages)
            if self.is_ending:
                return

    def _move(self, consumer: Any) -> None:
        """Pause for a moment, or seek backward: what comes again then is what the group has consumed once."""
        if self.chance.random() < 0.02:
            consumer.pause(TOPIC)
            since_ns = time.monotonic_ns()
            for message in consumer.poll(3, 0.05):
                self._out(message, since_ns)
                if message.flight.owned.topic == TOPIC:
                    self._note("paused-out", message)
                self._answer(message)
            consumer.resume(TOPIC)
        is_ending = (self.store.path.parent / "stop").exists()
        if not GROUPS[self.group].moved or is_ending or self.chance.random() > 0.2:
            return
        queue = self.chance.randrange(QUEUES)
        committed = self.store.committed_offset(self.group, TOPIC, queue) or 0
        # Not every queue is this member's.
        with suppress(PenstockError):
            consumer.seek(TOPIC, queue, offset=max(committed - self.chance.randrange(60), 0))
            self.trace.add("sought", group=self.group)

    def _answer_batch(self, consumer: Any, messages: list[Any]) -> None:
        if GROUPS[self.group].ordered or self.chance.random() < 0.5:
            for message in messages:
                self._answer(message)
            return
        kept = [message for message in messages if not self._is_poison(message)]
        self._call(_ACK, kept, lambda: consumer.ack(kept, sync=self.chance.random() < 0.7))
        refused = [message for message in messages if self._is_poison(message)]
        self._call(_NACK, refused, lambda: consumer.nack(refused, delay=SOON))

    def _one_by_one(self, consumer: Any) -> None:
        count = self.chance.randrange(20, 300)
        since_ns = time.monotonic_ns()
        for message in consumer:
            self._out(message, since_ns)
            count -= 1
            if count < 0 and self.chance.random() < 0.3:
                self._note("nacking", message)
                raise _Failure
            if count < 0 or self.is_ending:
                break
            self._answer(message)
            since_ns = time.monotonic_ns()

    def _handler(self, consumer: Any) -> None:
        count = self.chance.randrange(50, 500)

        def handle(message: Any) -> None:
            nonlocal count
            self._out(message, message.since_ns)
            self._answer(message)
            count -= 1
            if count < 0:
                self._closing()
                consumer.close()

        consumer.run(handle)

    def _asyncio(self, consumer: Any) -> None:
        """Consume in tasks that are cancelled at any moment."""
        around = AsyncStore(self.store)
        # Of a consumer that is there already no call of asyncio's makes one.
        bell, jobs = around._bell, around._jobs
        member = AsyncConsumer(consumer, bell, jobs)
        try:
            asyncio.run(self._turns(member))
        finally:
            # The store stays open.
            bell.close()
            jobs.shutdown()

    async def _turns(self, member: AsyncConsumer) -> None:
        for _ in range(self.chance.randrange(50, 300)):
            task = asyncio.ensure_future(self._turn(member))
            if self.chance.random() < 0.4:
                await asyncio.sleep(self.chance.choice([0, 0, 0.002, 0.01]))
                task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                self.trace.add("cancelled", group=self.group)
            if self._ends():
                return

    async def _turn(self, member: AsyncConsumer) -> None:
        since_ns = time.monotonic_ns()
        messages = await member.poll(self.chance.randrange(1, 9), 0.2)
        for message in messages:
            self._out(message, since_ns)
        for message in messages:
            refuses = self._is_poison(message)
            begun, kind = _NACK if refuses else _ACK
            self._note(begun, message)
            try:
                if refuses:
                    await member.nack(message, delay=SOON)
                else:
                    await member.ack(message, sync=self.chance.random() < 0.7)
            except LostQueueError:
                kind = "lost"
            self._note(kind, message)

    # --- answers

    def _answer(self, message: Any) -> None:
        """Answer a message in one way or another."""
        # An ordered queue waits for each message that is not acknowledged at once, so that is rare.
        draw = self.chance.random() * (10 if GROUPS[self.group].ordered else 1)
        if self._is_poison(message) or draw < 0.04:
            self._call(_NACK, [message], lambda: message.nack(delay=SOON))
        elif draw < 0.07:
            self._call(_RELEASE, [message], message.release)
        elif draw < 0.08:
            # Forgotten: it comes again after ack_wait, but `run` acknowledges what its handler does not answer.
            if self.style == "handler":
                self._note("acking", message)
        elif draw < 0.10:
            self._note("extending", message)
            message.extend()
            time.sleep(_PAUSE_S)
            self._call(_ACK, [message], message.ack)
        else:
            sync = self.chance.random() < 0.7
            self._call(_ACK, [message], lambda: message.ack(sync=sync))

    def _is_poison(self, message: Any) -> bool:
        """Return whether a message is refused each time, until it is a dead letter."""
        number = int(number_of(message.body).rpartition(":")[2])
        return number % (601 if GROUPS[self.group].ordered else 61) == 7

    def _call(self, what: tuple[str, str], messages: list[Any], call: Callable[[], object]) -> None:
        """Trace a call before it begins and after it has returned."""
        begun, kind = what
        for message in messages:
            self._note(begun, message)
        try:
            if messages:
                call()
        except LostQueueError:
            kind = "lost"
        for message in messages:
            self._note(kind, message)

    def _out(self, message: Any, since_ns: int) -> None:
        self.in_hand = message
        self._note("out", message, since_ns=since_ns)

    def _note(self, kind: str, message: Any, **more: int) -> None:
        owned = message.flight.owned
        self.trace.add(
            kind, group=self.group, topic=owned.topic, queue=owned.queue, offset=message.queue_offset,
            epoch=owned.epoch, number=number_of(message.body), attempt=message.attempt, **more,
        )  # fmt: skip

    # --- in a forked child

    def tries(self) -> dict[str, Callable[[], object]]:
        """Return what a forked child tries, by name."""
        consumer, message = self.consumer, self.in_hand
        found: dict[str, Callable[[], object]] = {
            "consumer": lambda: self.store.consumer(self.group, [TOPIC])
        }
        if consumer is not None:
            found |= {
                "poll": lambda: consumer.poll(1, 0.1),
                "iterate": lambda: next(iter(consumer)),
                "assignment": lambda: consumer.assignment() and None,
                "pending": lambda: consumer.pending() and None,
                "pause": consumer.pause,
            }
        if message is not None:
            found |= {
                "ack": lambda: consumer.ack(message) or "an acknowledgement",
                "nack": lambda: consumer.nack(message) or "a refusal",
                "release": lambda: consumer.release(message),
                "extend": lambda: consumer.extend(message),
            }
        if consumer is not None:
            found["close"] = consumer.close
        return found


def number_of(body: bytes) -> str:
    """Return what a body says of its message."""
    return body.partition(b" ")[0].decode()


# --- processes


class Process:
    """What every process has: its trace, its end by SIGTERM, and its forks by SIGUSR1."""

    def __init__(self, folder: Path, name: str, seed: str) -> None:
        self.trace = Trace(folder / "traces", name)
        self.members: list[Consuming] = []
        self.store: Store | None = None
        self.is_ending = False
        self._forks = 0
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGUSR1, self._on_fork)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        watch_queues(self.trace)
        die_at_random(self.trace, folder / "stop", seed)

    def _on_term(self, _number: int, _frame: FrameType | None) -> None:
        self.is_ending = True
        for member in self.members:
            member.is_ending = True
        raise SystemExit(0)

    def _on_fork(self, _number: int, _frame: FrameType | None) -> None:
        self._forks += 1
        name = f"{self.trace.process}.{self._forks}"
        pid = os.fork()
        if pid == 0:
            try:
                self._be_child(name)
            finally:
                os._exit(0)
        self.trace.add("forked", note=f"{name} {pid}")

    def _be_child(self, name: str) -> None:
        """Try to go on as the parent does; then live on, with all that was inherited."""
        trace = self.trace.of(name)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for signal_ in (signal.SIGUSR1, signal.SIGALRM):
            signal.signal(signal_, signal.SIG_IGN)
        trying = [""]

        def report_hang(_number: int, _frame: FrameType | None) -> None:
            trace.add("hung", note=trying[0])
            os._exit(0)

        signal.signal(signal.SIGALRM, report_hang)
        signal.alarm(CHILD_TRIES_S)
        tries = {
            f"{member.group}: {what}": call
            for member in self.members
            for what, call in member.tries().items()
        }
        store = self.store
        if store is not None:
            tries["put"] = lambda: store.put(TOPIC, b"child:0", queue=0)
        for what, call in tries.items():
            trying[0] = what
            try:
                got = call()
            except (PenstockError, StopIteration) as error:
                trace.add("refused", note=f"{what}: {type(error).__name__}")
            except Exception as error:
                trace.add("child-out", note=f"{what}: {error!r}")
            else:
                if got:
                    trace.add("child-out", note=f"{what}: {got!r}")
        trace.add("tried")
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(CHILD_LIVES_S)
        while True:
            signal.pause()


def run_reader(folder: Path, name: str, group: str, style: str, seed: str) -> None:
    """Be a member of a group on a store that another process writes."""
    process = Process(folder, name, seed)
    with penstock.open(folder / "store", read_only=True, environ={}) as store:
        process.store = store
        member = Consuming(store, group, style, process.trace, seed)
        process.members.append(member)
        member.run()


def run_writer(folder: Path, name: str, seed: str) -> None:
    """Put, and be a member of both groups; after the file `stop` is there, wait until all is consumed."""
    process = Process(folder, name, seed)
    chance = random.Random(seed)
    with penstock.open(
        folder / "store", environ={},
        **{
            **SMALL, "retention.use": [], "flush": chance.choice(["sync", "async"]),
            "extensions.messaging.default_queues": QUEUES,
        },
    ) as store:  # fmt: skip
        process.store = store
        threads = []
        for group in GROUPS:
            style = chance.choice(STYLES)
            member = Consuming(store, group, style, process.trace, f"{seed} {group}")
            process.members.append(member)
            threads.append(threading.Thread(target=_run_thread, args=(member,), name=group))
        for thread in threads:
            thread.start()
        try:
            _put(folder, store, chance, process.trace)
            _finish(store, process.trace)
            while True:
                signal.pause()
        finally:
            for member in process.members:
                member.close()
            for thread in threads:
                thread.join()


def _run_thread(member: Consuming) -> None:
    try:
        member.run()
    except BaseException:
        # The whole process has failed, and the judge is told by its status.
        sys.excepthook(*sys.exc_info())
        os._exit(3)


def _put(folder: Path, store: Store, chance: random.Random, trace: Trace) -> None:
    """Put messages in all ways, until told to stop."""
    count = 0

    def body() -> bytes:
        nonlocal count
        count += 1
        return b"%s:%d " % (trace.process.encode(), count) + bytes(chance.randrange(200))

    while not (folder / "stop").exists():
        _disturb(store, chance, trace, body)
        since_ns = time.monotonic_ns()
        draw = chance.random()
        if draw < 0.4:
            bodies = [body() for _ in range(chance.randrange(1, 12))]
            store.put_many(
                [Message(TOPIC, each, queue=chance.randrange(QUEUES)) for each in bodies]
            )
        elif draw < 0.6:
            bodies = [body()]
            store.put(TOPIC, bodies[0], partition_key=f"key {chance.randrange(20)}")
        elif draw < 0.8:
            bodies = [body()]
            store.put(TOPIC, bodies[0], queue=None)
        else:
            bodies = [body()]
            store.put(TOPIC, bodies[0], queue=0, delay_level=SOON)
        for each in bodies:
            trace.add("put", number=number_of(each), since_ns=since_ns)
        time.sleep(chance.uniform(0, _PAUSE_S))


def _disturb(store: Store, chance: random.Random, trace: Trace, body: Callable[[], bytes]) -> None:
    """Do now and then what moves a group: commit a smaller offset as another program does, or delete one of its topics."""
    if chance.random() < 0.1:
        store.put(FLEETING, body(), queue=chance.randrange(FLEETING_QUEUES))
    if chance.random() < 0.04:
        queue = chance.randrange(QUEUES)
        committed = store.committed_offset(MOVED, TOPIC, queue)
        if committed is not None:
            store.commit_offset(
                MOVED, TOPIC, queue, offset=max(committed - chance.randrange(40), 0)
            )
            trace.add("committed", group=MOVED)
    # Some 300 rounds in a run of 100 kills: none of these would be a chance of one in ten thousand.
    if chance.random() < 0.03 and FLEETING in store.topics(system=True):
        store.delete_topic(FLEETING)
        trace.add("deleted")


# --- the end


def _finish(store: Store, trace: Trace) -> None:
    """Trace what is in the store; return when every group has consumed everything."""
    known: set[tuple[str, str]] = set()
    while True:
        # Before the list of dead letters: what is consumed now is in it.
        left = _left(store)
        for topic in store.topics(system=True):
            for kind, group, number in _stored(store, topic):
                if (group, number) not in known:
                    known.add((group, number))
                    trace.add(kind, group=group, number=number)
        if not left:
            trace.add("drained")
            return
        trace.add("left", note="; ".join(left[:5]))
        time.sleep(0.3)


def _stored(store: Store, topic: str) -> Iterator[tuple[str, str, str]]:
    group = topic.removeprefix("%DLQ%")
    if group != topic:
        for message in store.scan(topic):
            yield "dead", group, number_of(message.body)
    elif topic == FLEETING:
        for message in store.scan(topic):
            yield "exists", MOVED, number_of(message.body)
    elif topic in (TOPIC, "SCHEDULE_TOPIC_XXXX"):
        for message in store.scan(topic):
            # Retries wait there as well, also those of messages that only one group consumes.
            if message.all_properties.get("REAL_TOPIC", TOPIC) == TOPIC:
                yield "exists", "", number_of(message.body)


def _left(store: Store) -> list[str]:
    """Return what groups have not consumed, and what was delayed and not delivered."""
    left = []
    begun_at = store.stats()["log_end_offset"]
    topics = store.topics(system=True)
    for group in GROUPS:
        for topic in (*topics_of(group), f"%RETRY%{group}"):
            for queue in topics.get(topic, ()):
                base, end = done_to(store, group, topic, queue), store.max_offset(topic, queue)
                if base != end:
                    left.append(f"{group} {topic}/{queue}: {base} of {end}")
    due: Counter[tuple[str, str, int]] = Counter()
    there: Counter[tuple[str, str, int]] = Counter()
    for topic in topics:
        for message in store.scan(topic):
            key = number_of(message.body), message.reconsume_times
            if topic == "SCHEDULE_TOPIC_XXXX":
                due[(message.all_properties["REAL_TOPIC"], *key)] += 1
            else:
                there[(topic, *key)] += 1
    left += [f"{each} is not delivered" for each in due - there]
    # What was consumed before a delivery says nothing of what was delivered.
    if store.stats()["log_end_offset"] != begun_at:
        left.append("messages were stored meanwhile")
    return left


def done_to(store: Any, group: str, topic: str, queue: int) -> int | None:
    """Return the offset before which a group has consumed everything, by its journal; None if something waits for the writer."""
    groups = store.lowlevel.extension("messaging").groups
    position = groups.position(group, topic, queue)
    return None if position is None or position.nacked else position.base


def run_process(folder: Path, name: str, what: list[str], seed: str) -> int:
    """Be a process of the run until its end; returns its status."""
    try:
        if what[0] == "writer":
            run_writer(folder, name, seed)
        else:
            run_reader(folder, name, what[1], what[2], seed)
    except SystemExit:
        return 0
    except PenstockError:
        sys.excepthook(*sys.exc_info())
        return 2
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0
