"""What a child process does for one combination: work against the clock, then wait to be killed.

Every figure is what one process sees from `put` on, queues and index included. Each metric runs for a
fixed time, so a slow disk makes a run no longer, only its figures less sharp.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import attrs
import numpy as np

import penstock
from penstock import Message
from penstock.store import Store

_LAG_TRIES = 12
_LAG_TRIES_LEAST = 2
_LAG_LIMIT_S = 1.0
_TOPIC = "matrix"


@attrs.frozen(kw_only=True)
class Plan:
    """How much is done for each combination.

    Attributes:
        body: bytes in a message's body.
        threads: how many threads put at once.
        sync_threads: how many ask for durable puts at once.
        batch: messages in a `put_many`.
        seconds: how long each metric runs.
        rounds: how often every combination comes.
        segment_bytes: size of a segment; small ones, so that rolls are seen.
    """

    body: int = 1024
    threads: int = 1
    sync_threads: int = 16
    batch: int = 1000
    seconds: float = 0.3
    rounds: int = 5
    segment_bytes: int = 16 << 20


def measure(folder: str, settings: dict[str, Any], plan: Plan, told: Connection) -> None:
    """Measure one combination and send the figures; the parent kills this process then."""
    # That a killed store is mended at the next open is no news here.
    logging.getLogger("penstock").setLevel(logging.ERROR)
    before = _anonymous_kib()
    store = open_store(folder, settings, plan)
    body = os.urandom(plan.body)
    _warm_up(store, body, plan)
    figures = {
        **_puts(store, body, plan),
        **_batches(store, body, plan),
        **_syncs(store, body, plan),
        **_synced_bytes(store, body, plan),
        "lag_ms": _lag_ms(store, body),
    }
    figures["memory_mib"] = max(_anonymous_kib() - before, 0) / 1024
    figures["disk_per_byte"] = _disk_bytes(Path(folder)) / (_messages(store) * plan.body)
    # Something for recovery to do: more than was synced or marked.
    store.put_many([Message(_TOPIC, body)] * min(plan.batch, 200))
    told.send(figures)
    signal.pause()


def recover(folder: str, settings: dict[str, Any], plan: Plan, told: Connection) -> None:
    """Open what a killed process left, and send how long that took."""
    logging.getLogger("penstock").setLevel(logging.ERROR)
    began = time.perf_counter()
    store = open_store(folder, settings, plan)
    told.send({"recovery_ms": (time.perf_counter() - began) * 1000})
    store.close()


def open_store(folder: str, settings: dict[str, Any], plan: Plan) -> Store:
    """Open the store that is measured."""
    sizes = {"geometry.segment_bytes": plan.segment_bytes}
    given: dict[str, Any] = {"retention": [], **sizes, **settings}
    return penstock.open(folder, environ={}, **given)


def _make_room(store: Store, plan: Plan) -> None:
    """Let go of all but the newest segments, as retention would: recycling lives on it."""
    end = store.stats()["log_end_offset"]
    store.discard_before(log_offset=end - 2 * plan.segment_bytes)


def _warm_up(store: Store, body: bytes, plan: Plan) -> None:
    messages = [Message(_TOPIC, body)] * plan.batch
    size = plan.batch * (plan.body + 110)
    for _ in range(max(3 * plan.segment_bytes // size, 1)):
        store.put_many(messages)
    store.flush()
    _make_room(store, plan)
    # Files in the making are for what is measured next.
    time.sleep(min(plan.seconds, 0.05))


def _puts(store: Store, body: bytes, plan: Plan) -> dict[str, float]:
    taken: list[list[int]] = [[] for _ in range(plan.threads)]

    def work(number: int) -> None:
        clock, put, add = time.perf_counter_ns, store.put, taken[number].append
        end = clock() + int(plan.seconds * 1e9)
        began = clock()
        while began < end:
            put(_TOPIC, body, queue=number)
            done = clock()
            add(done - began)
            began = done

    seconds = _in_threads(plan.threads, work)
    all_us = np.concatenate([np.array(each) for each in taken]) / 1000
    middle, high, higher = np.percentile(all_us, [50, 99, 99.9])
    return {
        "put_per_s": len(all_us) / seconds,
        "put_mib_s": len(all_us) * len(body) / seconds / (1 << 20),
        "put_p50_us": float(middle),
        "put_p99_us": float(high),
        "put_p999_us": float(higher),
        "put_max_us": float(all_us.max()),
    }


def _in_threads(count: int, work: Callable[[int], None]) -> float:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def _batches(store: Store, body: bytes, plan: Plan) -> dict[str, float]:
    messages = [Message(_TOPIC, body)] * plan.batch
    count, began = 0, time.perf_counter()
    while (seconds := time.perf_counter() - began) < plan.seconds:
        store.put_many(messages)
        count += plan.batch
    return {
        "batch_per_s": count / seconds,
        "batch_mib_s": count * len(body) / seconds / (1 << 20),
    }


def _syncs(store: Store, body: bytes, plan: Plan) -> dict[str, float]:
    assert store._engine is not None
    waits = store._engine.policy.appender_waits
    store.flush()
    _make_room(store, plan)

    def rate(threads: int) -> float:
        counts = [0] * threads

        def work(number: int) -> None:
            end = time.perf_counter() + plan.seconds
            while time.perf_counter() < end:
                store.put(_TOPIC, body, queue=number)
                if not waits:
                    store.flush()
                counts[number] += 1

        seconds = _in_threads(threads, work)
        return sum(counts) / seconds

    return {"sync_per_s": rate(1), "sync_threads_per_s": rate(plan.sync_threads)}


def _synced_bytes(store: Store, body: bytes, plan: Plan) -> dict[str, float]:
    """About a megabyte at a time, put and made durable."""
    count = max((1 << 20) // max(plan.body, 1), 1)
    messages = [Message(_TOPIC, body)] * min(count, 4096)
    done, syncing = 0, 0.0
    end = time.perf_counter() + 2 * plan.seconds
    while time.perf_counter() < end:
        store.put_many(messages)
        began = time.perf_counter()
        store.flush()
        syncing += time.perf_counter() - began
        done += len(messages) * len(body)
        _make_room(store, plan)
    spent = 2 * plan.seconds
    return {
        "synced_mib_s": done / spent / (1 << 20),
        "sync_ms_per_mib": syncing * 1000 / (done / (1 << 20)),
    }


def _lag_ms(store: Store, body: bytes) -> float:
    """Return the median time from a put's return to its entry being in queue and index."""
    assert store._engine is not None
    follower = store._engine.follower
    lags: list[float] = []
    # A writer that commits at intervals makes each try slow: fewer will do there.
    while len(lags) < _LAG_TRIES and (len(lags) < _LAG_TRIES_LEAST or sum(lags) < _LAG_LIMIT_S / 4):
        receipt = store.put(_TOPIC, body)
        end = receipt.log_offset + receipt.size
        began = time.perf_counter()
        while follower.progress < end and time.perf_counter() - began < _LAG_LIMIT_S:
            time.sleep(0.0001)
        lags.append(time.perf_counter() - began)
    return float(np.median(lags) * 1000)


def _messages(store: Store) -> int:
    return sum(
        store.max_offset(topic, queue) - store.min_offset(topic, queue)
        for topic, queues in store.topics().items()
        for queue in queues
    )


def _disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def _anonymous_kib() -> int:
    """Return the process's own memory, mapped files left out."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    return 0
