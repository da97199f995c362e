"""Follows a Penstock master: greeting, proof, comparison of the logs, then the log and what travels beside it.

See `wire.frames` for what is said in which order. The master hears of it if the logs differ, so that both sides can tell their operators:
the request to follow is sent in any case, and its refusal awaited.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.errors import CorruptionError, MessageError, OffsetError
from penstock_replicate.following import refusals
from penstock_replicate.following.agreement import OwnSide, disagreement
from penstock_replicate.following.channel import Channel, ConnectionLostError
from penstock_replicate.following.landing import FAR_BEHIND_BYTES, Landing
from penstock_replicate.following.standing import FollowState, Standing
from penstock_replicate.following.trouble import BadBytesError
from penstock_replicate.wire.decoding import FrameDecoder, SideFiles
from penstock_replicate.wire.frames import (
    FROM_MASTER,
    Ack,
    AnyFrame,
    Auth,
    CoverageNote,
    Data,
    DigestAnswer,
    DigestQuestion,
    Follow,
    FrameType,
    Heartbeat,
    Hello,
    RefusalCode,
    Refused,
    Removed,
    Side,
    encode,
)
from penstock_replicate.wire.limits import WireViolation
from penstock_replicate.wire.proof import is_proof, make_nonce, prove

# A peer that lives needs an acknowledgement as often, or it takes this side for dead.
ACK_S = 5.0
# Nobody waits for a copy that lacks much.
FAR_BEHIND_ACK_S = 0.05
ANSWER_S = 20.0
REFUSAL_S = 5.0
# Anybody may say these; any other could make this side set its store aside, and counts only from a master that has proved the secret.
_BEFORE_PROOF = frozenset({RefusalCode.SECRET, RefusalCode.VERSION, RefusalCode.CLOSING})


class FrameSession:
    """One connection to a Penstock master. Used by the event loop's thread."""

    def __init__(self, channel: Channel, standing: Standing, path: Path, silence_s: float) -> None:
        self._channel = channel
        self._standing = standing
        self._path = path
        self._silence_s = silence_s
        self._decoder = FrameDecoder(frozenset({FrameType.HELLO}))
        # Decoded one by one, as they are taken: a MiB of them may hold a GiB, once it is decompressed.
        self._coming: Iterator[AnyFrame] = iter(())
        self._acked = (-1, -1)
        self._ack_at = self._acked_at = self._heard_at = 0.0
        self._sides = SideFiles()
        self._first_offset = 0
        self._takers: dict[type[AnyFrame], Callable[..., None]] = {}

    # --- the beginning

    def greeted(self, greeting: bytes, rest: bytes) -> Hello:
        """Return what the master says of itself in its first frame; `rest` are the bytes after it."""
        try:
            (hello,) = self._decoder.frames(greeting)
            self._decoder.allowed = FROM_MASTER | {FrameType.AUTH}
            self._coming = self._decoder.frames(rest)
        except (WireViolation, ValueError) as error:
            raise ConnectionLostError(f"the master breaks the protocol: {error}") from error
        assert isinstance(hello, Hello)
        # No other offset begins an empty log: one that was changed on the way would leave a hole for ever.
        self._first_offset = hello.min_offset
        self._standing.kind = "penstock"
        self._standing.heard(hello.end_offset)
        return hello

    async def prove(self, hello: Hello, own: OwnSide, secret: bytes | None) -> None:
        """Say who this side is, and prove the shared secret, both ways; raises `ReplicationError`."""
        if hello.needs_proof and secret is None:
            raise refusals.needs_secret(self._path, self._standing.peer)
        nonce = make_nonce()
        mine = Hello(
            history=own.history,
            epochs=tuple((each.epoch, each.start_offset) for each in own.epochs),
            segment_bytes=own.log.segment_bytes,
            min_offset=own.log.min_offset,
            end_offset=own.log.end_offset,
            store=own.path.name[:200],
            nonce=nonce,
            needs_proof=secret is not None,
        )
        self._channel.send(encode(mine))
        if secret is None:
            return
        self._channel.send(encode(Auth(prove(secret, "follower", hello.nonce, nonce))))
        answer = await self._next(ANSWER_S)
        if isinstance(answer, Refused) and answer.code in _BEFORE_PROOF:
            raise self._refused(answer)
        is_right = isinstance(answer, Auth) and is_proof(
            answer.proof, secret, "master", hello.nonce, nonce
        )
        if not is_right:
            raise refusals.no_proof(self._path, self._standing.peer)

    async def agree(self, hello: Hello, own: OwnSide, follow: Follow) -> None:
        """Ask to follow, after the logs were compared; raises `ReplicationError` if they cannot be continued.

        When this returns, the master has accepted: what it sends next is for `run`.
        """
        self._decoder.allowed = FROM_MASTER
        try:
            trouble = await disagreement(own, hello, self._standing.peer, self._ask_digest)
        except OffsetError as error:
            raise ConnectionLostError(
                f"retention here has deleted what was about to be compared: {error}"
            ) from error
        self._channel.send(encode(follow))
        try:
            frame = await self._next(REFUSAL_S if trouble else ANSWER_S)
        except ConnectionLostError:
            if trouble is not None:
                raise trouble from None
            raise
        if isinstance(frame, Refused):
            # This side knows better where the logs part, if it knows that they do.
            raise trouble or self._refused(frame)
        if trouble is not None:
            raise trouble
        self._coming = itertools.chain((frame,), self._coming)

    def _refused(self, frame: Refused) -> Exception:
        if frame.code == RefusalCode.CLOSING:
            return ConnectionLostError("the master is closing")
        return refusals.refused(self._path, self._standing.peer, frame)

    async def _ask_digest(self, start: int, stop: int) -> str | None:
        self._channel.send(encode(DigestQuestion(((start, stop),))))
        answer = await self._next(ANSWER_S)
        if isinstance(answer, Refused):
            raise self._refused(answer)
        if not isinstance(answer, DigestAnswer) or len(answer.digests) != 1:
            raise ConnectionLostError("the master does not answer a question for a digest")
        (found,) = answer.digests
        return found.sha256 if (found.start, found.stop) == (start, stop) else None

    async def _next(self, timeout_s: float) -> AnyFrame:
        """Return the next frame; raises `ConnectionLostError` if none comes in time."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while (frame := self._taken()) is None:
            left = deadline - asyncio.get_running_loop().time()
            data = await self._channel.receive(max(left, 0))
            if not data and left <= 0:
                raise ConnectionLostError(f"the master does not answer within {timeout_s:.0f} s")
            self._coming = self._decoder.frames(data)
        return frame

    def _taken(self) -> AnyFrame | None:
        """Return the next frame of what has come; None if it completes none."""
        try:
            return next(self._coming, None)
        except WireViolation as error:
            raise ConnectionLostError(f"the master breaks the protocol: {error}") from error

    # --- following

    async def run(self, landing: Landing) -> None:
        """Follow until the connection ends; raises `ConnectionLostError`, or what `Landing.take` raises."""
        loop = asyncio.get_running_loop()
        self._takers = {
            Data: lambda frame: self._take_data(landing, frame),
            Side: lambda frame: self._take_side(landing, frame),
            Removed: lambda frame: self._take_removed(landing, frame),
            CoverageNote: landing.take_coverage,
            Heartbeat: lambda frame: self._standing.heard(frame.visible_end),
        }
        landing.on_flushed = self._channel.wake
        self._standing.turn(FollowState.CATCHING_UP)
        self._heard_at = loop.time()
        self._take_waiting(landing)
        self._channel.hand_over(lambda data: self._take_bytes(landing, data))
        while True:
            self._acknowledge(landing, loop.time())
            pause = min(self._ack_at, self._heard_at + self._silence_s) - loop.time()
            await self._channel.receive(max(pause, 0.001))
            silent_s = loop.time() - self._heard_at
            if silent_s >= self._silence_s:
                raise ConnectionLostError(f"the master is silent for {silent_s:.0f} s")

    def _take_bytes(self, landing: Landing, data: memoryview) -> None:
        """Take what has come, and acknowledge it at once: a put may wait for that."""
        self._heard_at = asyncio.get_running_loop().time()
        self._coming = self._decoder.frames(data)
        self._take_waiting(landing)
        self._acknowledge(landing, self._heard_at)

    def _take_waiting(self, landing: Landing) -> None:
        while (frame := self._taken()) is not None:
            self._take(frame)
        self._standing.settle(is_level=landing.end_offset >= (self._standing.master_offset or 0))

    def _acknowledge(self, landing: Landing, now: float) -> None:
        ends = landing.end_offset, landing.flushed_offset
        pause_s = FAR_BEHIND_ACK_S if self._standing.lag_bytes > FAR_BEHIND_BYTES else 0.0
        if now < self._ack_at and (ends == self._acked or now < self._acked_at + pause_s):
            return
        self._acked_at = now
        if self._channel.send_latest(encode(Ack(*ends))):
            self._acked = ends
        self._ack_at = now + ACK_S

    def _take(self, frame: AnyFrame) -> None:
        if isinstance(frame, Refused):
            raise self._refused(frame)
        taker = self._takers.get(type(frame))
        if taker is None:
            raise ConnectionLostError(
                f"the master sends a frame {frame.type.name} that was not asked for"
            )
        taker(frame)

    def _take_data(self, landing: Landing, frame: Data) -> None:
        if landing.is_empty and frame.log_offset == self._first_offset:
            landing.begin_at(frame.log_offset)
        if frame.log_offset != landing.position:
            raise ConnectionLostError(
                f"the master sent log offset {frame.log_offset}, where {landing.position} was expected"
            )
        try:
            landing.take(frame.log_offset, memoryview(frame.data))
        except CorruptionError as error:
            raise BadBytesError(landing.end_offset, str(error)) from error
        self._standing.heard(landing.position)

    def _take_side(self, landing: Landing, frame: Side) -> None:
        try:
            whole = self._sides.add(frame)
        except WireViolation as error:
            raise ConnectionLostError(f"the master breaks the protocol: {error}") from error
        self._standing.heard()
        if whole is not None:
            landing.take_side(*whole)

    def _take_removed(self, landing: Landing, frame: Removed) -> None:
        if landing.end_offset < frame.before:
            raise ConnectionLostError(
                f"the master removed topic {frame.topic!r} before log offset {frame.before}, and has sent only {landing.end_offset}"
            )
        try:
            landing.take_removed(frame)
        except (OffsetError, MessageError) as error:
            raise ConnectionLostError(
                f"the master's removal of a topic does not fit: {error}"
            ) from error
