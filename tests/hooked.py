"""Strategies whose calls a test hears before they happen, and may let fail: what a plugin is given, tests get so, too."""

from collections.abc import Callable
from typing import Any, TypeVar

from penstock.contracts import Strategy

S = TypeVar("S", bound=Strategy)


def hooked(base: type[S], call: str, hook: Callable[..., object]) -> type[S]:
    """Return a strategy that calls `hook` with the arguments of one of its methods, and then does its work."""

    def method(self: Any, *given: Any, **named: Any) -> Any:
        hook(*given, **named)
        return getattr(super(made, self), call)(*given, **named)

    made: type[S] = type(base.__name__, (base,), {call: method})
    return made
