"""A TCP proxy between a master and its copies that cuts, delays and garbles what passes, as a seed says."""

import asyncio
import contextlib
import random
import threading
from collections import Counter
from types import TracebackType
from typing import Self

import attrs

_READ_BYTES = 64 << 10
_START_S = 10.0
_GARBLES = ("flip", "drop", "duplicate", "truncate")


@attrs.frozen(kw_only=True)
class Chaos:
    """What happens to the bytes of a connection: each thing once in so many bytes, on average; 0: never.

    Attributes:
        cut_bytes: the connection is cut.
        delay_bytes: what comes is held back, for up to `delay_s`.
        garble_bytes: bits are flipped, or bytes are dropped, duplicated, or cut off at the end of what was sent at once.
        refuse: the share of connections that are closed at once.
    """

    cut_bytes: int = 0
    delay_bytes: int = 0
    delay_s: float = 0.2
    garble_bytes: int = 0
    refuse: float = 0.0


CALM = Chaos()


class ReplicaProxy:
    """Listens at a free port, and passes on to `target`. Safe from any thread.

    Attributes:
        address: HOST:PORT where it listens.
        counts: what it did, by kind.
        chaos: what it does; may be changed at any time.
    """

    def __init__(self, target: str, seed: int, chaos: Chaos = CALM) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._chance = random.Random(seed)
        self.chaos = chaos
        self.counts: Counter[str] = Counter()
        self.address = ""
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()
        assert self._is_ready.wait(_START_S)

    def cut(self) -> None:
        """Cut all connections that there are."""
        self._loop.call_soon_threadsafe(self._cut_all)

    def calm(self) -> None:
        """Pass on everything unchanged, on new connections."""
        self.chaos = CALM
        self.cut()

    def close(self) -> None:
        """Cut all connections, and take no more."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self.close()

    # --- the thread

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        server = loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        host, port = server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        self._is_ready.set()
        try:
            loop.run_forever()
        finally:
            server.close()
            self._cut_all()
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.close()

    def _cut_all(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counts["connections"] += 1
        ends = [writer]
        self._writers.add(writer)
        try:
            if self._chance.random() < self.chaos.refuse:
                self.counts["refused"] += 1
                return
            their_reader, their_writer = await asyncio.open_connection(*self._target)
            ends.append(their_writer)
            self._writers.add(their_writer)
            pumps = [
                asyncio.ensure_future(self._pump(reader, their_writer)),
                asyncio.ensure_future(self._pump(their_reader, writer)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            # The master does not listen.
            self.counts["unreachable"] += 1
        finally:
            for end in ends:
                self._writers.discard(end)
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_READ_BYTES):
                changed = await self._change(data)
                if changed is None:
                    self.counts["cut"] += 1
                    return
                writer.write(changed)
                await writer.drain()

    def _happens(self, size: int, once_in_bytes: int) -> bool:
        return bool(once_in_bytes) and self._chance.random() < size / once_in_bytes

    async def _change(self, data: bytes) -> bytes | None:
        """Return what is passed on; None to cut the connection."""
        chaos, size = self.chaos, len(data)
        if self._happens(size, chaos.delay_bytes):
            self.counts["delayed"] += 1
            await asyncio.sleep(self._chance.random() * chaos.delay_s)
        if self._happens(size, chaos.garble_bytes):
            kind = self._chance.choice(_GARBLES)
            self.counts[kind] += 1
            data = garbled(data, kind, self._chance)
        return None if self._happens(size, chaos.cut_bytes) else data


def garbled(data: bytes, kind: str, chance: random.Random) -> bytes:
    """Return the data with a flipped bit, or with a piece of it missing, doubled, or missing at the end."""
    start = chance.randrange(len(data))
    stop = min(start + chance.choice((1, 1, 2, 8, 100)), len(data))
    if kind == "flip":
        bit = 1 << chance.randrange(8)
        return data[:start] + bytes([data[start] ^ bit]) + data[start + 1 :]
    if kind == "drop":
        return data[:start] + data[stop:]
    if kind == "duplicate":
        return data[:stop] + data[start:]
    return data[:start]
