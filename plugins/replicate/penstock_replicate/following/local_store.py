"""The follower's own store: when it is opened, which role and history it has, and what is done where it does not fit its master."""

import secrets
from pathlib import Path

import attrs

from penstock.durability.replica_file import (
    FOLLOWER,
    MASTER,
    Epoch,
    MasterKind,
    Replica,
    ReplicaFile,
)
from penstock.errors import DivergedError, ReplicationError
from penstock.escape import get_logger
from penstock.files import Files
from penstock.format.names import SIDE_FOLDER
from penstock.runtime.clock import Clock
from penstock.store.following import open_follower
from penstock_replicate.following.agreement import EpochStart, OwnSide, last_digests
from penstock_replicate.following.landing import Landing
from penstock_replicate.following.options import FollowOptions
from penstock_replicate.following.standing import Standing
from penstock_replicate.wire.frames import HISTORY_BYTES, Follow, Hello

logger = get_logger(__name__)


@attrs.frozen
class NoLog:
    """The log of a store that is not made yet; see `comparing.RawLog`."""

    segment_bytes: int
    min_offset: int = 0
    end_offset: int = 0

    def read(self, log_offset: int, size: int) -> bytes:
        """Return nothing."""
        return b""

    def digest(self, start: int, stop: int) -> bytes:
        """Return nothing."""
        return b""


