"""Whether a store is in use, was closed cleanly, or neither, and whether it has or is a copy, as `stat` shows it."""

import contextlib
import time
from typing import Any, NamedTuple

from penstock.durability.replica_file import read_replica, read_status
from penstock.durability.side_folder import SideFolder
from penstock.files import Files
from penstock.format.names import SIDE_FOLDER
from penstock.store.store import Store

# A process that copies publishes once a second: after this time it was stopped, or its disk hangs.
_STALE_S = 5


class StoreState(NamedTuple):
    """The state of a store that another process may have open.

    Attributes:
        text: one statement for people.
        used_by: the process that has it open for writing; None if none has.
        closed_cleanly: whether the last writer closed it; False while one has it open.
    """

    text: str
    used_by: str | None
    closed_cleanly: bool


def state_of(store: Store, files: Files | None = None) -> StoreState:
    """Return the state of a store that is open for reading."""
    files, root = files or Files(), store.path
    is_marked = files.exists(root / "abort")
    lock = root / "lock"
    if files.exists(lock) and files.is_locked(lock):
        owner = files.lock_owner(lock)
        holder = SideFolder(files, root).read_holder() if owner is None else f"process {owner}"
        return StoreState(f"in use by {holder}", holder, closed_cleanly=False)
    if is_marked:
        text = "not closed cleanly; the next program that opens it for writing recovers it"
        return StoreState(text, None, closed_cleanly=False)
    return StoreState("closed cleanly", None, closed_cleanly=True)


def replica_of(store: Store, files: Files | None = None) -> dict[str, Any] | None:
    """Return the facts about a store that has copies or is one, as JSON values; None for any other store.

    `status` is what the process that copies has published last, and None if no process copies now. `log_end` counts
    what an opening for writing will find.
    """
    files, root = files or Files(), store.path
    replica = read_replica(files, root)
    if replica is None:
        return None
    state = state_of(store, files)
    status = read_status(files, root) if state.used_by is not None else None
    if status is not None:
        age_s = time.time() - files.mtime_ns(root / SIDE_FOLDER / "replica-status") / 1e9
        if age_s > _STALE_S:
            status["text"] = f"{status.get('text')} ({age_s:,.0f} s ago)"
    return {
        "role": replica.role,
        "store": replica.store,
        "history": replica.history,
        "epoch": replica.epochs[-1].number if replica.epochs else 0,
        "master": replica.master,
        "log_end": store.stats()["log_end_offset"] if state.used_by else _log_end(store, files),
        "status": status,
    }


def _log_end(store: Store, files: Files) -> int:
    """Return where the log of a store ends that no process writes; after a kill, readers may not see all of it."""
    from penstock.dispatch.rebuild import open_log  # noqa: PLC0415 - slow to import, and `stat` needs none of it
    from penstock.durability.written_ranges import known_ranges  # noqa: PLC0415 - as above
    from penstock.recovery.inspection import doubtful_tail  # noqa: PLC0415 - as above
    from penstock.store.open import make_opener  # noqa: PLC0415 - as above

    root = store.path
    geometry = make_opener(root, None, files, None, None, None, {}).geometry()
    with contextlib.closing(open_log(files, root, geometry)) as log:
        ranges = known_ranges(files, root, log)
        log.coverage, log.quarantined = ranges.coverage, ranges.quarantined
        tail = doubtful_tail(files, root, log, ranges)
    return max(store.stats()["log_end_offset"], tail[1].offset if tail is not None else 0)
