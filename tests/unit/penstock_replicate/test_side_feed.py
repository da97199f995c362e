import asyncio
from pathlib import Path

from tests.ha_peers import MemoryLog

from penstock_replicate.master.side_feed import SideFeed


def test_each_follower_gets_each_content_once_after_its_log(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    end = log.put()
    news = [{"a": b"1", "b": b"2"}, {}, {"a": b"3"}]
    looks = 0

    def changed() -> dict[str, bytes]:
        nonlocal looks
        looks += 1
        return news.pop(0) if news else {}

    async def story() -> None:
        came = asyncio.Event()
        feed = SideFeed(changed, log, 0.001, came.set)
        first = feed.join()
        await came.wait()
        assert not list(first.due(end - 1))
        assert list(first.due(end)) == [("a", b"1"), ("b", b"2")]
        assert not list(first.due(end))
        came.clear()
        await came.wait()
        assert list(first.due(end)) == [("a", b"3")]
        second = feed.join()
        assert dict(second.due(end)) == {"a": b"3", "b": b"2"}
        first.close()
        second.close()
        seen = looks
        await asyncio.sleep(0.02)
        assert looks == seen

    asyncio.run(story())


def test_a_failed_look_is_tried_again(tmp_path: Path) -> None:
    calls = iter([OSError("gone"), {"a": b"1"}])

    def changed() -> dict[str, bytes]:
        found = next(calls, {})
        if isinstance(found, OSError):
            raise found
        return found  # type: ignore[return-value]  # a dict by now

    async def story() -> None:
        came = asyncio.Event()
        feed = SideFeed(changed, MemoryLog(tmp_path), 0.001, came.set)
        view = feed.join()
        await came.wait()
        assert list(view.due(0)) == [("a", b"1")]
        view.close()

    asyncio.run(story())
