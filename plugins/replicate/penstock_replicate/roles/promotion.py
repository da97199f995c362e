"""Makes a follower a master: says before what may be lost, and does it, also where a process follows.

A promotion loses what the master had and this store has not. How much that is, is known only as of the last contact: what the master
wrote after it is not known at all. Nothing that is in this store's log is lost, but a part of an atomic batch.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from penstock.durability.replica_file import FOLLOWER, MASTER, Replica, ReplicaFile
from penstock.durability.side_folder import SideFolder
from penstock.errors import ConfigError, NotAStoreError, StorageError, StoreLockedError
from penstock.files import Files
from penstock.store.following import promote
from penstock_replicate.roles.requests import PromotionRequests
from penstock_replicate.roles.status_file import ReplicaStatus, StatusFile
from penstock_replicate.roles.wording import bytes_text, span_text

POLL_S = 0.05


@attrs.frozen(kw_only=True)
class PromotionOutlook:
    """What is known before a promotion.

    Attributes:
        replica: the store's role, history and epochs.
        status: what its follower said last; None if it never did.
        is_followed: a process has the store open and follows.
        now_ms: when this was found out.
    """

    replica: Replica
    status: ReplicaStatus | None
    is_followed: bool
    now_ms: int

    @property
    def missing_bytes(self) -> int | None:
        """How many bytes of the master's log are not here, as of the last contact; None if that is not known."""
        status = self.status
        if status is None or status.master_offset is None:
            return None
        return max(status.master_offset - status.end_offset, 0)

    @property
    def contact_age_ms(self) -> int | None:
        """How long ago the master last said anything; None if that is not known."""
        status = self.status
        return max(self.now_ms - status.contact_ms, 0) if status and status.contact_ms else None

    def lines(self) -> list[str]:
        """Return sentences that say what may be lost."""
        status, missing, age_ms = self.status, self.missing_bytes, self.contact_age_ms
        master = self.replica.master or "its master"
        if status is None or missing is None or age_ms is None:
            return [
                f"how far {master} was is not known: whatever it has and this store has not is lost"
            ]
        known = (
            f"{master} was last heard {span_text(age_ms)} ago, when its log ended at {status.master_offset:,}; this store's log "
            f"ends at {status.end_offset:,}"
        )
        lost = (
            f"{missing:,} bytes ({bytes_text(missing)}) of it are not here and will be lost"
            if missing
            else "all of it is here"
        )
        return [f"{known}: {lost}", f"what {master} has written since then is not known, and is lost as well"]  # fmt: skip


@attrs.frozen(kw_only=True)
class Promoted:
    """What a promotion did: the store is a master, in an epoch that begins at a log offset."""

    epoch: int
    start_offset: int


def look_ahead(files: Files, root: Path, now_ms: int) -> PromotionOutlook:
    """Return what is known before a promotion.

    Raises:
        NotAStoreError: there is no store.
        ConfigError: the store is no follower.
    """
    if not files.is_folder(root / "commitlog"):
        raise NotAStoreError(root, "it has no folder commitlog")
    replica = ReplicaFile(files, root).read()
    if replica is None or replica.role != FOLLOWER:
        what = "was never a copy of another store" if replica is None else f"is a master (epoch {replica.epoch})"  # fmt: skip
        raise ConfigError(f"{root} {what}, so there is nothing to promote; nothing was changed")
    lock = root / "lock"
    return PromotionOutlook(
        replica=replica,
        status=StatusFile(files, root).read(),
        is_followed=files.exists(lock) and files.is_locked(lock),
        now_ms=now_ms,
    )


def promote_closed(root: Path) -> Promoted:
    """Promote a store that no process has open; raises `StoreLockedError` if one has."""
    return _outcome(promote(root))


def promote_followed(
    files: Files,
    root: Path,
    timeout_s: float,
    *,
    time_ms: Callable[[], int],
    pause: Callable[[float], None] = time.sleep,
) -> Promoted:
    """Let the process that follows promote the store; it ends by that.

    Raises:
        StorageError: it could not, and says why.
        StoreLockedError: the process that has the store open does not answer in time.
    """
    requests = PromotionRequests(files, root)
    token = requests.ask(files.process_id(), time_ms())
    for _ in range(max(int(timeout_s / POLL_S), 1)):
        answer = requests.answer_to(token)
        if answer is not None:
            return _promoted_by(root, answer)
        if not files.is_locked(root / "lock"):
            break
        pause(POLL_S)
    else:
        requests.withdraw()
        holder = SideFolder(files, root).read_holder()
        raise StoreLockedError(root, f"{holder}, which does not answer a request to promote")
    requests.withdraw()
    # It has closed the store, and may be about to answer; or it has died.
    replica = ReplicaFile(files, root).read()
    if replica is not None and replica.role == MASTER:
        return _outcome(replica)
    return promote_closed(root)


def _promoted_by(root: Path, answer: Mapping[str, Any]) -> Promoted:
    """Return what the process that followed has answered."""
    epoch, start = answer.get("epoch"), answer.get("start_offset")
    if type(epoch) is not int or type(start) is not int:
        raise StorageError(f"{root} was not promoted: {answer.get('error')}")
    return Promoted(epoch=epoch, start_offset=start)


def _outcome(replica: Replica) -> Promoted:
    return Promoted(epoch=replica.epoch, start_offset=replica.epochs[-1].start_offset)
