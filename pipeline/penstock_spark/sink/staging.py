"""A task's part: its rows, encoded, in one staged file that a commit may name later. This module does not import pyspark.

Names are unique, so two attempts of a task never share a file, even if one still runs after its job has failed. A
file has no effect until a decision names it; files that no decision names are deleted by age.
"""

import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import StorageError
from penstock.files import Files
from penstock.staged import EncodedBatch, Encoder, Encoding, StagedWriter
from penstock_spark.sink.ledger import Part

if TYPE_CHECKING:
    import pyarrow as pa

_UNFIT = re.compile(r"[^A-Za-z0-9-]+")
SUFFIX = ".staged"


def staged_name(app: str, batch: str, task: int, attempt: int) -> str:
    """Return a unique name that identifies the task."""
    source = _UNFIT.sub("-", app)[:40].strip("-") or "app"
    return (
        f"{source}.{_UNFIT.sub('-', batch) or 'x'}.{task:06d}.{attempt}.{uuid.uuid4().hex}{SUFFIX}"
    )


class Stager:
    """Writes the staged file of one task; creates none if there are no rows. Not thread-safe."""

    def __init__(
        self, files: Files, folder: Path, name: str, task: int, encoding: Encoding
    ) -> None:
        self._files = files
        self._path = folder / name
        self._task = task
        self._encoder = Encoder(encoding)
        self._writer: StagedWriter | None = None
        self._rows: dict[int, int] = {}

    def add(self, table: "pa.Table", shard: int) -> None:
        """Encode rows and stage them for a shard."""
        batch = self._encoder.encode(table)
        if len(batch):
            self.put(batch, shard)

    def put(self, batch: EncodedBatch, shard: int) -> None:
        """Stage rows that are encoded already."""
        if self._writer is None:
            self._writer = self._begin()
        self._writer.add(batch, shard)
        self._rows[shard] = self._rows.get(shard, 0) + len(batch)

    def _begin(self) -> StagedWriter:
        try:
            return self._encoder.writer(self._files, self._path)
        except FileNotFoundError as error:
            raise StorageError(
                f"there is no folder {self._path.parent} where this task runs: driver and executors must see the "
                f"same files under the same path"
            ) from error

    def finish(self) -> Part | None:
        """Make the file durable; return its description for the commit, None if there are no rows."""
        if self._writer is None:
            return None
        self._writer.finish()
        return Part(self._path.name, self._task, tuple(sorted(self._rows.items())))

    def discard(self) -> None:
        """Close and delete the file."""
        if self._writer is not None:
            self._writer.discard()
