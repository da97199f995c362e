"""Copies of the log of a store that is open for writing: what a replicator gets, and the puts that wait for copies.

The kernel knows one number about copies: enough distinct stores have all bytes before `CopyGate.reached`. The
replicator advances it, and puts wait for it in the compiled kernel.
"""

import contextlib
import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from penstock._kernel import Bell, CopyGate
from penstock.config.model import Config
from penstock.contracts import (
    NO_REPLICATOR,
    Context,
    QueueReader,
    Replica,
    ReplicatedLog,
    Replicator,
    SpawnWorker,
    Stoppable,
)
from penstock.durability.log_flusher import LogFlusher
from penstock.durability.replica_file import ensure_master, remove_status, write_status
from penstock.durability.written_ranges import known_ranges
from penstock.errors import OffsetError
from penstock.escape import get_logger
from penstock.log.segmented_log import SegmentedLog
from penstock.message import Durability, PutStatus, Receipt
from penstock.plugins.registry import StrategySet

logger = get_logger(__name__)

# Bytes that were written that recently are in the system's memory.
RECENT_BYTES = 4 << 20
_CHUNK = 1 << 20
# How often the status is written for other processes.
_STATUS_S = 1.0

Known = tuple[PutStatus, Durability]
_COPIED = {
    (True, "disk"): Durability.ON_DISK_HERE_AND_THERE,
    (True, "received"): Durability.ON_DISK_HERE_RECEIVED_THERE,
    (False, "disk"): Durability.ON_DISK_THERE,
    (False, "received"): Durability.RECEIVED_THERE,
}


def outcomes(is_on_disk: bool, wait_for: str) -> tuple[Known, Known, Known]:
    """Return status and durability of a put that was copied, of one that timed out, and of one that did not wait."""
    alone = Durability.ON_DISK if is_on_disk else Durability.ACCEPTED
    return (
        (PutStatus.PUT_OK, _COPIED[is_on_disk, wait_for]),
        (PutStatus.FLUSH_SLAVE_TIMEOUT, alone),
        (PutStatus.SLAVE_NOT_AVAILABLE, alone),
    )


def digest_of(read: Callable[[int, int], bytes], start: int, stop: int) -> bytes:
    """Return the SHA-256 of a part of a log, of which `read` returns some bytes from an offset on."""
    found = hashlib.sha256()
    while start < stop:
        piece = read(start, min(_CHUNK, stop - start))
        found.update(piece)
        start += len(piece)
    return found.digest()


class CopiedLog(ReplicatedLog):
    """The log of an open store for its replicator. Safe from any thread."""

    def __init__(
        self,
        context: Context,
        log: SegmentedLog,
        flusher: LogFlusher,
        index: QueueReader,
        replica: Replica,
    ) -> None:
        self.root = context.root
        self.segment_bytes = log.segment_bytes
        self.puts_wait = context.appenders_wait
        self.replica = replica
        self.gate = CopyGate(Bell())
        self.status: Mapping[str, Any] = {}
        self.removed_topics: Mapping[str, Any] = {}
        self._files, self._log, self._flusher, self._index = context.files, log, flusher, index
        self._began_at = flusher.flushed_offset

    @property
    def bell(self) -> Bell:
        return self.gate.bell

    @property
    def min_offset(self) -> int:
        return self._log.min_offset

    @property
    def visible_offset(self) -> int:
        return self._flusher.visible_offset

    @property
    def missed_offset(self) -> int:
        return self.gate.missed

    def read(self, log_offset: int, size: int) -> bytes:
        visible = self.visible_offset
        if log_offset == visible:
            return b""
        if not self.min_offset <= log_offset < visible:
            raise OffsetError(log_offset, self.min_offset, visible)
        with self._log.lease(log_offset) as segment:
            size = min(size, visible - log_offset, segment.end_offset - log_offset)
            # Not through the map: a disk that refuses old bytes would end the process.
            return bytes(self._log.read_from(segment, log_offset, size, is_copied=True))

    def recent(self, log_offset: int, size: int) -> bytes:
        visible = self.visible_offset
        size = min(size, visible - log_offset)
        if size <= 0 or log_offset < max(self._began_at, visible - RECENT_BYTES):
            return b""
        # No lease: the last segment is not deleted.
        last = self._log.segments[-1]
        is_in_it = log_offset >= last.base_offset
        return bytes(self._log.read_from(last, log_offset, size)) if is_in_it else b""

    def digest(self, start: int, stop: int) -> bytes:
        if stop > (visible := self.visible_offset):
            raise OffsetError(stop, self.min_offset, visible)
        return digest_of(self.read, start, stop)

    def ranges(self) -> Mapping[str, Any]:
        return known_ranges(self._files, self.root).told()

    def lone_ends(self) -> Sequence[Sequence[Any]]:
        return [*self._index.lone_ends()]

    def reach(self, log_offset: int, *, available: bool, missed: int) -> None:
        self.gate.reach(log_offset, available, missed)

    def publish(self, status: Mapping[str, Any]) -> None:
        self.status = status


