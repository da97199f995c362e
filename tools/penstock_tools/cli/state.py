"""Whether a store is in use, was closed cleanly, or neither, and whether it has or is a copy, as `stat` shows it."""

from typing import Any, NamedTuple

from penstock.durability.replica_file import read_replica, read_status
from penstock.durability.side_folder import SideFolder
from penstock.files import Files
from penstock.store.store import Store


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

    `status` is what the process that copies has published last, and None if no process copies now.
    """
    files, root = files or Files(), store.path
    replica = read_replica(files, root)
    if replica is None:
        return None
    return {
        "role": replica.role,
        "store": replica.store,
        "history": replica.history,
        "epoch": replica.epochs[-1].number if replica.epochs else 0,
        "master": replica.master,
        "log_end": store.stats()["log_end_offset"],
        "status": read_status(files, root) if state_of(store, files).used_by else None,
    }
