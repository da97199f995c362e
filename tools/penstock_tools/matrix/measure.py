"""The work of a child process for one combination: measure for a fixed time, then wait to be killed.

Every figure is measured in one process and includes queues and index. Each metric is measured for a fixed
time, so a slow disk makes the figures less precise, but the run not longer. Old segments are deleted in between,
for every combination alike and while the clock is stopped; background work that this causes, for example the
overwriting of recycled segments, continues while the clock runs.
"""

import logging
import os
import re
import signal
import tempfile
import threading
import time
from array import array
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import attrs
import numpy as np

import penstock
from penstock import Message
from penstock.plugins.registry import load_registry
from penstock.store.store import Store

FIGURES, FAILED = "figures", "failed"
Answer = tuple[str, Any]

_LAG_TRIES = 12
_LAG_TRIES_LEAST = 2
_LAG_LIMIT_S = 1.0
_TOPIC = "matrix"
_RECORD_BYTES = 110  # approximate size of a record without its body
# Preallocated files are used first: after this many segments, the next ones are recycled.
_WARM_UP_SEGMENTS = 6
# Bytes are counted after this time without background writes; and the longest wait for it.
_QUIET_S, _QUIET_LIMIT_S = 0.02, 2.0
_PROBE_BYTES = 1 << 20
_WRITTEN = re.compile(r"^write_bytes: (\d+)$", re.MULTILINE)
_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ .*|^(?:Rss|Anonymous): +\d+", re.MULTILINE)


