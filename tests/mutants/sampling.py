"""Draws mutants in an order that the seed fixes: a larger sample begins with all of a smaller one."""

import functools
import random
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from typing import NamedTuple

from tests.mutants.areas import ROOT, files_by_area, is_kernel
from tests.mutants.kernel_operators import kernel_mutants
from tests.mutants.mutant import Mutant
from tests.mutants.python_operators import is_valid, python_mutants

# One in so many is of the kernel: each costs a build.
KERNEL_SHARE = 5


class Drawn(NamedTuple):
    """A mutant and the area it was drawn for."""

    area: str
    mutant: Mutant


def read(path: str) -> bytes:
    """Return the text of a source, of which mutants have positions."""
    return (ROOT / path).read_bytes()


@functools.cache
def mutants_of(path: str) -> tuple[Mutant, ...]:
    """Return every mutant of a file."""
    return tuple((kernel_mutants if is_kernel(path) else python_mutants)(path, read(path)))


def draw(seed: int, only: str = "*") -> Iterator[Drawn]:
    """Yield mutants of the files that match `only`, each once, in turn of every area; kernel's that compile or not."""
    python = _in_turn(seed, only, lambda path: not is_kernel(path))
    kernel = _in_turn(seed, only, is_kernel)
    turn = 0
    while True:
        turn += 1
        first, second = (kernel, python) if turn % KERNEL_SHARE == 0 else (python, kernel)
        found = next(first, None) or next(second, None)
        if found is None:
            return
        yield found


def _in_turn(seed: int, only: str, wanted: Callable[[str], bool]) -> Iterator[Drawn]:
    """Yield a mutant of each area in turn, until none has any left."""
    waiting = []
    for area, paths in files_by_area().items():
        found = [
            m for path in paths if wanted(path) and fnmatch(path, only) for m in mutants_of(path)
        ]
        # By a number of the area's own, so that a file of another area changes nothing here.
        random.Random(f"{seed} {area}").shuffle(found)
        waiting.append((area, iter(found)))
    while waiting:
        for turn in list(waiting):
            area, mutants = turn
            found_one = next((m for m in mutants if _is_valid(m)), None)
            if found_one is None:
                waiting.remove(turn)
            else:
                yield Drawn(area, found_one)


def _is_valid(mutant: Mutant) -> bool:
    return is_kernel(mutant.path) or is_valid(mutant, read(mutant.path))
