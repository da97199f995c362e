"""The follower: one thread with an event loop that connects, follows, and connects again; and what other threads may ask of it.

Order of things in the thread:

    connect, find out what the master speaks, open the store if it is new, compare the logs, follow;
    when the connection ends: wait (0.2 s to 5 s), forget the incomplete record, and begin anew;
    at the end: sync, close the store or promote it, write the status a last time.

What another attempt may mend ends a connection (`ConnectionLostError`); what it cannot mend ends the following, and is raised by
`wait_caught_up` and `close`: see `refusals`, and any error of the store itself.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.contracts import SummaryLine
from penstock.durability.replica_file import Replica
from penstock.durability.replication_file import ReplicationFile
from penstock.errors import (
    BusyError,
    DiskFullError,
    PenstockError,
    ReplicationError,
    SystemLimitError,
)
from penstock.escape import get_logger
from penstock.files import Files
from penstock.runtime.clock import Clock
from penstock_replicate.following import refusals
from penstock_replicate.following.channel import Channel, ConnectionLostError
from penstock_replicate.following.connecting import Greeter, RemoteTables
from penstock_replicate.following.frame_session import FrameSession
from penstock_replicate.following.local_store import LocalStore
from penstock_replicate.following.options import FollowOptions
from penstock_replicate.following.plain_session import PlainSession
from penstock_replicate.following.standing import FINAL, FollowState, Standing
from penstock_replicate.following.trouble import BadBytesError
from penstock_replicate.roles.requests import PromotionRequests
from penstock_replicate.roles.status_file import INTERVAL_MS, ReplicaStatus, StatusFile
from penstock_replicate.roles.wording import status_line
from penstock_replicate.wire.frames import Hello

logger = get_logger(__name__)

FIRST_PAUSE_S, LAST_PAUSE_S = 0.2, 5.0
# Bytes that are not valid so often at one log offset were not changed on the way.
BAD_BYTES_MAX = 5
TICK_S = 0.2

OnStatus = Callable[[ReplicaStatus], None]


class LogFollower:
    """A store that follows a master, in a thread of its own, until it is closed or promoted. Safe from any thread.

    Made by `follow`. Use it in `with`, or call `close`.
    """

    def __init__(
        self, root: Path, options: FollowOptions, files: Files, clock: Clock, on_status: OnStatus | None
    ) -> None:  # fmt: skip
        self._options = options
        self._files = files
        self._clock = clock
        self._on_status = on_status
        self._root = root
        self._standing = Standing(clock.time_ms, files.process_id(), str(options.master))
        self._greeter = Greeter(options, files)
        self._local = LocalStore(root, options, files, clock, self._standing)
        self._local.open_existing()
        self._status_file = StatusFile(files, root)
        self._replication_file = ReplicationFile(files, root)
        self._requests = PromotionRequests(files, root)
        self._request: str | None = None
        self._is_to_promote = False
        self._promoted: Replica | None = None
        self._bad_at, self._bad_count = -1, 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-follow", daemon=True)
        self._thread.start()
        self._is_ready.wait()

    # --- other threads

    @property
    def path(self) -> Path:
        """The store's folder."""
        return self._root

    def status(self) -> ReplicaStatus:
        """Return how far the follower is."""
        return self._standing.status()

    def wait_caught_up(self, timeout_s: float | None = None, *, log_offset: int | None = None) -> bool:  # fmt: skip
        """Return whether all that the master is known to have is here, in time.

        Args:
            timeout_s: how long to wait; None for as long as it takes.
            log_offset: wait until the log reaches this offset instead, for example the end of a message of the master.

        Raises:
            PenstockError: following has ended, by this error or by `close`.
        """

        def is_reached() -> bool:
            standing = self._standing
            if standing.state in FINAL:
                return True
            if log_offset is not None:
                return standing.end_offset >= log_offset
            return standing.state is FollowState.FOLLOWING and standing.lag_bytes == 0

        found = self._standing.wait(is_reached, timeout_s)
        self.check()
        if found and self._standing.state in FINAL:
            return log_offset is not None and self._standing.end_offset >= log_offset
        return found

    def check(self) -> None:
        """Raise the error that ended the following, if one did."""
        if self._standing.failure is not None:
            raise self._standing.failure

    def promote(self) -> Replica:
        """End the following, and make the store a master: what was received is kept, in a new epoch from there on.

        Raises:
            PenstockError: following had ended before.
        """
        self._is_to_promote = True
        self.close()
        if self._promoted is None:
            raise ReplicationError(
                self._root, str(self._options.master), "it was closed before, and is no master", "Promote it with `penstock replica promote`"
            )  # fmt: skip
        return self._promoted

    @property
    def is_over(self) -> bool:
        """Whether following has ended: by an error, a promotion, or `close`."""
        return self._standing.state in FINAL

    def wait_over(self, timeout_s: float | None = None) -> bool:
        """Return whether following has ended in time."""
        return self._standing.wait(lambda: self.is_over, timeout_s)

    def close(self) -> None:
        """End the following, and close the store; raises the error that ended it before. A second call does nothing more."""
        loop = self._loop
        if loop is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                # The loop may close at this moment.
                loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self.check()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        try:
            self.close()
        except PenstockError:
            # An error within the block is the one to be raised.
            if error is None:
                raise

    # --- the thread

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        finally:
            self._is_ready.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_ready.set()
        tasks = [
            asyncio.create_task(work)
            for work in (self._follow_forever(), self._tick_forever(), self._stop.wait())
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            failure = next((e for task in done if (e := task.exception()) is not None), None)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._end(failure)

    def _end(self, failure: BaseException | None) -> None:
        """Close or promote the store, and say how it ended."""
        state = FollowState.STOPPED
        try:
            if self._is_to_promote and failure is None:
                self._promoted = self._local.promote()
                state = FollowState.PROMOTED
                self._standing.epoch = self._promoted.epoch
            else:
                self._local.close()
        except Exception as error:
            failure = failure or error
        if failure is not None:
            state = FollowState.FAILED
            logger.error("%s no longer follows: %s", self._root, failure)
        self._standing.turn(state, failure)
        self._write_status()
        if self._request is not None:
            self._answer(self._request)

    def _answer(self, token: str) -> None:
        about = self._promoted
        facts = (
            None
            if about is None
            else {"epoch": about.epoch, "start_offset": about.epochs[-1].start_offset}
        )
        with contextlib.suppress(OSError):
            self._requests.answer(
                token, error=self._standing.last_error if about is None else None, **(facts or {})
            )

    async def _tick_forever(self) -> None:
        """Look for a request to promote, and write the status once a second."""
        written_ms = -INTERVAL_MS
        while True:
            now_ms = self._clock.monotonic_ms()
            if now_ms - written_ms >= INTERVAL_MS:
                written_ms = now_ms
                self._write_status()
            if self._local.landing is not None:
                self._request = self._requests.pending(self._clock.time_ms())
                if self._request is not None:
                    self._is_to_promote = True
                    self._stop.set()
            await asyncio.sleep(TICK_S)

    def _write_status(self) -> None:
        status = self._standing.status()
        if self._local.is_there:
            # It only informs: nothing depends on it.
            with contextlib.suppress(OSError):
                self._status_file.write(status)
                self._show(status)
        if self._on_status is not None:
            self._on_status(status)

    def _show(self, status: ReplicaStatus) -> None:
        """Let `penstock stat` and `tail -f` of other processes show the role, as for a master."""
        if self.is_over:
            self._replication_file.remove()
            return
        text = status_line(status, status.time_ms)
        value = {"role": status.role, "master": status.peer, "state": status.state, "lag_bytes": status.lag_bytes, "lag_ms": status.lag_ms}  # fmt: skip
        line = SummaryLine("replication", "replication", text, value)
        self._replication_file.write([line], status.time_ms)

    async def _follow_forever(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            contact_ms = self._standing.contact_ms
            try:
                await self._connect_once()
            except ConnectionLostError as error:
                self._note_lost(error)
            except (DiskFullError, SystemLimitError, BusyError) as error:
                # Nothing was stored, and the store goes on.
                self._standing.last_error = str(error)
            except ReplicationError as error:
                self._local.mend(error)
            self._standing.turn(FollowState.CONNECTING)
            is_alive = self._standing.contact_ms != contact_ms
            pause_s = FIRST_PAUSE_S if is_alive else min(pause_s * 2, LAST_PAUSE_S)
            await asyncio.sleep(pause_s)

    def _note_lost(self, error: ConnectionLostError) -> None:
        text = str(error)
        if text != self._standing.last_error:
            logger.info("%s: %s", self._root, text)
        self._standing.last_error = text
        if not isinstance(error, BadBytesError):
            self._bad_count = 0
            return
        self._bad_count = self._bad_count + 1 if error.log_offset == self._bad_at else 1
        self._bad_at = error.log_offset
        if self._bad_count >= BAD_BYTES_MAX:
            raise refusals.bad_bytes(self._root, str(self._options.master), self._bad_count, text)

    async def _connect_once(self) -> None:
        """Follow on one connection; raises what ended it."""
        options = self._options
        channel = await Channel.connect(options.master.host, options.master.port, self._greeter.tls)
        try:
            silence_s = options.silence_ms / 1000
            session = FrameSession(channel, self._standing, self._root, silence_s)
            greeting = await self._greeter.greet(channel, knows_penstock=self._local.knows_penstock)
            if greeting is None:
                await self._follow_plainly(
                    PlainSession(channel, self._standing, self._root, silence_s)
                )
            else:
                await self._follow_penstock(session, session.greeted(*greeting))
        finally:
            channel.abort()

    async def _follow_plainly(self, session: PlainSession) -> None:
        self._standing.kind = "rocketmq"
        landing = self._local.landing or self._local.open_new(None)
        landing.restart()
        self._local.note_kind("rocketmq")
        works = [session.run(landing), landing.sync_forever()]
        if self._options.remoting is not None:
            tables = RemoteTables(self._options.remoting, landing, self._standing)
            works.append(tables.fetch_forever())
        await _first_of(works)

    async def _follow_penstock(self, session: FrameSession, hello: Hello) -> None:
        landing = self._local.landing
        if landing is None:
            # Not before the other side has proved that it is the master that is meant.
            await session.prove(hello, self._local.new_side(hello), self._greeter.secret)
            landing = self._local.open_new(hello)
            own = self._local.own_side(landing, hello)
        else:
            landing.restart()
            own = self._local.own_side(landing, hello)
            await session.prove(hello, own, self._greeter.secret)
        follow = self._local.request(landing, own, hello)
        await session.agree(hello, own, follow)
        self._local.accepted(hello)
        await _first_of([session.run(landing), landing.sync_forever()])


async def _first_of(works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run several coroutines until one of them ends, and raise what ended it."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
    failures = [error for error in found if isinstance(error, Exception)]
    # What cannot be mended counts, if both have failed.
    failures.sort(key=lambda error: isinstance(error, ConnectionLostError))
    if failures:
        raise failures[0]
