"""JSON as RocketMQ writes it: keys that are integers may lack quotes."""

import json
import re

# A string is matched first and not changed, so only a bare number before a colon gets quotes. The pattern
# does not backtrack (the `+` after `*` and `+`), and an unterminated string is matched to the end: otherwise
# a file of quotes would take quadratic time.
_BARE_KEY = re.compile(r'("(?:[^"\\]++|\\.)*+"?)|(?<=[{,\s])(-?[0-9]++)(\s*+:)', re.DOTALL)
# No offset has more digits; Python refuses to convert numbers of some thousand digits.
_DIGITS_MAX = 1000


def parse_rocketmq_json(text: str) -> dict[str, object]:
    """Return the object in RocketMQ's JSON, with quoted or bare integer keys; raises `ValueError` if invalid."""
    quoted = _BARE_KEY.sub(lambda m: m[1] or f'"{m[2]}"{m[3]}', text)
    try:
        found = json.loads(quoted, parse_int=_number)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - callers handle both alike
    return found


def _number(digits: str) -> int | str:
    """Return a number; a number too long for any field is returned as text, so that only its own entry is invalid."""
    return int(digits) if len(digits) <= _DIGITS_MAX else digits
