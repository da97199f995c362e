"""What became of each mutant: lines of JSON that another run goes on from, and a table by area."""

import enum
import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self

from tests.mutants.mutant import Mutant
from tests.mutants.sampling import Drawn

KILLED_LEAST, EQUIVALENT_MOST = 0.92, 0.03


class Outcome(enum.StrEnum):
    """What became of a mutant; one that does not compile is none, and does not count."""

    KILLED = "killed"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"
    INVALID = "invalid"


class Result(NamedTuple):
    """A mutant and what became of it.

    Attributes:
        before, after: the changed lines.
        found_by: the test that failed.
        ran: how many tests ran at most, of `known` that run the statement.
    """

    area: str
    path: str
    line: int
    operator: str
    before: str
    after: str
    outcome: Outcome
    found_by: str = ""
    ran: int = 0
    known: int = 0
    seconds: float = 0.0
    start: int = 0

    @classmethod
    def of(
        cls, drawn: Drawn, source: bytes, outcome: Outcome, *, found_by: str = "", ran: int = 0,
        known: int = 0, seconds: float = 0.0,
    ) -> Self:  # fmt: skip
        """Return the result of a mutant of this source."""
        mutant = drawn.mutant
        return cls(
            drawn.area, mutant.path, mutant.line(source), mutant.edit.operator, *mutant.change(source),
            outcome, found_by, ran, known, round(seconds, 2), mutant.edit.start,
        )  # fmt: skip

    @property
    def is_killed(self) -> bool:
        """Whether the tests found it."""
        return self.outcome in {Outcome.KILLED, Outcome.TIMED_OUT}

    def diff(self) -> str:
        """Return place and change as lines of a diff."""
        old, new = ("\n".join(f"    {sign}{line}" for line in lines.splitlines()) for sign, lines in (("-", self.before), ("+", self.after)))  # fmt: skip
        note = "" if self.known else ", no test runs it"
        return f"{self.path}:{self.line} {self.operator}{note}\n{old}\n{new}"


def key_of(mutant: Mutant, source: bytes) -> tuple[str, int, str, str]:
    """Return what tells a mutant from others, as long as its file stays the same before it."""
    return (mutant.path, mutant.edit.start, *mutant.change(source))


def read_results(path: Path) -> dict[tuple[str, int, str, str], Result]:
    """Return the results of an earlier run, the last of each mutant; a line that was not finished is left out."""
    found = {}
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            known = json.loads(line)
        except ValueError:
            continue
        result = Result(**{**known, "outcome": Outcome(known["outcome"])})
        found[result.path, result.start, result.before, result.after] = result
    return found


def append_result(path: Path, result: Result) -> None:
    """Add a result to a file of lines."""
    with path.open("a") as file:
        file.write(json.dumps(result._asdict()) + "\n")


def table(results: Iterable[Result]) -> str:
    """Return a table of counts by area, and in all."""
    rows: dict[str, list[Result]] = {}
    counted = [result for result in results if result.outcome is not Outcome.INVALID]
    for result in counted:
        rows.setdefault(result.area, []).append(result)
    lines = ["area        mutants  killed  timed out  survived  equivalent  killed %"]
    for name, found in [*rows.items(), ("all", counted)]:
        count = {outcome: sum(r.outcome is outcome for r in found) for outcome in Outcome}
        killed = count[Outcome.KILLED] + count[Outcome.TIMED_OUT]
        lines.append(
            f"{name:<10} {len(found):>8} {killed:>7} {count[Outcome.TIMED_OUT]:>10} {count[Outcome.SURVIVED]:>9}"
            f" {count[Outcome.EQUIVALENT]:>11} {100 * killed / max(len(found), 1):>9.1f}"
        )
    return "\n".join(lines)


def misses(results: Iterable[Result]) -> list[str]:
    """Return in words which goals the results miss."""
    counted = [result for result in results if result.outcome is not Outcome.INVALID]
    if not counted:
        return ["no mutant was tested"]
    killed = sum(result.is_killed for result in counted) / len(counted)
    equivalent = sum(r.outcome is Outcome.EQUIVALENT for r in counted) / len(counted)
    missed = []
    if killed < KILLED_LEAST:
        missed.append(f"{killed:.1%} were killed, the goal is {KILLED_LEAST:.0%}")
    if equivalent > EQUIVALENT_MOST:
        missed.append(f"{equivalent:.1%} are called equivalent, the most is {EQUIVALENT_MOST:.0%}")
    return missed
