"""How far each consumer group has read: RocketMQ's `config/consumerOffset.json`.

The file has a table `offsetTable` of `topic@group` to queue number to next offset. Brokers up to 5.4
write the inner keys without quotes, which is no JSON; both forms are read, the quoted one is written
(every broker reads that). The old content is kept in `consumerOffset.json.bak` and read when the file
itself cannot be.
"""

import json
import re
import threading
from pathlib import Path

from penstock.errors import CorruptionError, MessageError, StorageError
from penstock.files import Files

_LIMIT_BYTES = 64 << 20
# A string is matched first and left alone, so only a bare number before a colon gets quotes. Nothing is
# tried twice (the `+` behind `*` and `+`), and a string that never ends is matched to the end: else a
# file of quotes would take time by its square.
_BARE_KEY = re.compile(r'("(?:[^"\\]++|\\.)*+"?)|(?<=[{,\s])(-?[0-9]++)(\s*+:)', re.DOTALL)


def parse_rocketmq_json(text: str) -> dict[str, object]:
    """Return what RocketMQ's JSON says, quoted or bare integer keys alike; `ValueError` if it is none."""
    quoted = _BARE_KEY.sub(lambda m: m[1] or f'"{m[2]}"{m[3]}', text)
    try:
        found = json.loads(quoted)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - of the same kind for the caller
    return found


class ConsumerOffsets:
    """The committed offsets of one store. Safe from any thread; one process writes."""

    def __init__(self, files: Files, root: Path, *, read_only: bool) -> None:
        self._files = files
        self._path = root / "config" / "consumerOffset.json"
        self._read_only = read_only
        self._lock = threading.Lock()
        self._rest: dict[str, object] = {}
        self._table: dict[str, dict[int, int]] | None = None

    def get(self, group: str, topic: str, queue: int) -> int | None:
        """Return the next offset of a group in a queue; None if it never committed one."""
        with self._lock:
            return self._loaded().get(f"{topic}@{group}", {}).get(queue)

    def groups(self) -> dict[tuple[str, str], dict[int, int]]:
        """Return (group, topic) to queue to next offset."""
        with self._lock:
            found = {}
            for name, queues in self._loaded().items():
                topic, _, group = name.rpartition("@")
                found[group, topic] = dict(queues)
            return found

    def put(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Commit an offset; it is on disk when this returns."""
        check_group(group)
        if offset < 0:
            raise MessageError(f"offset {offset} cannot be committed: it is negative")
        with self._lock:
            self._loaded().setdefault(f"{topic}@{group}", {})[queue] = offset
            try:
                self._save()
            except BaseException as error:
                # What is not on disk is not committed: the file is read again.
                self._table = None
                if not isinstance(error, OSError):
                    raise
                raise StorageError(
                    f"offset {offset} of group {group} could not be written ({error}); the last one "
                    f"that was committed stands, commit it again"
                ) from error

    def _loaded(self) -> dict[str, dict[int, int]]:
        if self._table is None or self._read_only:
            self._table = self._load()
        return self._table

    def _load(self) -> dict[str, dict[int, int]]:
        problem: CorruptionError | None = None
        for path in (self._path, self._path.with_name(self._path.name + ".bak")):
            if not self._files.exists(path):
                continue
            try:
                return self._understood(path)
            except (ValueError, TypeError, AttributeError, OverflowError, OSError) as error:
                problem = problem or CorruptionError(
                    path, 0, "a table of consumer offsets", str(error), "restore it from a copy"
                )
        if problem is not None:
            raise problem
        return {}

    def _understood(self, path: Path) -> dict[str, dict[int, int]]:
        text = self._files.read_whole(path, _LIMIT_BYTES).decode("utf-8-sig")
        self._rest = parse_rocketmq_json(text)
        table = self._rest.get("offsetTable", {})
        if not isinstance(table, dict):
            raise ValueError("offsetTable is no JSON object")  # noqa: TRY004 - as above
        return {
            name: {int(queue): int(offset) for queue, offset in queues.items()}
            for name, queues in table.items()
        }

    def _save(self) -> None:
        assert self._table is not None
        self._files.make_folder_durably(self._path.parent)
        if self._files.exists(self._path):
            old = self._files.read_whole(self._path, _LIMIT_BYTES)
            self._files.write_whole(self._path.with_name(self._path.name + ".bak"), old)
        table = {
            name: {str(q): o for q, o in queues.items()} for name, queues in self._table.items()
        }
        text = json.dumps({**self._rest, "offsetTable": table}, indent="\t", ensure_ascii=False)
        self._files.write_whole(self._path, text.encode())


def check_group(group: object) -> str:
    """Return `group` if it can be a consumer group's name."""
    if not isinstance(group, str) or not group or "@" in group or not group.isprintable():
        raise MessageError(
            f"group {group!r} is refused: it must be printable text that is not empty, without '@'"
        )
    return group
