"""One end of a connection between a master and its follower, as a state machine without a socket, a clock or a store.

A machine is given what has happened and returns actions: `take` bytes that have come, `tick` with the time, and the
results of its own `Read`, `Hash` and so on. The caller carries the actions out in their order, and in its own time.
After a `Close` a machine returns nothing more.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from penstock.contracts import FollowBegin, Replica
from penstock.escape import visible
from penstock_replicate import wire
from penstock_replicate.secret import Secret
from penstock_replicate.wire import Control, Data, FrameReader, WireViolation, bye


@attrs.frozen
class Send:
    """Send these bytes."""

    data: bytes | memoryview


@attrs.frozen
class Read:
    """Read up to `size` bytes of the log, and call `read_done`."""

    log_offset: int
    size: int


@attrs.frozen
class Hash:
    """Compute the SHA-256 of a part of the log, and call `hashed`."""

    start: int
    stop: int


@attrs.frozen
class ReadRanges:
    """Ask the log for its ranges, and call `ranges_done`."""


@attrs.frozen(kw_only=True)
class Accept:
    """Note durably that the store is a follower, and of whom; with `begin`, create it first. Then call `landed`.

    Attributes:
        replica: what it is from now on.
        ranges: which parts of the log Penstock wrote, as the master says.
        begin: where the log begins if there is no store yet.
    """

    replica: Replica
    ranges: Mapping[str, Any]
    begin: FollowBegin | None


# Append these bytes of the master's log, and call `landed`; never before `Accept` is done.
Feed = Data


@attrs.frozen(eq=False)
class SideFile:
    """Write a file beside the log, after the log up to `log_end` is durable; see `beside`."""

    name: str
    log_end: int
    data: bytes


@attrs.frozen
class Level:
    """When all files of the master's reading `number` are written, call `leveled`."""

    number: int


@attrs.frozen(kw_only=True)
class Close:
    """Close the connection after everything was sent.

    Attributes:
        reason: one sentence.
        is_final: another attempt would end in the same way.
        needs_copy: only a new copy can follow this master.
        parts_at: the log offset where the two logs part, as far as epochs and digests tell; None if they are not known
            to differ.
        can_cut: they part as their epochs say, and the master has the log from there on. Else a disk has changed bytes,
            perhaps the master's.
    """

    reason: str
    is_final: bool = False
    needs_copy: bool = False
    parts_at: int | None = None
    can_cut: bool = False


Action = Send | Read | Hash | ReadRanges | Accept | Feed | SideFile | Level | Close


class Machine(ABC):
    """What both ends of all protocols have in common. Not thread-safe.

    Args:
        heartbeat_ms: how often this side says something.
        silence_ms: a connection on which nothing comes for so long is closed.
        now_ms: the time, as for `tick`.
        secret: what the other side must know; None if there is none, as in RocketMQ's protocol.

    Attributes:
        is_over: the connection is closed, or about to be.
        is_deaf: the connection is not read for now, so the other side is not silent.
        is_full: the other side has not taken yet what was sent; a `Read` is carried out when it has.
    """

    # Who the other side is.
    other: str

    def __init__(
        self, *, heartbeat_ms: int, silence_ms: int, now_ms: int, secret: Secret | None = None
    ) -> None:
        self._secret = secret
        self.is_over = self.is_deaf = self.is_full = False
        self._heartbeat_ms = heartbeat_ms
        self._silence_ms = silence_ms
        self._now_ms = self._heard_ms = self._sent_ms = now_ms

    def take(self, data: bytes | memoryview) -> list[Action]:
        """Return what to do about bytes that have come."""
        self._heard_ms = self._now_ms
        actions: list[Action] = []
        if not self.is_over:
            try:
                for action in self._taken(data):
                    actions.append(action)  # noqa: PERF402 - those before a violation count
            except WireViolation as error:
                actions += self.end("violation", f"the {self.other} breaks the protocol: {error}")
        return actions

    @abstractmethod
    def _taken(self, data: Any) -> Iterator[Action]:
        """Return what to do about bytes; raises `WireViolation` if they are not expected."""

    def tick(self, now_ms: int) -> list[Action]:
        """Return what to do at a monotonic time; to be called several times in a heartbeat."""
        self._now_ms = now_ms
        if self.is_deaf:
            self._heard_ms = now_ms
        if self.is_over:
            return []
        if now_ms - self._heard_ms >= self._silence_ms:
            return self.end("silence", f"the {self.other} was silent for {self._silence_ms} ms")
        return self._heartbeat() if now_ms - self._sent_ms >= self._heartbeat_ms else []

    def _heartbeat(self) -> list[Action]:
        """Say what this side says if it has said nothing for `heartbeat_ms`; nothing before the two have met."""
        return []

    def _say(self, data: bytes) -> list[Action]:
        """Send what counts as a heartbeat."""
        self._sent_ms = self._now_ms
        return [Send(data)]

    def end(self, code: str, text: str, **facts: Any) -> list[Action]:
        """Say why this side closes, if the protocol can, and close; `facts` are those of `Close`."""
        return [] if self.is_over else self._close(text, **facts)

    def _close(self, reason: str, **facts: Any) -> list[Action]:
        self.is_over = True
        return [Close(reason=visible(reason), **facts)]


class Peer(Machine):
    """What both ends of Penstock's own protocol have in common; what is given is for `Machine`. Not thread-safe.

    Attributes:
        reader: turns bytes into frames.
    """

    # The first 8 bytes that the other side sends.
    opening: bytes

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.reader = FrameReader(wire.ONLY_CONTROL)
        self._opened = b""
        # The kinds of frames that may come now, beside `bye`: a method for each, `_on_` and its name, says what to do.
        self._expected: set[str] = set()

    def _taken(self, data: bytes) -> Iterator[Action]:
        missing = len(self.opening) - len(self._opened)
        if missing:
            self._opened += data[:missing]
            data = data[missing:]
            if not self.opening.startswith(self._opened):
                raise WireViolation(f"its first bytes are {self._opened.hex()}")
            if len(self._opened) < len(self.opening):
                return
            yield from self._begin()
        for frame in self.reader.take(data):
            kind = frame.kind if isinstance(frame, Control) else type(frame).__name__
            content: Any = frame.fields if isinstance(frame, Control) else frame
            if kind != "bye" and kind not in self._expected:
                raise WireViolation(f"an unexpected frame {kind}")
            yield from getattr(self, f"_on_{kind.lower()}")(content)
            if self.is_over:
                return

    def _begin(self) -> Iterable[Action]:
        """Return what to do when the other side has sent its first bytes."""
        return ()

    @abstractmethod
    def _on_bye(self, fields: Mapping[str, Any]) -> Iterable[Action]:
        """Return what to do when the other side closes."""

    def end(self, code: str, text: str, **facts: Any) -> list[Action]:
        is_peer = self._opened == self.opening and not self.is_over
        return [*([Send(bye(code, text))] if is_peer else []), *super().end(code, text, **facts)]
