"""The history and epochs of a master's log, from `penstock/replica`."""

import secrets
from pathlib import Path

from penstock.durability.replica_file import MASTER, Epoch, Replica, ReplicaFile
from penstock.files import Files


def own_lineage(files: Files, root: Path, min_offset: int) -> Replica:
    """Return what the file says; writes it, with a new history, if the store was never replicated.

    Raises `CorruptionError` if the file cannot be understood.
    """
    file = ReplicaFile(files, root)
    found = file.read()
    if found is None:
        first = Epoch(epoch=1, start_offset=min_offset)
        found = Replica(history=secrets.token_hex(16), role=MASTER, epochs=(first,))
        file.write(found)
    return found
