"""The files `penstock/replica` and `penstock/replica-status` of a store that copies its log or is a copy.

`replica`: the store's identity. JSON, one object::

    {"about": {"history": 32 hex digits, "store": 16 hex digits, "role": "master" | "follower",
               "master": "HOST:PORT" | null, "protocol": "penstock" | ... | null,
               "epochs": [[number, opening, start, by], ...]},
     "crc32": CRC-32 of `about` as `json.dumps` writes it}

`contracts.Replica` has the meaning of each field. The file is missing in a store that was never copied.

Invariants:
    * The role is durable before the first byte is appended in it.
    * A store whose file says "follower", or cannot be read, is opened for writing by `open_follower` only.
    * Bytes that a crash took from a master may be in its copies. So an opening after which bytes may be missing begins
      a new epoch where the log then ends, durably, before anything is appended. Epochs that began after that offset are
      dropped, except the first: no byte of theirs is left.
    * Two lists that have the newest common entry E are of logs that are equal up to the next start after E in either.

`replica-status`: what a replicator or a follower last published, as a JSON object. It is replaced, not synced.
"""

import itertools
import json
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from penstock.contracts import Epoch, Replica
from penstock.durability.side_folder import NOT_UNDERSTOOD, read_about, write_about
from penstock.errors import CorruptionError, FollowerError
from penstock.files import Files
from penstock.format.names import SIDE_FOLDER

FOLLOWER, MASTER = "follower", "master"
# The history of a copy that has no record yet and was accepted by no master.
NO_HISTORY = "0" * 32
# The oldest are dropped.
EPOCHS_MAX = 4096
_SIZE_MAX, _STATUS_MAX = 1 << 20, 64 << 10
_NUMBER_MAX, _TEXT_MAX = 1 << 62, 300
_ADVICE = (
    "the store is not opened for writing and nothing was changed; read_only=True reads it. If it is no copy of another "
    "store, remove this file; otherwise make the copy anew from its master"
)


def replica_path(root: Path) -> Path:
    """Return the path of a store's `penstock/replica`."""
    return root / SIDE_FOLDER / "replica"


def read_replica(files: Files, root: Path) -> Replica | None:
    """Return a store's identity; None if it was never copied. Raises `CorruptionError` if it cannot be understood."""
    path = replica_path(root)
    if not files.exists(path):
        return None
    try:
        about = read_about(files, path, _SIZE_MAX)
        return checked(
            Replica(**{**about, "epochs": tuple(Epoch(*each) for each in about["epochs"])})
        )
    except NOT_UNDERSTOOD as error:
        raise CorruptionError(path, 0, "the store's role and epochs", str(error), _ADVICE) from error  # fmt: skip


def checked(replica: Replica) -> Replica:
    """Return an identity whose fields may come from anywhere; raises `ValueError` or `TypeError` if one is invalid."""
    epochs = replica.epochs
    ids = (replica.store, *(one.by for one in epochs))
    numbers = [number for one in epochs for number in (one.number, one.opening, one.start)]
    texts = [text for text in (replica.master, replica.protocol) if text is not None]
    for what, is_valid in (
        ("history", re.fullmatch("[0-9a-f]{32}", replica.history)),
        ("role", replica.role in (MASTER, FOLLOWER)),
        ("master", all(0 < len(text) <= _TEXT_MAX and text.isprintable() for text in texts)),
        ("store's id", all(re.fullmatch("[0-9a-f]{16}", one) for one in ids)),
        ("number", all(type(n) is int and 0 <= n <= _NUMBER_MAX for n in numbers)),
        ("number of epochs", len(epochs) <= EPOCHS_MAX),
        ("order of epochs", all(a[:2] < b[:2] for a, b in itertools.pairwise(epochs))),
    ):
        if not is_valid:
            raise ValueError(f"an invalid {what}")
    return replica


