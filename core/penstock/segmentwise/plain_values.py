"""Plain values as text, to be sent between processes: numbers, text, lists, tuples and dicts of them."""

import json
from numbers import Integral
from typing import Any

from penstock.errors import PluginError


def pack(value: object) -> str:
    """Return plain values as text: numbers, text, lists, tuples and dicts of them."""
    return json.dumps(_tagged(value))


def unpack(text: str) -> Any:
    """Return what was packed."""
    return _plain(json.loads(text))


def _tagged(value: object) -> object:
    if value is None or isinstance(value, bool | float | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, list):
        return [_tagged(each) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [_tagged(each) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[_tagged(key), _tagged(each)] for key, each in value.items()]}
    raise PluginError(
        f"what a checker has seen must be plain values to be sent to another process, not "
        f"{type(value).__name__}: let its is_splittable be False"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        if "tuple" in value:
            return tuple(_plain(each) for each in value["tuple"])
        return {_plain(key): _plain(each) for key, each in value["dict"]}
    return value
