"""The replicator `ha`: a master that RocketMQ slaves and Penstock followers copy while it is written."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from penstock.contracts import (
    Context,
    CopyOutcome,
    CopyState,
    ReplicatedLog,
    Replicator,
)
from penstock.durability.replica_file import Replica
from penstock.errors import ConfigError
from penstock.escape import get_logger
from penstock_replicate.beside import SideReader
from penstock_replicate.master.bandwidth import Bandwidth
from penstock_replicate.master.copies import CopyTable
from penstock_replicate.master.ha_options import HaOptions
from penstock_replicate.master.lineage import own_lineage
from penstock_replicate.master.listener import Listener
from penstock_replicate.master.loop_thread import LoopThread, monotonic_s
from penstock_replicate.master.parts import MasterParts
from penstock_replicate.master.side_feed import SideFeed
from penstock_replicate.master.waiting import WaitingPuts
from penstock_replicate.remoting.slave_front import SlaveFront
from penstock_replicate.roles.master_status import MasterStatus
from penstock_replicate.roles.status_file import ReplicaStatus
from penstock_replicate.wire.proof import read_secret
from penstock_replicate.wire.tls import server_context

logger = get_logger(__name__)
_START_S = 10.0
# More time for closing connections, once the copies have what they lacked.
_CLOSE_S = 5.0
_LOOK_S = 0.05


class HaReplicator(Replicator):
    """Sends the log to copies that connect. Safe from any thread.

    Attributes:
        address: HOST:PORT where it listens; None before `start`.
    """

    name: ClassVar[str] = "ha"
    capabilities: ClassVar[frozenset[str]] = frozenset({"waits"})
    Options: ClassVar[type] = HaOptions

    def __init__(self, options: Any, context: Context, log: ReplicatedLog) -> None:
        super().__init__(options, context, log)
        self.appender_waits = options.in_sync_replicas > 1
        self.timeout_ms = options.timeout_ms
        self.address: str | None = None
        self._secret = read_secret(context.files, options.secret_file)
        self._tls = server_context(options.tls_cert, options.tls_key, options.tls_ca)
        self._needed = options.in_sync_replicas - 1
        self._copies = CopyTable(log, context, options.behind_bytes_max)
        self._waiting = WaitingPuts(self._copies, self._needed, options.timeout_ms, monotonic_s)
        self._copies.on_progress = self._waiting.answer
        self._thread: LoopThread | None = None
        self._listener: Listener | None = None
        self._front: SlaveFront | None = None
        self._status: MasterStatus | None = None
        self._status_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Listen, in a thread of its own."""
        lineage = own_lineage(self.context.files, self.log.root, self.log.min_offset)
        options: HaOptions = self.options
        reader = SideReader(self.context.files, self.log.root)
        self._thread = LoopThread("penstock-ha", self._on_ping)
        parts = MasterParts(
            log=self.log, context=self.context, options=options, copies=self._copies,
            bandwidth=Bandwidth(options.mib_per_s * (1 << 20), monotonic_s),
            sides=SideFeed(reader.changed, self.log, options.side_interval_ms / 1000, self._on_ping),
            history=lineage.history, epochs=tuple((one.epoch, one.start_offset) for one in lineage.epochs),
            secret=self._secret, time_s=monotonic_s,
        )  # fmt: skip
        self._listener = Listener(parts, self._tls)
        try:
            self.address = self._thread.call(self._listener.start(), _START_S)
        except (OSError, TimeoutError) as error:
            self._thread.stop()
            self._thread = None
            raise ConfigError(
                f"replicate.ha.listen is {options.listen!r}, where this process cannot listen: {error}"
            ) from error
        self._start_front(self._thread, self.address)
        self._thread.call(self._start_status(lineage), _START_S)
        logger.info("%s is a master: copies connect to %s", self.log.root, self.address)

    async def _start_status(self, lineage: Replica) -> None:
        """Say once a second, for other processes, how far the copies are."""
        now_ms = self.context.clock.time_ms()
        about = ReplicaStatus(
            role="master", state="listening", pid=self.context.files.process_id(), time_ms=now_ms, since_ms=now_ms,
            address=self.address, epoch=lineage.epoch, history=lineage.history,
        )  # fmt: skip
        self._status = MasterStatus(self.context, self.log, self.copies, about)
        self._status_task = asyncio.create_task(self._status.run())

    def _start_front(self, thread: LoopThread, address: str) -> None:
        """Answer RocketMQ slaves, if that is configured."""
        options: HaOptions = self.options
        if not options.desk:
            return
        front = SlaveFront(
            options.desk, SideReader(self.context.files, self.log.root).contents, name_servers=options.name_servers,
            broker=options.broker_name, cluster=options.cluster_name,
        )  # fmt: skip
        try:
            thread.call(front.start(address), _START_S)
        except (OSError, TimeoutError) as error:
            self.close()
            raise ConfigError(
                f"replicate.ha.desk is {options.desk!r}, where this process cannot listen, or two ports below it: {error}"
            ) from error
        self._front = front

    def _on_ping(self) -> None:
        """The log has advanced, or a put waits: called in the loop's thread."""
        self._copies.refresh()
        self._waiting.take_in()
        if self._listener is not None:
            self._listener.ring_all()

    def advanced(self, visible_offset: int) -> None:
        """See `Replicator.advanced`."""
        if self._thread is not None:
            self._thread.ping()

    def copied(self, end_offset: int, notify: Callable[[CopyOutcome], None]) -> None:
        """See `Replicator.copied`."""
        if self._waiting.add(end_offset, notify) and self._thread is not None:
            self._thread.ping()

    def copies(self) -> Sequence[CopyState]:
        """See `Replicator.copies`."""
        return self._copies.states()

    def stats(self) -> dict[str, int]:
        """Return figures for `Store.stats()`."""
        listener = self._listener
        links = () if listener is None else tuple(listener.links)
        return {
            "connections": len(links),
            "accepted": 0 if listener is None else listener.accepted,
            "refused": 0 if listener is None else listener.refused,
            "sent_bytes": sum(link.sent_bytes for link in links) + (0 if listener is None else listener.sent_bytes),
            "in_sync": self._copies.in_sync_count,
            "late": self._waiting.late,
            "not_available": self._waiting.not_available,
            **({} if self._front is None else self._front.stats()),
        }  # fmt: skip

    def close(self) -> None:
        """Send what the copies lack for a while, then end."""
        if self._thread is None:
            self._waiting.close()
            return
        with contextlib.suppress(TimeoutError, RuntimeError):
            self._thread.call(self._finish(), self.timeout_ms / 1000 + _CLOSE_S)
        self._thread.stop()
        # Those that came while the thread ended.
        self._waiting.close()
        if self._status is not None:
            self._status.finish()
            self._status = None

    async def _finish(self) -> None:
        if self._status_task is not None:
            self._status_task.cancel()
        end_offset, until_s = self.log.visible_offset, monotonic_s() + self.timeout_ms / 1000
        self._on_ping()
        while not self._copies.are_complete(end_offset) and monotonic_s() < until_s:
            await asyncio.sleep(_LOOK_S)
        self._waiting.close()
        if self._front is not None:
            await self._front.close()
        if self._listener is not None:
            await self._listener.close()
