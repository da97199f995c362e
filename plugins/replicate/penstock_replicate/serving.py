"""Serves the followers of one log over TCP, for the replicator `ha`, whose module is imported at every start."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from ssl import SSLContext
from typing import Any

from penstock.contracts import Context, ReplicatedLog
from penstock.errors import OffsetError
from penstock.escape import get_logger
from penstock_replicate.beside import MasterFiles, Reading
from penstock_replicate.copies import Copies
from penstock_replicate.ha import HaOptions
from penstock_replicate.loop import Link, Loop
from penstock_replicate.master import PIECE_BYTES, MasterPeer
from penstock_replicate.peer import Action, Close, Hash, Read, ReadRanges
from penstock_replicate.rocketmq import SILENCE_MS, PlainMasterPeer, is_report
from penstock_replicate.secret import Secret
from penstock_replicate.wire import host_and_port

logger = get_logger(__name__)
_TICKS_A_HEARTBEAT = 4
_STATUS_MS = 1000
# The files beside the log are read each heartbeat, but not more often.
_READING_MS_MIN = 100


class _MasterLink(Link):
    """A follower's connection."""

    peer: MasterPeer | PlainMasterPeer

    def __init__(self, server: "Server", loop: Loop, copies: Copies) -> None:
        super().__init__(loop)
        self._server, self._copies = server, copies
        # A read that waits until the other side has taken what was sent.
        self._read: Read | None = None
        self._address = ""
        self._has_begun = False

    def begin(self, address: str) -> Sequence[Action]:
        self._address = address
        # A slave may take longer than a copy to say its first word.
        self._meet(is_slave=self._server.options.rocketmq_slaves)
        return ()

    def _meet(self, *, is_slave: bool) -> None:
        options, now_ms = self._server.options, self._server.context.clock.monotonic_ms()
        given = self._server.log, self._copies, self._address
        if is_slave:
            self.peer = PlainMasterPeer(
                *given, is_served=options.rocketmq_slaves, heartbeat_ms=options.heartbeat_ms,
                silence_ms=SILENCE_MS, now_ms=now_ms,
            )  # fmt: skip
        else:
            self.peer = MasterPeer(
                *given, heartbeat_ms=options.heartbeat_ms, silence_ms=options.silence_ms, now_ms=now_ms,
                secret=None if self._server.key is None else Secret(self._server.key),
            )  # fmt: skip

    def data_received(self, data: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._meet(is_slave=is_report(data))
        super().data_received(data)

    def ended(self, close: Close | None, reason: str) -> None:
        self.peer.lost(reason)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._server.watch()

    def do(self, action: Action) -> None:
        log, peer = self._server.log, self.peer
        if isinstance(action, Read):
            at, size = action.log_offset, action.size
            if self.is_full:
                self._read = action
            elif size <= PIECE_BYTES and (data := log.recent(at, size)):
                self._told(peer.read_done, data)
            else:
                self.loop.aside(lambda: log.read(at, size), partial(self._told, peer.read_done))
        elif isinstance(action, Hash) and isinstance(peer, MasterPeer):
            start, stop = action.start, action.stop
            then = partial(self._told, partial(peer.hashed, start, stop))
            self.loop.aside(lambda: log.digest(start, stop), then)
        elif isinstance(action, ReadRanges) and isinstance(peer, MasterPeer):
            self.loop.aside(log.ranges, partial(self._told, peer.ranges_done))

    def _told(self, take: Callable[[Any], list[Action]], found: object) -> None:
        """Give the machine what was read; None if retention has removed it."""
        if isinstance(found, BaseException) and not isinstance(found, OffsetError):
            self.abort(f"the master's log could not be read: {found}")
        else:
            self.run(take(None if isinstance(found, OffsetError) else found))

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._read is not None:
            action, self._read = self._read, None
            self.run([action])


class Server:
    """Listens, and drives the machine of each connection. Safe from any thread."""

    def __init__(
        self,
        options: HaOptions,
        context: Context,
        log: ReplicatedLog,
        wait_for: str,
        key: bytes | None,
        tls: SSLContext | None,
    ) -> None:
        self.options, self.context, self.log = options, context, log
        self.key = key
        self._wait_for = wait_for
        self._loop = Loop("penstock-ha", links_max=options.connections_max, threads=2, tls=tls)
        self._address = ""
        self._told_ms = self._read_ms = 0
        self._files = MasterFiles(context.files, log)
        self._is_reading = False

    def start(self) -> None:
        """Begin to listen; raises `OSError` if that is not possible, and leaves nothing then."""
        self._loop.start()
        try:
            self._loop.call(self._begin())
        except OSError:
            self._loop.close()
            raise

    async def _begin(self) -> None:
        now_ms = self.context.clock.monotonic_ms()
        self._copies = Copies(
            self.log, needed=self.options.in_sync_replicas - 1, wait_for=self._wait_for,
            timeout_ms=self.options.timeout_ms,
            heartbeat_ms=self.options.heartbeat_ms, now_ms=now_ms,
        )  # fmt: skip
        self._address = await self._loop.listen(
            lambda: _MasterLink(self, self._loop, self._copies),
            *host_and_port(self.options.listen),
        )
        self._tick()

    def advanced(self) -> None:
        """Look at the log, soon."""
        self._loop.post(self._on_bell)

    def watch(self) -> None:
        """Answer the bell while somebody is connected: a thread that wakes at each sync slows puts down."""
        bell = self.log.bell.fileno()
        if self._loop.links:
            self._loop.loop.add_reader(bell, self._on_bell)
        else:
            self._loop.loop.remove_reader(bell)

    def _on_bell(self) -> None:
        self.log.bell.answer()
        self._copies.look()
        for link in self._links():
            link.peer.is_full = link.is_full
            link.run(link.peer.advanced())

    def _links(self) -> list[_MasterLink]:
        return [link for link in self._loop.links if isinstance(link, _MasterLink)]

    def _tick(self) -> None:
        now_ms = self.context.clock.monotonic_ms()
        self._copies.tick(now_ms)
        for link in self._links():
            link.tick(now_ms, self.options.silence_ms)
        if now_ms - self._told_ms >= _STATUS_MS or not self._told_ms:
            self._told_ms = now_ms
            self.log.publish(self._status())
        if now_ms - self._read_ms >= max(self.options.heartbeat_ms, _READING_MS_MIN):
            self._read_ms = now_ms
            self._read_files()
        self._send_files()
        pause_s = self.options.heartbeat_ms / 1000 / _TICKS_A_HEARTBEAT
        self._loop.loop.call_later(pause_s, self._tick)

    def _read_files(self) -> None:
        """Read the files beside the log, if a copy is connected, and send them."""
        is_wanted = any(isinstance(link.peer, MasterPeer) for link in self._links())
        if is_wanted and not self._is_reading:
            self._is_reading = True
            self._loop.aside(self._files.read, self._have_read)

    def _have_read(self, found: Reading | BaseException | None) -> None:
        self._is_reading = False
        if isinstance(found, BaseException):
            logger.error("the files beside the log were not read", exc_info=found)
        else:
            self._send_files(found)

    def _send_files(self, reading: Reading | None = None) -> None:
        for link in self._links():
            if not link.is_full and isinstance(link.peer, MasterPeer):
                link.run(link.peer.send_files(reading))

    def _status(self) -> dict[str, Any]:
        copies = self._copies.status()
        connected = sum(copy["is_connected"] for copy in copies)
        noun = "1 copy is" if connected == 1 else f"{connected} copies are"
        return {
            "role": "master",
            "text": f"{noun} connected, {self._copies.in_sync} in sync",
            "listen": self._address,
            "visible": self.log.visible_offset,
            "reached": self._copies.reached,
            "in_sync": self._copies.in_sync,
            "copies": copies,
        }

    def close(self) -> None:
        """Send what is left, and end everything; a second call does nothing."""
        loop = self._loop
        try:
            if self._address and loop.is_open:
                loop.call(self._send_the_rest())
        finally:
            loop.close()

    async def _settle(self, end: float) -> None:
        while self._loop.loop.time() < end and (
            self._is_reading or any(link.peer.is_behind for link in self._links())
        ):
            self._send_files()
            await asyncio.sleep(0.005)

    async def _send_the_rest(self) -> None:
        self._on_bell()
        end = self._loop.loop.time() + self.options.timeout_ms / 1000
        await self._settle(end)
        # Not a reading that has begun before: those who write the files have ended now. The first may not count.
        for _ in range(2):
            self._read_files()
            await self._settle(end)
        for link in self._links():
            link.run(link.peer.end("closing", "the master is closing"))
