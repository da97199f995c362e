"""Accepts connections, finds out what each speaks, and says in the log what became of it."""

import asyncio
import ssl

from penstock.errors import StorageError
from penstock.escape import get_logger
from penstock_replicate.master.copies import CopyPeer
from penstock_replicate.master.frame_sender import FrameSender
from penstock_replicate.master.ha_options import split_listen
from penstock_replicate.master.parts import MasterParts
from penstock_replicate.master.peer_link import LinkEndedError, PeerLink
from penstock_replicate.master.plain_sender import PlainSender
from penstock_replicate.wire.plain import ASKS_FOR_PENSTOCK, REPORT

logger = get_logger(__name__)

CONNECTIONS_MAX = 64
_BACKLOG = 64


class Listener:
    """The listening socket of a master, and its connections. Used in the loop's thread only.

    Attributes:
        links: the open connections.
        accepted: how many there were.
        refused: how many ended with a fault.
        sent_bytes: of connections that have ended.
    """

    def __init__(self, parts: MasterParts, tls: ssl.SSLContext | None) -> None:
        self._parts, self._tls = parts, tls
        self._server: asyncio.Server | None = None
        self._told: dict[str, str] = {}
        self.links: set[PeerLink] = set()
        self.accepted = self.refused = self.sent_bytes = 0

    async def start(self) -> str:
        """Listen; return the address. Raises `OSError` if it cannot be had."""
        host, port = split_listen(self._parts.options.listen)
        silence_s = self._parts.options.silence_ms / 1000
        self._server = await asyncio.get_running_loop().create_server(
            lambda: PeerLink(self._serve, silence_s), host, port, backlog=_BACKLOG, ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else silence_s,
        )  # fmt: skip
        return f"{host}:{self._server.sockets[0].getsockname()[1]}"

    def ring_all(self) -> None:
        """Wake what serves each connection: there may be more to send."""
        for link in self.links:
            link.bell.ring()

    async def close(self) -> None:
        """Listen no more, and close the connections."""
        if self._server is not None:
            self._server.close()
        tasks = [link.task for link in self.links if link.task is not None]
        for link in list(self.links):
            link.end("the store was closed")
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, link: PeerLink) -> None:
        if len(self.links) >= CONNECTIONS_MAX:
            link.end(f"there are {CONNECTIONS_MAX} connections already", is_fault=True)
            logger.warning("%s: %s", link.name, link.reason)
            return
        self.links.add(link)
        self.accepted += 1
        peer = CopyPeer(link.name, self._parts.context.clock.time_ms())
        self._parts.copies.add(peer)
        try:
            await self._serve_by_kind(link, peer)
        except LinkEndedError:
            pass
        except StorageError as error:
            link.end(f"the log cannot be read: {error}", is_fault=True)
        except Exception as error:
            logger.exception("the copy %s is not served any more", link.name)
            link.end(f"a bug in this program: {error!r}", is_fault=True)
        finally:
            self.links.discard(link)
            self.sent_bytes += link.sent_bytes
            link.end("the store was closed")
            self._parts.copies.remove(peer, link.reason)
            self._tell(link, peer)

    async def _serve_by_kind(self, link: PeerLink, peer: CopyPeer) -> None:
        while len(link.kept) < REPORT.size:
            link.bell.silence()
            await link.rest(self._parts.options.silence_ms / 1000)
        (report,) = REPORT.unpack_from(link.kept)
        link.kept = link.kept[REPORT.size :]
        if report == ASKS_FOR_PENSTOCK:
            await FrameSender(self._parts, link, peer).run()
        if report < 0:
            link.end(f"its first report is {report}: it does not speak a protocol of replication", is_fault=True)  # fmt: skip
        elif self._parts.secret is not None or self._tls is not None:
            link.end(
                "it speaks RocketMQ's protocol, which has no secret; a master with secret_file or tls_cert serves only Penstock",
                is_fault=True,
            )
        else:
            await PlainSender(self._parts, link, peer).run(report)

    def _tell(self, link: PeerLink, peer: CopyPeer) -> None:
        """Log why a connection has ended; the same fault of the same host only once, since a copy tries again every few seconds."""
        text = f"{peer.kind} copy: {link.reason}"
        if not link.is_fault:
            logger.info("%s, %s", link.name, text)
            return
        self.refused += 1
        if self._told.get(peer.host) != text:
            if len(self._told) > CONNECTIONS_MAX:
                self._told.clear()
            self._told[peer.host] = text
            logger.warning("%s, %s", link.name, text)
