r"""How far each delay level is delivered: RocketMQ's `config/delayOffset.json`.

The table `offsetTable` maps a level to the queue offset of `SCHEDULE_TOPIC_XXXX` that is delivered next. Brokers of 5.x
add a `dataVersion`, which is kept and counted on; brokers of 4.x do not, and none is added. The layout is a broker's::

    {\n\t"offsetTable":{"1":3,"3":1\n\t}\n}

but the levels have quotes, with which every broker reads them; those before 5.5 write them without. The previous
content is kept in `delayOffset.json.bak`, which is read if the file itself cannot be.

Invariants:
    * A file that could be parsed is never replaced by one that could not: neither the file nor its `.bak`.
    * The caller makes the delivered copies durable before it saves an offset after them, so no crash loses a message.
    * Entries that are not an offset of a level, and fields that are not known, stay in the file unchanged.

The field `penstockLogEnd` is ours, and no broker reads it: where the log ended when the offsets were saved. What was
delivered before is counted by them, so a copy after it is of a message that they lack. A broker drops the field.

Not thread-safe; one process writes.
"""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.contracts import Context
from penstock.escape import get_logger
from penstock.format.rocketmq_json import parse_rocketmq_json

logger = get_logger(__name__)

_BYTES_MAX = 16 << 20
_OFFSET_MAX = (1 << 63) - 1
_LEVEL_DIGITS_MAX = 5
_TABLE, _VERSION, _LOG_END = "offsetTable", "dataVersion", "penstockLogEnd"
_NOT_UNDERSTOOD = (ValueError, TypeError, OSError, RecursionError)


class DelayOffsets:
    """The table of one store.

    Attributes:
        problem: why the file could not be used, and what is used in its place; "" if it was, or if there is none.
        is_saved: whether the file has all offsets that were set.
        log_end: where the log ended when the offsets were saved, set before `save`; 0 if the file does not say that.
    """

    def __init__(self, context: Context) -> None:
        self._files, self._clock = context.files, context.clock
        self._path = context.root / "config" / "delayOffset.json"
        self._spare = self._path.with_name(self._path.name + ".bak")
        self._whole: dict[str, object] = {}
        self._offsets: dict[int, int] = {}
        self._is_readable = True
        self.problem = ""
        self.is_saved = True
        self.log_end = 0

    def load(self) -> None:
        """Read the file, or its `.bak` if it cannot be read; with neither, no level has an offset."""
        self._whole, self._offsets, self.problem, self._is_readable = {}, {}, "", True
        self.log_end = 0
        for path in (self._path, self._spare):
            if not self._files.exists(path):
                continue
            try:
                whole = parse_rocketmq_json(
                    self._files.read_state(path, _BYTES_MAX).decode("utf-8-sig")
                )
                text_of_table(whole)
                self._offsets = _offsets_in(whole)
            except _NOT_UNDERSTOOD as error:
                self._is_readable = self._is_readable and path != self._path
                self.problem = self.problem or f"{path} cannot be read ({error})"
                continue
            self._whole = whole
            end = whole.get(_LOG_END)
            self.log_end = end if type(end) is int else 0
            if self.problem:
                self.problem += f"; {path.name} is used in its place"
            return
        if self.problem:
            self.problem += "; it is not known which messages are delivered, so all that are left are delivered again"

    def get(self, level: int) -> int:
        """Return the queue offset that is delivered next; 0 if the file has none."""
        return self._offsets.get(level, 0)

    def known(self) -> list[int]:
        """Return the levels that have an offset."""
        return sorted(self._offsets)

    def set(self, level: int, offset: int) -> None:
        """Set the queue offset that is delivered next, in memory; `save` writes it."""
        if self._offsets.get(level) != offset:
            self._offsets[level] = offset
            self.is_saved = False

    def restart(self) -> None:
        """Forget how far all is delivered, also on the disk: the log has lost its end since then. Raises `OSError`."""
        # Memory first: the next save must not give the old offsets the log's new end.
        self._whole.pop(_LOG_END, None)
        self.log_end = 0
        for level in self._offsets:
            self.set(level, 0)
        for path in (self._path, self._spare):
            if self._files.exists(path):
                self._files.remove(path)
        self._files.sync_folder(self._path.parent)

    def save(self) -> None:
        """Write the table durably, at once; raises `OSError` if that fails, and nothing is changed then."""
        whole = self._merged()
        raw = text_of_table(whole).encode("utf-8", "backslashreplace")
        self._files.make_folder_durably(self._path.parent)
        if not self._is_readable:
            # Kept for a person to look at. The `.bak` may be the only copy that can be read, so it stays, too.
            with contextlib.suppress(FileNotFoundError):
                self._files.rename(self._path, self._unreadable())
        elif self._files.exists(self._path):
            self._files.write_whole(self._spare, self._files.read_whole(self._path, _BYTES_MAX))
        self._files.write_whole(self._path, raw)
        self._whole, self._is_readable, self.is_saved = whole, True, True

    def _unreadable(self) -> Path:
        return self._path.with_name(self._path.name + ".unreadable")

    def _merged(self) -> dict[str, object]:
        """Return the content of the file with the offsets of now, and with a counted-on version if it has one."""
        before = self._whole.get(_TABLE)
        table = dict(before) if isinstance(before, dict) else {}
        table.update({str(level): offset for level, offset in self._offsets.items()})
        whole = {**self._whole, _TABLE: table}
        if self.log_end:
            whole[_LOG_END] = self.log_end
        version = whole.get(_VERSION)
        if isinstance(version, dict):
            count = version.get("counter")
            counted = count + 1 if type(count) is int and 0 <= count < _OFFSET_MAX else 1
            whole[_VERSION] = {**version, "counter": counted, "timestamp": self._clock.time_ms()}
        return whole


def _offsets_in(whole: Mapping[str, object]) -> dict[int, int]:
    """Return the offsets of levels in the content of a file; raises `ValueError` if it has no table."""
    table = whole.get(_TABLE, {})
    if not isinstance(table, dict):
        raise ValueError("its offsetTable is not an object")  # noqa: TRY004 - callers handle both alike
    found = {}
    for name, value in table.items():
        if _is_level(name) and type(value) is int and 0 <= value <= _OFFSET_MAX:
            found[int(name)] = value
        else:
            logger.warning("delayOffset.json: the entry %r: %r is not used", name, value)
    return found


def _is_level(text: str) -> bool:
    is_number = text.isascii() and text.isdigit() and len(text) <= _LEVEL_DIGITS_MAX
    return is_number and text == str(int(text)) and text != "0"


def text_of_table(whole: Mapping[str, Any]) -> str:
    """Return the file's content in a broker's layout: fields in alphabetical order, the offsets in one line."""
    fields = []
    for name in sorted(whole):
        value = whole[name]
        if name == _TABLE and value:
            entries = [
                f"{json.dumps(key, ensure_ascii=False)}:{_json(value[key])}" for key in value
            ]
            text = "{" + ",".join(entries) + "\n\t}"
        else:
            text = _json(value).replace("\n", "\n\t")
        fields.append(f"\t{json.dumps(name, ensure_ascii=False)}:{text}")
    return "{\n" + ",\n".join(fields) + "\n}" if fields else "{}"


def _json(value: object) -> str:
    return json.dumps(value, indent="\t", separators=(",", ":"), ensure_ascii=False)
