"""`python -m bench.timers FOLDER`: what messages at a time cost, and how late they are.

Prints microseconds for each put with a time, beside those of a plain put; how long after its time each message of one
busy second is in a consumer's hand, and how long after the end of that second the last one is; the memory that waiting
messages take; and how long a store takes to open with them. One run; the store is made in FOLDER.
"""

import argparse
import json
import platform
import resource
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import penstock
from penstock import Message, Store

TOPIC, BODY = "reminders", b"x" * 100
_PART = 1000
_AHEAD_S = 4
_SECOND_MS = 1000
_DAY_MS = 24 * 3600 * _SECOND_MS
# Waiting messages are spread over so many seconds.
_SPREAD_S = 2 * 24 * 3600


def now_ms() -> float:
    """Return the time in Unix milliseconds."""
    return time.time_ns() / 1e6


def puts(store: Store, count: int, *, deliver_at: Iterator[int] | None) -> dict[str, Any]:
    """Put messages in batches, with times if given."""
    began = time.perf_counter()
    for _ in range(0, count, _PART):
        if deliver_at is None:
            store.put_many([Message("plain", BODY) for _ in range(_PART)])
        else:
            store.put_many(
                [Message(TOPIC, BODY, deliver_at=next(deliver_at) / 1000) for _ in range(_PART)]
            )
    each_us = (time.perf_counter() - began) / count * 1e6
    what = "plain put in a batch" if deliver_at is None else "put with a time in a batch"
    return {"what": what, "messages": count, "us_each": round(each_us, 2)}


def busy_second(store: Store, count: int, *, last_ms: bool) -> Iterator[dict[str, Any]]:
    """Deliver messages that are due in one second, evenly or all in its last millisecond, to a consumer."""
    second_ms = (int(now_ms()) // _SECOND_MS + _AHEAD_S + count // 5000) * _SECOND_MS
    due = (second_ms + (999 if last_ms else number * 999 // count) for number in range(count))
    yield puts(store, count, deliver_at=due)
    late: list[float] = []
    with store.consumer(f"group-{last_ms}", TOPIC, start="latest") as consumer:
        while len(late) < count:
            found = consumer.poll(500, timeout=60)
            if not found:
                break
            at_ms = now_ms()
            late += [at_ms - int(m.all_properties["TIMER_DELIVER_MS"]) for m in found]
            consumer.ack(found, sync=False)
    after_ms = now_ms() - second_ms - _SECOND_MS
    yield {
        "what": f"due in one second, {'all in its last ms' if last_ms else 'evenly'}",
        "messages": len(late), "early": sum(each < 0 for each in late),
        "median_ms_late": round(statistics.median(late), 1), "max_ms_late": round(max(late), 1),
        "last_ms_after_the_second": round(after_ms, 1),
    }  # fmt: skip


def waiting(root: Path, count: int) -> Iterator[dict[str, Any]]:
    """Open a store with waiting messages, and say how long that takes and how much memory."""
    with penstock.open(root) as store:
        first_ms = int(now_ms()) + _DAY_MS // 2
        due = (first_ms + number * 7919 % _SPREAD_S * _SECOND_MS for number in range(count))
        yield puts(store, count, deliver_at=due)
        began = time.perf_counter()
        while int(store.lowlevel.extension("messaging").stats()["timers"]["waiting"]) < count:
            time.sleep(0.1)
    closed_s = time.perf_counter() - began
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    with penstock.open(root) as store:
        found = store.lowlevel.extension("messaging").stats()["timers"]["waiting"]
        opened_s = time.perf_counter() - began
        yield {
            "what": "closed and opened with waiting messages", "messages": found, "close_s": round(closed_s, 2),
            "open_s": round(opened_s, 2),
            "max_rss_grew_mb": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, 1),
        }  # fmt: skip


def main() -> None:
    """Measure, and print one JSON object a line."""
    parser = argparse.ArgumentParser(prog="python -m bench.timers", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=10_000, help="messages of the busy second")
    parser.add_argument("--waiting", type=int, default=100_000, help="messages that wait")
    given = parser.parse_args()
    print(json.dumps({"python": platform.python_version(), "machine": platform.machine()}))
    root = given.folder / "bench-timers"
    try:
        with penstock.open(root / "a") as store:
            print(json.dumps(puts(store, given.count, deliver_at=None)), flush=True)
            for last_ms in (False, True):
                for figure in busy_second(store, given.count, last_ms=last_ms):
                    print(json.dumps(figure), flush=True)
        for figure in waiting(root / "b", given.waiting):
            print(json.dumps(figure), flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
