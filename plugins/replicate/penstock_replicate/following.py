"""A store that follows a master over TCP: the connection, the thread that appends, and what is told of both.

The event loop's thread runs the machine; one other thread does everything with the store, in the order in which the
machine asks for it. While that thread syncs, the next bytes come, so that one sync serves all of them. What waits for
it is bounded: the connection is not read while there is too much.
"""

import asyncio
import contextlib
import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from ssl import SSLContext
from typing import Any, Self, TypeVar

import penstock
from penstock.contracts import FollowBegin
from penstock.errors import (
    ArgumentError,
    CorruptionError,
    DiskFullError,
    DivergedError,
    NotAStoreError,
    OffsetError,
    PenstockError,
    ReplicationError,
    StoreClosedError,
)
from penstock.escape import get_logger, visible
from penstock_replicate import beside
from penstock_replicate.follower import FollowerPeer, Mine
from penstock_replicate.loop import Link, Loop
from penstock_replicate.peer import Accept, Action, Close, Feed, Hash, Level, SideFile
from penstock_replicate.remoting import BrokerPeer
from penstock_replicate.rocketmq import PROTOCOL, REPORT_MS, PlainFollowerPeer
from penstock_replicate.rocketmq import SILENCE_MS as ROCKETMQ_SILENCE_MS
from penstock_replicate.secret import Secret, follower_tls, read_key
from penstock_replicate.wire import host_and_port

logger = get_logger(__name__)
T = TypeVar("T")
HEARTBEAT_MS, SILENCE_MS = 1000, 10_000
_PROTOCOLS: dict[str, tuple[type[FollowerPeer] | type[PlainFollowerPeer], int, int]] = {
    "penstock": (FollowerPeer, HEARTBEAT_MS, SILENCE_MS),
    PROTOCOL: (PlainFollowerPeer, REPORT_MS, ROCKETMQ_SILENCE_MS),
}
_TICK_S = 0.25
_RETRY_S = 0.5
# How often a broker is asked for what is beside its log, how long it may take to answer all of it, and how long the
# log may rest before it has reached what was answered.
ASK_S, ANSWER_S, STALL_S = 5.0, 30.0, 30.0
# What waits to be appended; above it the connection is not read. And what is appended at once: while it is, more comes.
_WAITING_BYTES, _LAND_BYTES = 16 << 20, 4 << 20
# A copy that lacks more than that syncs now and then only: nobody waits for it.
_FAR_BEHIND_BYTES, _SYNC_BYTES = 8 << 20, 64 << 20
# Bytes that no log can have, five times at one place, are so on the master's disk and not only on the way.
_ATTEMPTS = 5
# What a piece takes beside its bytes, at most.
_FEED_BYTES = 1024


class _FollowerLink(Link):
    """The connection to the master."""

    peer: FollowerPeer | PlainFollowerPeer

    def __init__(self, follower: "StoreFollower", loop: Loop, mine: Mine) -> None:
        super().__init__(loop)
        self._follower, self._mine = follower, mine
        self.is_accepted = False
        self.close: asyncio.Future[Close] = loop.loop.create_future()

    def begin(self, address: str) -> Sequence[Action]:
        now_ms = self._follower.now_ms()
        peer, heartbeat_ms, silence_ms = _PROTOCOLS[self._follower.protocol]
        self.peer = peer(
            self._mine, heartbeat_ms=heartbeat_ms, silence_ms=silence_ms, now_ms=now_ms,
            secret=None if self._follower.key is None else Secret(self._follower.key),
        )  # fmt: skip
        self._follower.link = self
        return self.peer.start()

    def do(self, action: Action) -> None:
        self._follower.do(self, action)

    def ended(self, close: Close | None, reason: str) -> None:
        if not self.close.done():
            self.close.set_result(close or Close(reason=reason))

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._follower.changed()


class _BrokerLink(Link):
    """The connection to a broker that is asked for what is beside its log; `answered` is why that has ended, or ""."""

    peer: BrokerPeer
    answered: asyncio.Future[str] | None = None

    def begin(self, address: str) -> Sequence[Action]:
        self.peer = BrokerPeer(heartbeat_ms=HEARTBEAT_MS, silence_ms=SILENCE_MS, now_ms=0)
        return []

    def ask(self) -> asyncio.Future[str]:
        """Begin a round; return `answered`."""
        self.answered = self.loop.loop.create_future()
        if self.is_over:
            self.ended(None, "it has closed the connection")
        else:
            self.run(self.peer.start())
        return self.answered

    def do(self, action: Action) -> None:
        self.ended(None, "")

    def ended(self, close: Close | None, reason: str) -> None:
        if self.answered is not None and not self.answered.done():
            self.answered.set_result(reason if close is None else close.reason)