def begin_copying(
    config: Config, replicators: StrategySet[Replicator], context: Context, log: SegmentedLog, flusher: LogFlusher,
    index: QueueReader,
) -> "Copying | None":  # fmt: skip
    """Return the configured copying of a store that is being opened, not started; None if it has none."""
    remove_status(context.files, context.root)
    if config.replicate.use == NO_REPLICATOR:
        return None
    cls = replicators.get(config.replicate.use)
    # Durable before the first copy knows of it.
    replica = ensure_master(context.files, context.root, flusher.flushed_offset)
    copied = CopiedLog(context, log, flusher, index, replica)
    return Copying(copied, cls(config.options_for("replicate", cls), context, copied), context)


class Copying:
    """Runs the replicator of an open store, and completes the futures that wait for copies. Safe from any thread."""

    def __init__(self, log: CopiedLog, replicator: Replicator, context: Context) -> None:
        self.log, self.replicator = log, replicator
        self._files, self._clock = context.files, context.clock
        self._is_threaded = True
        self._worker: Stoppable | None = None
        self._told_to = -1
        self._written: Mapping[str, Any] | None = None
        # Puts that wait by a future: the end of the record, the time at which it is late, the receipt, the future.
        self._waiting: deque[tuple[int, int, Receipt, Future[Receipt]]] = deque()
        # No put waits any more; the replicator has ended.
        self._is_over = self._has_closed = False

    @property
    def gate(self) -> CopyGate | None:
        """Where puts wait for copies; None if they wait for none."""
        return self.log.gate if self.replicator.waits else None

    def start(self, spawn: SpawnWorker, *, is_threaded: bool) -> None:
        """Start the replicator; without threads it is called in place of every wait."""
        self._is_threaded = is_threaded
        look = None if is_threaded else self.replicator.advanced
        known = outcomes(self.log.puts_wait, self.replicator.wait_for)
        self.log.gate.connect(self.replicator.timeout_ms, *known, look)
        self.replicator.start()
        self._worker = spawn("penstock-copies", self.step)

    def advanced(self) -> None:
        """Notify the replicator if more of the log is visible than at the last call."""
        visible = self.log.visible_offset
        if visible == self._told_to:
            return
        self._told_to = visible
        if not self._is_threaded:
            self.replicator.advanced()
        elif not self.log.puts_wait:
            # Where puts wait, the gate of the syncs has rung.
            self.log.gate.bell.ring()

    def submitted(self, receipt: Receipt, future: "Future[Receipt]") -> None:
        """Complete a future of a message that is on disk here, once its copies are known."""
        late_ms = self._clock.monotonic_ms() + self.replicator.timeout_ms
        self._waiting.append((receipt.log_offset + receipt.size, late_ms, receipt, future))
        if self._is_over or self._worker is None:
            self._complete()
        else:
            self.log.gate.bell.ring()
            self._worker.wake()

    def step(self) -> float:
        """Write the status for other processes, and complete futures; returns the pause in seconds."""
        status = self.log.status
        if status is not self._written:
            self._written = status
            try:
                write_status(self._files, self.log.root, status)
            except Exception as error:
                logger.warning("the status of the copies could not be written: %r", error)
        self._complete()
        # A future waits for an acknowledgement by the network: a millisecond more is a small part of it.
        return 0.001 if self._waiting else _STATUS_S

    def _complete(self) -> None:
        gate = self.log.gate
        copied, late, lacking = outcomes(True, self.replicator.wait_for)
        for waiter in self._waiting.copy():
            end, late_ms, receipt, future = waiter
            if gate.reached >= end:
                known = copied
            elif self._is_over or self._clock.monotonic_ms() >= late_ms:
                gate.miss(end)
                known = late
            elif not gate.available:
                known = lacking
            else:
                continue
            # Done already: an interrupted notification was repeated.
            if not future.done():
                future.set_result(receipt._replace(status=known[0], durability=known[1]))
            # Afterwards: an interrupt in between must not lose it. Another thread may have been faster.
            with contextlib.suppress(ValueError):
                self._waiting.remove(waiter)

    def fail(self, reason: str) -> None:
        """Notify the replicator that the store has failed."""
        try:
            self.replicator.failed(reason)
        except Exception:
            logger.exception("replicator %s failed", self.replicator.name)

    def close(self) -> None:
        """End the replicator, which first sends what is left; a second call does nothing, unless the first was cut."""
        if self._has_closed:
            return
        try:
            self.replicator.close()
            self._has_closed = True
        except Exception:
            self._has_closed = True
            logger.exception("replicator %s did not close", self.replicator.name)
        finally:
            self._is_over = True
            self.log.gate.end()
            self._complete()
            self.log.gate.bell.ring()
