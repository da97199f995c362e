"""The files beside the log, for all followers: read when they change, and sent after the log that they speak of."""

import asyncio
from collections.abc import Callable, Iterator, Mapping

from penstock.contracts import ReplicatedLog
from penstock.escape import get_logger

logger = get_logger(__name__)


class SideFeed:
    """Looks for changes while a follower wants to hear of them. Used in the loop's thread only.

    Args:
        changed: returns name to content of each file that has changed since the last call; reads files, so it runs in another thread.
        log: the log.
        interval_s: how often it is called.
        on_news: called when something has changed.
    """

    def __init__(
        self,
        changed: Callable[[], Mapping[str, bytes]],
        log: ReplicatedLog,
        interval_s: float,
        on_news: Callable[[], None],
    ) -> None:
        self._changed, self._log, self._interval_s, self._on_news = (
            changed,
            log,
            interval_s,
            on_news,
        )
        # Name to version, the log offset that must be sent before it, and the content.
        self._files: dict[str, tuple[int, int, bytes]] = {}
        self._listeners = 0
        self._task: asyncio.Task[None] | None = None

    def join(self) -> "SideReading":
        """Return the view of one more follower; it must be closed."""
        self._listeners += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._watch())
        return SideReading(self._files, self._leave)

    def _leave(self) -> None:
        self._listeners -= 1
        if not self._listeners and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                news = await loop.run_in_executor(None, self._changed)
            except Exception:
                # Without these files the log is still copied, and a later look may succeed.
                logger.exception("the files beside the log cannot be read for followers")
                news = {}
            # After reading: what they say is of records before this offset.
            spoken_of = self._log.wrote_offset
            for name, data in news.items():
                version = self._files[name][0] + 1 if name in self._files else 1
                self._files[name] = version, spoken_of, data
            if news:
                self._on_news()
            await asyncio.sleep(self._interval_s)


class SideReading:
    """What one follower has got of the files. Used in the loop's thread only."""

    def __init__(
        self, files: Mapping[str, tuple[int, int, bytes]], leave: Callable[[], None]
    ) -> None:
        self._files, self._leave = files, leave
        self._sent: dict[str, int] = {}

    def due(self, log_offset: int) -> Iterator[tuple[str, bytes]]:
        """Yield name and content of each file that is to be sent to a follower that has the log up to `log_offset`."""
        for name, (version, spoken_of, data) in list(self._files.items()):
            if spoken_of <= log_offset and self._sent.get(name) != version:
                self._sent[name] = version
                yield name, data

    def close(self) -> None:
        """The follower has gone."""
        self._leave()
