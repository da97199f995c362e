"""Options as Spark hands them over, read by name and checked. No pyspark in here.

Spark gives keys in lower case and values as text. A misspelt option of ours is refused with a hint;
Spark's own are passed over.
"""

import difflib
import re
from collections.abc import Mapping, Sequence

from penstock.errors import ConfigError

# What a misspelling has to be as near as, so that options of Spark's own are let through.
_NEAR = 0.75
_SIZE = re.compile(r"(\d+)\s*([kmg]?)b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class Given:
    """What was given of the options that are known here.

    Args:
        options: as Spark hands them over.
        names: every option there is, as it is spelt in the docs.
        others: names that belong to the other side (the sink's for the source), and what to say of them.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        names: Sequence[str],
        others: Mapping[str, str] | None = None,
    ) -> None:
        by_lower = {name.lower(): name for name in names}
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

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return an option as it was given."""
        return self._texts.get(name, default)

    def words(self, name: str) -> tuple[str, ...]:
        """Return the parts of a list with commas; empty if it was not given."""
        parts = (part.strip() for part in self._texts.get(name, "").split(","))
        return tuple(part for part in parts if part)

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        """Return a whole number within [least, most]."""
        text = self._texts.get(name, str(default)).strip()
        if not re.fullmatch(r"-?[0-9]{1,19}", text) or not least <= int(text) <= most:
            raise ConfigError(f"{name} is {text!r}; it must be a whole number, {least} to {most}")
        return int(text)

    def size(self, name: str, default: int) -> int:
        """Return a number of bytes: `1048576`, `64m`, `2g`."""
        text = self._texts.get(name)
        return default if text is None else size_of(name, text)

    def truth(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        text = self._texts.get(name, str(default)).lower()
        if text not in ("true", "false"):
            raise ConfigError(f"{name} is {text!r}; it must be true or false")
        return text == "true"

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        """Return one of several words."""
        text = self._texts.get(name, default)
        if text not in choices:
            raise ConfigError(f"{name} is {text!r}; it must be one of {', '.join(choices)}")
        return text


def size_of(name: str, text: str) -> int:
    """Return a number of bytes: `1048576`, `64m`, `2g`."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or int(found[1]) == 0:
        raise ConfigError(f"{name} is {text!r}; it must be a size in bytes, as 1048576 or 64m")
    return int(found[1]) * _UNITS[found[2].lower()]
