"""Runs the tests of one mutant: those that run its statement, the quickest first, until one fails or the time is used up."""

import re
import time
from collections.abc import Iterator
from pathlib import Path, PurePath

from tests.mutants.choosing import CHOSEN
from tests.mutants.line_map import LineMap, Test
from tests.mutants.results import Outcome, Result
from tests.mutants.sampling import Drawn, read
from tests.mutants.scratch import TIMED_OUT, Scratch

# Seconds that the tests of one start of pytest take without a mutant, and from how many files they are at most:
# most mutants are found by the first tests, and collecting a file costs as much as a test.
BATCHES = ((1.0, 8), (8.0, 30))
ALL_FILES = 1000
# What a start takes beside the tests; and a mutant that makes them so much slower has been found.
_START_SECONDS, _SLOWER = 20, 10
_NONE_RAN, _ALL_PASSED = 5, 0
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", re.MULTILINE)


def batches(tests: list[Test], path: str, seconds: float = 40.0) -> Iterator[list[Test]]:
    """Yield lists of tests for one start of pytest each, as many as take `seconds` more; one at least.

    Of each function its quickest case comes first, then the second of each: cases of one are much alike. Among those the
    first are of the folder of tests that is named as the folder of `path`, the changed file.
    """
    near = f"/{PurePath(path).parent.name.strip('_')}/"
    cases: dict[str, int] = {}
    ranked = []
    for test in sorted(tests, key=lambda t: (t.seconds, t.name)):
        function = test.name.partition("[")[0]
        cases[function] = cases.get(function, 0) + 1
        ranked.append((cases[function], near not in function, test))
    waiting = [
        test for *_, test in sorted(ranked, key=lambda found: (*found[:2], found[2].seconds))
    ]
    taken: set[Test] = set()
    for limit, files_max in (*BATCHES, (seconds, ALL_FILES)):
        chosen = _quickest([test for test in waiting if test not in taken], limit, files_max)
        if chosen:
            taken.update(chosen)
            yield chosen
    if waiting and not taken:
        yield waiting[:1]


def _quickest(waiting: list[Test], seconds: float, files_max: int) -> list[Test]:
    """Return the first tests that take so long together, file by file."""
    files: dict[str, list[Test]] = {}
    left = seconds
    for test in waiting:
        path = test.name.partition("::")[0]
        if test.seconds <= left and (path in files or len(files) < files_max):
            files.setdefault(path, []).append(test)
            left -= test.seconds
    return [test for found in files.values() for test in found]


def run(drawn: Drawn, line_map: LineMap, scratch: Scratch, seconds: float) -> Result:
    """Make a mutant in the scratch copy, run its tests, and undo it."""
    began = time.monotonic()
    mutant = drawn.mutant
    source = read(mutant.path)
    tests = line_map.of_mutant(mutant)
    outcome, found_by, ran = Outcome.SURVIVED, "", 0
    if scratch.change(mutant.path, mutant.apply(source)):
        outcome = Outcome.INVALID
    else:
        for batch in batches(tests, mutant.path, seconds):
            ran += len(batch)
            outcome, found_by = _try(batch, scratch)
            if outcome is not Outcome.SURVIVED:
                break
    scratch.restore(mutant.path)
    return Result.of(
        drawn, source, outcome, found_by=found_by, ran=ran, known=len(tests),
        seconds=time.monotonic() - began,
    )  # fmt: skip


def _try(batch: list[Test], scratch: Scratch) -> tuple[Outcome, str]:
    """Run some tests; returns what became of the mutant, and the test that found it."""
    chosen = scratch.folder / "chosen.txt"
    chosen.write_text("".join(f"{test.name}\n" for test in batch))
    limit = _START_SECONDS + _SLOWER * sum(test.seconds for test in batch)
    files = list(dict.fromkeys(test.name.partition("::")[0] for test in batch))
    code, told = scratch.pytest(
        ["-x", "--tb=no", "-rfE", *files],
        limit,
        PYTHONDONTWRITEBYTECODE="1",
        **{CHOSEN: str(chosen)},
    )
    if code == TIMED_OUT:
        return Outcome.TIMED_OUT, ""
    if code == _NONE_RAN:
        raise RuntimeError(f"pytest ran none of {Path(chosen).read_text()}: {told}")
    if code == _ALL_PASSED:
        return Outcome.SURVIVED, ""
    found = _FAILED.search(told)
    return Outcome.KILLED, found[1] if found else f"exit {code}"
