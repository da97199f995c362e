"""Threads of one store against each other: appends, rolls, retention, reads, and the close."""

import threading
import time

import pytest
from tests.conftest import OpenStore

from penstock import Message
from penstock.errors import StoreClosedError


def test_retention_and_rolls_never_lose_a_segment(open_small: OpenStore) -> None:
    """The list of segments was once replaced by both at the same time, and one change was lost."""
    with open_small(**{"index.flush_interval_ms": 5}) as store:
        stop = threading.Event()
        seen: list[int] = []

        def let_go() -> None:
            while not stop.is_set():
                store.flush()
                store.discard_before(log_offset=store.stats()["log_end_offset"] - 4 * 65536)

        def read() -> None:
            # Once more after the end, if it had no turn before.
            while not (stop.is_set() and seen):
                low = store.min_offset("t", 0)
                seen.extend(m.queue_offset for m in store.read("t", 0, low + 50, 32).messages)

        batch = [Message("t", b"x" * 1000, queue=0, keys=["k"])] * 100
        store.put_many(batch)
        threads = [
            threading.Thread(target=let_go),
            threading.Thread(target=let_go),
            threading.Thread(target=read),
        ]
        for thread in threads:
            thread.start()
        for _ in range(39):
            store.put_many(batch)
        stop.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        bases = sorted(int(path.name) for path in (store.path / "commitlog").iterdir())
        assert bases == list(range(bases[0], bases[-1] + 1, 65536))
        assert bases[0] > 0
        assert store.max_offset("t", 0) == 4000
        assert seen
        assert not list(store.verify())


def test_many_threads_append_in_order_of_each(open_small: OpenStore) -> None:
    with open_small() as store:

        def put(name: int) -> None:
            for number in range(300):
                store.put("t", b"%d:%d" % (name, number), queue=name % 2)

        threads = [threading.Thread(target=put, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        bodies = [m.body.split(b":") for m in store.scan("t")]
        for name in range(6):
            assert [int(n) for who, n in bodies if int(who) == name] == list(range(300))
        assert not list(store.verify())


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_put_beside_a_close_is_stored_or_refused(flush: str, open_small: OpenStore) -> None:
    """A put that came between the last flush and the end was once taken by a closed store."""
    for _ in range(5):
        store = open_small(flush=flush)
        start = store.max_offset("t", 0)
        done: list[int] = []
        refused = threading.Event()

        def put(store=store, done=done, refused=refused) -> None:  # type: ignore[no-untyped-def] # bound to this turn
            try:
                while True:
                    done.append(store.put("t", b"x", queue=0).queue_offset)
            except StoreClosedError:
                refused.set()

        threads = [threading.Thread(target=put) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.02)
        store.close()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert refused.is_set()
        with open_small() as again:
            assert again.recovery is not None
            assert again.recovery.state == "clean"
            assert again.max_offset("t", 0) == start + len(done)