def _size_of(fed: Feed | SideFile | Level) -> int:
    return _FEED_BYTES + (0 if isinstance(fed, Level) else len(fed.data))


class StoreFollower:
    """Makes a folder a copy of a master's store and lets it follow; get it from `follow`. Safe from any thread.

    The copy can be opened with `read_only=True` meanwhile, by any process.

    Attributes:
        path: the folder.
        master: "HOST:PORT".
        protocol: the protocol of the master.
        broker: "HOST:PORT" where a broker is asked for what is beside its log; None if it is not.
    """

    def __init__(
        self,
        path: Path,
        master: str,
        open_store: Callable[..., Any],
        *,
        protocol: str,
        broker: str | None,
        cuts: bool,
        key: bytes | None,
        tls: SSLContext | None,
    ) -> None:
        self.path, self.master, self.key = path, master, key
        self.protocol, self.broker, self._cuts = protocol, broker, cuts
        # `penstock.open_follower` of this folder, and with the settings of the caller.
        self._open_store = open_store
        try:
            self._store: Any = open_store()
        except NotAStoreError:
            self._store = None
        # For a store that has no id, and one that was copied from its master.
        self._fresh_store = secrets.token_hex(8)
        host = None if tls is None else host_and_port(master)[0]
        self._loop = Loop("penstock-follow", links_max=4, threads=1, tls=tls, tls_host=host)
        self._state, self._closing = threading.Condition(), threading.RLock()
        self.link: _FollowerLink | None = None
        self._error: PenstockError | None = None
        self._last_error = ""
        self._fed: deque[Feed | SideFile | Level] = deque()
        # Of all feeds: what the loop's thread has added, and what the store's thread is done with.
        self._added_bytes = self._done_bytes = 0
        self._failed_at, self._failures = -1, 0
        # Of the files of a broker: what is wrong with them, and when they were asked for that were written last.
        self._trouble, self._asked_s = "", -1.0
        self._written: dict[str, bytes] = {}
        self._is_hurried = asyncio.Event()
        self._is_publishing = self._is_landing = self._is_closed = False

    def start(self) -> None:
        """Start the threads; `follow` calls it."""
        self._loop.start()
        self._loop.post(self._begin)

    def _begin(self) -> None:
        self._task = self._loop.loop.create_task(self._follow())
        self._tick()

    def now_ms(self) -> int:
        """Return a monotonic time."""
        return int(self._loop.loop.time() * 1000)

    # --- in the loop's thread

    async def _follow(self) -> None:
        """Connect again and again, until that is of no use."""
        while self._error is None:
            try:
                close = await self._once()
            except Exception as error:
                logger.exception("following %s has failed", self.master)
                close = Close(reason=repr(error), is_final=True)
            self._last_error = close.reason
            self.link = None
            await self._aside(self._forget)
            if close.is_final and not await self._cut(close):
                self._error = self._error_of(close)
            self.changed()
            if self._error is None:
                await asyncio.sleep(_RETRY_S)

    async def _cut(self, close: Close) -> bool:
        """Cut the log where it parts from the master's, if that was asked for; return whether it was."""
        at, store = close.parts_at, self._store
        if not (self._cuts and close.can_cut) or self._error is not None or store.is_wanted:
            return False
        assert at is not None
        if at < store.min_offset:
            return False

        def reopen() -> None:
            self._store = None
            store.close()
            beside.void_journals(store.files, self.path)
            # A process that promotes it may have been faster.
            self._store = self._open_store(cut_at=at, expected=store.replica)

        found = await self._aside(reopen)
        if isinstance(found, BaseException):
            self._error = self._told(found)
        return True

    async def _once(self) -> Close:
        """Follow over one connection; return why it has ended."""
        mine = await self._aside(self._mine)
        if isinstance(mine, BaseException):
            return Close(reason=str(mine))
        link = _FollowerLink(self, self._loop, mine)
        try:
            async with asyncio.timeout(SILENCE_MS / 1000):
                await self._loop.loop.create_connection(lambda: link, *host_and_port(self.master))
        except (OSError, ValueError) as error:
            # A name of a host that cannot be is no OSError.
            return Close(reason=f"{self.master} cannot be reached: {str(error) or 'no answer'}")
        if self.broker is None:
            return await link.close
        asking = self._loop.loop.create_task(self._ask(link, self.broker))
        try:
            return await link.close
        finally:
            # Another log may come next, of which no answer so far speaks.
            asking.cancel()

    async def _ask(self, link: _FollowerLink, address: str) -> None:
        """Ask a broker for what is beside its log, again and again; cancelled when the connection of the log ends."""
        while True:
            asked = _BrokerLink(self._loop)
            try:
                await self._rounds(link, asked, address)
            except (OSError, ValueError) as error:
                self._note(f"the broker at {address}: {str(error) or 'no answer'}")
            finally:
                asked.abort("this side closes")
            await asyncio.sleep(ASK_S)

    async def _rounds(self, link: _FollowerLink, asked: _BrokerLink, address: str) -> None:
        """Ask over one connection, and write what was answered, until that is of no use; raises `OSError` then."""
        async with asyncio.timeout(ANSWER_S):
            await self._loop.loop.create_connection(lambda: asked, *host_and_port(address))
        while not asked.is_over:
            self._is_hurried.clear()
            begun_s = self._loop.loop.time()
            async with asyncio.timeout(ANSWER_S):
                reason = await asked.ask()
            if reason:
                raise OSError(reason)
            files = asked.peer.files
            log_end = max((each.log_end for each in files), default=0)
            if await self._has_reached(link, log_end):
                found = await self._aside(lambda: self._write(files))  # noqa: B023 - it is awaited
            else:
                found = [f"the broker's log ends at {log_end}, and nothing more of it comes"]
            if isinstance(found, DiskFullError):
                found = [str(found)]
            elif isinstance(found, BaseException):
                self._failed(link, found)
                return
            self._note("; ".join(found + asked.peer.refusals))
            if not self._trouble:
                self._asked_s = begun_s
            self.changed()
            # Not `wait_for`, which does not always let itself be cancelled before Python 3.12.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_S):
                    await self._is_hurried.wait()

    async def _has_reached(self, link: _FollowerLink, log_end: int) -> bool:
        """Wait until the log here has all before `log_end`; return False if it has not grown for `STALL_S`."""
        seen, late_s = -2, 0.0
        while (end := self._store.end_offset if link.is_accepted else -1) < log_end or end < 0:
            now_s = self._loop.loop.time()
            if end > seen:
                seen, late_s = end, now_s + STALL_S
            elif now_s >= late_s:
                return False
            await asyncio.sleep(_TICK_S)
        return True

    def _note(self, trouble: str) -> None:
        """Note what is wrong with the files beside the log, and log it once."""
        trouble, before = visible(trouble), self._trouble
        self._trouble = trouble
        if trouble and trouble != before:
            logger.warning("%s: files beside the log are not up to date: %s", self.path, trouble)

    async def _aside(self, job: Any) -> Any:
        """Return what a job returns or raises, which runs in the store's thread."""
        done: asyncio.Future[Any] = self._loop.loop.create_future()

        def told(found: object) -> None:
            if not done.done():
                done.set_result(found)

        self._loop.aside(job, told)
        return await done

    def _told(self, error: BaseException) -> PenstockError:
        is_told = isinstance(error, PenstockError)
        return error if is_told else ReplicationError(self.path, self.master, str(error))  # type: ignore[return-value]

    def _error_of(self, close: Close) -> PenstockError:
        if self._error is not None:
            return self._error
        if close.parts_at is not None:
            end = self._store.end_offset
            way = (
                "; --cut (cut=True) saves and cuts what the copy alone has" if close.can_cut else ""
            )
            reason = close.reason + way
            return DivergedError(self.path, self.master, close.parts_at, end, reason)
        return ReplicationError(self.path, self.master, close.reason, needs_copy=close.needs_copy)

    def do(self, link: _FollowerLink, action: Action) -> None:
        """Carry out an action of the machine; for `_FollowerLink`."""
        if isinstance(action, Feed | SideFile | Level):
            self._fed.append(action)
            self._added_bytes += _size_of(action)
            if self._waiting_bytes > _WAITING_BYTES and link.transport and not link.is_over:
                link.transport.pause_reading()
                link.peer.is_deaf = True
            self._begin_landing(link)
        elif isinstance(action, Accept):
            self._loop.aside(
                lambda: self._accept(link, action), lambda found: self._landed(link, found)
            )
        elif isinstance(action, Hash):
            start, stop = action.start, action.stop
            self._loop.aside(
                lambda: self._store.digest(start, stop),
                lambda found: self._hashed(link, start, stop, found),
            )

    def _begin_landing(self, link: _FollowerLink) -> None:
        """Let the store's thread append what waits, if it does not do so already."""
        if self._fed and not self._is_landing:
            self._is_landing = True
            self._loop.aside(lambda: self._land(link), lambda found: self._has_landed(link, found))

    def _has_landed(self, link: _FollowerLink, found: object) -> None:
        self._is_landing = False
        self._landed(link, found, is_fed=True)
        if self.link is not None:
            self._begin_landing(self.link)

    @property
    def _waiting_bytes(self) -> int:
        return self._added_bytes - self._done_bytes

    def _hashed(self, link: _FollowerLink, start: int, stop: int, found: object) -> None:
        if isinstance(found, BaseException) and not isinstance(found, OffsetError):
            self._failed(link, found)
        else:
            link.run(link.peer.hashed(start, stop, found if isinstance(found, bytes) else None))

    def _landed(self, link: _FollowerLink, found: object, *, is_fed: bool = False) -> None:
        """Acknowledge what a job of the store has returned: its end, and its durable end."""
        if isinstance(found, BaseException):
            self._failed(link, found, is_fed=is_fed)
        elif isinstance(found, tuple):
            link.run(link.peer.landed(*found))
            is_open = link.transport is not None and not link.is_over
            if is_open and self._waiting_bytes <= _WAITING_BYTES:
                link.transport.resume_reading()  # type: ignore[union-attr] # it is open
                link.peer.is_deaf = False
            self.changed()

    def _leveled(self, link: _FollowerLink, number: int) -> None:
        assert isinstance(link.peer, FollowerPeer)
        link.run(link.peer.leveled(number))
        self.changed()

    def _failed(self, link: _FollowerLink, error: BaseException, *, is_fed: bool = False) -> None:
        """Close a connection whose bytes could not be appended; later, they may be others, or have room."""
        is_passing = isinstance(error, DiskFullError)
        if isinstance(error, CorruptionError) and is_fed:
            at = self._store.end_offset
            self._failures = self._failures + 1 if at == self._failed_at else 1
            self._failed_at = at
            is_passing = self._failures < _ATTEMPTS
            error = ReplicationError(self.path, self.master, str(error))
        if not is_passing and self._error is None:
            self._error = self._told(error)
        # What has come behind those bytes is not appended.
        link.is_accepted = False
        link.abort(str(error))

    def _tick(self) -> None:
        self._loop.loop.call_later(_TICK_S, self._tick)
        # A cut replaces the store.
        link, store = self.link, self._store
        if link is not None:
            link.tick(self.now_ms(), SILENCE_MS)
        if store is None:
            return
        if link is not None and link.is_accepted:
            # The flush policy syncs, too. In this order: both increase.
            flushed = store.flushed_offset
            self._landed(link, (store.end_offset, flushed))
        if link is not None and store.failure is not None:
            self._failed(link, store.failure)
        if store.is_wanted and not self._is_closed:
            self._last_error = "another process promotes this copy"
            # Closing waits for this thread.
            threading.Thread(target=self.close, name="penstock-close").start()
        if not self._is_publishing:
            self._is_publishing = True
            status = self.status()
            self._loop.aside(lambda: store.publish(status), self._published)

    def _published(self, _found: object) -> None:
        self._is_publishing = False

    def changed(self) -> None:
        """Wake those who wait for this copy."""
        with self._state:
            self._state.notify_all()

    # --- in the store's thread

    def _mine(self) -> Mine:
        store = self._store
        if store is None:
            return Mine(master=self.master, replica=None, fresh_store=self._fresh_store)
        return Mine(
            master=self.master, replica=store.replica, fresh_store=self._fresh_store, segment_bytes=store.segment_bytes,
            min_offset=store.min_offset, end_offset=store.end_offset,
        )  # fmt: skip

    def _forget(self) -> None:
        self._fed.clear()
        self._done_bytes = self._added_bytes
        if self._store is not None:
            self._store.forget()

    def _accept(self, link: _FollowerLink, accept: Accept) -> tuple[int, int]:
        if accept.begin is not None and self._store is None:
            self._store = self._create(accept.begin)
        store = self._store
        store.accept(accept.replica, accept.ranges, zero_filler=self.protocol != PROTOCOL)
        link.is_accepted = True
        return store.end_offset, store.flushed_offset

    def _create(self, begin: FollowBegin) -> Any:
        try:
            return self._open_store(begin=begin)
        except ArgumentError as error:
            begins = f"its last file begins at {begin.log_offset}, within a segment here"
            text = f"{begins}: set geometry.segment_bytes to the master's mappedFileSizeCommitLog"
            raise ReplicationError(self.path, self.master, text) from error

    def _land(self, link: _FollowerLink) -> tuple[int, int] | None:
        """Append what waits, and sync it if the flush policy is to sync at once; None if an earlier call did."""
        if not self._fed or not link.is_accepted or link is not self.link:
            return None
        store = self._store
        # What comes meanwhile is for the next call: what is there is acknowledged first.
        begun = self._done_bytes
        for done in range(len(self._fed)):
            is_long = isinstance(self._fed[0], SideFile) or self._done_bytes - begun > _LAND_BYTES
            if done and is_long:
                break
            fed = self._fed.popleft()
            self._done_bytes += _size_of(fed)
            if isinstance(fed, Feed):
                store.feed(fed.log_offset, fed.data)
            elif isinstance(fed, SideFile):
                beside.write(store, fed)
            else:
                self._loop.post(self._leveled, link, fed.number)
        end, flushed = store.end_offset, store.flushed_offset
        if store.syncs_each:
            behind, unsynced = link.peer.master_visible - end, end - flushed
            if behind <= _FAR_BEHIND_BYTES or unsynced >= _SYNC_BYTES:
                self._loop.post(self._landed, link, (end, flushed))
                flushed = store.flush()
        return end, flushed

    def _write(self, files: list[SideFile]) -> list[str]:
        """Write what a broker has answered; return why some of it cannot be used."""
        troubles = []
        for file in files:
            # To parse one again takes as long as to write it, and acknowledgements wait.
            if self._is_closed or self._written.get(file.name) == file.data:
                continue
            try:
                beside.write(self._store, file)
                self._written[file.name] = file.data
            except CorruptionError as error:
                troubles.append(str(error))
        return troubles

    # --- for callers

    def status(self) -> dict[str, Any]:
        """Return how far the copy is, as JSON values.

        `state` is "connecting", "following" or "ended"; `lag_bytes` is what the master has and this copy does not, as
        far as is known; `text` is a sentence for people.
        """
        link, store = self.link, self._store
        is_following = link is not None and link.is_accepted
        end = 0 if store is None else store.end_offset
        visible = link.peer.master_visible if link is not None and is_following else None
        state = "ended" if self._has_ended else "following" if is_following else "connecting"
        lag = None if visible is None else max(visible - end, 0)
        text = f"follows {self.master}, {lag} bytes behind"
        if self._has_ended:
            text = f"ended: {self._error or self._last_error or 'it was closed'}"
        elif not is_following:
            text = f"connects to {self.master}: {self._last_error or 'no answer yet'}"
        elif self._trouble:
            text += f"; files beside the log are not up to date: {self._trouble}"
        return {
            "role": "follower", "text": text, "state": state, "master": self.master, "received": end,
            "flushed": 0 if store is None else store.flushed_offset, "master_visible": visible, "lag_bytes": lag,
            "last_error": self._last_error, "beside_error": self._trouble,
        }  # fmt: skip

    def wait_caught_up(self, timeout_s: float | None = None) -> bool:
        """Wait until the copy has all that the master has said to have since this call; False after `timeout_s`.

        So it has the files beside the log as the master had them at this call, or later.

        Raises what has ended the following: `ReplicationError`, `DivergedError`, or an error of the store.
        """
        return self.catching_up()(timeout_s)

    def catching_up(self) -> Callable[[float | None], bool]:
        """Return a function like `wait_caught_up`, of which each call counts from now on."""
        first: tuple[Any, int, int, float] | None = None

        def is_level() -> bool:
            nonlocal first
            link = self.link
            if self._has_ended:
                return True
            if link is None or not link.is_accepted:
                return False
            peer = link.peer
            # From a broker no files come in this connection.
            levels = peer.levels if isinstance(peer, FollowerPeer) else 3 * peer.heartbeats
            if first is None or first[0] is not link:
                first = link, peer.heartbeats, levels, self._loop.loop.time()
                self._loop.post(self._is_hurried.set)
            # The files of the next two levels may have been read before this call.
            is_told = peer.heartbeats > first[1] and levels > first[2] + 2
            has_files = self.broker is None or self._asked_s >= first[3]
            return is_told and has_files and bool(self._store.end_offset >= peer.master_visible)

        def wait(timeout_s: float | None) -> bool:
            with self._state:
                found = self._state.wait_for(is_level, timeout_s)
            self._check()
            return found

        return wait

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the following has ended, and raise why; returns False after `timeout_s`."""
        with self._state:
            self._state.wait_for(lambda: self._has_ended, timeout_s)
        self._check()
        return False

    @property
    def _has_ended(self) -> bool:
        return self._error is not None or self._is_closed

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise StoreClosedError

    def close(self) -> None:
        """End the following and close the store; a second call does nothing."""
        self._is_closed = True
        self.changed()
        with self._closing:
            has_ended = False
            try:
                has_ended = self._loop.close()
            finally:
                if self._store is not None and has_ended:
                    self._store.close()
                elif self._store is not None:
                    logger.error("%s is not closed: its disk does not answer", self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def follow(
    path: str | Path,
    master: str,
    *,
    protocol: str = "penstock",
    broker: str | None = None,
    cut: bool = False,
    secret_file: str | None = None,
    tls_ca: str | None = None,
    config: str | None = None,
    **settings: Any,
) -> StoreFollower:
    """Make the folder at `path` a copy of a master's store, and let it follow until it is closed.

    The folder is created when the master has accepted. A store that is there already goes on where it ends, if the
    master's log continues it; a refusal leaves it as it was.

    Args:
        path: the folder of the copy.
        master: "HOST:PORT" where the master listens (`replicate.ha.listen`).
        protocol: of the master: "penstock", or "rocketmq" for a broker, whose mappedFileSizeCommitLog must then be
            `geometry.segment_bytes`. A broker knows nothing of `cut`, `secret_file` and `tls_ca`.
        broker: "HOST:PORT" of a broker's listenPort, which is asked for topics, groups, offsets and delays every 5 s.
            None: nothing beside its log is copied.
        cut: cut off what this log has and the master's has not, if both are copies of one store; the bytes are moved to
            `penstock/saved`. Without it, such a store is left as it is, and `wait` raises `DivergedError`.
        secret_file: a file with the secret of the master (`replicate.ha.secret_file`). None: it has none.
        tls_ca: a PEM file with the certificate of the master, or of who signed it; it must be for the host in `master`.
            None: the master does not encrypt.
        config: a TOML file, as for `penstock.open`.
        settings: as for `penstock.open`, such as `flush="sync"`: then each acknowledgement follows a sync.

    Raises:
        ArgumentError: `master`, `protocol` or `broker` cannot be right, or `secret_file` or `tls_ca` cannot be used.
        Otherwise as `penstock.open_follower`. What happens later is in `StoreFollower.status`, and `wait` raises it.
    """
    _check(master, protocol, broker)
    key = _of_file("secret_file", secret_file, read_key)
    tls = _of_file("tls_ca", tls_ca, follower_tls)
    if protocol == PROTOCOL and (cut or key or tls):
        text = '"penstock" with cut, secret_file or tls_ca'
        raise ArgumentError("follow", "protocol", protocol, text)
    open_store = partial(penstock.open_follower, path, config, **settings)
    follower = StoreFollower(
        Path(path), master, open_store, protocol=protocol, broker=broker, cuts=cut, key=key, tls=tls
    )  # fmt: skip
    follower.start()
    return follower


def _check(master: str, protocol: str, broker: str | None) -> None:
    """Raise `ArgumentError` if one of these arguments of `follow` cannot be right."""
    if protocol not in _PROTOCOLS:
        raise ArgumentError("follow", "protocol", protocol, '"penstock" or "rocketmq"')
    if broker is not None and protocol != PROTOCOL:
        raise ArgumentError("follow", "broker", broker, 'None with the protocol "penstock"')
    for name, address in (("master", master), ("broker", master if broker is None else broker)):
        try:
            host_and_port(address)
        except ValueError as error:
            raise ArgumentError("follow", name, address, "HOST:PORT") from error


def _of_file(name: str, path: str | None, read: Callable[[str], T]) -> T | None:
    """Return what is read from a file that an argument of `follow` names; raises `ArgumentError`."""
    try:
        return None if path is None else read(path)
    except (OSError, ValueError, TypeError) as error:
        raise ArgumentError("follow", name, path, f"a file that can be used ({error})") from error
