"""How far each copy is, and which copies count.

Rules:
    * A copy counts for waiting puts as soon as its acknowledgement says that it has the bytes, in sync or not.
    * A copy is in sync once it has caught up: it has everything up to where the log was when it connected, or when it last missed a
      time-out, and lacks at most `CAUGHT_UP_BYTES`. It is out of sync when it misses a time-out, when it falls behind by more than
      `behind_bytes_max`, and when its connection ends.
    * If too few copies are in sync, a put does not wait. So one slow copy costs one time-out, not one for each put.

Connections that ended stay listed with their last error, the newest `ENDED_MAX` of them, each until its host has connected again.
"""

from collections import deque
from collections.abc import Callable, Sequence

import attrs

from penstock.contracts import Context, CopyState
from penstock.contracts.replicator import ReplicatedLog

CAUGHT_UP_BYTES = 256 << 10
ENDED_MAX = 8


@attrs.define(eq=False)
class CopyPeer:
    """One connection. Changed in the loop's thread only; each attribute may be read from any.

    Attributes:
        name: its address.
        kind: "rocketmq", "penstock", or "unknown" before it has said a word.
        received: the end of what it has.
        flushed: the end of what is durable there; None if it does not say.
        missed_end: it is out of sync until it has everything before this log offset.
        sends: whether it is being sent the log.
    """

    name: str
    since_ms: int
    kind: str = "unknown"
    received: int = 0
    flushed: int | None = None
    missed_end: int = 0
    sends: bool = False
    in_sync: bool = False
    last_error: str | None = None

    @property
    def host(self) -> str:
        """Its address without the port."""
        return self.name.rpartition(":")[0]


class CopyTable:
    """All copies of one log. Changed in the loop's thread only.

    Attributes:
        in_sync_count: copies in sync, readable from any thread.
        on_progress: called after an acknowledgement, and after a copy has come, gone, or changed between in sync and not.
    """

    def __init__(self, log: ReplicatedLog, context: Context, behind_bytes_max: int) -> None:
        self._log, self._clock, self._behind_bytes_max = log, context.clock, behind_bytes_max
        self._peers: list[CopyPeer] = []
        self._ended: deque[CopyPeer] = deque(maxlen=ENDED_MAX)
        self.in_sync_count = 0
        self.on_progress: Callable[[], None] = lambda: None

    def add(self, peer: CopyPeer) -> None:
        """List a connection."""
        self._peers = [*self._peers, peer]

    def begin(self, peer: CopyPeer, received: int) -> None:
        """The copy is sent the log from now on; it has everything before `received`."""
        peer.received, peer.missed_end, peer.sends = received, self._log.visible_offset, True
        for ended in [one for one in self._ended if (one.host, one.kind) == (peer.host, peer.kind)]:
            self._ended.remove(ended)
        self.refresh()

    def acknowledge(self, peer: CopyPeer, received: int, flushed: int | None) -> None:
        """The copy says how far it is."""
        peer.received, peer.flushed = received, flushed
        self.refresh()

    def remove(self, peer: CopyPeer, error: str | None) -> None:
        """The connection has ended."""
        if error is not None:
            peer.last_error = error
        self._peers = [one for one in self._peers if one is not peer]
        peer.sends, peer.in_sync, peer.since_ms = False, False, self._clock.time_ms()
        if peer.last_error is not None:
            self._ended.append(peer)
        self.refresh()

    def miss(self, end_offset: int) -> None:
        """A time-out has passed for a put that ends at `end_offset`: those that lack it are out of sync.

        What was not visible was not sent, so lacking it is no fault of theirs.
        """
        end_offset = min(end_offset, self._log.visible_offset)
        for peer in self._peers:
            if peer.received < end_offset:
                peer.missed_end, peer.in_sync = max(peer.missed_end, end_offset), False
        self.refresh()

    def refresh(self) -> None:
        """Find out anew which copies are in sync."""
        visible = self._log.visible_offset
        for peer in self._peers:
            behind = visible - peer.received
            if peer.in_sync:
                peer.in_sync = behind <= self._behind_bytes_max
            elif peer.sends and peer.received >= peer.missed_end:
                peer.in_sync = behind <= min(CAUGHT_UP_BYTES, self._behind_bytes_max)
        self.in_sync_count = sum(peer.in_sync for peer in self._peers)
        self.on_progress()

    def reached(self, count: int) -> tuple[int, int]:
        """Return the log offsets before which `count` copies have everything, received and durably; -1 if there are fewer."""
        sending = [peer for peer in self._peers if peer.sends]
        if len(sending) < count:
            return -1, -1
        received = sorted((peer.received for peer in sending), reverse=True)
        flushed = sorted((-1 if p.flushed is None else p.flushed for p in sending), reverse=True)
        return received[count - 1], flushed[count - 1]

    def are_complete(self, end_offset: int) -> bool:
        """Return whether each copy that is sent the log has everything before `end_offset`."""
        return all(peer.received >= end_offset for peer in self._peers if peer.sends)

    def states(self) -> Sequence[CopyState]:
        """Return how far each copy is. Safe from any thread."""
        visible = self._log.visible_offset
        ended = [peer for peer in tuple(self._ended) if peer.kind != "unknown"]
        return [self._state(peer, visible) for peer in (*self._peers, *ended)]

    def _state(self, peer: CopyPeer, visible: int) -> CopyState:
        behind = max(visible - peer.received, 0)
        lag_ms = 0
        if behind:
            stored_ms = self._log.time_ms_at(peer.received)
            lag_ms = max(self._clock.time_ms() - stored_ms, 0) if stored_ms else 0
        return CopyState(
            name=peer.name, kind=peer.kind, received_offset=peer.received, flushed_offset=peer.flushed, lag_bytes=behind,
            lag_ms=lag_ms, in_sync=peer.in_sync, last_error=peer.last_error, since_ms=peer.since_ms,
        )  # fmt: skip
