"""`python -m bench.consumers FOLDER`: what a consumer costs, and how soon it has a message.

Prints microseconds a message for reading, iterating and acknowledging with `sync=False`, and for durable
acknowledgements in batches of 100; and the time from `put` to the consumer's hand, in one process and across two. One
run; the store is made in FOLDER, which decides what a sync costs.
"""

import argparse
import json
import multiprocessing
import platform
import shutil
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import penstock
from penstock import Message, Store

TOPIC, QUEUES, BODY = "orders", 4, b"x" * 100
_PAUSE_S = 0.001


def fill(store: Store, count: int) -> None:
    """Put messages."""
    for _ in range(0, count, 1000):
        store.put_many([Message(TOPIC, BODY, queue=n % QUEUES) for n in range(1000)])


def timed(name: str, count: int, work: Iterator[None]) -> dict[str, Any]:
    """Run a generator to its end; return the microseconds for each of `count` messages."""
    began = time.perf_counter()
    for _ in work:
        pass
    each_us = (time.perf_counter() - began) / count * 1e6
    return {"what": name, "messages": count, "us_each": round(each_us, 2)}


def reads(store: Store, count: int) -> Iterator[None]:
    """Read all messages, 32 at a time: what any consumer pays."""
    for queue in range(QUEUES):
        offset = 0
        while offset < count // QUEUES:
            offset = store.read(TOPIC, queue, offset, 32).next_offset
            yield


def one_by_one(store: Store, count: int) -> Iterator[None]:
    """Iterate, and acknowledge each message without waiting for the disk."""
    with store.consumer("one-by-one", TOPIC) as consumer:
        left = count
        for message in consumer:
            consumer.ack(message, sync=False)
            left -= 1
            if not left:
                break
        yield


def in_batches(store: Store, count: int, size: int = 100) -> Iterator[None]:
    """Acknowledge durably, many at a time."""
    with store.consumer("in-batches", TOPIC) as consumer:
        left = count
        while left > 0:
            messages = consumer.poll(size)
            consumer.ack(messages)
            left -= len(messages)
        yield


def hand_times(path: str, group: str, count: int, ready: Any, found: Any) -> None:
    """Consume `count` messages whose bodies are times; report how long each was under way, in microseconds."""
    with penstock.open(path, read_only=True) as store:
        found.put(consumed_times(store, group, count, ready))


def consumed_times(store: Store, group: str, count: int, ready: Any) -> list[float]:
    """Return how many microseconds each message was under way."""
    times: list[float] = []
    with store.consumer(group, TOPIC, start="latest") as consumer:
        ready.set()
        for message in consumer:
            times.append((time.perf_counter_ns() - int(message.body)) / 1000)
            consumer.ack(message, sync=False)
            if len(times) == count:
                break
    return times


def put_times(store: Store, count: int) -> None:
    """Put messages whose bodies are the time, with pauses."""
    for number in range(count):
        time.sleep(_PAUSE_S)
        store.put(TOPIC, b"%d" % time.perf_counter_ns(), queue=number % QUEUES)


def latency(name: str, times: list[float]) -> dict[str, Any]:
    """Return percentiles."""
    cuts = statistics.quantiles(times, n=100)
    return {
        "what": name,
        "messages": len(times),
        "p50_us": round(cuts[49]),
        "p99_us": round(cuts[98]),
    }


def within(store: Store, count: int) -> list[float]:
    """Return the times of a consumer in a thread of this process."""
    ready, found = threading.Event(), []

    def consume() -> None:
        found.extend(consumed_times(store, "within", count, ready))

    thread = threading.Thread(target=consume)
    thread.start()
    ready.wait()
    put_times(store, count)
    thread.join()
    return found


def across(store: Store, count: int) -> list[float]:
    """Return the times of a consumer in another process."""
    spawner = multiprocessing.get_context("spawn")
    ready, found = spawner.Event(), spawner.Queue()
    process = spawner.Process(
        target=hand_times, args=(str(store.path), "across", count, ready, found)
    )
    process.start()
    ready.wait()
    put_times(store, count)
    times: list[float] = found.get()
    process.join()
    return times


def measure(folder: Path, count: int, puts: int) -> Iterator[dict[str, Any]]:
    """Yield one row of figures after another."""
    shutil.rmtree(folder, ignore_errors=True)
    with penstock.open(folder) as store:
        fill(store, count)
        yield timed("read, 32 at a time", count, reads(store, count))
        yield timed("iterate, ack(sync=False) one by one", count, one_by_one(store, count))
        yield timed("poll(100), durable ack(many)", count, in_batches(store, count))
        yield latency("put to hand, one process", within(store, puts))
        yield latency("put to hand, two processes", across(store, puts))


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m bench.consumers", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the store is made; deleted first")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--puts", type=int, default=2000, help="messages of each latency")
    asked = parser.parse_args()
    print(json.dumps({"python": platform.python_version(), "machine": platform.machine()}))
    for row in measure(asked.folder, asked.messages, asked.puts):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
