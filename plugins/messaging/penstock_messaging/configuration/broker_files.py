"""One of the files in which a broker keeps its configuration: a table, a version, and the backup beside it.

Layout, of `config/topics.json` for example (`stateVersion` since 5.x; see `broker_json` for the form)::

    {"dataVersion": {"counter": 2, "stateVersion": 0, "timestamp": MILLISECONDS}, "topicConfigTable": {"orders": {...}}}

Invariants:
    * Whatever is not understood (fields, whole tables) is written again as it was read.
    * The previous content becomes `<name>.bak` before the file is replaced, and both are replaced as a whole. As in a
      broker, the `.bak` is read if the file is missing, empty or cannot be parsed.
    * A file that cannot be parsed is never replaced, nor is its `.bak`: saving raises `CorruptionError`.
    * New content is parsed before it replaces the file, and must equal what it was made from.
    * Each saving raises `counter` by one and sets `timestamp`: name servers and slaves compare them.

Not thread-safe: `config_table` has the lock.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.contracts import Context
from penstock.errors import CorruptionError, StorageError
from penstock.format.rocketmq_json import parse_rocketmq_json
from penstock_messaging.configuration.broker_json import encoded, in_bean_order, in_map_order

# A topic takes 250 bytes there.
FILE_BYTES_MAX = 64 << 20
_NOT_UNDERSTOOD = (ValueError, OSError)
_NEW_VERSION = {"counter": 0, "stateVersion": 0, "timestamp": 0}


class BrokerFile:
    """A file below `config/` with one table of named entries; see the module.

    Attributes:
        path: the file.
        problem: why the file cannot be replaced; None if it can.
        exists: whether there was a file, or its `.bak`, when it was read last.
    """

    def __init__(self, context: Context, name: str, table: str) -> None:
        self._files, self._clock = context.files, context.clock
        self.path = context.root / "config" / name
        self._spare = self.path.with_name(name + ".bak")
        self._table = table
        self._whole: dict[str, Any] = {}
        self.problem: CorruptionError | None = None
        self.exists = False

    def mark(self) -> tuple[int, int]:
        """Return a value that changes whenever the file is replaced."""
        return self._files.inode(self.path), self._files.mtime_ns(self.path)

    def load(self) -> dict[str, object]:
        """Read the file, or its `.bak`, and return the entries; without any if neither can be parsed: see `problem`."""
        self.problem, self.exists, self._whole = None, False, {}
        for path in (self.path, self._spare):
            whole = self._parsed(path)
            if whole is not None:
                self._whole, self.exists = whole, True
                break
        return dict(self._whole.get(self._table, {}))

    def _parsed(self, path: Path) -> dict[str, Any] | None:
        """Return the content of a file; None if it is missing or empty, or cannot be parsed, which sets `problem`."""
        try:
            raw = self._files.read_whole(path, FILE_BYTES_MAX)
            # A broker killed while it rewrites the file leaves it empty.
            return self._parse(raw) if raw else None
        except FileNotFoundError:
            return None
        except _NOT_UNDERSTOOD as error:
            expected = f"JSON with the table {self._table}"
            advice = "it is not replaced. Correct it, or restore it from a copy"
            self.problem = self.problem or CorruptionError(path, 0, expected, str(error), advice)
            return None

    def _parse(self, raw: bytes) -> dict[str, Any]:
        whole = parse_rocketmq_json(raw.decode("utf-8-sig"))
        if not isinstance(whole.get(self._table, {}), dict):
            raise ValueError(f"{self._table} is not a JSON object")  # noqa: TRY004 - callers handle both alike
        return whole

    @property
    def has_attributes(self) -> bool:
        """Whether the file is in the form of 5.x, whose entries have `attributes`; a new file is."""
        version = self._whole.get("dataVersion")
        return not self._whole or (isinstance(version, dict) and "stateVersion" in version)

    def check_replaceable(self) -> None:
        """Raise `CorruptionError` if the file cannot be parsed, and so is not replaced."""
        if self.problem is not None:
            raise self.problem

    def save(self, entries: Mapping[str, object]) -> None:
        """Replace the file, durably; raises `CorruptionError` or `StorageError`, with the file unchanged."""
        self.check_replaceable()
        whole = {**self._whole, self._table: in_map_order(entries)}
        # A bean in the broker.
        whole = in_bean_order({**whole, "dataVersion": self._next_version()})
        try:
            raw = encoded(whole)
            self._check(raw, whole)
            self._replace(raw)
        except (OSError, ValueError) as error:
            raise StorageError(
                f"{self.path} could not be written ({error}); it is unchanged. Check the disk, and try again"
            ) from error
        self._whole, self.exists = whole, True

    def _check(self, raw: bytes, whole: dict[str, Any]) -> None:
        if len(raw) > FILE_BYTES_MAX:
            raise ValueError(f"it would be {len(raw)} bytes long, the limit is {FILE_BYTES_MAX}")
        if self._parse(raw) != whole:
            raise ValueError("reading it back would yield other content")

    def _next_version(self) -> dict[str, Any]:
        given = self._whole.get("dataVersion", _NEW_VERSION)
        before = given if isinstance(given, dict) else {}
        counter = before.get("counter")
        following = counter + 1 if type(counter) is int else 1
        return in_bean_order({**before, "counter": following, "timestamp": self._clock.time_ms()})

    def _replace(self, raw: bytes) -> None:
        self._files.make_folder_durably(self.path.parent)
        if self._files.exists(self.path):
            before = self._files.read_whole(self.path, FILE_BYTES_MAX)
            if before:
                self._files.write_whole(self._spare, before)
        self._files.write_whole(self.path, raw)
