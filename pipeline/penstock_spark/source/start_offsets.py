"""The start of a stream with a `group`, stored with the data that it reads. This module does not import pyspark.

Spark asks a source for the start offsets, and asks again if the query is restarted before its first batch is
committed, since the checkpoint does not contain them until then. A different second answer would skip or repeat
messages. So the first answer is stored, in one file for each group::

    penstock-spark/<group>.json   {"format": 1, "start": {<offsets>}, "begun": false}

in the folder of the dataset; else in that of the read's store that has such a file; else in that of the first store.
`begun` is true when the first batch is committed. From then on Spark does not ask again for this query, so a later
request is from another query, which gets its own start.

Invariants:
    * The file is written atomically and durably before the start is used.
    * A group's name cannot be a path outside of the folder.
"""

import json
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError, CorruptionError, StorageError
from penstock.files import Files
from penstock_spark.durable_names import keep_folder

FOLDER = "penstock-spark"
FORMAT = 1
_SIZE_MAX = 64 << 20


class KeptStart:
    """The start of one group. One query uses it at a time; not thread-safe."""

    def __init__(self, home: Path, group: str, files: Files | None = None) -> None:
        self._files = files or Files()
        self._home = home
        self.path = home / FOLDER / f"{group}.json"
        self._group = group

    def exists(self) -> bool:
        """Return whether a start is stored."""
        return self._files.exists(self.path)

    def read(self) -> tuple[dict[str, Any], bool] | None:
        """Return the start, and whether the first batch is known to be committed; None if there is none."""
        try:
            start, begun = self._parsed()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise CorruptionError(
                self.path, 0, f"the start of group {self._group}", str(error),
                "delete it: a query whose first batch is committed does not need it",
            ) from error  # fmt: skip
        except OSError as error:
            raise StorageError(
                f"the start of group {self._group!r} cannot be read ({error})"
            ) from error
        return start, begun

    def _parsed(self) -> tuple[dict[str, Any], bool]:
        found = json.loads(self._files.read_whole(self.path, _SIZE_MAX))
        # Its writer may have been killed before the name was durable, and what is told now must be told again.
        self._files.sync_folder(self.path.parent)
        version, start, begun = found["format"], found["start"], found["begun"]
        if version != FORMAT or not isinstance(start, dict) or not isinstance(begun, bool):
            raise ValueError(f"format {version!r} is not {FORMAT}")
        return start, begun

    def write(self, start: dict[str, Any], *, begun: bool) -> None:
        """Store a start durably."""
        text = json.dumps({"format": FORMAT, "start": start, "begun": begun}, sort_keys=True)
        try:
            # Whole and durably, as the kernel writes its own marks.
            keep_folder(self._files, self.path.parent, self._home)
            self._files.write_whole(self.path, text.encode())
        except OSError as error:
            raise ConfigError(
                f"the start of group {self._group!r} cannot be stored in {self.path.parent} ({error}): make the "
                f"folder writable, or omit group and start at 'earliest' or at offsets"
            ) from error
