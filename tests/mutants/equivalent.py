"""Mutants that no test can find, because the program does the same: each with the reason in a sentence."""

from typing import NamedTuple


class Equivalent(NamedTuple):
    """A change of a file's lines, without the white space round them, that changes nothing a caller can see."""

    path: str
    before: str
    after: str
    reason: str


EQUIVALENT: tuple[Equivalent, ...] = ()


def is_equivalent(path: str, change: tuple[str, str]) -> bool:
    """Tell whether the table has this change."""
    return any((each.path, each.before, each.after) == (path, *change) for each in EQUIVALENT)
