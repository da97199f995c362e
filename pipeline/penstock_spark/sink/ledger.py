"""The files that the sink writes beside a store. This module does not import pyspark.

In `penstock/sink/` of a store, or of a dataset's folder::

    made            exists once the store, or all shards of the dataset, have existed
    lock            held by the process that commits; one at a time
    staging/        encoded rows of tasks, before the commit (see `staging`)
    decision        the one batch that is decided and not complete yet
    ledger/<name>   for each application the last batch that is completely in the store
    progress-<of>   in each store: how many rows of the decided batch it has; <of> is "store" for a batch of the store
                    itself, "dataset" for a batch of the dataset that has this store as a shard

Each is one line, a CRC-32C and JSON, written atomically. A decision is never revoked: the next commit completes it.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Self, TypeVar

import attrs
import crc32c

from penstock.errors import CorruptionError
from penstock.files import Files
from penstock.staged import MARK_MAX, MARK_MIN
from penstock_spark.durable_names import keep_folder
from penstock_spark.stores.dataset import MADE

FOLDER = Path("penstock") / "sink"
FORMAT = 1
_LIMIT_BYTES = 64 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_BIG = 1 << 63
# What text of any content may raise on its way through JSON.
_NOT_UNDERSTOOD = (ValueError, TypeError, KeyError, RecursionError, AttributeError)


@attrs.frozen
class Part:
    """One staged file: its name, the task that wrote it, and the number of rows for each shard."""

    name: str
    task: int
    rows: tuple[tuple[int, int], ...]

    def rows_of(self, shard: int) -> int:
        """Return how many rows it has for a shard."""
        return dict(self.rows).get(shard, 0)


@attrs.frozen
class Decision:
    """A batch that will be in the store: its staged files in order.

    Attributes:
        app: the application.
        batch: its number within the application.
        mark: the number of the first record, see `LowLevelStore.put_staged`; unique to this batch.
        parts: the staged files in the order in which they are appended.
        is_alone: the application writes this one batch only, and will not repeat it.
    """

    app: str
    batch: int
    mark: int
    parts: tuple[Part, ...]
    is_alone: bool = False

    def rows_of(self, shard: int) -> int:
        """Return how many rows a shard gets."""
        return sum(part.rows_of(shard) for part in self.parts)

    def mark_of(self, shard: int) -> int:
        """Return the mark of the first record of a shard; the marks of the shards follow each other."""
        return self.mark + sum(n for part in self.parts for s, n in part.rows if s < shard)

    def to_json(self) -> dict[str, Any]:
        """Return the facts to write."""
        parts = [[part.name, part.task, part.rows] for part in self.parts]
        return {
            "app": self.app, "batch": self.batch, "mark": self.mark, "alone": self.is_alone,
            "parts": parts,
        }  # fmt: skip

    @classmethod
    def of(cls, found: dict[str, Any]) -> Self:
        """Parse written facts; raise `ValueError`, `TypeError` or `KeyError` if they are invalid."""
        parts = tuple(
            Part(
                _name(name),
                _whole(task),
                tuple((_whole(shard), _whole(rows)) for shard, rows in counts),
            )
            for name, task, counts in found["parts"]
        )
        mark = _whole(found["mark"])
        if not MARK_MIN <= mark <= MARK_MAX:
            raise ValueError(f"mark {mark}")
        return cls(str(found["app"]), _whole(found["batch"]), mark, parts, bool(found["alone"]))


@attrs.frozen
class BatchProgress:
    """Progress of a batch in one shard: its first `done` rows are before log offset `begin`."""

    mark: int
    begin: int
    done: int
    is_complete: bool

    def to_json(self) -> dict[str, Any]:
        """Return the facts to write."""
        return attrs.asdict(self)

    @classmethod
    def of(cls, found: dict[str, Any]) -> Self:
        """Parse written facts."""
        mark, begin, done = (_whole(found[name]) for name in ("mark", "begin", "done"))
        return cls(mark, begin, done, bool(found["is_complete"]))


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _BIG:
        raise ValueError(f"{value!r} is not a count")
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not the name of a staged file")
    return value


def write_line(files: Files, path: Path, facts: dict[str, Any]) -> None:
    """Write facts to a file, durably and atomically."""
    text = json.dumps({"format": FORMAT, **facts}, separators=(",", ":")).encode()
    files.write_whole(path, b"%08x %s\n" % (crc32c.crc32c(text), text))


def read_line(files: Files, path: Path) -> dict[str, Any] | None:
    """Return the facts of a file, None if it does not exist; raise `CorruptionError` if it is corrupt."""
    if not files.exists(path):
        return None
    data = files.read_whole(path, _LIMIT_BYTES)
    sum_, _, text = data.removesuffix(b"\n").partition(b" ")
    if sum_ != b"%08x" % crc32c.crc32c(text):
        raise _damaged(path, "a line with its CRC-32C", f"{data[:40]!r}")
    try:
        found = json.loads(text)
        version = found["format"]
    except _NOT_UNDERSTOOD as error:
        raise _damaged(path, "JSON", repr(error)) from error
    if version != FORMAT:
        raise _damaged(path, f"format {FORMAT}", f"{version!r}")
    facts: dict[str, Any] = found
    return facts


def _damaged(path: Path, expected: str, found: str) -> CorruptionError:
    return CorruptionError(
        path, 0, expected, found, "see 'What is on disk' in the sink's documentation"
    )


_Fact = TypeVar("_Fact", Decision, BatchProgress)


class Ledger:
    """The small files of one root. A caller that changes them must hold the root's lock. Not thread-safe."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self._root = root
        self.folder = root / FOLDER
        self.staging = self.folder / "staging"
        self.lock = self.folder / "lock"
        self._decision = self.folder / "decision"
        self._apps = self.folder / "ledger"
        self._made = root / MADE

    def make(self) -> None:
        """Create the folders durably; the stores must exist."""
        for folder in (self.staging, self._apps):
            keep_folder(self._files, folder, self._root)
        if not self._files.exists(self._made):
            write_line(self._files, self._made, {})

    # --- the decision

    def has_decision(self) -> bool:
        """Return whether a batch is decided and not complete."""
        return self._files.exists(self._decision)

    def decision(self) -> Decision | None:
        """Return the batch that is decided and not complete, or None."""
        return _understood(Decision, self._decision, read_line(self._files, self._decision))

    def decide(self, decision: Decision) -> None:
        """Write a decision durably; after this, the batch will be in the store."""
        write_line(self._files, self._decision, decision.to_json())

    def keep(self) -> None:
        """Sync decision and last batches, which a killed predecessor may have written without a sync."""
        self._files.sync_folder(self.folder)
        self._files.sync_folder(self._apps)

    def drop_decision(self) -> None:
        """Delete the decision durably, since its batch is complete."""
        self._files.remove(self._decision)
        self._files.sync_folder(self.folder)

    # --- applications

    def _path_of(self, app: str) -> Path:
        return self._apps / hashlib.sha256(app.encode()).hexdigest()[:40]

    def last_batch(self, app: str) -> int:
        """Return the last batch of an application that is in the store; -1 for none."""
        path = self._path_of(app)
        found = read_line(self._files, path)
        if found is None:
            return -1
        try:
            if found["app"] == app:
                return _whole(found["batch"])
        except _NOT_UNDERSTOOD as error:
            raise _damaged(path, "an application's last batch", repr(error)) from error
        raise _damaged(path, f"application {app!r}", f"{found['app']!r}")

    def note_batch(self, decision: Decision) -> None:
        """Record that a batch is in the store."""
        if not decision.is_alone and decision.batch > self.last_batch(decision.app):
            rows = sum(rows for part in decision.parts for _, rows in part.rows)
            facts = {"app": decision.app, "batch": decision.batch, "rows": rows}
            write_line(self._files, self._path_of(decision.app), facts)


class ShardProgress:
    """The file with the progress of a root's batch in one store; the holder of the root's lock writes it."""

    def __init__(self, files: Files, shard: Path, *, is_own: bool) -> None:
        self._files = files
        self._shard = shard
        self._path = shard / FOLDER / f"progress-{'store' if is_own else 'dataset'}"

    @property
    def path(self) -> Path:
        """The file's path."""
        return self._path

    def make(self) -> None:
        """Create the file's folder durably."""
        keep_folder(self._files, self._path.parent, self._shard)

    def read(self, mark: int) -> BatchProgress | None:
        """Return the progress of the batch with that mark; None if it was not begun."""
        found = _understood(BatchProgress, self._path, read_line(self._files, self._path))
        return found if found is not None and found.mark == mark else None

    def write(self, progress: BatchProgress) -> None:
        """Write the progress durably."""
        write_line(self._files, self._path, progress.to_json())


def _understood(cls: type[_Fact], path: Path, found: dict[str, Any] | None) -> _Fact | None:
    if found is None:
        return None
    try:
        return cls.of(found)
    except _NOT_UNDERSTOOD as error:
        raise _damaged(path, f"a {cls.__name__.lower()}", repr(error)) from error
