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
from penstock_replicate.loop import LAST_WORDS_S, Loop
from penstock_replicate.master import PIECE_BYTES, MasterPeer
from penstock_replicate.peer import Action, Close, Hash, Read, ReadRanges, Send
from penstock_replicate.rocketmq import SILENCE_MS, PlainMasterPeer, is_report
from penstock_replicate.secret import Secret
from penstock_replicate.wire import host_and_port

logger = get_logger(__name__)
# The bytes that are not sent yet, from which on no more of the log is read.
_UNSENT_BYTES = 1 << 20
_HANDSHAKE_S = 5.0
_TICKS_A_HEARTBEAT = 4
_STATUS_MS = 1000
# The files beside the log are read each heartbeat, but not more often.
_READING_MS_MIN = 100


class Link(asyncio.BufferedProtocol):
    """A follower's connection: gives its machine what comes, and carries its actions out. For the loop's thread."""

    peer: MasterPeer | PlainMasterPeer

    def __init__(self, server: "Server", loop: Loop) -> None:
        self._server, self._loop = server, loop
        self.transport: asyncio.Transport | None = None
        self.is_over = self._is_begun = self._has_met = False
        self._full_since_s = 0.0
        self._early = bytearray()
        self._address = ""
        # A read that waits until the other side has taken what was sent.
        self._read: Read | None = None

    def _meet(self, *, is_slave: bool) -> None:
        """Make the machine that speaks with a slave of RocketMQ, or with a copy."""
        server, options = self._server, self._server.options
        given = server.log, server.copies, self._address
        times: dict[str, Any] = {
            "heartbeat_ms": options.heartbeat_ms, "now_ms": server.context.clock.monotonic_ms(),
            "silence_ms": SILENCE_MS if is_slave else options.silence_ms,
        }  # fmt: skip
        if is_slave:
            self.peer = PlainMasterPeer(*given, is_served=options.rocketmq_slaves, **times)
        else:
            secret = None if server.key is None else Secret(server.key)
            self.peer = MasterPeer(*given, secret=secret, **times)

    def run(self, actions: Sequence[Action]) -> None:
        """Carry out actions in their order."""
        try:
            for action in actions:
                self._do(action)
        except Exception:
            logger.exception("a connection was closed")
            self.abort("it was closed by an error here")

    def tick(self, now_ms: int, silence_ms: int) -> None:
        """Let the machine look at the time."""
        self.run(self.peer.tick(now_ms))
        full_s = self._loop.loop.time() - self._full_since_s
        if self.peer.is_full and full_s * 1000 >= silence_ms:
            self.abort("the other side does not read")

    def _do(self, action: Action) -> None:
        log, peer, transport = self._server.log, self.peer, self.transport
        match action:
            case Send(data):
                if self._is_begun and transport is not None and not transport.is_closing():
                    transport.write(data)
            case Close(reason=reason):
                self.leave(reason)
            case Read() if peer.is_full:
                self._read = action
            case Read(at, size) if size <= PIECE_BYTES and (found := log.recent(at, size)):
                self._told(peer.read_done, found)
            case Read(at, size):
                self._loop.aside(lambda: log.read(at, size), partial(self._told, peer.read_done))
            case Hash(start, stop) if isinstance(peer, MasterPeer):
                then = partial(self._told, partial(peer.hashed, start, stop))
                self._loop.aside(lambda: log.digest(start, stop), then)
            case ReadRanges() if isinstance(peer, MasterPeer):
                self._loop.aside(log.ranges, partial(self._told, peer.ranges_done))

    def _told(self, take: Callable[[Any], list[Action]], found: object) -> None:
        """Give the machine what was read; None if retention has removed it."""
        if isinstance(found, BaseException) and not isinstance(found, OffsetError):
            self.abort(f"the master's log could not be read: {found}")
        else:
            self.run(take(None if isinstance(found, OffsetError) else found))

    def leave(self, reason: str) -> None:
        """Close the connection when what was sent is on its way."""
        if not self.is_over:
            self.is_over = True
            self.peer.lost(reason)
            if self.transport is not None:
                self.transport.close()
                self._loop.loop.call_later(LAST_WORDS_S, self.transport.abort)

    def abort(self, reason: str) -> None:
        """Close the connection without sending what is left."""
        self.leave(reason)
        if self.transport is not None:
            self.transport.abort()

    # --- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Make the machine and begin, unless there are too many connections."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        host, port = (transport.get_extra_info("peername") or ("?", 0))[:2]
        self._address = f"{host}:{port}"
        # A slave may take longer than a copy to say its first word.
        self._meet(is_slave=self._server.options.rocketmq_slaves)
        if not self._loop.add(self):
            self.abort("too many connections")
        elif self._loop.tls is not None:
            transport.pause_reading()
            self._encrypting = self._loop.loop.create_task(self._encrypt(transport, self._loop.tls))
        else:
            self._begun(transport)
        self._server.watch()

    async def _encrypt(self, transport: asyncio.Transport, tls: SSLContext) -> None:
        """Begin to encrypt, and then to speak."""
        try:
            encrypted = await self._loop.loop.start_tls(
                transport, self, tls, server_side=True, ssl_handshake_timeout=_HANDSHAKE_S
            )
        except BaseException as error:
            # Nobody else says that the connection is lost.
            self.connection_lost(OSError(f"TLS has failed: {error!r}"))
            if not isinstance(error, OSError):
                raise
            return
        if encrypted is None or self.is_over:
            # It was closed meanwhile.
            transport.abort()
            self.connection_lost(None)
        else:
            self._begun(encrypted)

    def _begun(self, transport: asyncio.Transport) -> None:
        self.transport, self._is_begun = transport, True
        transport.set_write_buffer_limits(high=_UNSENT_BYTES)
        if self._early:
            self.data_received(bytes(self._early))

    def get_buffer(self, _size: int) -> memoryview:
        """Return where asyncio puts what comes: to allocate its own buffer takes longer than to receive an answer."""
        return self._loop.memory

    def buffer_updated(self, size: int) -> None:
        """Give the machine what has come."""
        self.data_received(bytes(self._loop.memory[:size]))

    def data_received(self, data: bytes) -> None:
        """Give the machine what has come; the first bytes tell which one it is."""
        if not self._has_met:
            self._has_met = True
            self._meet(is_slave=is_report(data))
        if not self._is_begun:
            # With the last words of the handshake, of whose end this side has not been told yet.
            self._early += data
        elif not self.is_over:
            self.run(self.peer.take(data))

    def pause_writing(self) -> None:
        """Note that much is not sent yet."""
        # Each time anew: in a catch-up it is full nearly always, and the other side reads.
        self.peer.is_full, self._full_since_s = True, self._loop.loop.time()

    def resume_writing(self) -> None:
        """Note that most of it is sent, and go on reading."""
        self.peer.is_full = False
        if self._read is not None:
            action, self._read = self._read, None
            self.run([action])

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.leave(str(exc or "the other side has closed the connection"))
        self._loop.links.discard(self)
        self._server.watch()


