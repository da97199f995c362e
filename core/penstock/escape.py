r"""Makes text from a caller, a disk or a plugin safe to show: on a terminal, in a log line, in an error.

A topic, tag, key, group, path or argument may hold characters that move the cursor, hide or reorder the
printed text, or begin a new line. They are shown as Python writes them in a literal (`\x1b`,
`\u202e`), so that the reader sees them:

    * control characters: C0 (newline and tab too, unless kept), DEL, C1;
    * marks and overrides of writing direction, U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+206F;
    * the line and paragraph separators U+2028 and U+2029;
    * lone surrogates, which stand for bytes of a file name that are not UTF-8.

A backslash stays one backslash: the escaped text is for people, and is not meant to be parsed. Text that
is already escaped is not changed.
"""

import difflib
import logging
import re
import reprlib
from collections.abc import Iterable, Mapping

_DANGEROUS = "\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u206f\ud800-\udfff"
_SHOWN = re.compile(f"[\x00-\x1f{_DANGEROUS}]")
_LINES_KEPT = re.compile(f"[\x00-\x08\x0b-\x1f{_DANGEROUS}]")
# JSON's own encoder escapes C0.
_IN_JSON = re.compile(f"[{_DANGEROUS}]")


def visible(text: object, *, keep_lines: bool = False) -> str:
    """Return the text of an object with every dangerous character escaped.

    With `keep_lines`, newlines and tabs are kept, for text that the program itself laid out in lines.
    """
    pattern = _LINES_KEPT if keep_lines else _SHOWN
    return pattern.sub(lambda found: ascii(found[0])[1:-1], str(text))


def visible_json(line: str) -> str:
    r"""Return JSON text with the dangerous characters in its strings as `\uXXXX`; it parses to the same value."""
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def near(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the nearest of the known names; empty if none is near."""
    found = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {found[0]!r}?" if found else ""


class _Short(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:
            # Python writes no integer of so many digits.
            return f"<an integer of {x.bit_length()} bits>"


_SHORT = _Short()
_SHORT.maxstring, _SHORT.maxother = 60, 80


def shown(value: object) -> str:
    """Return a value as in source code, shortened; for messages, since a caller may pass anything of any size."""
    return _SHORT.repr(value)


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module; it escapes the arguments and tracebacks of its records."""
    logger = logging.getLogger(name)
    follow_level(name)
    if not any(isinstance(each, _EscapeArguments) for each in logger.filters):
        logger.addFilter(_EscapeArguments())
    return logger


class _PackageLevels:
    """The level at which Penstock's packages and those of plugins log. Safe from any thread."""

    def __init__(self) -> None:
        self._packages: set[str] = set()
        self._level = logging.NOTSET

    def add(self, package: str) -> None:
        if package not in self._packages:
            self._packages.add(package)
            self._apply(package)

    def set(self, level: int) -> None:
        self._level = level
        for package in tuple(self._packages):
            self._apply(package)

    def _apply(self, package: str) -> None:
        if self._level != logging.NOTSET:
            # Warnings of plugins are logged as the root logger says.
            is_own = package == "penstock" or self._level < logging.WARNING
            logging.getLogger(package).setLevel(self._level if is_own else logging.NOTSET)


_levels = _PackageLevels()


def follow_level(module: str) -> None:
    """Let the package of a module, Penstock's or a plugin's, log at the level of `set_level`."""
    _levels.add(module.partition(".")[0])


def set_level(level: int) -> None:
    """Set the level at which Penstock and its plugins log, also those that are imported later."""
    _levels.set(level)


class EscapingFormatter(logging.Formatter):
    """Formats a log record, then escapes the resulting lines; for records of other packages."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        return visible(super().format(record), keep_lines=True)


class _Shown:
    """An argument of a log record; its texts are escaped when the record is formatted."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return visible(self._value)

    def __repr__(self) -> str:
        return visible(repr(self._value))


_PLAIN = logging.Formatter()


class _EscapeArguments(logging.Filter):
    """Escapes a record's arguments and traceback, and accepts every record. Safe from any thread."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_safe, record.args))
        elif isinstance(record.args, Mapping):
            record.args = {name: _safe(value) for name, value in record.args.items()}
        if record.exc_info and not record.exc_text:
            record.exc_text = visible(_PLAIN.formatException(record.exc_info), keep_lines=True)
        return True


def _safe(argument: object) -> object:
    if argument is None or isinstance(argument, int | float):
        return argument
    return visible(argument) if isinstance(argument, str) else _Shown(argument)
