"""Whether a store is in use, was closed cleanly, or neither, as `stat` shows it."""

from typing import NamedTuple

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
