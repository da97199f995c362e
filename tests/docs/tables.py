"""`python -m tests.docs.tables`: write what the code says into the tables of settings and of errors in the docs.

Of a setting the code says its name, default and limits, of an error its name, its place in the tree and its exit code;
what a person wrote in the other columns stays. A name that is new gets a row with its docstring to begin with.

The limits are what the configuration accepts, found by trying: a lower and an upper bound by bisection.
"""

import inspect
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs

from penstock import errors
from penstock.config import model
from penstock.config.model import PROFILES
from penstock.contracts.base import Geometry
from penstock.plugins.registry import load_registry
from penstock_tools.cli.root import code_of

DOCS = Path(__file__).parents[2] / "docs"
SETTINGS_PAGE, ERRORS_PAGE = DOCS / "configuration.md", DOCS / "errors.md"
SETTINGS_HEAD = (
    "| setting | default | limits | what it does, and what it costs |\n|---|---|---|---|\n"
)
ERRORS_HEAD = "| error | when | what was not affected | what now | exit |\n|---|---|---|---|---|\n"

# What the code cannot say in a word: the forms of texts, and defaults that depend on the store.
_FORMS = {
    "log.store_host": "`address:port`",
    "replicate.ha.listen": "`address:port`",
    "replicate.ha.secret_file": "a file",
    "replicate.ha.tls_cert": "a file",
    "replicate.ha.tls_key": "a file",
    "files.mode": "0600 to 0666, no execute bits",
    "retention.age.delete_when": "hours 0 to 23, separated by `;`, or `*`",
    "geometry.segment_bytes": "4,096 to 1,073,741,824, a multiple of 4,096",
    "retention.archive.to": "a folder",
    "retention.archive.name": "a name",
    "plugins.block": "names of entry points",
    "plugins.require": "names of entry points",
}
_WORDS = {
    "log.checksum": model.CHECKSUMS,
    "extensions.messaging.timers": ("on", "refuse"),
    "replicate.ha.wait_for": ("disk", "received"),
}
_OF_THE_STORE = ("geometry.", "log.checksum", "profile", "retention.use", "files.mode")
_FAR = 1 << 62


def settings() -> Iterator[tuple[str, type, "attrs.Attribute[Any]"]]:
    """Return every setting of Penstock's own: its dotted name, its class, its field."""
    registered = load_registry().sets()
    for kind, section in model.SECTIONS.items():
        yield from ((f"{kind}.{field.name}", section, field) for field in attrs.fields(section))
        strategies = registered.get(kind)
        if strategies is None:
            continue
        for name in strategies.names():
            if strategies.offered_by(name).startswith("builtin-"):
                options = strategies.get(name).Options
                yield from ((f"{kind}.{name}.{f.name}", options, f) for f in attrs.fields(options))


def limits(key: str, cls: type, field: "attrs.Attribute[Any]") -> str:
    """Return which values a setting takes."""
    if key in _FORMS:
        return _FORMS[key]
    if key in _WORDS:
        return ", ".join(f'"{word}"' for word in _WORDS[key])
    if field.name == "use":
        return "[names](#strategies)" if "list" in str(field.type) else "a [name](#strategies)"
    cls = Geometry if key.startswith("geometry.") else cls
    kind = typing.get_type_hints(cls)[field.name]
    if kind is bool:
        return "true, false"
    default = _default(attrs.fields_dict(cls)[field.name])

    def accepts(value: int) -> bool:
        try:
            cls(**{field.name: value})
        except (ValueError, TypeError, errors.ConfigError):
            return False
        return True

    low, high = _bound(accepts, default, -_FAR), _bound(accepts, default, _FAR)
    if high is None:
        return "any number" if low is None else f"at least {low:,}"
    return f"at most {high:,}" if low is None else f"{low:,} to {high:,}"


