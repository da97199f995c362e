"""Sends the log to a RocketMQ slave, by RocketMQ's own protocol. See `wire.plain`.

As a RocketMQ master does, but for this: a slave that cannot be served rightly is refused with a reason, where RocketMQ sends heartbeats for
ever (a position that retention removed, one beyond the end) or bytes that corrupt the slave's log (one in the middle of a record). And each
chunk ends with a record, so that no slave stops in the middle of one.
"""

import asyncio

from penstock.errors import OffsetError
from penstock_replicate.master import admission
from penstock_replicate.master.copies import CopyPeer
from penstock_replicate.master.parts import MasterParts
from penstock_replicate.master.peer_link import LinkEndedError, PeerLink
from penstock_replicate.master.record_starts import (
    begins_record,
    large_record_rest,
    whole_records,
)
from penstock_replicate.wire.limits import WireViolation
from penstock_replicate.wire.plain import (
    ROCKETMQ_CHUNK_BYTES_MAX,
    ReportDecoder,
    encode_chunk_header,
)

# Read from the log at once, to be cut into chunks.
_WINDOW_BYTES = 512 << 10


class PlainSender:
    """Serves one slave. Used in the loop's thread only."""

    def __init__(self, parts: MasterParts, link: PeerLink, peer: CopyPeer) -> None:
        self._parts, self._link, self._peer = parts, link, peer
        self._log = parts.log
        self._reports = ReportDecoder()
        self._position = 0
        # Where an empty slave begins.
        self._empty_until: int | None = None
        # How many bytes of a record that is sent in pieces are left.
        self._rest = 0

    async def run(self, first_report: int) -> None:
        """Serve until the connection ends; raises `LinkEndedError`."""
        self._peer.kind = "rocketmq"
        self._position = await self._begin(first_report)
        self._empty_until = None if first_report else self._position
        # The slave has at least what it said; an empty one begins where it is sent from.
        self._parts.copies.begin(self._peer, self._position)
        self._link.handle_by(self._take_reports)
        while True:
            self._link.bell.silence()
            if not await self._send_next():
                await self._pause()

    async def _begin(self, report: int) -> int:
        log, visible = self._log, self._log.visible_offset
        if report == 0:
            # As RocketMQ: the history before the last file is not sent to an empty slave.
            return max(visible - visible % log.segment_bytes, log.min_offset)
        if report < log.min_offset:
            self._refuse(admission.removed(report, log.min_offset).text)
        if report > visible:
            self._refuse(
                f"its first report is log offset {report}, beyond the end of this log, {visible}: its log is not a copy of this one, or this "
                "one has lost its end in a crash. Clear the slave's store, or promote it"
            )
        loop = asyncio.get_running_loop()
        try:
            if not begins_record(log, report):
                limit = ROCKETMQ_CHUNK_BYTES_MAX
                self._rest = await loop.run_in_executor(None, large_record_rest, log, report, limit)
                if not self._rest:
                    self._refuse(
                        f"its first report is log offset {report}, in the middle of a record of this log: what follows would corrupt its "
                        "log. Restart the slave, so that it cuts off an incomplete record, or clear its store if its log is another one"
                    )
        except OffsetError:
            self._refuse(admission.removed(report, log.min_offset).text)
        return report

    def _refuse(self, text: str) -> None:
        self._link.end(text, is_fault=True)
        raise LinkEndedError

    def _take_reports(self, data: bytes) -> None:
        report = self._reports.last(data)
        if report is None or (report == 0 and self._peer.received == self._empty_until):
            # An empty slave reports 0 until it has got something, which may be under way.
            return
        if report > self._position:
            raise WireViolation(
                f"a report of log offset {report}, and it was sent the log only up to {self._position}"
            )
        if report < self._peer.received:
            raise WireViolation(
                f"a report of log offset {report} after one of {self._peer.received}: it has lost a part of its log"
            )
        self._parts.copies.acknowledge(self._peer, report, None)

    async def _send_next(self) -> bool:
        """Send a window of chunks; return False if there is nothing to send."""
        if self._log.visible_offset <= self._position:
            return False
        try:
            window = self._log.read(self._position, _WINDOW_BYTES)
            if not window:
                return False
            at = 0
            pieces: list[bytes | memoryview] = []
            while at < len(window):
                size = self._chunk_size(window, at)
                if size > len(window) - at:
                    if at:
                        break
                    window = self._log.read(self._position, size)
                    size = len(window)
                pieces += [encode_chunk_header(self._position + at, size), memoryview(window)[at : at + size]]  # fmt: skip
                at += size
        except OffsetError:
            self._refuse(admission.removed(self._position, self._log.min_offset).text)
            raise
        await self._parts.bandwidth.take(at)
        self._position += at
        await self._link.send(*pieces)
        return True

    def _chunk_size(self, window: bytes, at: int) -> int:
        """Return the size of the next chunk; it may be greater than what the window has left."""
        left, limit = len(window) - at, self._parts.options.chunk_bytes
        if self._rest:
            size = min(self._rest, left, limit)
            self._rest -= size
            return size
        if left <= limit and self._position + len(window) == self._log.visible_offset:
            return left
        size, following = whole_records(window, at, limit)
        if size or following:
            if size or following <= ROCKETMQ_CHUNK_BYTES_MAX:
                return size or following
            self._rest = following
            return self._chunk_size(window, at)
        # Bytes that are no record, or the window's last ones, which are read again.
        return left + 1 if at else left

    async def _pause(self) -> None:
        """Wait for more; send a heartbeat if it takes too long."""
        link, interval = self._link, self._parts.options.heartbeat_ms / 1000
        due = link.sent_s + interval - self._parts.time_s()
        if due <= 0:
            await link.send(encode_chunk_header(self._position, 0))
            due = interval
        await link.rest(due)