class Server:
    """Listens, and drives the machine of each connection. Safe from any thread."""

    def __init__(
        self, options: HaOptions, context: Context, log: ReplicatedLog, wait_for: str, key: bytes | None,
        tls: SSLContext | None,
    ) -> None:  # fmt: skip
        self.options, self.context, self.log = options, context, log
        self.key = key
        self.copies = Copies(
            log, needed=options.in_sync_replicas - 1, wait_for=wait_for, timeout_ms=options.timeout_ms,
            heartbeat_ms=options.heartbeat_ms, now_ms=context.clock.monotonic_ms(),
        )  # fmt: skip
        self._loop = Loop(options.connections_max, tls)
        self._address = ""
        self._told_ms = self._read_ms = 0
        self._files = MasterFiles(context.files, log)
        self._is_reading = False

    def start(self) -> None:
        """Begin to listen; raises `OSError` if that is not possible: it is to be closed then, too."""
        self._loop.start()
        self._loop.call(self._begin())

    async def _begin(self) -> None:
        address = host_and_port(self.options.listen)
        self._address = await self._loop.listen(lambda: Link(self, self._loop), *address)
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
        self.copies.look()
        for link in [*self._loop.links]:
            link.run(link.peer.advanced())

    def _tick(self) -> None:
        now_ms = self.context.clock.monotonic_ms()
        self.copies.tick(now_ms)
        for link in [*self._loop.links]:
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
        is_wanted = any(isinstance(link.peer, MasterPeer) for link in self._loop.links)
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
        for link in [*self._loop.links]:
            if not link.peer.is_full and isinstance(link.peer, MasterPeer):
                link.run(link.peer.send_files(reading))

    def _status(self) -> dict[str, Any]:
        copies = self.copies.status()
        connected = sum(copy["is_connected"] for copy in copies)
        noun = "1 copy is" if connected == 1 else f"{connected} copies are"
        return {
            "role": "master",
            "text": f"{noun} connected, {self.copies.in_sync} in sync",
            "listen": self._address,
            "visible": self.log.visible_offset,
            "reached": self.copies.reached,
            "in_sync": self.copies.in_sync,
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
            self._is_reading or any(link.peer.is_behind for link in self._loop.links)
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
        for link in [*self._loop.links]:
            link.run(link.peer.end("closing", "the master is closing"))
