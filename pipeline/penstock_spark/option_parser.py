"""Options as Spark passes them. Each is declared once, as a field of an attrs class, which also parses it.

A class of options has a line for each::

    @attrs.frozen(kw_only=True)
    class ReadOptions:
        rows: int = option("rowsPerBatch", whole(1, 65536), "8192", "rows of one batch")
        topics: tuple[str, ...] = optional("subscribe", words, (), "the topics to read; all without it")

    given = GivenOptions({"rowsperbatch": "10"}, ReadOptions)
    ReadOptions(**given.values())

Spark passes keys in lower case and values as text. Misspelt options are refused; Spark's own options are ignored.
"""

import difflib
import json
import re
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import attrs

from penstock.errors import ConfigError
from penstock.format.times import parse_duration, parse_time

# Minimum similarity for "did you mean"; high enough to let Spark's own options through.
_NEAR = 0.75
_SIZE = re.compile(r"(\d{1,18})\s*([kmg]?)b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_METADATA = "option"

_T = TypeVar("_T")
_A = TypeVar("_A")
# From an option's name and text to its value; raises `ConfigError`.
Parser = Callable[[str, str], _T]


@attrs.frozen
class Option:
    """One option.

    Attributes:
        name: its name in the docs. parser: converts its text to a value. default: the text if it is not given; None
        if no text has that meaning. meaning: a short description.
    """

    name: str
    parser: Parser[Any]
    default: str | None
    meaning: str


def option(name: str, parser: Parser[_T], default: str, meaning: str) -> _T:
    """Declare an option with a default, which is a text as a user would give it; return an attrs field."""
    metadata = {_METADATA: Option(name, parser, default, meaning)}
    field: _T = attrs.field(default=parser(name, default), metadata=metadata)
    return field


def optional(name: str, parser: Parser[_T], absent: _A, meaning: str) -> _T | _A:
    """Declare an option whose value is `absent` if it is not given; return an attrs field."""
    metadata = {_METADATA: Option(name, parser, None, meaning)}
    field: _T | _A = attrs.field(default=absent, metadata=metadata)
    return field


def required(name: str, parser: Parser[_T], meaning: str) -> _T:
    """Declare a required option; return an attrs field."""
    field: _T = attrs.field(metadata={_METADATA: Option(name, parser, None, meaning)})
    return field


def declared(options: type) -> dict[str, Option]:
    """Return the options of a class, by the names of their fields, in order."""
    fields = attrs.fields(options)
    return {f.name: f.metadata[_METADATA] for f in fields if _METADATA in f.metadata}


class GivenOptions:
    """The given options of those that a class declares.

    Args:
        options: as Spark passes them.
        declares: the class.
        others: options of the other side (the sink's for the source), and the error message for them.

    Raises:
        ConfigError: for one of `others`, and for a misspelt option of the class.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        declares: type,
        others: Mapping[str, str] | None = None,
    ) -> None:
        self._declared = declared(declares)
        by_lower = {option.name.lower(): option.name for option in self._declared.values()}
        elsewhere = {name.lower(): text for name, text in (others or {}).items()}
        self._texts: dict[str, str] = {}
        for key, value in options.items():
            name = by_lower.get(key.lower())
            if name is not None:
                self._texts[name] = value
            elif key.lower() in elsewhere:
                raise ConfigError(f"the option {key!r} {elsewhere[key.lower()]}")
            elif near := difflib.get_close_matches(key.lower(), by_lower, 1, _NEAR):
                raise ConfigError(
                    f"there is no option {key!r}; did you mean {by_lower[near[0]]!r}?"
                )

    def __contains__(self, name: str) -> bool:
        return name in self._texts

    def values(self, without: Collection[str] = ()) -> dict[str, Any]:
        """Return the value of each given option, by field name, except those in `without`.

        Raises:
            ConfigError: a value is not valid for its option.
        """
        return {
            field: option.parser(option.name, self._texts[option.name])
            for field, option in self._declared.items()
            if option.name in self._texts and option.name not in without
        }


# --- parsers


def plain(_name: str, text: str) -> str:
    """Return the text as it was given."""
    return text


def words(_name: str, text: str) -> tuple[str, ...]:
    """Return the parts of a comma-separated list, without empty ones."""
    parts = (part.strip() for part in text.split(","))
    return tuple(part for part in parts if part)


def whole(least: int, most: int) -> Parser[int]:
    """Return a parser of whole numbers within [least, most]."""

    def parse(name: str, text: str) -> int:
        text = text.strip()
        if not re.fullmatch(r"-?[0-9]{1,19}", text) or not least <= int(text) <= most:
            raise ConfigError(f"{name} is {text!r}; it must be a whole number, {least} to {most}")
        return int(text)

    return parse


def truth(name: str, text: str) -> bool:
    """Return true or false."""
    text = text.lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{name} is {text!r}; it must be true or false")
    return text == "true"


def choice(choices: Mapping[str, _T]) -> Parser[_T]:
    """Return a parser of one of several words, each with its value."""

    def parse(name: str, text: str) -> _T:
        if text not in choices:
            raise ConfigError(f"{name} is {text!r}; it must be one of {', '.join(choices)}")
        return choices[text]

    return parse


def size_of(name: str, text: str) -> int:
    """Return a number of bytes: `1048576`, `64m`, `2g`."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or int(found[1]) == 0:
        raise ConfigError(
            f"{name} is {text!r}; it must be a size in bytes, for example 1048576 or 64m"
        )
    return int(found[1]) * _UNITS[found[2].lower()]


def seconds_of(name: str, text: str) -> float:
    """Return a duration in seconds: `30`, `500ms`, `7d`, `1h30min`."""
    try:
        return parse_duration(text) / 1000
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None


def time_of(*, up: bool) -> Parser[int]:
    """Return a parser of a time, in the forms of `penstock.format.times`, to Unix milliseconds."""

    def parse(name: str, text: str) -> int:
        try:
            return parse_time(text, int(time.time() * 1000), up=up)
        except ValueError as error:
            raise ConfigError(f"{name}: {error}") from None

    return parse


def json_of(name: str, text: str, example: str) -> Any:
    """Parse a text as JSON; raise `ConfigError` if a name occurs twice in an object."""
    try:
        return json.loads(text, object_pairs_hook=_no_doubles)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{name} is {text!r}, which is not JSON like {example} ({error})"
        ) from error


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} occurs in it twice")
    return found