class LocalStore:
    """The store at one path. Used by one thread at a time.

    Attributes:
        landing: the open store; None until it is made.
    """

    def __init__(
        self, root: Path, options: FollowOptions, files: Files, clock: Clock, standing: Standing
    ) -> None:
        self._root = root
        self._options = options
        self._files = files
        self._clock = clock
        self._standing = standing
        self._peer = str(options.master)
        self._before: Replica | None = None
        self._may_cut = options.cut
        self._may_copy = options.full_copy
        self.landing: Landing | None = None

    @property
    def is_there(self) -> bool:
        """Whether the store has a folder for files such as the status."""
        return self._files.is_folder(self._root / SIDE_FOLDER)

    def open_existing(self) -> None:
        """Open the store if there is one: its master's sizes are not needed for that."""
        if not self._files.exists(self._root / "commitlog"):
            return
        self._before = ReplicaFile(self._files, self._root).read()
        replica = self._before
        if replica is not None and replica.role == MASTER:
            # The role is changed back if the new master refuses (`keep_role`).
            replica = attrs.evolve(replica, role=FOLLOWER, master=self._peer, master_kind=None)
            self._open(replica, None)
        else:
            self._open(None, None)

    def open_new(self, hello: Hello | None) -> Landing:
        """Make the store, with a Penstock master's history and sizes, or a new history for the log of a RocketMQ master."""
        history = hello.history if hello is not None else None
        replica = Replica(
            history=history or secrets.token_hex(HISTORY_BYTES),
            role=FOLLOWER,
            master=self._peer,
            master_kind="rocketmq" if hello is None else "penstock",
        )
        return self._open(replica, None if hello is None else hello.segment_bytes)

    def _open(self, replica: Replica | None, segment_bytes: int | None) -> Landing:
        store = open_follower(
            self._root,
            self._options.config,
            replica=replica,
            files=self._files,
            clock=self._clock,
            segment_bytes=segment_bytes,
            **self._options.settings,
        )
        self.landing = Landing(store, self._standing)
        return self.landing

    @property
    def _replica(self) -> Replica:
        assert self.landing is not None
        return self.landing.store.replica

    @property
    def knows_penstock(self) -> bool:
        """Whether the master at this address has answered as Penstock before."""
        if self.landing is None:
            return False
        return (self._replica.master, self._replica.master_kind) == (self._peer, "penstock")

    def new_side(self, hello: Hello) -> OwnSide:
        """Return this side as it will be when it is made."""
        log = NoLog(hello.segment_bytes)
        return OwnSide(path=self._root, log=log, is_empty=True, history=hello.history, epochs=())

    def own_side(self, landing: Landing, hello: Hello) -> OwnSide:
        """Return this side, for a comparison with a Penstock master."""
        replica = self._replica
        was_master = self._before is not None and self._before.role == MASTER
        # A history that only stands for the log of a RocketMQ master, or of nothing yet, names no log of a Penstock master.
        is_named = was_master or replica.master_kind == "penstock"
        return OwnSide(
            path=self._root,
            log=landing.store,
            is_empty=landing.is_empty,
            history=hello.history if landing.is_empty else replica.history if is_named else None,
            epochs=tuple(EpochStart(each.epoch, each.start_offset) for each in replica.epochs),
        )

    def request(self, landing: Landing, own: OwnSide, hello: Hello) -> Follow:
        """Return the request to follow from this log's end; an empty log may begin with the master's last file."""
        segment_bytes = landing.store.segment_bytes
        if own.is_empty and self._options.from_last_file and segment_bytes == hello.segment_bytes:
            start = hello.end_offset - hello.end_offset % segment_bytes
            if start > hello.min_offset:
                landing.begin_at(start)
                return Follow(end_offset=start, is_empty=False)
        return Follow(
            end_offset=landing.end_offset,
            is_empty=own.is_empty,
            digests=last_digests(own, hello),
            # Memory is faster than any compression.
            compress=self._options.compress and not self._options.master.is_this_machine,
        )

    def accepted(self, hello: Hello) -> None:
        """Take over history and epochs of the master, which has accepted."""
        epochs = tuple(Epoch(epoch=epoch, start_offset=start) for epoch, start in hello.epochs)
        self._note("penstock", attrs.evolve(self._replica, epochs=epochs, history=hello.history or self._replica.history))  # fmt: skip

    def note_kind(self, kind: MasterKind) -> None:
        """Record what the master speaks."""
        self._note(kind, self._replica)

    def _note(self, kind: MasterKind, replica: Replica) -> None:
        assert self.landing is not None
        wanted = attrs.evolve(replica, master=self._peer, master_kind=kind)
        if wanted != self._replica:
            self.landing.store.note_replica(wanted)
        self._before = None
        self._standing.history, self._standing.epoch = wanted.history, wanted.epoch

    # --- what does not fit

    def mend(self, error: ReplicationError) -> None:
        """Cut the log, or set the store aside, if that was asked for and helps; otherwise raise the error. Each is done once."""
        if self._may_cut and isinstance(error, DivergedError):
            self._may_cut = False
            self._cut(error.parts_at)
        elif self._may_copy and error.needs_copy:
            self._may_copy = False
            self._set_aside()
        else:
            self._keep_role()
            raise error

    def _cut(self, log_offset: int) -> None:
        assert self.landing is not None
        logger.warning("%s is cut at log offset %d, as requested", self._root, log_offset)
        self.landing.cut(log_offset)
        replica = self._replica
        kept = tuple(each for each in replica.epochs if each.start_offset < max(log_offset, 1))
        self.landing.store.note_replica(attrs.evolve(replica, epochs=kept))

    def _set_aside(self) -> None:
        """Close the store and rename its folder, so that a new one is made."""
        if self.landing is not None:
            self.landing.close()
            self.landing = None
        aside = self._files.unused(self._root.with_name(f"{self._root.name}.set-aside"))
        self._files.rename(self._root, aside)
        self._files.sync_folder(self._root.parent)
        self._before = None
        logger.warning("%s was renamed to %s, as requested; it is copied anew", self._root, aside)

    def _keep_role(self) -> None:
        """Make the store the master again that it was, if nothing of another master was accepted."""
        before, self._before = self._before, None
        if self.landing is not None and before is not None and before.role == MASTER:
            self.landing.close()
            self.landing = None
            ReplicaFile(self._files, self._root).write(before)

    # --- the end

    def promote(self) -> Replica:
        """Close the store as a master; raises `ReplicationError` if there is no store yet."""
        if self.landing is None:
            raise ReplicationError(self._root, self._peer, "it has no log yet", "Wait until it has")
        landing, self.landing = self.landing, None
        return landing.promote()

    def close(self) -> None:
        """Close the store, if it is open."""
        landing, self.landing = self.landing, None
        if landing is not None:
            landing.close()
