import asyncio
import threading

import pytest

from penstock_replicate.master.loop_thread import LoopThread, TaskBell


def test_pings_of_a_burst_are_answered_and_none_is_lost() -> None:
    answered, enough = 0, threading.Event()

    def answer() -> None:
        nonlocal answered
        answered += 1
        enough.set()

    thread = LoopThread("test-loop", answer)
    try:
        for _ in range(100):
            enough.clear()
            thread.ping()
            assert enough.wait(10)
        for _ in range(10_000):
            thread.ping()
        assert thread.call(_nothing()) is None
        assert 101 <= answered < 10_100
    finally:
        thread.stop()
    thread.ping()
    thread.stop()
    with pytest.raises(RuntimeError):
        thread.call(_nothing())


async def _nothing() -> None:
    pass


def test_stop_ends_tasks() -> None:
    thread = LoopThread("test-loop", lambda: None)
    ended = threading.Event()

    async def start() -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work())

    async def work() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.set()

    task = thread.call(start())
    thread.stop()
    assert ended.is_set()
    assert task.cancelled()


def test_a_ring_before_the_wait_ends_it() -> None:
    async def story() -> None:
        bell = TaskBell()
        bell.ring()
        await bell.wait(1000)
        bell.silence()
        await bell.wait(0.001)
        bell.silence()
        asyncio.get_running_loop().call_later(0.001, bell.ring)
        await bell.wait(1000)

    asyncio.run(story())