def write_replica(files: Files, root: Path, replica: Replica) -> None:
    """Replace a store's identity, durably; creates the side folder."""
    about = {**attrs.asdict(replica, recurse=False), "epochs": [[*each] for each in replica.epochs]}
    files.make_folder_durably(replica_path(root).parent)
    write_about(files, replica_path(root), about)


def new_store_id() -> str:
    """Return a random id of a store."""
    return secrets.token_hex(8)


def ensure_master(files: Files, root: Path, log_end: int) -> Replica:
    """Return the identity of a store that is open for writing, whose log ends at `log_end`; creates it, durably."""
    replica = read_replica(files, root)
    if replica is None:
        own = new_store_id()
        epochs = (Epoch(0, 0, log_end, own),)
        replica = Replica(history=secrets.token_hex(16), store=own, role=MASTER, epochs=epochs)
        write_replica(files, root, replica)
    return replica


def note_unclean_opening(files: Files, root: Path, start: int, *, is_copy: bool) -> None:
    """Begin a new epoch of a master after which bytes from `start` on may be missing.

    A copy of the store's folder gets an id of its own. Nothing else changes in a follower, whose bytes are its
    master's, and nothing in a store that was never copied.
    """
    replica = read_replica(files, root)
    if replica is None or (replica.role == FOLLOWER and not is_copy):
        return
    own = new_store_id() if is_copy else replica.store
    if replica.role == FOLLOWER:
        write_replica(files, root, attrs.evolve(replica, store=own))
        return
    last = replica.epochs[-1] if replica.epochs else Epoch(0, -1, 0, own)
    kept = *replica.epochs[:1], *(one for one in replica.epochs[1:] if one.start < start)
    epochs = (*kept, Epoch(last.number, last.opening + 1, start, own))[-EPOCHS_MAX:]
    write_replica(files, root, attrs.evolve(replica, store=own, epochs=epochs))


def promoted(replica: Replica, end: int) -> Replica:
    """Return the identity of a copy that has become a master, and whose log ends at `end`."""
    number = replica.epochs[-1].number + 1 if replica.epochs else 1
    kept = *replica.epochs[:1], *(one for one in replica.epochs[1:] if one.start < end)
    epochs = (*kept, Epoch(number, 0, end, replica.store))[-EPOCHS_MAX:]
    return attrs.evolve(replica, role=MASTER, master=None, protocol=None, epochs=epochs)


def check_role(files: Files, root: Path, call: str) -> None:
    """Raise `FollowerError` if a store follows another one; `call` is what is refused then."""
    replica = read_replica(files, root)
    if replica is not None and replica.role == FOLLOWER:
        raise FollowerError(root, replica.master, call)


def is_follower(files: Files, root: Path) -> bool:
    """Return whether a store follows another one; False if its file cannot be understood."""
    try:
        replica = read_replica(files, root)
    except CorruptionError:
        return False
    return replica is not None and replica.role == FOLLOWER


def remove_status(files: Files, root: Path) -> None:
    """Remove the published status of an earlier process."""
    path = root / SIDE_FOLDER / "replica-status"
    if files.exists(path):
        files.remove(path)


def write_status(files: Files, root: Path, status: Mapping[str, Any]) -> None:
    """Replace the published status, without a sync; one longer than 64 KiB is not written."""
    path = root / SIDE_FOLDER / "replica-status"
    fresh = path.with_name("new-replica-status")
    data = json.dumps(status).encode()
    if len(data) > _STATUS_MAX:
        return
    if files.exists(fresh):
        files.remove(fresh)
    with files.create(fresh) as file:
        file.pwrite(data, 0)
    files.rename(fresh, path)


def read_status(files: Files, root: Path) -> dict[str, Any] | None:
    """Return the published status; None if there is none, or it is not a JSON object of at most 64 KiB."""
    try:
        found = json.loads(
            files.read_whole(root / SIDE_FOLDER / "replica-status", _STATUS_MAX).decode()
        )
    except (ValueError, RecursionError, OSError):
        return None
    return found if isinstance(found, dict) else None
