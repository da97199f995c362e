"""`python -m bench.worker ENGINE`: one engine in a process; a JSON command per line in, an answer per line out.

The Java driver in `bench/java` answers the same commands. Times are measured here, in the engine's process, not by the
caller. `bench.process` is the caller.
"""

import gc
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.engines import make
from bench.supply import QUEUES, Supply, key_of

Answer = dict[str, Any]
PARTS = ("50", "90", "99", "99.9", "99.99")


class Worker:
    """Runs commands, each a method `do_...`. Not thread-safe."""

    def __init__(self, name: str) -> None:
        self.engine = make(name)
        # What each thread that consumes calls.
        self.members: list[Callable[[int], int]] = []

    def answer(self, command: dict[str, Any]) -> Answer:
        """Run one command."""
        method = getattr(self, f"do_{command.pop('do')}")
        done: Answer = method(**command)
        return done

    def do_open(self, root: str, bodies: str, number: int = 0, **_unused: Any) -> Answer:
        """Open the store."""
        self.supply = Supply(Path(bodies), number)
        return timed(lambda: self.engine.open(Path(root)), 1)

    def do_close(self) -> Answer:
        """Close the store."""
        return timed(self.engine.close, 1)

    def do_put(
        self, count: int, size: int, threads: int = 1, *, each: bool = False, bare: bool = False
    ) -> Answer:
        """Put one by one, from a number of threads; with `each`, every put is timed separately."""
        singles = self.engine.singles(self.supply.rows(count, size))
        if each:
            return {"latency": latency([self._one(s) for s in singles])}
        share = count // threads
        parts = [singles[n * share : (n + 1) * share] for n in range(threads)]

        def job() -> None:
            if threads == 1:
                self.engine.put_all(singles)
            else:
                in_threads(self.engine.put_all, parts)

        return timed(job, share * threads, self.engine.wait_readable)

    def _one(self, single: Any) -> int:
        began = time.perf_counter_ns()
        self.engine.put_all((single,))
        return time.perf_counter_ns() - began

    def do_put_many(self, count: int, size: int, batch: int, *, bare: bool = False) -> Answer:
        """Put in batches."""
        return self._batches(count, size, batch, self.engine.batch, self.engine.put_batch)

    def do_put_loose(self, count: int, size: int, batch: int) -> Answer:
        """Put in batches whose messages are made within the measured time."""
        put = self.engine.put_batch
        return self._batches(
            count, size, batch, self.engine.singles, lambda each: put(self.engine.made(each))
        )

    def do_transaction(self, count: int, size: int, batch: int) -> Answer:
        """Put in transactions, message by message."""
        return self._batches(count, size, batch, self.engine.singles, self.engine.put_together)

    def do_put_arrow(self, count: int, size: int, batch: int) -> Answer:
        """Put in tables."""
        return self._batches(count, size, batch, self.engine.columns, self.engine.put_columns)

    def _batches(
        self, count: int, size: int, batch: int, made: Callable[..., Any], put: Callable[..., None]
    ) -> Answer:
        turns = max(count // batch, 1)
        batches = [made(self.supply.rows(batch, size, n % QUEUES)) for n in range(turns)]

        def job() -> None:
            for each in batches:
                put(each)

        return timed(job, turns * batch, self.engine.wait_readable)

    def do_fill(self, count: int, size: int) -> Answer:
        """Put many messages, as fast as the engine can, for later measurements."""
        batch = max(1, min(20_000, (8 << 20) // size))
        columns = self._has_columns()
        for turn, start in enumerate(range(0, count, batch)):
            rows = self.supply.rows(min(batch, count - start), size, turn % QUEUES)
            if columns:
                self.engine.put_columns(self.engine.columns(rows))
            else:
                self.engine.put_batch(self.engine.batch(rows))
        self.engine.wait_readable()
        return {"count": self.supply.number}

    def do_supply(self, count: int, size: int) -> Answer:
        """Put messages to be consumed, into all queues in turn."""
        for start in range(0, count, 1000):
            rows = self.supply.rows(min(1000, count - start), size)
            self.engine.put_batch(self.engine.batch(rows))
        self.engine.wait_readable()
        return {"count": count}

    def _has_columns(self) -> bool:
        try:
            self.engine.columns([(0, "", b"")])
        except NotImplementedError:
            return False
        return True

    def do_queues(self, count: int, size: int) -> Answer:
        """Put one message into each of many queues."""
        rows = [
            (queue, key, body) for queue, (_, key, body) in enumerate(self.supply.rows(count, size))
        ]
        for start in range(0, count, 1000):
            self.engine.put_batch(self.engine.batch(rows[start : start + 1000]))
        self.engine.wait_readable()
        return {"count": count}

    def do_total(self) -> Answer:
        """Return how many messages can be read."""
        return {"count": sum(self.engine.count(queue) for queue in range(QUEUES))}

    def do_lag(self, count: int, size: int) -> Answer:
        """Measure the time from a put until the queue has the message."""
        times = []
        for row in self.supply.rows(count, size, 0):
            time.sleep(0.001)
            before = self.engine.count(0)
            began = time.perf_counter_ns()
            self.engine.put_all(self.engine.singles([row]))
            while self.engine.count(0) <= before:
                pass
            times.append(time.perf_counter_ns() - began)
        return {"latency": latency(times)}

    def do_stall(self, count: int, size: int) -> Answer:
        """Put, and return the longest time that another thread, which only counts, was kept from running."""
        singles = self.engine.singles(self.supply.rows(count, size))
        longest, is_over = [0], threading.Event()

        def counts() -> None:
            last = time.perf_counter_ns()
            while not is_over.is_set():
                now = time.perf_counter_ns()
                longest[0] = max(longest[0], now - last)
                last = now

        counting = threading.Thread(target=counts)
        counting.start()
        self.engine.put_all(singles)
        is_over.set()
        counting.join()
        return {"count": 1, "ns": longest[0]}

    def do_watch(self, root: str) -> Answer:
        """Prepare to follow a store that another process writes."""
        self.watched = self.engine.watch(Path(root))
        return {}

    def do_follow(self, count: int) -> Answer:
        """Receive this number of messages of `do_beat`; return the delay of each from the start of its put."""
        times: list[int] = []
        for body in self.watched:
            # Both processes use the same clock: the system's monotonic one.
            times.append(time.monotonic_ns() - int.from_bytes(body[:8], "big"))
            if len(times) == count:
                break
        return {"latency": latency(times)}

    def do_beat(self, count: int, pause_ms: float) -> Answer:
        """Put messages with the time in them, with pauses between."""
        for _, key, body in self.supply.rows(count, 128, 0):
            time.sleep(pause_ms / 1000)
            stamped = time.monotonic_ns().to_bytes(8, "big") + body[8:]
            self.engine.put_all(self.engine.singles([(0, key, stamped)]))
        return {"count": count}

    def do_consume(self, count: int, size: int, batch: int) -> Answer:
        """Consume this number of messages, which are all there, in batches that are acknowledged on disk."""
        return counted(lambda: int(self.engine.consume(batch, count)), count)

    def do_consume_each(self, count: int, size: int, batch: int) -> Answer:
        """Consume this number of messages, which are all there; acknowledge each without waiting for the disk."""
        return counted(lambda: int(self.engine.consume_each(batch, count)), count)

    def do_join(self, root: str) -> Answer:
        """Become one of several members of a group."""
        self.engine.join(Path(root))
        return {}

    def do_share(self) -> Answer:
        """Return whether this member has its share of the queues."""
        return {"is_there": self.engine.has_share()}

    def do_consume_together(self, batch: int, threads: int, at_ns: int) -> Answer:
        """Consume from a time on until nothing comes; return how many there were, and when the last batch was done."""
        gc.collect()
        while len(self.members) < threads:
            self.members.append(self.engine.member())
        seen: list[tuple[int, int]] = []

        def consume(some: Callable[[int], int]) -> None:
            time.sleep(max(at_ns - time.monotonic_ns(), 0) / 1e9)
            while count := some(batch):
                seen.append((time.monotonic_ns(), count))

        in_threads(consume, self.members[:threads])
        ended = max((when for when, _ in seen), default=at_ns)
        return {"count": sum(count for _, count in seen), "ended_ns": ended}

    def do_hand(self, count: int, pause_ms: float) -> Answer:
        """Like `do_follow`, of messages that another thread of this process puts."""
        if not hasattr(self, "watched"):
            self.watched = self.engine.arrivals()
        beating = threading.Thread(target=self.do_beat, args=(count, pause_ms))
        beating.start()
        answer = self.do_follow(count)
        beating.join()
        return answer

    def do_read(self, limit: int, count: int, *, decode: bool = False) -> Answer:
        """Read in order; `decode` is for RocketMQ, whose pull alone returns bytes."""
        return counted(lambda: int(self.engine.read(limit, count)))

    def do_decode(self, limit: int, count: int) -> Answer:
        """Read in order, with all fields of each message."""
        return counted(lambda: int(self.engine.decode(limit, count)))

    def do_to_arrow(self) -> Answer:
        """Read everything as columns."""
        return counted(self.engine.to_arrow)

    def do_find(self, count: int, seed: int) -> Answer:
        """Find random keys."""
        chance = random.Random(seed)
        keys = [key_of(chance.randrange(self.supply.number)) for _ in range(count)]
        return timed(lambda: self.engine.find(keys), count)

    def do_offset_at(self, count: int, seed: int) -> Answer:
        """Look up offsets of random times."""
        low, high = self.engine.times()
        chance = random.Random(seed)
        times = [chance.randint(low, high) for _ in range(count)]
        return timed(lambda: self.engine.offset_at(times), count)

    def do_memory(self) -> Answer:
        """Return the resources of this process: its own memory, and mapped files."""
        gc.collect()
        lines = Path("/proc/self/status").read_text().splitlines()
        facts = dict(line.split(":", 1) for line in lines)
        return {
            "own_kib": int(facts["RssAnon"].split()[0]),
            "mapped_kib": int(facts["RssFile"].split()[0]),
        }


def timed(job: Callable[[], None], count: int, finish: Callable[[], None] | None = None) -> Answer:
    """Run a job; return its nanoseconds, and with `finish` also those until `finish` is done."""
    gc.collect()
    began = time.perf_counter_ns()
    job()
    took = time.perf_counter_ns() - began
    if finish is None:
        return {"ns": took, "count": count}
    finish()
    return {"ns": time.perf_counter_ns() - began, "acked_ns": took, "count": count}


def counted(job: Callable[[], int], expected: int | None = None) -> Answer:
    """Run a job that returns how many operations it did; raises if that is not the expected number."""
    gc.collect()
    began = time.perf_counter_ns()
    count = job()
    took = time.perf_counter_ns() - began
    if expected not in (None, count):
        raise LookupError(f"{count} instead of {expected}")
    return {"ns": took, "count": count}


def in_threads(job: Callable[[Any], None], parts: Sequence[Any]) -> None:
    """Run a job on each part in a thread of its own; raises the first error."""
    failed: list[BaseException] = []

    def run(part: Any) -> None:
        try:
            job(part)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def latency(times: list[int]) -> dict[str, int]:
    """Return percentiles of nanoseconds, "100" being the longest."""
    times = sorted(times)
    last = len(times) - 1
    found = {part: times[min(last, int(float(part) / 100 * len(times)))] for part in PARTS}
    return found | {"100": times[last]}


def main() -> None:
    """Answer until there are no more commands."""
    worker = Worker(sys.argv[1])
    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        try:
            answer = worker.answer(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(answer) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
