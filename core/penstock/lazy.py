"""A property that is made once: `functools.cached_property` without its lock, which costs more than most values."""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

Made = TypeVar("Made")


class lazy(Generic[Made]):  # noqa: N801 - it is used as a decorator
    """Makes an attribute at its first use. Two threads may both make it, so what it makes must be the same."""

    def __init__(self, make: Callable[[Any], Made]) -> None:
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...

    @overload
    def __get__(self, owner: object, kind: type | None = None) -> Made: ...

    def __get__(self, owner: object | None, kind: type | None = None) -> Self | Made:
        """Make the value, and leave it where the next look finds it without asking here."""
        if owner is None:
            return self
        made = owner.__dict__[self._name] = self._make(owner)
        return made
