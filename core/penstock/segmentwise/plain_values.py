"""Converts plain values to text, to send them between processes: numbers, text, lists, tuples and dicts of them."""

import json
from numbers import Integral
from typing import Any

from penstock.errors import PluginError


def pack(value: object) -> str:
    """Return plain values as text; raises `PluginError` for any other value."""
    return json.dumps(_to_json_value(value))


def unpack(text: str) -> Any:
    """Return the values in a text that `pack` returned."""
    return _from_json_value(json.loads(text))


def _to_json_value(value: object) -> object:
    """Return a value in the form that JSON can represent; raises `PluginError` otherwise."""
    if value is None or isinstance(value, bool | float | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, list):
        return [_to_json_value(each) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [_to_json_value(each) for each in value]}
    if isinstance(value, dict):
        return {
            "dict": [[_to_json_value(key), _to_json_value(each)] for key, each in value.items()]
        }
    raise PluginError(
        f"the state of a checker must consist of plain values, which can be sent to another process, not "
        f"{type(value).__name__}: set its is_splittable to False"
    )


def _from_json_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json_value(each) for each in value]
    if isinstance(value, dict):
        if "tuple" in value:
            return tuple(_from_json_value(each) for each in value["tuple"])
        return {_from_json_value(key): _from_json_value(each) for key, each in value["dict"]}
    return value
