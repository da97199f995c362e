"""Bytes into the log, and on disk; files beside it after that."""

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.scripted_masters import filled, log_of, settings

from penstock.errors import CorruptionError
from penstock.store.following import open_follower
from penstock_replicate.following.landing import Landing
from penstock_replicate.following.standing import Standing

OFFSETS = "config/consumerOffset.json"


def run(path: Path, work: Callable[[Landing, Standing], Awaitable[None]]) -> None:
    async def main() -> None:
        standing = Standing(lambda: 5, 1, "a:1")
        landing = Landing(open_follower(path, **settings()), standing)
        syncing = asyncio.ensure_future(landing.sync_forever())
        try:
            await work(landing, standing)
        finally:
            syncing.cancel()
            await asyncio.gather(syncing, return_exceptions=True)
            landing.close()

    asyncio.run(main())


@pytest.fixture
def log(tmp_path: Path) -> bytes:
    end = filled(tmp_path / "m")
    return log_of(tmp_path / "m")[:end]


def test_what_is_taken_is_synced_and_said(tmp_path: Path, log: bytes) -> None:
    async def work(landing: Landing, standing: Standing) -> None:
        synced = asyncio.Event()
        landing.on_flushed = synced.set
        landing.take(0, log[:1000])
        assert landing.position == 1000
        assert 0 < landing.end_offset <= 1000
        async with asyncio.timeout(10):
            await synced.wait()
        assert landing.flushed_offset == landing.end_offset
        assert standing.received_bytes == 1000
        # Another connection begins with whole records.
        landing.restart()
        assert landing.position == landing.end_offset
        landing.take(landing.position, log[landing.position :])
        assert landing.end_offset == len(log)

    run(tmp_path / "c", work)


def test_bytes_that_are_no_records_are_refused_and_change_nothing(
    tmp_path: Path, log: bytes
) -> None:
    async def work(landing: Landing, _standing: Standing) -> None:
        landing.take(0, log)
        with pytest.raises(CorruptionError):
            landing.take(len(log), b"x" * 500)
        assert landing.position == landing.end_offset == len(log)

    run(tmp_path / "c", work)


def test_a_file_waits_for_the_log_that_it_speaks_of(tmp_path: Path, log: bytes) -> None:
    content = b'{"offsetTable":{"orders@billing":{0:3}}}'
    path = tmp_path / "c" / OFFSETS

    async def work(landing: Landing, _standing: Standing) -> None:
        landing.take(0, log[:1000])
        landing.take_file(OFFSETS, content, len(log))
        landing.take_side("no/such/name", b"{}")
        await asyncio.sleep(0.2)
        assert not path.exists()
        landing.take(1000, log[1000:])
        async with asyncio.timeout(10):
            while not path.exists():
                await asyncio.sleep(0.01)

    run(tmp_path / "c", work)
    assert path.read_bytes() == content


def test_files_that_come_faster_than_they_are_written_take_no_memory(
    tmp_path: Path, log: bytes
) -> None:
    async def work(landing: Landing, _standing: Standing) -> None:
        landing.take(0, log)
        tracemalloc.start()
        try:
            for _ in range(50):
                landing.take_side(OFFSETS, b'{"offsetTable":{}}'.ljust(1 << 20))
                landing.take_side("no/such/name", bytes(1 << 20))
            assert tracemalloc.get_traced_memory()[0] < 8 << 20
        finally:
            tracemalloc.stop()

    run(tmp_path / "c", work)


def test_a_promotion_keeps_what_was_received(tmp_path: Path, log: bytes) -> None:
    async def work(landing: Landing, _standing: Standing) -> None:
        landing.take(0, log)
        assert landing.promote().epochs[-1].start_offset == len(log)

    with pytest.raises(BaseException, match="closed"):
        run(tmp_path / "c", work)
