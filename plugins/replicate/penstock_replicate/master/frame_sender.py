"""Sends the log to a Penstock follower, from its end on, with what belongs to it. See `wire.frames` for the conversation.

Invariants:
    * No byte is sent before the follower has proved the secret, if there is one.
    * DATA is sent without gaps. It ends where a topic was removed, and REMOVED follows; a file beside the log is sent after the
      records that it speaks of.
"""

import asyncio
import os
from hashlib import sha256
from zlib import crc32

from penstock.contracts import LentFile
from penstock.errors import OffsetError
from penstock_replicate.master import admission
from penstock_replicate.master.compressing import CompressionChoice
from penstock_replicate.master.copies import CopyPeer
from penstock_replicate.master.coverage import covered_from, read_coverage
from penstock_replicate.master.handshake import Handshake
from penstock_replicate.master.parts import MasterParts
from penstock_replicate.master.peer_link import LinkEndedError, PeerLink
from penstock_replicate.master.side_feed import SideReading
from penstock_replicate.wire.frames import (
    Ack,
    DigestAnswer,
    DigestQuestion,
    Heartbeat,
    RangeDigest,
    Refused,
    Removed,
    encode,
    encode_data_header,
    side_frames,
)
from penstock_replicate.wire.limits import SEND_BYTES, WireViolation

# From this size on the system sends the file by itself.
_SENDFILE_BYTES_MIN = 64 << 10
# A piece of data is as large as the follower takes in this time, so that heartbeats and the end of a lease come in time.
_PIECE_S = 0.25
_PIECE_BYTES_MIN = 16 << 10
# How long a follower that is refused may take to ask for digests.
_REFUSED_S = 10.0


