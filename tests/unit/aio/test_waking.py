"""The thread that waits for all tasks."""

import asyncio
import threading
from pathlib import Path

import pytest

import penstock
from penstock.aio.waking import Bell


def test_a_message_rings(tmp_path: Path) -> None:
    async def work() -> None:
        with penstock.open(tmp_path / "s") as store:
            bell = Bell(store.waiter())
            # The first rings at once: what came before its thread began to wait may be there.
            await asyncio.wait_for(bell.listen(), 10)
            listener = bell.listen()
            store.put("orders", b"x")
            await asyncio.wait_for(listener, 10)
            bell.close()

    asyncio.run(work())
    assert "penstock-aio-wait" not in {each.name for each in threading.enumerate()}


@pytest.mark.slow
def test_a_forgotten_listener_is_not_told_and_close_rings(tmp_path: Path) -> None:
    async def work() -> None:
        with penstock.open(tmp_path / "s") as store:
            bell = Bell(store.waiter())
            forgotten, kept = bell.listen(), bell.listen()
            bell.forget(forgotten)
            bell.close()
            await asyncio.wait_for(kept, 10)
            assert forgotten.cancelled()

    asyncio.run(work())
