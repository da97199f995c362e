"""Follows a RocketMQ master, as its own slave does (both versions).

The protocol says nothing but offsets: no name, no size of segments, no end of the master's log. So this side checks what it can:

    * a chunk must begin where the last one ended, also in an incomplete record;
    * an empty log begins where the master's last file does, which must be a border of segments here, too;
    * records, and where blank records end, are checked before they are appended.

A report smaller than what the master sent is no request to send it again: it is how far this log has whole records.
"""

import asyncio
from pathlib import Path

from penstock.errors import CorruptionError
from penstock_replicate.following.channel import Channel, ConnectionLostError
from penstock_replicate.following.landing import Landing
from penstock_replicate.following.refusals import other_border
from penstock_replicate.following.standing import FollowState, Standing
from penstock_replicate.following.trouble import BadBytesError
from penstock_replicate.wire.limits import WireViolation
from penstock_replicate.wire.plain import Chunk, ChunkDecoder, encode_report

REPORT_S = 5.0
# The master looks for new bytes ten times a second, so it has sent all it had if nothing comes for longer.
QUIET_S = 0.25


class PlainSession:
    """One connection to a RocketMQ master. Used by the event loop's thread."""

    def __init__(self, channel: Channel, standing: Standing, path: Path, silence_s: float) -> None:
        self._channel = channel
        self._standing = standing
        self._path = path
        self._silence_s = silence_s
        self._decoder = ChunkDecoder()
        self._reported = -1
        self._is_heard = False
        self._report_at = 0.0

    async def run(self, landing: Landing) -> None:
        """Follow until the connection ends; raises `ConnectionLostError`, or what `Landing.take` raises."""
        loop = asyncio.get_running_loop()
        landing.on_flushed = lambda: None
        heard_at = data_at = loop.time()
        self._standing.turn(FollowState.CATCHING_UP)
        self._report(landing, loop.time())
        while True:
            now = loop.time()
            pause = min(
                self._report_at - now,
                heard_at + self._silence_s - now,
                QUIET_S - (now - data_at) if now - data_at < QUIET_S else REPORT_S,
            )
            data = await self._channel.receive(max(pause, 0.001))
            now = loop.time()
            if data:
                heard_at = now
                data_at = now if self._take(landing, data) else data_at
            elif now - heard_at >= self._silence_s:
                raise ConnectionLostError(f"the master is silent for {now - heard_at:.0f} s")
            is_whole = landing.position == landing.end_offset
            self._standing.settle(is_level=self._is_heard and is_whole and now - data_at >= QUIET_S)
            if landing.end_offset > self._reported or now >= self._report_at:
                self._report(landing, now)

    def _report(self, landing: Landing, now: float) -> None:
        if self._channel.send_latest(encode_report(landing.end_offset)):
            self._reported = landing.end_offset
        self._report_at = now + REPORT_S

    def _take(self, landing: Landing, data: bytes) -> bool:
        """Take what came; return whether any of it was bytes of the log."""
        has_data = False
        try:
            for chunk in self._decoder.chunks(data):
                self._take_chunk(landing, chunk)
                has_data |= len(chunk.data) > 0
        except WireViolation as error:
            raise ConnectionLostError(f"the master breaks the protocol: {error}") from error
        if self._decoder.hello is not None:
            raise ConnectionLostError("the master is Penstock, and answered late")
        return has_data

    def _take_chunk(self, landing: Landing, chunk: Chunk) -> None:
        if chunk.log_offset != landing.position:
            self._begin(landing, chunk)
        if chunk.data:
            try:
                landing.take(chunk.log_offset, chunk.data)
            except CorruptionError as error:
                raise BadBytesError(landing.end_offset, str(error)) from error
        self._is_heard = True
        self._standing.heard(chunk.log_offset + len(chunk.data))

    def _begin(self, landing: Landing, chunk: Chunk) -> None:
        """Let an empty log begin where the master's last file does; any other jump ends the connection."""
        is_border = chunk.log_offset % landing.store.segment_bytes == 0
        if not landing.is_empty or not (is_border or chunk.data):
            raise ConnectionLostError(
                f"the master sent log offset {chunk.log_offset}, where {landing.position} was expected"
            )
        if not is_border:
            size = landing.store.segment_bytes
            raise other_border(self._path, self._standing.peer, size, chunk.log_offset)
        if chunk.data:
            landing.begin_at(chunk.log_offset)
