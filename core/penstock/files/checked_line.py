"""Small files that are read and written whole: one line, a CRC-32C and JSON, with the number of a format."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from penstock.errors import CorruptionError
from penstock.files.file_system import Files

_FORMAT = 1
_LIMIT_BYTES = 64 << 20
# What text of any content may raise on its way through JSON and `parse`.
_NOT_UNDERSTOOD = (ValueError, TypeError, KeyError, RecursionError, AttributeError)

Fact = TypeVar("Fact")


def write_line(files: Files, path: Path, facts: Mapping[str, Any]) -> None:
    """Write facts to a file, durably and atomically."""
    text = json.dumps({"format": _FORMAT, **facts}, separators=(",", ":")).encode()
    files.write_whole(path, b"%08x %s\n" % (_crc32c(text), text))


def read_line(
    files: Files, path: Path, parse: Callable[[dict[str, Any]], Fact], what_now: str
) -> Fact | None:
    """Return what `parse` makes of the facts of a file, None if it does not exist.

    Raises `CorruptionError`, with `what_now`, if the line is corrupt or of another format, or `parse` raises.
    """
    if not files.exists(path):
        return None
    data = files.read_whole(path, _LIMIT_BYTES)
    checksum, _, text = data.removesuffix(b"\n").partition(b" ")
    try:
        if checksum != b"%08x" % _crc32c(text):
            raise ValueError("another CRC-32C")
        facts = json.loads(text)
        if facts.pop("format") != _FORMAT:
            raise ValueError("another format")
        return parse(facts)
    except _NOT_UNDERSTOOD as error:
        expected = f"a line of format {_FORMAT} with its CRC-32C"
        raise CorruptionError(path, 0, expected, repr(error), what_now) from error


def _crc32c(text: bytes) -> int:
    from crc32c import crc32c  # noqa: PLC0415 - slow to import

    return crc32c(text)
