"""Every combination with producers, readers and retention at once; `tests/crash/test_kill.py` kills writers of each."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import SMALL
from tests.matrix.combos import ALLOWED, name_of, settings_of

import penstock
from penstock import Message
from penstock.store.store import Store
from penstock_tools.matrix.report import Combo

QUEUES = range(3)
QUICK = {"flush.async.interval_ms": 5, "write.transient-pool.interval_ms": 5}


def open_it(path: Path, combo: Combo) -> Store:
    chosen: dict[str, Any] = {**SMALL, **QUICK, **settings_of(combo)}
    return penstock.open(path, environ={}, **chosen)


def body(queue: int, number: int) -> bytes:
    return b"%d:%d:" % (queue, number) + b"b" * (number * 71 % 900)


def produce(store: Store, queue: int, count: int) -> None:
    number = 0
    while number < count:
        if number % 40 == 20:
            batch = [Message("t", body(queue, number + i), queue=queue) for i in range(30)]
            store.put_many(batch)
            number += 30
        else:
            store.put("t", body(queue, number), queue=queue, keys=[f"{queue}-{number}"])
            number += 1


class Crowd:
    """Threads of one store: producers, a follower for each queue, and one that lets old segments go."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.stop = threading.Event()
        self.seen: dict[int, list[tuple[int, bytes]]] = {}
        self.failures: list[BaseException] = []

    def run(self, count: int) -> None:
        """Let all of them work until the producers have put `count` messages each."""
        producers = [self._thread(produce, self.store, queue, count) for queue in QUEUES]
        others = [
            *(self._thread(self._follow, queue) for queue in QUEUES),
            self._thread(self._let_go),
        ]
        for thread in producers:
            thread.join(60)
        self.stop.set()
        for thread in others:
            thread.join(60)
            assert not thread.is_alive()
        assert not self.failures

    def _thread(self, work: Callable[..., None], *given: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                work(*given)
            except BaseException as error:
                self.failures.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        return thread

    def _follow(self, queue: int) -> None:
        at = 0
        seen = self.seen[queue] = []
        while not self.stop.is_set() or at < self.store.max_offset("t", queue):
            result = self.store.read("t", queue, at, 50)
            seen += [(m.queue_offset, m.body) for m in result.messages]
            at = max(result.next_offset, self.store.min_offset("t", queue))

    def _let_go(self) -> None:
        while not self.stop.wait(0.01):
            self.store.flush()
            end = self.store.stats()["log_end_offset"]
            self.store.discard_before(log_offset=end - 3 * 65536)


def end_what_is_closed(store: Store) -> None:
    """A segment that somebody held when it was to go is closed to new readers already: let later rounds end that."""
    for _ in range(1000):
        store.discard_before()
        first = min(int(path.name) for path in (store.path / "commitlog").iterdir())
        if first >= store.stats()["log_min_offset"]:
            return
        time.sleep(0.01)
    raise AssertionError("a segment is held for good")


def contents(store: Store) -> dict[int, list[tuple[int, bytes]]]:
    return {
        queue: [(m.queue_offset, m.body) for m in store.scan("t", queue=queue)] for queue in QUEUES
    }


@pytest.mark.parametrize("combo", ALLOWED, ids=name_of)
def test_producers_readers_and_retention_at_once(combo: Combo, tmp_path: Path) -> None:
    """Each message once and in order, whatever goes on beside it; then a clean close and reopening."""
    with open_it(tmp_path / "s", combo) as store:
        crowd = Crowd(store)
        crowd.run(160)
        end_what_is_closed(store)
        kept = contents(store)
        for queue in QUEUES:
            total = store.max_offset("t", queue)
            wanted = [(n, body(queue, n)) for n in range(total)]
            assert kept[queue] == wanted[total - len(kept[queue]) :]
            # What retention had taken before the reader came is passed over, nothing else.
            seen = set(crowd.seen[queue])
            assert [pair for pair in wanted if pair in seen] == crowd.seen[queue]
        assert not list(store.verify())
    with open_it(tmp_path / "s", combo) as store:
        assert store.recovery is not None
        assert store.recovery.state == "clean"
        assert contents(store) == kept
