"""The content of `config/consumerOffset.json`, and the checks of commits to it.

An entry that could not be committed (a queue `0x`, an offset 1.5, a topic with a path outside its folder) is
set aside: it stays unchanged in the content, and every other entry is used.
"""

import contextlib
import json
import operator
from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs

from penstock.errors import CommitError, MessageError, shown
from penstock.format.names import check_queue, check_topic
from penstock.format.rocketmq_json import parse_rocketmq_json

OFFSET_MAX = (1 << 63) - 1
# The limit of brokers.
GROUP_BYTES_MAX = 255
FILE_BYTES_MAX = 64 << 20
_SHOWN_CHARACTERS = 80


class Queues(Protocol):
    """The methods of the queue index that are needed here."""

    def queues(self) -> list[tuple[str, int]]:
        """Return every (topic, queue) of the store."""

    def max_offset(self, topic: str, queue: int) -> int:
        """Return the queue offset after the last entry."""

    def reaches(self, topic: str, queue: int, offset: int) -> bool:
        """Return whether a queue ends at or after an offset."""


@attrs.frozen
class Table:
    """The content of the file.

    Attributes:
        whole: all of it, as it was parsed.
        used: `topic@group` to queue to offset, without the entries that are set aside.
        aside: one sentence for each entry that is set aside.
    """

    whole: dict[str, object] = attrs.Factory(dict)
    used: dict[str, dict[int, int]] = attrs.Factory(dict)
    aside: list[str] = attrs.Factory(list)

    @classmethod
    def parse(cls, raw: bytes) -> "Table":
        """Return the table in the bytes of a file; raises `ValueError` if there is none."""
        table = cls(parse_rocketmq_json(raw.decode("utf-8-sig")))
        for name, queues in table._queue_tables().items():
            table._add_entry(name, queues)
        return table

    def _queue_tables(self) -> dict[str, object]:
        found = self.whole.setdefault("offsetTable", {})
        if not isinstance(found, dict):
            raise ValueError("offsetTable is not a JSON object")  # noqa: TRY004 - as above
        return found

    def _add_entry(self, name: str, queues: object) -> None:
        """Add the valid offsets of an entry to `used`, and a sentence for each other one to `aside`."""
        topic, _, group = name.rpartition("@")
        try:
            check_group(group)
            check_topic(topic)
        except MessageError as error:
            self.aside.append(f"entry {_short(name)}: {error}")
            return
        if not isinstance(queues, dict):
            self.aside.append(f"entry {_short(name)}: {_short(queues)} is not a table of queues")
            return
        used = self.used[name] = {}
        for queue, offset in queues.items():
            if not _is_queue(queue):
                text = f"entry {_short(name)}: {_short(queue)} is not a queue number"
            elif type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
                text = (
                    f"entry {_short(name)}, queue {queue}: {_short(offset)} is not a queue offset"
                )
            else:
                used[int(queue)] = offset
                continue
            self.aside.append(text)

    def with_offsets(self, offsets: Mapping[tuple[str, int], int]) -> "Table":
        """Return a table with some offsets changed; all other entries are kept, including those set aside."""
        entries = dict(self._queue_tables())
        used = {name: dict(queues) for name, queues in self.used.items()}
        for (name, queue), offset in offsets.items():
            before = entries.get(name)
            entries[name] = {**(before if isinstance(before, dict) else {}), str(queue): offset}
            used.setdefault(name, {})[queue] = offset
        return Table({**self.whole, "offsetTable": entries}, used, self.aside)

    def without(self, names: Sequence[str]) -> "Table":
        """Return a table without the offsets of some names; their entries that are set aside stay."""
        entries, used = dict(self._queue_tables()), dict(self.used)
        for name in names:
            known, queues = used.pop(name, {}), entries.pop(name, None)
            if not isinstance(queues, dict):
                continue
            aside = {
                queue: offset
                for queue, offset in queues.items()
                if not (_is_queue(queue) and int(queue) in known)
            }
            if aside:
                entries[name], used[name] = aside, {}
        return Table({**self.whole, "offsetTable": entries}, used, self.aside)

    def written(self) -> tuple[bytes, "Table"]:
        """Return the file's content, and the table parsed from it; raises `ValueError` if its offsets differ."""
        try:
            text = json.dumps(self.whole, indent="\t", ensure_ascii=False)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
        # A lone surrogate cannot be encoded as UTF-8; Python's backslash escape for it is also JSON's escape.
        raw = text.encode("utf-8", "backslashreplace")
        if len(raw) > FILE_BYTES_MAX:
            raise ValueError(f"it would be {len(raw)} bytes long, the limit is {FILE_BYTES_MAX}")
        again = Table.parse(raw)
        if again.used != self.used:
            raise ValueError("reading it back would yield other offsets")
        return raw, again


def _is_queue(text: str) -> bool:
    """Return whether a key is a canonical queue number: digits only, without a leading zero."""
    if not (text.isascii() and text.isdigit() and len(text) <= _SHOWN_CHARACTERS):
        return False
    try:
        return str(check_queue(int(text))) == text
    except MessageError:
        return False


def _short(value: object) -> str:
    text = ascii(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "(and so on)"


def check_group(group: object) -> str:
    """Return `group`; raises `MessageError` if it is not a valid name of a consumer group."""
    if not isinstance(group, str) or not group or "@" in group or not group.isprintable():
        raise MessageError(
            f"group {shown(group)} is refused: it must be non-empty printable text without '@'"
        )
    size = len(group.encode())
    if size > GROUP_BYTES_MAX:
        raise MessageError(
            f"group {_short(group)} is refused: it has {size} UTF-8 bytes, the limit is {GROUP_BYTES_MAX}"
        )
    return group


def check_offset(group: str, topic: str, queue: int, offset: object, end: int) -> int:
    """Return `offset` as an int; raises `CommitError` unless it is an integer, of any type, from 0 to `end`."""
    number = None
    if not isinstance(offset, bool):
        with contextlib.suppress(TypeError):
            number = operator.index(offset)  # type: ignore[arg-type] # raises if it is not an integer
    if number is None:
        raise CommitError(group, topic, queue, offset, "it must be a whole number")
    if number < 0:
        raise CommitError(group, topic, queue, offset, "it is negative")
    if number > end:
        raise CommitError(group, topic, queue, offset, f"the queue ends at {end}")
    return int(number)


def check_known(index: Queues, group: str, topic: str, queue: int, offset: object) -> int:
    """Return the end of a queue; raises `CommitError` if the store has no such queue."""
    end = index.max_offset(topic, queue)
    if end == 0 and (topic, queue) not in index.queues():
        raise CommitError(
            group, topic, queue, offset, "the store has no such queue: put a message to it first"
        )
    return end
