"""The file `penstock/replication`: what the process that has the store open says about its copies, for other processes.

Layout: JSON, one object: `time_ms`, when it was written, and `lines`, each a list of the four parts of a `SummaryLine`. It is
replaced about once a second while the content changes, without a sync, and removed at a clean close. Nothing depends on it: a file
that cannot be read, such as after a crash of the machine, is ignored. Of a follower that no process lets follow, its role is told.
"""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.contracts.summary_line import SummaryLine
from penstock.durability.replica_file import FOLLOWER, ReplicaFile, about_replica
from penstock.errors import CorruptionError
from penstock.files import Files
from penstock.format.names import SIDE_FOLDER

_SIZE_MAX = 1 << 20
# An older file was left by a process that does not replace it any more.
_FRESH_MS = 10_000


class ReplicationFile:
    """The file of one store. One writer, many readers."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files, self._root = files, root
        self._path = root / SIDE_FOLDER / "replication"

    def write(self, lines: Sequence[SummaryLine], time_ms: int) -> None:
        """Replace the content."""
        data = json.dumps({"time_ms": time_ms, "lines": lines}).encode()
        fresh = self._path.with_name(self._path.name + ".new")
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(fresh)
        file = self._files.create(fresh)
        try:
            file.pwrite(data, 0)
        finally:
            file.close()
        self._files.rename(fresh, self._path)

    def remove(self) -> None:
        """Remove the file, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(self._path)

    def read(self, now_ms: int) -> list[SummaryLine]:
        """Return the lines, with their age if they are not fresh; only the role if there is no file, or it cannot be read."""
        return self._lines(now_ms) or self._role()

    def _role(self) -> list[SummaryLine]:
        try:
            replica = ReplicaFile(self._files, self._root).read()
        except (CorruptionError, OSError):
            # Whoever opens the store for writing is told.
            return []
        if replica is None or replica.role != FOLLOWER:
            return []
        text = f"follower of {replica.master or 'no master yet'}, epoch {replica.epoch}; no process lets it follow now"
        return [SummaryLine("replication", "replication", text, about_replica(replica))]

    def _lines(self, now_ms: int) -> list[SummaryLine]:
        if not self._files.exists(self._path):
            return []
        try:
            found = json.loads(self._files.read_whole(self._path, _SIZE_MAX))
            age_ms = now_ms - int(found["time_ms"])
            lines = [_line(each) for each in found["lines"]]
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, OSError):
            return []
        if age_ms <= _FRESH_MS:
            return lines
        age = f" (last known, {age_ms // 1000:,} s ago)"
        return [each._replace(text=each.text + age) for each in lines]


def _line(parts: Any) -> SummaryLine:
    key, what, text, value = parts
    if not all(isinstance(each, str) for each in (key, what, text)):
        raise ValueError("a line without text")
    return SummaryLine(key, what, text, value)
