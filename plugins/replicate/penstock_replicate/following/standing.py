"""What a follower knows of itself and its master, as other threads see it."""

import threading
from collections.abc import Callable
from enum import StrEnum

from penstock_replicate.roles.status_file import ReplicaStatus


class FollowState(StrEnum):
    """What a follower does now."""

    CONNECTING = "connecting"
    CATCHING_UP = "catching up"
    FOLLOWING = "following"
    STOPPED = "stopped"
    FAILED = "failed"
    PROMOTED = "promoted"


FINAL = frozenset({FollowState.STOPPED, FollowState.FAILED, FollowState.PROMOTED})


class Standing:
    """The facts that a follower's status is made of. The event loop's thread writes; safe to read from any thread.

    Attributes:
        kind: what the master speaks; None while that is not known.
        master_offset: up to where the master's log was readable when it last said so.
        contact_ms: when the master last said anything, in Unix milliseconds.
        received_bytes: log bytes received by this process.
        last_error: what failed last.
        failure: the exception after which nothing more is tried.
        end_offset, flushed_offset: of this log.
    """

    def __init__(self, time_ms: Callable[[], int], process_id: int, peer: str) -> None:
        self._time_ms = time_ms
        self._process_id = process_id
        self.peer = peer
        self._changed = threading.Condition()
        self._state = FollowState.CONNECTING
        self.since_ms = self._level_ms = time_ms()
        self.kind: str | None = None
        self.history = ""
        self.epoch = 0
        self.master_offset: int | None = None
        self.contact_ms = 0
        self.received_bytes = 0
        self.end_offset = self.flushed_offset = 0
        self.last_error: str | None = None
        self.failure: BaseException | None = None

    @property
    def state(self) -> FollowState:
        """What the follower does now."""
        return self._state

    def turn(self, state: FollowState, failure: BaseException | None = None) -> None:
        """Change the state, and tell whoever waits for it."""
        with self._changed:
            self._state = state
            if failure is not None:
                self.failure = failure
                self.last_error = str(failure)
            self._changed.notify_all()

    def heard(self, master_offset: int | None = None) -> None:
        """Note that the master has said something, and up to where its log is readable."""
        self.contact_ms = self._time_ms()
        if master_offset is not None:
            self.master_offset = max(master_offset, self.master_offset or 0)

    def settle(self, *, is_level: bool) -> None:
        """Note whether all that the master has is here, and tell whoever waits for an offset."""
        if is_level:
            self._level_ms = self._time_ms()
        with self._changed:
            if is_level and self._state is FollowState.CATCHING_UP:
                self._state = FollowState.FOLLOWING
            self._changed.notify_all()

    @property
    def lag_bytes(self) -> int:
        """How many bytes of the master's log are not here, as far as is known."""
        return max((self.master_offset or 0) - self.end_offset, 0)

    def wait(self, is_reached: Callable[[], bool], timeout_s: float | None) -> bool:
        """Return whether a condition came to be true in time; it is looked at whenever the state changes."""
        with self._changed:
            return self._changed.wait_for(is_reached, timeout_s)

    def status(self) -> ReplicaStatus:
        """Return all of it as it is written to the status file."""
        now_ms = self._time_ms()
        lag_bytes = self.lag_bytes
        return ReplicaStatus(
            role="master" if self._state is FollowState.PROMOTED else "follower",
            state=str(self._state),
            pid=self._process_id,
            time_ms=now_ms,
            since_ms=self.since_ms,
            peer=self.peer,
            kind=self.kind,
            epoch=self.epoch,
            history=self.history,
            end_offset=self.end_offset,
            flushed_offset=self.flushed_offset,
            master_offset=self.master_offset,
            lag_bytes=lag_bytes,
            lag_ms=max(now_ms - self._level_ms, 0) if lag_bytes else 0,
            contact_ms=self.contact_ms,
            received_bytes=self.received_bytes,
            last_error=self.last_error,
        )