class FrameSender:
    """Serves one follower. Used in the loop's thread only."""

    def __init__(self, parts: MasterParts, link: PeerLink, peer: CopyPeer) -> None:
        self._parts, self._link, self._peer = parts, link, peer
        self._log = parts.log
        self._handshake = Handshake(parts, link, self._take_ack)
        self._position = self._start = 0
        # The topics that were removed where the follower is, and that it knows of.
        self._told: set[tuple[int, str]] = set()
        self._piece_bytes = _SENDFILE_BYTES_MIN
        # The log offset from which on the follower checks each record by itself.
        self._covered_from: int | None = None
        self._compression = CompressionChoice("none", parts.time_s)

    async def run(self) -> None:
        """Serve until the connection ends; raises `LinkEndedError`."""
        self._peer.kind = "penstock"
        self._handshake.greet()
        await self._admit()
        follow = self._handshake.follow
        assert follow is not None
        self._start = self._position = (
            self._log.min_offset if follow.is_empty else follow.end_offset
        )
        if follow.compress:
            self._compression = CompressionChoice(self._parts.options.compress, self._parts.time_s)
        note = read_coverage(self._parts.context.files, self._log.root)
        self._covered_from = covered_from(note)
        await self._link.send(encode(note), self._heartbeat())
        self._parts.copies.begin(self._peer, self._position)
        side = self._parts.sides.join() if follow.wants_side else None
        try:
            await self._send_all(side)
        finally:
            if side is not None:
                side.close()

    # --- before the log

    async def _admit(self) -> None:
        """Wait for a request to follow that can be granted; raises `LinkEndedError`."""
        shake, link = self._handshake, self._link
        deadline_s = self._parts.time_s() + self._parts.options.silence_ms / 1000
        while shake.follow is None:
            link.bell.silence()
            if shake.question is not None:
                await self._answer_digests()
                deadline_s = self._parts.time_s() + _REFUSED_S
                continue
            left_s = deadline_s - self._parts.time_s()
            if left_s <= 0:
                link.end("the copy did not ask to follow", is_fault=True)
            await link.rest(left_s)
        loop = asyncio.get_running_loop()
        refused = await loop.run_in_executor(None, self._refusal)
        if refused is not None:
            await self._refuse(refused)
        shake.begin()

    def _refusal(self) -> Refused | None:
        shake = self._handshake
        assert shake.theirs is not None
        assert shake.follow is not None
        return admission.refusal(shake.hello(), shake.theirs, shake.follow, self._digest)

    async def _refuse(self, refused: Refused) -> None:
        """Say why, answer questions for a while, and end."""
        self._peer.last_error = refused.text
        shake, link = self._handshake, self._link
        shake.only_digests()
        await link.send(encode(refused))
        deadline_s = self._parts.time_s() + _REFUSED_S
        while self._parts.time_s() < deadline_s:
            link.bell.silence()
            if shake.question is not None:
                await self._answer_digests()
                deadline_s = self._parts.time_s() + _REFUSED_S
            else:
                await link.rest(_REFUSED_S)
        link.end(refused.text, is_fault=True)
        raise LinkEndedError

    async def _answer_digests(self) -> None:
        question = self._handshake.question
        assert question is not None
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(None, self._digests, question)
        await self._parts.bandwidth.take(sum(stop - start for start, stop in question.ranges) // 64)
        await self._link.send(encode(answer))
        self._handshake.answered()

    def _digests(self, question: DigestQuestion) -> DigestAnswer:
        return DigestAnswer(
            tuple(RangeDigest(start, stop, self._digest(start, stop)) for start, stop in question.ranges)
        )  # fmt: skip

    def _digest(self, start: int, stop: int) -> str | None:
        """Return the SHA-256 of a range of the log; None if it is not there as a whole."""
        found = sha256()
        try:
            while start < stop:
                data = self._log.read(start, stop - start)
                if not data:
                    return None
                found.update(data)
                start += len(data)
        except OffsetError:
            return None
        return found.hexdigest()

    # --- the log

    def _take_ack(self, ack: Ack) -> None:
        if ack.received_end < self._start:
            # Its log is empty until it has got something.
            return
        if ack.received_end > self._position:
            raise WireViolation(
                f"an acknowledgement of log offset {ack.received_end}, and it was sent the log only up to {self._position}"
            )
        if ack.received_end < self._peer.received:
            raise WireViolation(
                f"an acknowledgement of log offset {ack.received_end} after one of {self._peer.received}: it has lost a part of its log"
            )
        self._parts.copies.acknowledge(self._peer, ack.received_end, ack.flushed_end)

    async def _send_all(self, side: SideReading | None) -> None:
        link, interval_s = self._link, self._parts.options.heartbeat_ms / 1000
        while True:
            link.bell.silence()
            if self._handshake.question is not None:
                await self._answer_digests()
            if await self._send_next(side):
                continue
            due_s = link.sent_s + interval_s - self._parts.time_s()
            if due_s <= 0:
                await link.send(self._heartbeat())
                due_s = interval_s
            await link.rest(due_s)

    def _heartbeat(self) -> bytes:
        return encode(Heartbeat(self._log.visible_offset, self._parts.context.clock.time_ms()))

    async def _send_next(self, side: SideReading | None) -> bool:
        """Send what comes next; return False if there is nothing to send."""
        # Before the removed topics: what is removed up to here is among them then.
        visible = self._log.visible_offset
        stop = await self._send_removed(visible)
        if side is not None:
            for name, content in side.due(self._position):
                for part in side_frames(name, content):
                    await self._parts.bandwidth.take(len(part.data))
                    await self._link.send(encode(part))
        if self._position >= stop:
            return False
        await self._send_data(min(stop - self._position, self._piece_bytes))
        self._link.check()
        return True

    async def _send_removed(self, visible: int) -> int:
        """Send the topics that were removed where the follower is; return up to where the log may be sent then."""
        self._told = {one for one in self._told if one[0] == self._position}
        known = ((before, topic) for topic, before in self._log.removed_topics())
        for before, topic in sorted(one for one in known if one[0] >= self._position):
            if before > self._position:
                return min(before, visible)
            if (before, topic) not in self._told:
                self._told.add((before, topic))
                await self._link.send(encode(Removed(before, topic)))
        return visible

    async def _send_data(self, size: int) -> None:
        began_s = self._parts.time_s()
        try:
            sent = await self._send_piece(size)
        except OffsetError:
            refused = admission.removed(self._position, self._log.min_offset)
            self._link.end_after(encode(refused), refused.text)
            raise LinkEndedError from None
        took_s = max(self._parts.time_s() - began_s, 1e-6)
        self._compression.note_sent(sent, took_s)
        if sent >= self._piece_bytes or took_s > _PIECE_S:
            fitting = int(sent * _PIECE_S / took_s)
            largest = min(2 * self._piece_bytes, SEND_BYTES)
            self._piece_bytes = max(min(fitting, largest), _PIECE_BYTES_MIN)

    async def _send_piece(self, size: int) -> int:
        """Send up to `size` bytes of the log; return how many bytes that were on the line."""
        if self._compression.is_to_try(size):
            data = self._log.read(self._position, size)
            loop = asyncio.get_running_loop()
            zipped = await loop.run_in_executor(None, self._compression.zipped, data)
            await self._parts.bandwidth.take(len(data if zipped is None else zipped))
            return await self._send_bytes(data, zipped)
        if size >= _SENDFILE_BYTES_MIN and self._link.can_sendfile:
            # Before the file is lent, which is only for a while.
            await self._parts.bandwidth.take(size)
            with self._log.lend_file(self._position) as lent:
                if lent.descriptor is not None:
                    return await self._send_lent(lent, min(size, lent.size))
            return await self._send_bytes(self._log.read(self._position, size), None)
        await self._parts.bandwidth.take(size)
        return await self._send_bytes(self._log.read(self._position, size), None)

    async def _send_lent(self, lent: LentFile, size: int) -> int:
        assert lent.descriptor is not None
        check = 0
        if self._covered_from is None or self._position < self._covered_from:
            check = crc32(os.pread(lent.descriptor, size, lent.position))
        header = encode_data_header(self._position, size, check)
        self._position += size
        await self._link.send_file(header, lent, size)
        return size

    async def _send_bytes(self, data: bytes, zipped: bytes | None) -> int:
        body = data if zipped is None else zipped
        header = encode_data_header(
            self._position, len(body), crc32(body), zipped=zipped is not None
        )
        self._position += len(data)
        await self._link.send(header, body)
        return len(body)
