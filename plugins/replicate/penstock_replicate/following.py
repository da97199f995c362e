"""A store that follows a master over TCP, in a thread of its own, and what is told of both.

One thread runs the machine, reads the connection and does everything with the store, in the order in which the machine
asks for it: a message takes no turn through another thread. While it syncs, the next bytes come, so that one sync
serves all of them; what waits is in the system's buffers, so it is bounded. A second thread asks a broker for what is
beside its log.
"""

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from ssl import SSLContext
from typing import Any, Self, TypeVar

import attrs

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
from penstock.files.file import NO_ROOM
from penstock.files.lock_file import leave_in_child
from penstock_replicate import beside, rocketmq
from penstock_replicate.follower import FollowerPeer, Mine
from penstock_replicate.line import SLICE_S, Line, LineError
from penstock_replicate.peer import Accept, Action, Close, Feed, Hash, Level, Send, SideFile
from penstock_replicate.remoting import Broker
from penstock_replicate.rocketmq import PROTOCOL, PlainFollowerPeer
from penstock_replicate.secret import Secret, follower_tls, read_key
from penstock_replicate.wire import host_and_port

logger = get_logger(__name__)
T = TypeVar("T")
HEARTBEAT_MS, SILENCE_MS = 1000, 10_000
_PROTOCOLS: dict[str, Callable[..., FollowerPeer | PlainFollowerPeer]] = {
    "penstock": partial(FollowerPeer, heartbeat_ms=HEARTBEAT_MS, silence_ms=SILENCE_MS),
    PROTOCOL: partial(
        PlainFollowerPeer, heartbeat_ms=rocketmq.REPORT_MS, silence_ms=rocketmq.SILENCE_MS
    ),
}
_RETRY_S = 0.5
# How often those who wait look at what has come: to wake them at each record would slow it down.
_NEWS_S = 0.05
# How often a broker is asked for what is beside its log, how long it may take to answer all of it, and how long the
# log may rest before it has reached what was answered.
ASK_S, ANSWER_S, STALL_S = 5.0, 30.0, 30.0
# A copy that lacks more than that syncs now and then only: nobody waits for it.
_FAR_BEHIND_BYTES, _SYNC_BYTES = 8 << 20, 256 << 20
# Bytes that no log can have, five times at one place, are so on the master's disk and not only on the way.
_ATTEMPTS = 5
# How long a closing waits for a disk that does not answer: the threads are daemons.
_JOIN_S = 10.0


def _now_ms() -> int:
    return int(time.monotonic() * 1000)