def _bound(accepts: Callable[[int], bool], taken: float, refused: int) -> int | None:
    """Return the last number that is accepted on the way from one to the other; None if all are."""
    taken = int(taken)
    if accepts(refused):
        return None
    while abs(refused - taken) > 1:
        middle = (taken + refused) // 2
        taken, refused = (middle, refused) if accepts(middle) else (taken, middle)
    return taken


def _default(field: "attrs.Attribute[Any]") -> Any:
    made = getattr(field.default, "factory", None)
    return field.default if made is None else made()


def default_text(value: object) -> str:
    """Return a default as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return f"[{', '.join(default_text(item) for item in value)}]"
    return str(value)


def about(cls: type, name: str) -> str:
    """Return what a class's docstring says about one of its attributes."""
    found = re.search(
        rf"^\s*{name}: (.*?)(?=^\s*\w+: |\Z)", inspect.getdoc(cls) or "", re.DOTALL | re.MULTILINE
    )
    return re.sub(r"\s+", " ", found[1]).strip().rstrip(".") if found else ""


def settings_table(before: str) -> str:
    """Return the table of settings, with the words of the one before."""
    old = rows_of(before)
    width = len(SETTINGS_HEAD.splitlines()[0].split(" | "))
    profile = old.get("profile", ["of the store", "", ""])
    rows = [
        [
            "profile",
            profile[0],
            ", ".join(f'"{name}"' for name in PROFILES if name in ("embedded", "rocketmq")),
            profile[-1],
        ]
    ]
    for key, cls, field in settings():
        known = old.get(key)
        default = default_text(_default(field))
        if key.startswith(_OF_THE_STORE) and known:
            default = known[0]
        rows.append(
            [key, default, limits(key, cls, field), known[-1] if known else about(cls, field.name)]
        )
    assert all(len(row) == width for row in rows)
    return SETTINGS_HEAD + "".join(row_of(key, *cells) for key, *cells in rows)


def error_classes() -> list[type[errors.PenstockError]]:
    """Return the classes in the order of their tree."""
    found = [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, errors.PenstockError)
    ]

    def below(parent: type) -> list[type[errors.PenstockError]]:
        return [
            each for kind in found if kind.__bases__[0] is parent for each in [kind, *below(kind)]
        ]

    return [errors.PenstockError, *below(errors.PenstockError)]


def errors_table(before: str) -> str:
    """Return the table of errors, with the words of the one before."""
    old = rows_of(before)
    rows = ""
    for kind in error_classes():
        first = (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ").rstrip(".")
        words = old.get(kind.__name__, [first, "", "", ""])[:3]
        rows += row_of(kind.__name__, *words, str(code_of(kind.__new__(kind))))
    return ERRORS_HEAD + rows


def row_of(name: str, *cells: str) -> str:
    """Return a row of a table."""
    return "".join([f"| `{name}` |", *(f" {cell} |" if cell else " |" for cell in cells), "\n"])


def rows_of(table: str) -> dict[str, list[str]]:
    """Return the cells of each row of a table, by the name in its first one."""
    found = {}
    for line in table.splitlines():
        name = re.match(r"\| `([\w.-]+)` \| ", line)
        if name:
            # A bar within code is no border.
            cells = re.split(
                r"\|(?=(?:[^`]*`[^`]*`)*[^`]*$)", line[name.end() :].rstrip().removesuffix("|")
            )
            found[name[1]] = [cell.strip() for cell in cells]
    return found


def filled(text: str, first: str, make: Callable[[str], str]) -> str:
    """Return a page in which the table that begins with `first` is generated again."""
    begin = text.index(f"| {first} |")
    end = text.find("\n\n", begin) + 1 or len(text)
    return text[:begin] + make(text[begin:end]) + text[end:]


def pages() -> dict[Path, str]:
    """Return the pages as they should be."""
    return {
        SETTINGS_PAGE: filled(SETTINGS_PAGE.read_text(), "setting", settings_table),
        ERRORS_PAGE: filled(ERRORS_PAGE.read_text(), "error", errors_table),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