@attrs.frozen(kw_only=True)
class MeasurePlan:
    """The amount of work for each combination.

    Attributes:
        body: size of a message body in bytes.
        threads: number of threads that put concurrently.
        sync_threads: number of threads that request durable puts concurrently.
        batch: number of messages in a `put_many`.
        seconds: duration of each metric; puts and synced bytes run twice as long.
        rounds: how often each combination is measured.
        segment_bytes: size of a segment; small, so that the figures include segment rolls.
    """

    body: int = 1024
    threads: int = 1
    sync_threads: int = 16
    batch: int = 1000
    seconds: float = 0.3
    rounds: int = 5
    segment_bytes: int = 16 << 20

    @property
    def messages_a_segment(self) -> int:
        """The approximate number of messages per segment."""
        return max(self.segment_bytes // (self.body + _RECORD_BYTES), 1)


def measure(folder: str, settings: dict[str, Any], plan: MeasurePlan, results: Connection) -> None:
    """Measure one combination and send the answer; the parent process then kills this one."""
    _answer(results, lambda: _figures(folder, settings, plan))
    signal.pause()


def recover(folder: str, settings: dict[str, Any], plan: MeasurePlan, results: Connection) -> None:
    """Open the store of a killed process, and send how long the open took."""
    _answer(results, lambda: _recovery(folder, settings, plan))


def _answer(results: Connection, work: Callable[[], dict[str, float]]) -> None:
    # Log messages about the recovery of the killed store are expected.
    logging.getLogger("penstock").setLevel(logging.ERROR)
    # Loading plugins takes longer than some of the measurements, and equally long for each combination.
    load_registry()
    try:
        results.send((FIGURES, work()))
    except Exception as error:
        results.send((FAILED, f"{type(error).__name__}: {error}"))


def _figures(folder: str, settings: dict[str, Any], plan: MeasurePlan) -> dict[str, float]:
    """Return all figures of one combination except those of recovery."""
    before = own_kib()
    subject = Subject(open_store(folder, settings, plan), plan)
    subject.warm_up()
    figures = {
        **_puts(subject),
        **_batches(subject),
        **_syncs(subject),
        **_synced_bytes(subject),
        "lag_ms": _lag_ms(subject),
    }
    subject.pause()
    figures["memory_mib"] = max(subject.peak_kib - before, 0) / 1024
    figures["disk_per_byte"] = _disk_bytes(Path(folder)) / (_messages(subject.store) * plan.body)
    # Leaves messages that are not synced, so that the next open has to recover.
    subject.store.put_many(subject.messages(min(plan.batch, 200)))
    return figures


def _recovery(folder: str, settings: dict[str, Any], plan: MeasurePlan) -> dict[str, float]:
    began = time.perf_counter()
    store = open_store(folder, settings, plan)
    took = time.perf_counter() - began
    store.close()
    return {"recovery_ms": took * 1000}


def open_store(folder: str, settings: dict[str, Any], plan: MeasurePlan) -> Store:
    """Open the store to measure."""
    ours = {"retention": [], "retention.pause_ms": 0, "geometry.segment_bytes": plan.segment_bytes}
    given: dict[str, Any] = {**ours, **settings}
    return penstock.open(folder, environ={}, **given)


class Subject:
    """The measured store, and the work on it between measurements, while the clock is stopped."""

    def __init__(self, store: Store, plan: MeasurePlan) -> None:
        assert store._engine is not None
        self.store = store
        self.engine = store._engine
        self.plan = plan
        self.body = os.urandom(plan.body)
        self.peak_kib = 0
        self.counts_writes = counts_writes(store.path)

    def messages(self, count: int, *, wait: bool = True) -> list[Message]:
        """Return messages for one `put_many`."""
        return [Message(_TOPIC, self.body, wait=wait)] * count

    def pause(self) -> None:
        """Delete all but the newest segments, as retention would, and update the peak of the memory."""
        end = self.engine.log.end_offset
        self.store.discard_before(log_offset=end - 2 * self.plan.segment_bytes)
        self.peak_kib = max(self.peak_kib, own_kib())

    def warm_up(self) -> None:
        """Write multiple segments and delete them, so that there are segments to recycle."""
        plan = self.plan
        size = plan.batch * (plan.body + _RECORD_BYTES)
        messages = self.messages(plan.batch, wait=False)
        written = 0
        while written < _WARM_UP_SEGMENTS * plan.segment_bytes:
            self.store.put_many(messages)
            if written // plan.segment_bytes != (written + size) // plan.segment_bytes:
                # A segment can be deleted only after its records are in the queues.
                self.store.stats()
                self.pause()
            written += size
        self.store.flush()
        # Gives the background time to finish preallocated files.
        time.sleep(min(plan.seconds, 0.05))


def _puts(subject: Subject) -> dict[str, float]:
    """Return rates and latencies of single puts."""
    plan, body = subject.plan, subject.body
    latencies_ns = [array("q") for _ in range(plan.threads)]
    most = max(plan.messages_a_segment // plan.threads, 1)
    spent = 0.0

    def work(number: int) -> None:
        clock, put, add = time.perf_counter_ns, subject.store.put, latencies_ns[number].append
        began = clock()
        end = began + int((2 * plan.seconds - spent) * 1e9)
        for _ in range(most):
            put(_TOPIC, body, queue=number)
            done = clock()
            add(done - began)
            if done >= end:
                return
            began = done

    while spent < 2 * plan.seconds:
        spent += _in_threads(plan.threads, work)
        subject.pause()
    all_us = np.concatenate([np.array(each) for each in latencies_ns]) / 1000
    middle, high, higher = np.percentile(all_us, [50, 99, 99.9])
    return {
        "put_per_s": len(all_us) / spent,
        "put_p50_us": float(middle),
        "put_p99_us": float(high),
        "put_p999_us": float(higher),
        "put_max_us": float(all_us.max()),
    }


def _in_threads(count: int, work: Callable[[int], None]) -> float:
    """Run `work` in threads, and return how long it took; raises the first exception of a thread."""
    raised: list[Exception] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    if raised:
        raise raised[0]
    return seconds


def _batches(subject: Subject) -> dict[str, float]:
    """Return the rates of `put_many`."""
    plan, messages = subject.plan, subject.messages(subject.plan.batch)
    count, room, spent = 0, plan.messages_a_segment, 0.0
    while spent < plan.seconds:
        began = time.perf_counter()
        subject.store.put_many(messages)
        spent += time.perf_counter() - began
        count += plan.batch
        if count >= room:
            room = count + plan.messages_a_segment
            subject.pause()
    return {"batch_per_s": count / spent, "batch_mib_s": count * plan.body / spent / (1 << 20)}


def _syncs(subject: Subject) -> dict[str, float]:
    figures, each = _durable_puts(subject, 1)
    if subject.counts_writes:
        figures["sync_bytes"] = each
    many, _ = _durable_puts(subject, subject.plan.sync_threads)
    return {**figures, "sync_threads_per_s": many["sync_per_s"]}


def _durable_puts(subject: Subject, threads: int) -> tuple[dict[str, float], float]:
    """Return the durable puts per second, and the bytes written for each."""
    store, plan, body = subject.store, subject.plan, subject.body
    waits = subject.engine.policy.waits
    counts = [0] * threads

    def work(number: int) -> None:
        end = time.perf_counter() + plan.seconds
        while time.perf_counter() < end:
            store.put(_TOPIC, body, queue=number)
            if not waits:
                store.flush()
            counts[number] += 1

    store.flush()
    subject.pause()
    wait_for_quiet()
    before = written_bytes()
    seconds = _in_threads(threads, work)
    written = written_bytes() - before
    return {"sync_per_s": sum(counts) / seconds}, written / sum(counts)


def _synced_bytes(subject: Subject) -> dict[str, float]:
    """Return the rate of putting about one megabyte at a time and making it durable.

    No message waits by itself: under a policy that waits, nothing would be left to sync.
    """
    store, plan = subject.store, subject.plan
    count = min(max((1 << 20) // plan.body, 1), 4096)
    messages = subject.messages(count, wait=False)
    done, spent = 0, 0.0
    while spent < 2 * plan.seconds:
        began = time.perf_counter()
        store.put_many(messages)
        store.flush()
        spent += time.perf_counter() - began
        done += count * plan.body
        subject.pause()
    return {"synced_mib_s": done / (1 << 20) / spent}


def _lag_ms(subject: Subject) -> float:
    """Return the median time from the return of a put until its entry is in queue and index."""
    follower = subject.engine.follower
    lags: list[float] = []
    # With a writer that commits at intervals each try is slow, so fewer tries are made.
    while len(lags) < _LAG_TRIES and (len(lags) < _LAG_TRIES_LEAST or sum(lags) < _LAG_LIMIT_S / 4):
        receipt = subject.store.put(_TOPIC, subject.body)
        end = receipt.log_offset + receipt.size
        began = time.perf_counter()
        while follower.progress < end and time.perf_counter() - began < _LAG_LIMIT_S:
            time.sleep(0.0001)
        lags.append(time.perf_counter() - began)
    return float(np.median(lags) * 1000)


def _messages(store: Store) -> int:
    return sum(
        store.max_offset(topic, queue) - store.min_offset(topic, queue)
        for topic, queues in store.topics(system=True).items()
        for queue in queues
    )


def _disk_bytes(folder: Path) -> int:
    # Files deleted in the background meanwhile are not counted.
    found = (path.stat() for path in folder.rglob("*") if path.is_file())
    return sum(each.st_blocks * 512 for each in found)


def written_bytes() -> int:
    """Return how many bytes this process caused to be written to disk; a page counts in full when it becomes dirty."""
    found = _WRITTEN.search(Path("/proc/self/io").read_text())
    return int(found.group(1)) if found else 0


def counts_writes(folder: Path) -> bool:
    """Return whether the system counts bytes written to the file system of a folder; it does not on a tmpfs."""
    before = written_bytes()
    with tempfile.TemporaryFile(dir=folder) as probe:
        probe.write(bytes(_PROBE_BYTES))
        probe.flush()
        os.fsync(probe.fileno())
    return written_bytes() - before >= _PROBE_BYTES


def wait_for_quiet() -> None:
    """Wait until nothing is written in the background, for example by a recycler, but only for a limited time."""
    limit = time.perf_counter() + _QUIET_LIMIT_S
    before, now = -1, written_bytes()
    while now != before and time.perf_counter() < limit:
        time.sleep(_QUIET_S)
        before, now = now, written_bytes()


def own_kib() -> int:
    """Return the process's own memory: pages without a file, including the shared pages of a pool's buffers."""
    total, is_nameless = 0, False
    for line in _MAPPING.findall(Path("/proc/self/smaps").read_text()):
        name, _, size = line.partition(":")
        if name == "Rss":
            total += int(size) if is_nameless else 0
        elif name == "Anonymous":
            total += 0 if is_nameless else int(size)
        else:
            # The name of shared memory without a file.
            is_nameless = line.endswith("/dev/zero (deleted)")
    return total
