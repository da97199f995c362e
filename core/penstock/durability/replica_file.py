"""The file `penstock/replica`: whether the store is the master of its log or follows another one, and in which epoch.

Layout: JSON, one object::

    {"about": {"history": 32 hex digits, "role": "master" | "follower", "master": "HOST:PORT" | null,
               "master_kind": "rocketmq" | "penstock" | null, "epochs": [[0, 0], [1, 4711]]},
     "crc32": CRC-32 of `about` as `json.dumps` writes it}

`history` is the same in all copies of one log. `epochs` are pairs of an epoch and the log offset at which it begins: each
promotion begins one, so two stores that were masters at the same time differ in them. The file is missing in a store that
was never replicated.

Invariants:
    * The role is durable before the first byte is appended in it.
    * A store whose file says "follower", or cannot be read, is not opened for writing by anything but its follower.
    * A copy of the store's folder has the same role and history.
"""

import itertools
import json
import re
from pathlib import Path
from typing import Any, Literal

import attrs

from penstock.errors import CorruptionError
from penstock.files import Files
from penstock.format.names import SIDE_FOLDER
from penstock.format.record import crc32

FOLLOWER: Literal["follower"] = "follower"
MASTER: Literal["master"] = "master"
Role = Literal["master", "follower"]
MasterKind = Literal["rocketmq", "penstock"]
_SIZE_MAX = 1 << 20
# Each promotion adds one; a store that reaches it keeps the newest.
EPOCHS_MAX = 4096
_OFFSET_MAX = 1 << 62
_ADDRESS_MAX = 300
_NOT_UNDERSTOOD = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    RecursionError,
    OSError,
)
_ADVICE = (
    "the store is not opened for writing and nothing was changed; it can be read with read_only=True. If it follows no other "
    "store, remove this file; otherwise make the copy anew from its master"
)


def _check_history(_instance: object, _field: object, history: str) -> None:
    if not re.fullmatch(r"[0-9a-f]{32}", history):
        raise ValueError(f"history is {history!r:.60}, not 32 hexadecimal digits")


def _check_role(_instance: object, _field: object, role: str) -> None:
    if role not in (MASTER, FOLLOWER):
        raise ValueError(f"role is {role!r:.60}, not master or follower")


def _check_master(_instance: object, _field: object, master: str | None) -> None:
    if master is None:
        return
    if not 0 < len(master) <= _ADDRESS_MAX or not master.isprintable():
        raise ValueError(f"master is {master!r:.60}, not HOST:PORT")


def _check_kind(_instance: object, _field: object, kind: str | None) -> None:
    if kind not in (None, "rocketmq", "penstock"):
        raise ValueError(f"master_kind is {kind!r:.60}, not rocketmq or penstock")


def _check_number(_instance: object, field: Any, number: int) -> None:
    if type(number) is not int or not 0 <= number <= _OFFSET_MAX:
        raise ValueError(f"{field.name} is {number!r:.60}, not a whole number in range")


def _check_epochs(_instance: object, _field: object, epochs: tuple["Epoch", ...]) -> None:
    if len(epochs) > EPOCHS_MAX:
        raise ValueError(f"there are {len(epochs)} epochs, over {EPOCHS_MAX}")
    for before, after in itertools.pairwise(epochs):
        if not (before.epoch < after.epoch and before.start_offset <= after.start_offset):
            raise ValueError(f"epoch {after.epoch} follows epoch {before.epoch} out of order")


@attrs.frozen(kw_only=True)
class Epoch:
    """An epoch, and the log offset of the first byte that was written in it."""

    epoch: int = attrs.field(validator=_check_number)
    start_offset: int = attrs.field(validator=_check_number)


@attrs.frozen(kw_only=True)
class Replica:
    """What a store knows of itself as one of several copies.

    Attributes:
        history: names the log, in all its copies: 32 hexadecimal digits.
        role: "master" or "follower".
        master: HOST:PORT of the store that a follower follows; None if it was never connected.
        master_kind: what answered there: "rocketmq", "penstock", or None.
        epochs: ascending; the last one is current.
    """

    history: str = attrs.field(validator=_check_history)
    role: Role = attrs.field(validator=_check_role)
    master: str | None = attrs.field(default=None, validator=_check_master)
    master_kind: MasterKind | None = attrs.field(default=None, validator=_check_kind)
    epochs: tuple[Epoch, ...] = attrs.field(default=(), validator=_check_epochs)

    @property
    def epoch(self) -> int:
        """The current epoch; 0 if there was no promotion."""
        return self.epochs[-1].epoch if self.epochs else 0

    def promoted(self, end_offset: int) -> "Replica":
        """Return the same as a master, in a new epoch that begins at the log's end."""
        newest = Epoch(epoch=self.epoch + 1, start_offset=end_offset)
        kept = tuple(each for each in self.epochs if each.start_offset <= end_offset)
        epochs = (*kept, newest)[-EPOCHS_MAX:]
        return attrs.evolve(self, role=MASTER, master=None, master_kind=None, epochs=epochs)


class ReplicaFile:
    """The file of one store. One process writes."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self.path = root / SIDE_FOLDER / "replica"

    def read(self) -> Replica | None:
        """Return the content, None if there is no such file; raises `CorruptionError` if it cannot be understood."""
        if not self._files.exists(self.path):
            return None
        try:
            whole = json.loads(self._files.read_whole(self.path, _SIZE_MAX))
            about = whole["about"]
            if whole["crc32"] != _crc(about):
                raise ValueError("its CRC does not match")
            return replica_of(about)
        except _NOT_UNDERSTOOD as error:
            wanted = "the store's role, history and epochs"
            raise CorruptionError(self.path, 0, wanted, str(error), _ADVICE) from error

    def write(self, replica: Replica) -> None:
        """Replace the content durably; the side folder is created if it is missing."""
        about = about_replica(replica)
        text = json.dumps({"about": about, "crc32": _crc(about)})
        self._files.make_folder_durably(self.path.parent)
        self._files.write_whole(self.path, text.encode())


def is_follower(files: Files, root: Path) -> bool:
    """Return whether a store follows another one, as far as its file can be read."""
    try:
        replica = ReplicaFile(files, root).read()
    except CorruptionError:
        return False
    return replica is not None and replica.role == FOLLOWER


def about_replica(replica: Replica) -> dict[str, Any]:
    """Return the content as JSON values."""
    about = attrs.asdict(replica, recurse=False)
    return {**about, "epochs": [[each.epoch, each.start_offset] for each in replica.epochs]}


def replica_of(about: Any) -> Replica:
    """Return what JSON values of any content say; raises `ValueError`, `TypeError` or `KeyError` if they are not understood."""
    epochs = about["epochs"]
    if not isinstance(epochs, list) or len(epochs) > EPOCHS_MAX:
        raise ValueError("epochs is not a list, or too long")
    pairs = [(number, start) for number, start in epochs]
    return Replica(
        history=about["history"], role=about["role"], master=about["master"],
        master_kind=about["master_kind"],
        epochs=tuple(Epoch(epoch=number, start_offset=start) for number, start in pairs),
    )  # fmt: skip


def _crc(about: object) -> int:
    return crc32(json.dumps(about).encode())
