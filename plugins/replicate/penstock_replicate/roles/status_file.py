"""The file `penstock/replica-status`: what the process that replicates a store says of it, once a second.

Layout: JSON, one object with the fields of `ReplicaStatus`; `copies` is a list of objects with the fields of `PeerStatus`.

The file is replaced as a whole, and is not durable: nothing depends on it. It is left in place when its process ends, because what a
promotion may lose can be told only from what the follower last knew of its master. So a reader must look at `time_ms`, and at the
store's lock. A reader never trusts the file: fields of another type, and a file over 1 MiB, count as no file.
"""

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs

from penstock.files import Files
from penstock.format.names import SIDE_FOLDER

NAME = "replica-status"
INTERVAL_MS = 1000
# A process that has not written for as long is stopped, or hangs.
STALE_MS = 5 * INTERVAL_MS
_SIZE_MAX = 1 << 20
_NUMBER_MAX = 1 << 63


@attrs.frozen(kw_only=True)
class PeerStatus:
    """One copy of a master's log; the fields are those of `CopyState`.

    Attributes:
        name: which copy: an address, or a URL.
        kind: "rocketmq", "penstock" or "ship".
        received_offset: the log offset up to which the copy has the log.
        flushed_offset: the one up to which it is durable there; None if the copy does not say.
        lag_bytes: how many bytes of the log it lacks.
        lag_ms: how much later than the copy's last message the log's last one was stored.
        in_sync: whether it counts for puts that wait.
        last_error: what failed last, if anything did.
        since_ms: since when it is connected, in Unix milliseconds.
    """

    name: str
    kind: str
    received_offset: int
    flushed_offset: int | None = None
    lag_bytes: int = 0
    lag_ms: int = 0
    in_sync: bool = False
    last_error: str | None = None
    since_ms: int = 0


@attrs.frozen(kw_only=True)
class ReplicaStatus:
    """What a master or a follower says of itself.

    Attributes:
        role: "master" or "follower".
        state: in one or two words, for example "listening", "connecting", "catching up", "following", "stopped", "failed".
        pid: the process that wrote this.
        time_ms: when, in Unix milliseconds.
        since_ms: since when the process replicates.
        address: where a master listens.
        peer: the master of a follower, as HOST:PORT.
        kind: what the peer speaks: "rocketmq" or "penstock"; None while that is not known.
        epoch: the store's epoch.
        history: which history the log belongs to.
        end_offset: the end of this log, whole records only.
        flushed_offset: how far this log is durable.
        master_offset: up to where the master's log was readable when it last said so; None if it never did.
        lag_bytes: how many bytes of that are not here.
        lag_ms: how much later the master's last message was stored than the last one here; 0 if nothing is missing.
        contact_ms: when the master last said anything, in Unix milliseconds; 0 if it never did.
        received_bytes: log bytes that this process has received.
        last_error: what failed last, if anything did.
        copies: the copies of a master's log.
    """

    role: str
    state: str
    pid: int
    time_ms: int
    since_ms: int = 0
    address: str | None = None
    peer: str | None = None
    kind: str | None = None
    epoch: int = 0
    history: str = ""
    end_offset: int = 0
    flushed_offset: int = 0
    master_offset: int | None = None
    lag_bytes: int = 0
    lag_ms: int = 0
    contact_ms: int = 0
    received_bytes: int = 0
    last_error: str | None = None
    copies: tuple[PeerStatus, ...] = ()

    def is_fresh(self, now_ms: int) -> bool:
        """Return whether the process that wrote this still writes, as far as the time says."""
        return abs(now_ms - self.time_ms) < STALE_MS


_TYPES: dict[Any, tuple[type, ...]] = {
    str: (str,),
    int: (int,),
    bool: (bool,),
    str | None: (str, type(None)),
    int | None: (int, type(None)),
}


def _checked(cls: type[Any], facts: object) -> dict[str, Any]:
    """Return the fields of a class that a JSON object has; raises `ValueError` if one has another type."""
    if not isinstance(facts, dict):
        raise ValueError(f"{cls.__name__} is no object")  # noqa: TRY004 - a value of a file, no argument
    found = {}
    for field in attrs.fields(cls):
        if field.name in facts and field.name != "copies":
            value = facts[field.name]
            # A bool is an int to Python, and no number to a reader.
            if type(value) not in _TYPES[field.type]:
                raise ValueError(f"{field.name} is {type(value).__name__}")
            if type(value) is int and not -_NUMBER_MAX <= value <= _NUMBER_MAX:
                raise ValueError(f"{field.name} is no number of 64 bits")
            found[field.name] = value
    return found


def _parse(data: bytes) -> ReplicaStatus:
    facts = json.loads(data)
    own = _checked(ReplicaStatus, facts)
    listed = facts.get("copies", [])
    if not isinstance(listed, list):
        raise ValueError("copies is no list")  # noqa: TRY004 - a value of a file, no argument
    copies = tuple(PeerStatus(**_checked(PeerStatus, each)) for each in listed)
    return ReplicaStatus(**own, copies=copies)


class StatusFile:
    """The status file of one store. One writer; any number of readers."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self.path = root / SIDE_FOLDER / NAME

    def read(self) -> ReplicaStatus | None:
        """Return what was last written; None if there is nothing, or nothing that can be read."""
        try:
            return _parse(self._files.read_whole(self.path, _SIZE_MAX))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def write(self, status: ReplicaStatus) -> None:
        """Replace the content as a whole, without a sync; raises `OSError`."""
        data = json.dumps(attrs.asdict(status)).encode()
        fresh = self.path.with_name(f"{NAME}.new")
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(fresh)
        file = self._files.create(fresh)
        try:
            file.pwrite(data, 0)
            self._files.rename(fresh, self.path)
        finally:
            file.close()


def peers_of(copies: Iterable[Any]) -> tuple[PeerStatus, ...]:
    """Return the copies that a replicator lists (`contracts.CopyState`) as they are written to the file."""
    names = [field.name for field in attrs.fields(PeerStatus)]
    return tuple(PeerStatus(**{name: getattr(copy, name) for name in names}) for copy in copies)
