"""The master's end of a connection: it says who it is, answers what the follower asks, accepts it, and sends the log.

The follower decides whether its log continues the master's: it has the log that is at stake. The master refuses what
cannot be right in any case: another history, other segments, a newer epoch (then this store is no longer the master),
a log offset that it does not have.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from penstock.contracts import ReplicatedLog, whole_end
from penstock_replicate import wire
from penstock_replicate.beside import FileSender, Reading
from penstock_replicate.copies import Copies, Copy
from penstock_replicate.peer import Action, Hash, Machine, Peer, Read, ReadRanges, Send
from penstock_replicate.wire import Ack, WireViolation

# From the connection, and from each answer, to the request to follow, whatever else the follower says.
GREETING_MS = 5000
# Near the end, an acknowledgement comes after each piece; far from it, larger ones cost less.
PIECE_BYTES = 256 << 10
FAR_BEHIND_BYTES = 8 << 20
# A log of 4 EiB is halved 62 times.
DIGESTS_MAX = 80


class MasterEnd(Machine):
    """The master's end of a connection, in either protocol; `options` are those of `Machine`. Not thread-safe.

    Attributes:
        position: the log offset of the next byte to send, once the other side has asked for the log.
    """

    # What helps where retention has removed what is to be sent; a copy of Penstock knows.
    remedy = ""

    def __init__(self, log: ReplicatedLog, copies: Copies, address: str, **options: Any) -> None:
        super().__init__(**options)
        self._log, self._copies, self._address = log, copies, address
        # The other side's store, once that is known, and what it counts as, once it is served.
        self._store = ""
        self._copy: Copy | None = None
        self.position = 0
        self._is_reading = False

    def advanced(self) -> list[Action]:
        """Return what to do when the log has advanced."""
        left = self._log.visible_offset - self.position
        is_busy = self.is_over or self._copy is None or self._is_reading
        return [] if is_busy or left <= 0 else self._send_next(left)

    def _send_next(self, left: int) -> list[Action]:
        return self._read(min(left, PIECE_BYTES))

    def _read(self, size: int) -> list[Action]:
        self._is_reading = True
        return [Read(self.position, size)]

    def read_done(self, data: bytes | None) -> list[Action]:
        """Send what was read at `position`; None if retention has removed it."""
        self._is_reading = False
        if self.is_over:
            return []
        return self._removed() if data is None else self._have_read(data)

    @abstractmethod
    def _have_read(self, data: bytes) -> list[Action]:
        """Send bytes of the log, and go on."""

    def _removed(self) -> list[Action]:
        needs = f"the {self.other} needs log offset {self.position}"
        text = f"{needs}, and the master's log begins at {self._log.min_offset}{self.remedy}"
        return self.end("removed", text)

    def lost(self, reason: str) -> None:
        """Note that the connection has ended."""
        if not self.is_over:
            self._close(reason)

    def _close(self, reason: str, **facts: object) -> list[Action]:
        if self._copy is not None:
            self._copies.leave(self._copy, reason)
        elif self._store:
            self._copies.refuse(self._store, self._address, reason)
        return super()._close(reason, **facts)


class MasterPeer(Peer, MasterEnd):
    """Serves one connection of a follower."""

    opening = wire.FIRST_REPORT
    other = "copy"

    def __init__(self, *given: Any, now_ms: int, **options: Any) -> None:
        super().__init__(*given, now_ms=now_ms, **options)
        self._expected = {"hello"}
        self._deadline_ms = now_ms + GREETING_MS
        self._hello: Mapping[str, Any] = {}
        self._begins: int | None = None
        self._digests = 0
        self._files = FileSender(self._log)

    def _begin(self) -> Iterable[Action]:
        log, replica = self._log, self._log.replica
        self._hello = wire.hello_of(
            self._secret, replica.epochs, history=replica.history, store=replica.store,
            segment_bytes=log.segment_bytes, min=log.min_offset, end=log.visible_offset,
        )  # fmt: skip
        return (Send(wire.GREETING + wire.control("hello", **self._hello)),)

    def _on_bye(self, fields: Mapping[str, Any]) -> list[Action]:
        return self._close(f"the copy closes: {fields['text']}")

    def _on_hello(self, theirs: Mapping[str, Any]) -> Iterator[Action]:
        secret = self._secret
        nonce = theirs["nonce"]
        if secret is not None and not secret.is_proved("follower", nonce, theirs["proof"]):
            yield from self.end("secret", "the copy does not know the master's secret")
            return
        self._store = theirs["store"]
        if (refusal := wire.refusal_of(self._hello, theirs)) is not None:
            yield from self.end(*refusal)
            return
        self._expected = {"ask", "follow"}
        self._begins = None if theirs["segment_bytes"] is None else theirs["min"]
        if secret is not None:
            yield Send(wire.control("prove", proof=secret.proof("master", nonce)))

    def _on_ask(self, fields: Mapping[str, Any]) -> Iterable[Action]:
        start, stop = fields["start"], fields["stop"]
        if not 0 < stop - start <= wire.DIGEST_BYTES_MAX or self._digests == DIGESTS_MAX:
            raise WireViolation(f"a question for the digest of {start} to {stop}")
        self._digests += 1
        return (Hash(start, stop),)

    def hashed(self, start: int, stop: int, digest: bytes | None) -> list[Action]:
        """Answer a question by the SHA-256 of a part of the log, None if not all of it is there."""
        self._deadline_ms = self._now_ms + GREETING_MS
        if self.is_over:
            return []
        sha256 = None if digest is None else digest.hex()
        return [Send(wire.control("digest", start=start, stop=stop, sha256=sha256))]

    def _on_follow(self, fields: Mapping[str, Any]) -> Iterable[Action]:
        self._expected = set()
        self.position = fields["log_offset"]
        return (ReadRanges(),)

    def ranges_done(self, ranges: Mapping[str, Any]) -> list[Action]:
        """Accept the follower, now that the log's ranges are known, if the log has what it asks for."""
        log, position = self._log, self.position
        if self.is_over:
            return []
        if position < log.min_offset:
            return self._removed()
        if position > log.visible_offset:
            text = f"the copy ends at {position}, and the master's log at {log.visible_offset}"
            return self.end("ahead", text)
        self._expected = {"Ack", "level"}
        self.reader.limits = wire.FROM_FOLLOWER
        begins = position if self._begins is None else self._begins
        self._copy = self._copies.join(self._store, self._address, begins)
        accept = wire.control("accept", log_offset=position, ranges=dict(ranges))
        return [Send(accept), *self._heartbeat(), *self._files.removals(), *self.advanced()]

    def _on_ack(self, ack: Ack) -> Iterable[Action]:
        copy, received, flushed = self._copy, ack.received, ack.flushed
        assert copy is not None
        if not (copy.flushed <= flushed <= received <= self.position and copy.received <= received):
            raise WireViolation(
                f"an acknowledgement of {received} and {flushed} after {copy.received} and {copy.flushed}, "
                f"and {self.position} was sent"
            )
        self._copies.acked(copy, received, flushed)
        return ()

    def _on_level(self, fields: Mapping[str, Any]) -> Iterable[Action]:
        self._files.written(fields["number"])
        return ()

    @property
    def is_behind(self) -> bool:
        """Whether the follower is accepted and has not acknowledged all that is visible, or all files."""
        copy = self._copy
        if self.is_over or copy is None:
            return False
        return self._files.is_behind or copy.received < self._log.visible_offset

    def _send_next(self, left: int) -> list[Action]:
        """Send what was just written, or read, one piece at a time."""
        actions = [*self._files.removals()]
        is_near = left <= PIECE_BYTES and not self.is_full
        if is_near and (data := self._log.recent(self.position, left)):
            actions += self._data(data)
            left -= len(data)
        if left:
            most = wire.DATA_BYTES_MAX if left > FAR_BEHIND_BYTES else PIECE_BYTES
            actions += self._read(min(left, most))
        return actions

    def send_files(self, reading: Reading | None = None) -> list[Action]:
        """Send some of the files beside the log; with a reading, those that are new in it are to be sent as well."""
        if self.is_over or self._copy is None:
            return []
        removals = [*self._files.removals()]
        if reading is not None:
            self._files.offer(reading)
        return [*removals, *self._files.turn(self.position)]

    def _have_read(self, data: bytes) -> list[Action]:
        # A frame that ends with a record, unless that is larger, spares the copy a copy.
        whole = whole_end(data, len(data)) or len(data)
        return [*self._data(memoryview(data)[:whole]), *self.advanced()]

    def _data(self, data: bytes | memoryview) -> Iterator[Action]:
        """Send the next bytes of the log."""
        parts = wire.data_parts(self.position, data)
        self.position += len(data)
        return map(Send, parts)

    def tick(self, now_ms: int) -> list[Action]:
        actions = super().tick(now_ms)
        if self.is_over:
            return actions
        if self._copy is None:
            late = now_ms >= self._deadline_ms
            return self.end("busy", f"no request to follow in {GREETING_MS} ms") if late else []
        if not self._copy.is_connected:
            return self.end("busy", self._copy.last_error)
        return actions

    def _heartbeat(self) -> list[Action]:
        is_met = self._copy is not None
        return self._say(wire.heartbeat_frame(self._log.visible_offset)) if is_met else []
