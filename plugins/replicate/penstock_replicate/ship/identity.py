"""Whose log it is: the history and the epoch in a store's `penstock/replica`."""

import uuid
from pathlib import Path

import attrs

from penstock.durability.replica_file import Epoch, Replica, ReplicaFile
from penstock.durability.written_ranges import Ranges, write_ranges
from penstock.files import Files
from penstock.format.names import SIDE_FOLDER


@attrs.frozen(kw_only=True)
class Identity:
    """The history of a log, which all its copies share, and the epoch that its master is in."""

    history: str
    epoch: int


def identity_of(files: Files, root: Path) -> Identity:
    """Return whose log a store has that is open for writing; one that was never replicated begins a history, durably."""
    file = ReplicaFile(files, root)
    found = file.read()
    if found is None:
        found = Replica(history=uuid.uuid4().hex, role="master")
        file.write(found)
    return Identity(history=found.history, epoch=found.epoch)


def write_restored(files: Files, root: Path, identity: Identity, end_offset: int) -> int:
    """Make a store whose log ends at `end_offset` a master in a new epoch of a history; return the epoch."""
    epoch = identity.epoch + 1
    begun = (Epoch(epoch=epoch, start_offset=end_offset),)
    ReplicaFile(files, root).write(Replica(history=identity.history, role="master", epochs=begun))
    return epoch


def write_doubts(files: Files, root: Path, end_offset: int) -> None:
    """Note that it is not known which program wrote the records below `end_offset`.

    Without that, records of topics that are in no list would count as those of a broker that has deleted them.
    """
    files.make_folder_durably(root / SIDE_FOLDER)
    write_ranges(files, root, Ranges(perhaps=((0, end_offset),) if end_offset else ()))
