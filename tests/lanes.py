"""How much of a test runs in the gate and how much at night, from which seed, and how a test waits.

The gate repeats itself: it draws no seed and takes the same part of each exploration every time. The night
(`python -m tests.night`) draws a seed for each round, prints it, and goes through explorations whole.
"""

import os
import shutil
import time
from collections.abc import Callable, Container, Iterable
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, settings

Case = TypeVar("Case")
Found = TypeVar("Found")

NIGHT = os.environ.get("PENSTOCK_NIGHT") == "1"
# `PENSTOCK_SEED` repeats what a night printed.
SEED = int(os.environ.get("PENSTOCK_SEED") or 1)

_OF_SO_MANY_ROUNDS, _OF_SO_MANY_CASES = 3, 10
# Of any wait: a machine that is busy takes some seconds, one that is broken takes for ever.
_WAIT_S = 120
_PAUSE_S = 0.01

settings.register_profile("gate", deadline=None, derandomize=True, max_examples=30)
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=10)
# A fault that is planted is to be found, not to be shown small.
settings.register_profile(
    "plants", settings.get_profile("gate"), phases=(Phase.explicit, Phase.generate)
)
settings.register_profile("night", deadline=None, print_blob=True, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("night" if NIGHT else "gate"))
_EXAMPLES_SHARE = settings().max_examples / settings.get_profile("default").max_examples
_EXAMPLES_LEAST = 5


def examples(count: int) -> int:
    """Return the profile's share of `count`: `max_examples` of a test overrides that of any profile."""
    return max(int(count * _EXAMPLES_SHARE), _EXAMPLES_LEAST)


def rounds(gate: int, night: int) -> int:
    """Return how often something happens whose number is free, such as a kill."""
    return night if NIGHT else gate


def explored(count: int, *, least: int = 1) -> int:
    """Return `count` at night, else a third of it, `least` at the least."""
    return count if NIGHT else min(count, max(count // _OF_SO_MANY_ROUNDS, least))


def cases(
    found: Iterable[Case],
    seed: str = "",
    *,
    always: Container[Case] = (),
    of_so_many: int = _OF_SO_MANY_CASES,
) -> list[Case]:
    """Return all at night, else those in `always` and, of each `of_so_many` neighbours of the others, one.

    Which one is a seed's choice: tests of the same cases that differ otherwise give different seeds.
    """
    whole = list(found)
    if NIGHT:
        return whole
    others = [at for at, case in enumerate(whole) if case not in always]
    chance = Random(seed)
    picked = {chance.choice(others[at : at + of_so_many]) for at in range(0, len(others), of_so_many)}  # fmt: skip
    return [case for at, case in enumerate(whole) if at in picked or case in always]


def at_night(*values: Any) -> Any:
    """Return a parameter of a test that only the night runs."""
    return pytest.param(*values, marks=pytest.mark.night)


def need(lack: str, required: str) -> None:
    """Skip a test for want of something, if anything lacks; fail where `PENSTOCK_REQUIRE_` and the name is 1, as at night."""
    if lack and os.environ.get(f"PENSTOCK_REQUIRE_{required}") == "1":
        pytest.fail(lack)
    if lack:
        pytest.skip(lack)


def need_program(name: str, required: str) -> str:
    """Return the path of a program; skips or fails as `need` where it is not installed."""
    found = shutil.which(name)
    need("" if found else f"{name} is not installed", required)
    return found or ""


def eventually(
    condition: Callable[[], Found], what: str = "", *, seconds: float = _WAIT_S
) -> Found:
    """Wait until a condition holds, and return what it returned; fails after a limit that only a fault reaches."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            pytest.fail(f"not within {seconds:g} s: {what or condition}")
        time.sleep(_PAUSE_S)
    return found
