"""Consumer groups: acknowledging in batches and singly, the time from a put to a consumer, and what extensions cost.

Every consumer takes up to 100 messages at a time (litequeue one: it has no other way) and accesses each body. The
messages are there before the clock starts, and are written back. A group has one consumer with one thread; one with
several threads, in the process that puts; or several, each in a process of its own.
"""

import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from bench.engines import ENGINES
from bench.measure import Bench, EngineError, Session, Work
from bench.supply import QUEUES
from bench.workloads.puts import SIZES

BATCH = 100
DURABLE = "consume, 100 acknowledged on disk at a time"
EACH = "consume, each acknowledged without waiting for the disk"
# As many as there are queues.
MEMBERS = QUEUES
THREADS = f"workers, 100 acknowledged on disk at a time by each of {MEMBERS} threads"
TOGETHER = f"together, 100 acknowledged on disk at a time by each of {MEMBERS} processes"
COUNTS = {"128 B": 20_000, "1 KiB": 10_000}
# How long the members of a group have, after the last one joined, to share the queues.
SHARING_S = 30.0
# How long they have to be ready for a turn.
START_S = 0.5
HAND = "hand, put to a consumer of the same process"
HAND_ACROSS = "hand, put to a consumer in another process"
EXTENSIONS = "extensions, put 128 B"
DURABLE_ENGINES = ("consumer", "sqlite-queue", "sqlite-queue-delete", "redis-always")
EACH_ENGINES = ("consumer", "litequeue", "redis-everysec")
HAND_ENGINES = ("consumer", "redis-everysec")
# Turns of which the fastest counts: what extensions cost is less than what other programs take from a single turn.
_TURNS = 5


def run(bench: Bench) -> None:
    """Run all measurements of this module."""
    if bench.wants("consume"):
        with Session(bench, "consume", sorted({*DURABLE_ENGINES, *EACH_ENGINES})) as session:
            session.run(_consuming(bench))
    for family, work in (("workers", THREADS), ("together", TOGETHER)):
        if bench.wants(family):
            _together(bench, work, in_processes=family == "together")
    if bench.wants("hand"):
        for engine in bench.there(HAND_ENGINES):
            with bench.surviving(HAND, HAND_ACROSS):
                _hand(bench, engine)
        bench.show(
            *(f"{work}, {part}" for work in (HAND, HAND_ACROSS) for part in ("us", "99 %, us"))
        )
    if bench.wants("extensions"):
        _extensions(bench)


def _consuming(bench: Bench) -> list[Work]:
    return [
        Work(name=f"{words}, {label}", do=do, engines=engines, first="supply",
             facts={"count": count, "size": SIZES[label], "batch": BATCH})
        for words, do, engines in ((DURABLE, "consume", DURABLE_ENGINES), (EACH, "consume_each", EACH_ENGINES))
        for label, count in COUNTS.items()
    ]  # fmt: skip


def _together(bench: Bench, words: str, *, in_processes: bool) -> None:
    """Consume in several threads or processes at once, members of one group."""
    for label, count in COUNTS.items():
        work = f"{words}, {label}"
        with ExitStack() as stack:
            groups = {
                name: stack.enter_context(
                    Group(bench, name, bench.home / f"{label}-{name}", in_processes=in_processes)
                )
                for name in bench.there(DURABLE_ENGINES)
            }
            for number in range(bench.rounds + 1):
                for name in bench.shuffled(list(groups)):
                    share = bench.scaled(int(count * ENGINES[name].share))
                    with bench.surviving(work):
                        took = groups[name].consume(share, SIZES[label])
                        if number:
                            bench.note(work, name, took / share, "ns a message")
        bench.show(work)


class Group:
    """A process that fills a queue, and a group's members: its threads, or processes. A context manager."""

    def __init__(self, bench: Bench, engine: str, root: Path, *, in_processes: bool) -> None:
        self._bench = bench
        self._stack = ExitStack()
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, root, ignore_errors=True)
            self._writer, _ = stack.enter_context(bench.fresh(engine, root))
            first = bench.scaled(MEMBERS * BATCH)
            self._writer.call("supply", count=first, size=128)
            self._members, self._threads = [self._writer], MEMBERS
            if in_processes:
                self._threads = 1
                self._members = [stack.enter_context(bench.process(engine)) for _ in range(MEMBERS)]
                for member in self._members:
                    member.call("join", root=str(root))
                self._wait_for_shares()
            self._take(first)
            self._stack = stack.pop_all()

    def _wait_for_shares(self) -> None:
        until = time.monotonic() + SHARING_S
        while not all(member.call("share")["is_there"] for member in self._members):
            if time.monotonic() > until:
                raise EngineError(
                    f"the members did not share the queues within {SHARING_S:g} seconds"
                )
            time.sleep(0.05)

    def consume(self, count: int, size: int) -> int:
        """Let the members consume so many messages; return the nanoseconds from the first start to the last answer."""
        self._writer.call("supply", count=count, size=size)
        self._bench.write_back()
        return self._take(count)

    def _take(self, count: int) -> int:
        # All have the same clock, the system's monotonic one, and begin at the same time.
        at_ns = time.monotonic_ns() + int(START_S * self._bench.scale * 1e9)
        for member in self._members:
            member.send("consume_together", batch=BATCH, threads=self._threads, at_ns=at_ns)
        answers = [member.receive() for member in self._members]
        self._pause()
        seen = sum(answer["count"] for answer in answers)
        if seen != count:
            raise EngineError(f"{seen} of {count} messages came")
        ended: int = max(answer["ended_ns"] for answer in answers)
        return ended - at_ns

    def _pause(self) -> None:
        for process in (self._writer, *self._members):
            process.pause()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def _hand(bench: Bench, engine: str) -> None:
    root, beats = bench.home / f"hand-{engine}", bench.scaled(300)
    with bench.fresh(engine, root) as (writer, _), bench.process(engine) as other:
        writer.call("supply", count=1000, size=128)
        for number in range(bench.rounds + 1):
            answer = writer.call("hand", count=beats, pause_ms=2)
            _keep(bench, HAND, engine, answer, warming=number == 0)
        other.call("watch", root=str(root))
        for number in range(bench.rounds + 1):
            other.send("follow", count=beats)
            writer.call("beat", count=beats, pause_ms=2)
            _keep(bench, HAND_ACROSS, engine, other.receive(), warming=number == 0)


def _keep(
    bench: Bench, work: str, engine: str, answer: dict[str, dict[str, int]], *, warming: bool
) -> None:
    if warming:
        return
    bench.keep(Work(name=work, do="", engines=(engine,)), engine, answer)
    for part, words in (("50", "us"), ("99", "99 %, us")):
        bench.note(f"{work}, {words}", engine, answer["latency"][part] / 1000, "us")


def _extensions(bench: Bench) -> None:
    """Put messages with and without extensions, and on another commit; the fastest of some short turns counts."""
    engines = ("penstock", "penstock-alone", "penstock-before")
    count = bench.scaled(20_000)
    with Session(bench, "extensions", engines) as session:
        for number in range(bench.rounds + 1):
            found: dict[str, list[float]] = {name: [] for name in session.processes}
            for _ in range(_TURNS):
                for name in bench.shuffled(list(session.processes)):
                    answer = session.processes[name].call("put", count=count, size=128)
                    session.processes[name].pause()
                    bench.write_back()
                    found[name].append(answer["ns"] / answer["count"])
            for name, several in found.items() if number else ():
                bench.note(EXTENSIONS, name, min(several), f"ns a message, the fastest of {_TURNS}")
    bench.show(EXTENSIONS)