@attrs.define(eq=False)
class _Followed:
    """A connection to the master, for as long as it lasts."""

    line: Line
    peer: FollowerPeer | PlainFollowerPeer
    is_accepted: bool = False


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
        self, path: Path, master: str, open_store: Callable[..., Any], *, protocol: str, broker: str | None, cuts: bool,
        key: bytes | None, tls: SSLContext | None,
    ) -> None:  # fmt: skip
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
        self._tls = tls
        # `_storing` is held by whichever thread uses the store.
        self._state, self._storing = threading.Condition(), threading.Lock()
        self._closing = threading.RLock()
        self.link: _Followed | None = None
        self._lines: set[Line] = set()
        self._error: PenstockError | None = None
        self._last_error = ""
        self._failed_at, self._failures = -1, 0
        # Of the files of a broker: what is wrong with them, when that was found, and when those that were written last
        # were asked for.
        self._trouble, self._noted_s, self._asked_s = "", -1.0, -1.0
        self._written: dict[str, bytes] = {}
        self._is_hurried = self._is_closed = False
        jobs = [self._follow] if broker is None else [self._follow, self._ask]
        self._threads = [
            threading.Thread(target=job, name="penstock-follow", daemon=True) for job in jobs
        ]
        leave_in_child(self)

    def start(self) -> None:
        """Start the threads; `follow` calls it."""
        for thread in self._threads:
            thread.start()

    @contextlib.contextmanager
    def _line(
        self, address: str, tls: SSLContext | None, look: Callable[[], bool]
    ) -> Iterator[Line]:
        """Make a connection that another thread may end; it is closed afterwards."""
        line = Line(address, tls, look)
        self._lines.add(line)
        try:
            yield line
        finally:
            self._lines.discard(line)
            line.close()

    # --- in the thread of the store

    def _follow(self) -> None:
        """Connect again and again, until that is of no use."""
        while not self._has_ended:
            try:
                close = self._once()
            except BaseException as error:
                logger.exception("following %s has failed", self.master)
                close = Close(reason=repr(error), is_final=True)
            with self._storing:
                # Another log may come next, of which no answer of a broker so far speaks.
                self.link = None
            if not self._is_closed:
                self._last_error = close.reason
            if self._store is not None:
                self._store.forget()
            if self._error is None and close.is_final and not self._cut(close):
                self._end_by(self._error_of(close))
            self.changed()
            end_s = time.monotonic() + _RETRY_S
            while self._look() and time.monotonic() < end_s:
                self._until(lambda: False, SLICE_S)
        # Others are told why it has ended, and may want the store.
        while not self._is_closed:
            self._look()
            with self._state:
                self._state.wait_for(lambda: self._is_closed, SLICE_S)

    def _look(self) -> bool:
        """Publish the status, and see whether another process wants the store; return whether to go on."""
        store = self._store
        if store is not None and not self._is_closed:
            store.publish(self.status())
            if store.is_wanted:
                self._last_error = "another process promotes this copy"
                # Closing waits for this thread.
                threading.Thread(target=self.close, name="penstock-close").start()
        return not self._has_ended

    def _cut(self, close: Close) -> bool:
        """Cut the log where it parts from the master's, if that was asked for; return whether it was."""
        at, store = close.parts_at, self._store
        if not (self._cuts and close.can_cut) or store.is_wanted:
            return False
        assert at is not None
        if at < store.min_offset:
            return False
        try:
            self._store = None
            store.close()
            # A process that promotes it may have been faster.
            self._store = self._open_store(cut_at=at, expected=store.replica)
        except BaseException as error:
            self._end_by(error)
        return True

    def _once(self) -> Close:
        """Follow over one connection; return why it has ended."""
        try:
            is_ready = self._store is None or self.protocol != PROTOCOL or self._is_secured()
        except BaseException as error:
            return self._failed(error)
        if not is_ready:
            return Close(reason="the log here is not synced yet")
        secret = None if self.key is None else Secret(self.key)
        peer = _PROTOCOLS[self.protocol](self._mine(), secret=secret, now_ms=_now_ms())
        with self._line(self.master, self._tls, self._look) as line:
            try:
                line.connect(SILENCE_MS / 1000)
            except (OSError, ValueError) as error:
                # A name of a host that cannot be is no OSError.
                return Close(reason=f"{self.master} cannot be reached: {error}")
            self.link = link = _Followed(line, peer)
            self.changed()
            try:
                return self._through(link)
            except OSError as error:
                return Close(reason=str(error))

    def _is_secured(self) -> bool:
        """Make the whole log what may be acknowledged: a RocketMQ master takes the first report for that."""
        store = self._store
        end = store.flush(int(SLICE_S * 1000)) if store.syncs_each else store.commit()
        return bool(end == store.end_offset)

    def _through(self, link: _Followed) -> Close:
        """Do what the machine says until it closes; raises `OSError` if the connection is lost."""
        peer, looked_s = link.peer, time.monotonic()
        close = self._run(link, peer.start())
        while close is None:
            data = link.line.receive()
            if time.monotonic() >= looked_s + SLICE_S:
                looked_s = time.monotonic()
                # While this thread was busy, the other side was not silent.
                peer.is_deaf = bool(data)
                close = self._beat(link)
            if close is None:
                close = self._take(link, data) if data else self._land(link, rests=True)
        return close

    def _take(self, link: _Followed, data: memoryview) -> Close | None:
        """Let the store take what it can by itself, and the machine the rest; return why the connection is to end."""
        peer, close = link.peer, None
        if isinstance(peer, FollowerPeer) and (at := peer.next_offset) is not None:
            try:
                with self._storing:
                    taken, end = self._store.land(data, at)
            except BaseException as error:
                return self._failed(error)
            peer.passed(end)
            data = data[taken:]
        if data:
            close = self._run(link, peer.take(data))
        if isinstance(peer, FollowerPeer):
            # It is not copied: the rest comes behind it.
            link.line.keep(peer.reader.give_back())
        return close or self._land(link)

    def _beat(self, link: _Followed) -> Close | None:
        """Tell the master, at least each heartbeat, how far the copy is; look around."""
        close = self._run(link, [*link.peer.tick(_now_ms()), *self._progress(link)])
        if self._store is not None and self._store.failure is not None:
            return self._failed(self._store.failure)
        return close if self._look() else Close(reason="this side closes")

    def _run(self, link: _Followed, actions: Sequence[Action]) -> Close | None:
        """Carry out actions of the machine, in their order; return why the connection is to end."""
        for action in actions:
            if isinstance(action, Send):
                link.line.send(action.data, SILENCE_MS / 1000)
                continue
            if isinstance(action, Close):
                return action
            try:
                with self._storing:
                    answer = self._stored(link, action)
            except BaseException as error:
                return self._failed(error, is_fed=isinstance(action, Feed | SideFile))
            if answer and (close := self._run(link, answer)) is not None:
                return close
        return None

    def _stored(self, link: _Followed, action: Action) -> Sequence[Action]:
        """Do with the store what the machine asks for; return what it says of that."""
        match action:
            case Feed(log_offset, data):
                self._store.feed(log_offset, data)
            case SideFile():
                beside.write(self._store, action)
            case Level(number) if isinstance(link.peer, FollowerPeer):
                return link.peer.leveled(number)
            case Accept(replica=replica, ranges=ranges, begin=begin):
                if begin is not None and self._store is None:
                    self._store = self._create(begin)
                self._store.accept(replica, ranges)
                link.is_accepted = True
                return self._progress(link)
            case Hash(start, stop):
                digest = None
                with contextlib.suppress(OffsetError):
                    digest = self._store.digest(start, stop)
                return link.peer.hashed(start, stop, digest)
        return ()

    def _land(self, link: _Followed, *, rests: bool = False) -> Close | None:
        """Acknowledge what was appended, and sync it if the flush policy is to sync at once.

        Far behind, unless nothing more comes, it is synced now and then, and `_beat` acknowledges it.
        """
        store = self._store
        if not link.is_accepted:
            return None
        end, flushed = store.end_offset, store.flushed_offset
        is_near = rests or link.peer.master_visible - end <= _FAR_BEHIND_BYTES
        while flushed < end and store.syncs_each and (is_near or end - flushed >= _SYNC_BYTES):
            try:
                flushed = store.flush(int(SLICE_S * 1000))
            except BaseException as error:
                return self._failed(error)
            # A slow disk is no silence.
            link.peer.is_deaf = True
            if flushed < end and (close := self._beat(link)) is not None:
                return close
        return self._run(link, self._progress(link)) if is_near else None

    def _progress(self, link: _Followed) -> Sequence[Action]:
        """Acknowledge how far the store is; the flush policy syncs, too."""
        if not link.is_accepted:
            return ()
        # In this order: both increase. What a writer has gathered would be lost with this process.
        flushed, received = self._store.flushed_offset, self._store.commit()
        if self.protocol == PROTOCOL and self._store.syncs_each:
            # It has one number, and a master may count on it.
            received = flushed
        return link.peer.landed(received, flushed)

    def _mine(self) -> Mine:
        store, facts = self._store, {}
        if store is not None:
            names = "replica", "segment_bytes", "min_offset", "end_offset"
            facts = {name: getattr(store, name) for name in names}
        return Mine(master=self.master, fresh_store=self._fresh_store, **facts)

    def _create(self, begin: FollowBegin) -> Any:
        try:
            return self._open_store(begin=begin)
        except ArgumentError as error:
            begins = f"its last file begins at {begin.log_offset}, within a segment here"
            text = f"{begins}: set geometry.segment_bytes to the master's mappedFileSizeCommitLog"
            raise ReplicationError(self.path, self.master, text) from error

    def _failed(self, error: BaseException, *, is_fed: bool = False) -> Close:
        """Close a connection whose bytes could not be appended; later, they may be others, or have room."""
        is_passing = isinstance(error, DiskFullError) or getattr(error, "errno", None) in NO_ROOM
        if isinstance(error, CorruptionError) and is_fed:
            at = self._store.end_offset
            self._failures = self._failures + 1 if at == self._failed_at else 1
            self._failed_at = at
            is_passing = self._failures < _ATTEMPTS
            error = ReplicationError(self.path, self.master, str(error))
        if not is_passing:
            self._end_by(error)
        return Close(reason=str(error))

    def _end_by(self, error: BaseException) -> None:
        """Note what ends the following, unless something else has ended it."""
        if not isinstance(error, PenstockError):
            error = ReplicationError(self.path, self.master, str(error))
        self._error = self._error or error

    def _error_of(self, close: Close) -> PenstockError:
        if close.parts_at is not None:
            way = "--cut (cut=True) saves and cuts what the copy alone has"
            reason = f"{close.reason}; {way}" if close.can_cut else close.reason
            end = self._store.end_offset
            return DivergedError(self.path, self.master, close.parts_at, end, reason)
        return ReplicationError(self.path, self.master, close.reason, needs_copy=close.needs_copy)

    # --- in the thread that asks a broker

    def _ask(self) -> None:
        """Ask a broker for what is beside its log, again and again, while the log comes."""
        address = str(self.broker)
        while not self._has_ended:
            link = self.link
            if link is None:
                self._until(lambda: self.link is not None, None)
                continue
            is_current = partial(self._is_current, link)
            try:
                with self._line(address, None, is_current) as line:
                    line.connect(ANSWER_S)
                    self._rounds(link, line)
            except (OSError, ValueError) as error:
                if is_current():
                    self._note(f"the broker at {address}: {error}")
            self._until(lambda: not is_current(), ASK_S)  # noqa: B023 - it is called here

    def _is_current(self, link: _Followed) -> bool:
        return link is self.link and not self._has_ended

    def _rounds(self, link: _Followed, line: Line) -> None:
        """Ask over one connection, and write what was answered, until that is of no use; raises `OSError` then."""
        begun_s, early = 0.0, b""

        def receive() -> memoryview:
            if time.monotonic() >= begun_s + ANSWER_S or not self._is_current(link):
                raise LineError("no answer")
            return line.receive()

        broker = Broker(lambda data: line.send(data, ANSWER_S), receive)
        while True:
            self._is_hurried, begun_s = False, time.monotonic()
            files, refusals = broker.ask(early)
            log_end = max((each.log_end for each in files), default=0)
            if self._has_reached(link, log_end):
                found = self._write(link, files)
            else:
                found = [f"the broker's log ends at {log_end}, and nothing more of it comes"]
            if not self._is_current(link):
                return
            self._note("; ".join(found + refusals))
            if not self._trouble:
                self._asked_s = begun_s
            self.changed()
            self._until(lambda: self._is_hurried or not self._is_current(link), ASK_S)
            try:
                early = bytes(line.receive())
            except OSError:
                # It has closed the connection between two rounds, which is no trouble.
                return

    def _has_reached(self, link: _Followed, log_end: int) -> bool:
        """Wait until the log here has all before `log_end`; return False if it has not grown for `STALL_S`."""

        def end() -> int:
            return self._store.end_offset if link.is_accepted else -1

        while (seen := end()) < log_end:
            self._until(lambda: end() > seen or not self._is_current(link), STALL_S)
            if not self._is_current(link) or end() <= seen:
                return False
        return True

    def _note(self, trouble: str) -> None:
        """Note what is wrong with the files beside the log, and log it once."""
        trouble, before = visible(trouble), self._trouble
        self._trouble, self._noted_s = trouble, time.monotonic()
        if trouble and trouble != before:
            logger.warning("%s: files beside the log are not up to date: %s", self.path, trouble)

    def _write(self, link: _Followed, files: list[SideFile]) -> list[str]:
        """Write what a broker has answered; return why some of it cannot be used."""
        troubles = []
        for file in files:
            with self._storing:
                # To parse one again takes as long as to write it, and acknowledgements wait.
                if not self._is_current(link) or self._written.get(file.name) == file.data:
                    continue
                try:
                    beside.write(self._store, file)
                    self._written[file.name] = file.data
                except CorruptionError as error:
                    troubles.append(str(error))
                except DiskFullError as error:
                    return [str(error)]
                except BaseException as error:
                    self._end_by(error)
                    link.line.shut()
        return troubles

    def _until(self, is_over: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until something is so, or the following has ended; return whether it is, before a time has passed."""
        end_s = time.monotonic() + (1e9 if timeout_s is None else timeout_s)
        with self._state:
            while not (found := self._has_ended or is_over()):
                if (left_s := end_s - time.monotonic()) <= 0:
                    break
                self._state.wait(min(left_s, _NEWS_S))
        return found

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

        Raises what has ended the following: `ReplicationError`, `DivergedError`, or an error of the store. Raises
        `ReplicationError` also if the log is level and a broker's files cannot be had; the following goes on then.
        """
        return self.catching_up()(timeout_s)

    def catching_up(self) -> Callable[[float | None], bool]:
        """Return a function like `wait_caught_up`, of which each call counts from now on."""
        first: tuple[Any, int, int, float] | None = None

        def is_level() -> bool:
            nonlocal first
            link = self.link
            if link is None or not link.is_accepted:
                return False
            peer = link.peer
            # From a broker no files come in this connection.
            levels = peer.levels if isinstance(peer, FollowerPeer) else 3 * peer.heartbeats
            if first is None or first[0] is not link:
                first = link, peer.heartbeats, levels, time.monotonic()
                self._is_hurried = True
                self._state.notify_all()
            # The files of the next two levels may have been read before this call.
            is_told = peer.heartbeats > first[1] and levels > first[2] + 2
            if not is_told or self._store.end_offset < peer.master_visible:
                return False
            if self._trouble and self._noted_s >= first[3]:
                text = f"the log is level, but files beside it are not: {self._trouble}"
                raise ReplicationError(self.path, self.master, text)
            return self.broker is None or self._asked_s >= first[3]

        return partial(self._awaited, is_level)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the following has ended, and raise why; returns False after `timeout_s`."""
        return self._awaited(lambda: False, timeout_s)

    def _awaited(self, is_over: Callable[[], bool], timeout_s: float | None) -> bool:
        """Return what `_until` does; raises what has ended the following."""
        found = self._until(is_over, timeout_s)
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise StoreClosedError
        return found

    @property
    def _has_ended(self) -> bool:
        return self._error is not None or self._is_closed

    def changed(self) -> None:
        """Wake those who wait for this copy."""
        with self._state:
            self._state.notify_all()

    def close(self) -> None:
        """End the following and close the store; a second call does nothing."""
        self._is_closed = True
        self.changed()
        with self._closing:
            for line in [*self._lines]:
                line.shut()
            for thread in self._threads:
                thread.join(_JOIN_S)
            if self._store is None:
                return
            if any(thread.is_alive() for thread in self._threads):
                logger.error("%s is not closed: its disk does not answer", self.path)
            else:
                self._store.close()

    def leave(self) -> None:
        """In a forked child, close what belongs to the parent. The master does not notice it."""
        self._state, self._closing = threading.Condition(), threading.RLock()
        for line in self._lines:
            line.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # An error of the block says why it cannot be closed.
        with contextlib.suppress(PenstockError) if error[0] else contextlib.nullcontext():
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
