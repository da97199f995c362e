r"""JSON in the form in which brokers write their files under `config/`: that of fastjson with its option "pretty".

Each entry of an object or a list has a line of its own, indented by tabs; there is no space after `:`, no line break at
the end, and an empty object or list is `{}` or `[]`::

    {\n\t"a":{\n\t\t"b":1,\n\t\t"c":{}\n\t}\n}

The entries of an object that is a bean in the broker are in alphabetical order (`in_bean_order`), those of a map in the
order of Java's hash table (`in_map_order`).
"""

import json
import math
import re
from collections.abc import Mapping
from typing import TypeVar

from penstock.format.hashes import java_hash

Value = TypeVar("Value")

_ESCAPED = re.compile(r'[\x00-\x1f"\\\x7f-\x9f\u2028\u2029]')
_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
# The broker makes these tables as ConcurrentHashMap(1024), which has 2048 bins, and doubles them at three quarters.
_BINS = 2048


def encoded(value: object) -> bytes:
    """Return a value of `parse_rocketmq_json` as JSON; raises `ValueError` if JSON cannot hold it."""
    try:
        text = _printed(value, "\n")
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    # A lone surrogate cannot be encoded as UTF-8; Python's backslash escape for it is also JSON's escape.
    return text.encode("utf-8", "backslashreplace")


def _printed(value: object, line: str) -> str:
    """Return a value as text; `line` is a line break with the indentation of the value's own line."""
    inner = f"{line}\t"
    if isinstance(value, Mapping):
        entries = [f"{inner}{_string(str(key))}:{_printed(v, inner)}" for key, v in value.items()]
        return f"{{{','.join(entries)}{line}}}" if entries else "{}"
    if isinstance(value, list):
        items = [f"{inner}{_printed(item, inner)}" for item in value]
        return f"[{','.join(items)}{line}]" if items else "[]"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is no number of JSON")
    return json.dumps(value)


def _string(text: str) -> str:
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(found: re.Match[str]) -> str:
    return _SHORT.get(found[0]) or f"\\u{ord(found[0]):04X}"


def in_bean_order(fields: Mapping[str, Value]) -> dict[str, Value]:
    """Return the fields of a Java bean in the order in which a broker writes them."""
    return dict(sorted(fields.items()))


def in_map_order(entries: Mapping[str, Value]) -> dict[str, Value]:
    """Return the entries of a broker's table in the order in which it writes them; colliding ones keep theirs."""
    bins = _BINS
    while len(entries) >= bins * 3 // 4:
        bins *= 2

    def place(name: str) -> int:
        number = java_hash(name) & 0xFFFFFFFF
        return (number ^ number >> 16) & bins - 1

    return {name: entries[name] for name in sorted(entries, key=place)}
