"""Errors: their tree as the docstring draws it, texts that are safe to print, facts as attributes."""

import inspect
import re
from pathlib import Path

import pytest

import penstock
from penstock import errors
from penstock.errors import (
    CorruptionError,
    GeometryError,
    MessageError,
    NoRecordError,
    OffsetError,
    PenstockError,
    UnknownStrategyError,
)

CLASSES = {
    name: cls
    for name, cls in vars(errors).items()
    if inspect.isclass(cls) and issubclass(cls, PenstockError)
}


def drawn() -> dict[str, str]:
    """Return the tree of the module's docstring: name to the name above it."""
    above: dict[int, str] = {}
    found: dict[str, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"( *)[*+-] (\w+Error)", line)
        if match:
            depth, name = len(match[1]), match[2]
            found[name] = above.get(max((at for at in above if at < depth), default=-1), "")
            above = {at: kept for at, kept in above.items() if at < depth} | {depth: name}
    return found


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    parents = {name: cls.__mro__[1].__name__ for name, cls in CLASSES.items()}
    assert drawn() == {**parents, "PenstockError": ""}


def test_every_error_can_be_imported_from_penstock() -> None:
    assert set(CLASSES) <= set(penstock.__all__)
    assert all(getattr(penstock, name) is cls for name, cls in CLASSES.items())


def test_an_error_is_caught_as_what_python_has_for_it() -> None:
    assert issubclass(MessageError, ValueError)
    assert issubclass(OffsetError, LookupError)


def test_a_text_is_escaped_and_the_facts_stay_as_they_are() -> None:
    error = CorruptionError(Path("/a\x1b[2J"), 7, "x\n", "y", "do this")
    assert str(error) == "/a\\x1b[2J is corrupt at byte 7: expected x\\n, found y; do this"
    assert (error.path, error.position, error.expected) == (Path("/a\x1b[2J"), 7, "x\n")


def test_an_unknown_name_is_answered_with_the_nearest_and_all() -> None:
    error = UnknownStrategyError("flush", "snyc", ["sync", "async"])
    assert "did you mean 'sync'?" in str(error)
    assert "installed: async, sync" in str(error)
    assert "installed: none" in str(UnknownStrategyError("flush", "x", []))


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (1, 9, "why; the nearest record before it begins at 1; the next one at 9"),
        (None, 9, "why; the next one at 9"),
        (1, None, "why; the nearest record before it begins at 1"),
        (None, None, "why"),
    ],
)
def test_where_no_record_begins_the_nearest_ones_are_named(
    before: int | None, after: int | None, text: str
) -> None:
    error = NoRecordError(5, before, after, "why")
    assert str(error) == f"no record begins at log offset 5: {text}"
    assert (error.before, error.after, error.offset) == (before, after, 5)


def test_sizes_that_differ_are_both_named() -> None:
    error = GeometryError("segment_bytes", 1, 2, "its files")
    assert "segment_bytes is 1" in str(error)
    assert "the store has 2 (its files)" in str(error)
