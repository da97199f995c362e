"""JSON as RocketMQ writes it: keys that are whole numbers may stand without quotes."""

import json
import re

# A string is matched first and left alone, so only a bare number before a colon gets quotes. Nothing is
# tried twice (the `+` behind `*` and `+`), and a string that never ends is matched to the end: else a
# file of quotes would take time by its square.
_BARE_KEY = re.compile(r'("(?:[^"\\]++|\\.)*+"?)|(?<=[{,\s])(-?[0-9]++)(\s*+:)', re.DOTALL)
# No offset has more digits; Python refuses to read numbers of some thousands.
_DIGITS_MAX = 1000


def parse_rocketmq_json(text: str) -> dict[str, object]:
    """Return what RocketMQ's JSON says, quoted or bare integer keys alike; `ValueError` if it is none."""
    quoted = _BARE_KEY.sub(lambda m: m[1] or f'"{m[2]}"{m[3]}', text)
    try:
        found = json.loads(quoted, parse_int=_number)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - of the same kind for the caller
    return found


def _number(digits: str) -> int | str:
    """Return a number; one too long for any field as its text, so that it spoils its own entry only."""
    return int(digits) if len(digits) <= _DIGITS_MAX else digits
