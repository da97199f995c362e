"""`python -m tests.mutants` makes small faults in the sources, one at a time, and says which of them no test finds.

Runs on a copy of the checkout, so nothing here is changed. Neither mutmut 3 nor cosmic-ray does this job: both change
Python only, and a fifth of these mutants is compiled; cosmic-ray runs one command of tests for all mutants, and mutmut
puts a dispatcher round each function, which tests of frames, of signatures and of what runs at import would see.

The first run takes notes of which test runs which lines, into `build/mutants`, which takes as long as the tests do.
"""

import argparse
import json
import os
import queue
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from tests.mutants.areas import TESTED_BY
from tests.mutants.equivalent import is_equivalent
from tests.mutants.line_map import LineMap, files_of_tests, make_line_map
from tests.mutants.results import (
    Outcome,
    Result,
    append_result,
    key_of,
    misses,
    read_results,
    table,
)  # fmt: skip
from tests.mutants.running import run
from tests.mutants.sampling import Drawn, draw, read
from tests.mutants.scratch import Scratch


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="which mutants are drawn (1)")
    parser.add_argument("--count", type=int, default=400, help="how many (400)")
    parser.add_argument("--only", default="*", metavar="GLOB", help="of files whose paths match")
    parser.add_argument("--tests", default=",".join(TESTED_BY), metavar="FOLDERS", help="the folders of tests/ that are run, with commas (all that open stores, without Spark and Java)")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="tried at a time, each in its own copy (one for each processor)")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="print the sample, and try none")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write all results here at the end"
    )
    parser.add_argument("--resume", type=Path, metavar="FILE", help="add each result to this file as a line, and leave out what it has")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=40.0, help="of tests, as they were noted, before a mutant counts as survived (40)")  # fmt: skip
    parser.add_argument(
        "--again", action="store_true", help="with --resume: try survivors once more"
    )
    return parser.parse_args()


class Campaign:
    """One run over a sample."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Read what an earlier run found."""
        self._arguments = arguments
        self._known = read_results(arguments.resume) if arguments.resume else {}
        self.results: list[Result] = []
        self._began = time.monotonic()
        self._tried = 0

    def _earlier(self, drawn: Drawn) -> Result | None:
        """Return what is known of a mutant without trying it."""
        mutant, source = drawn.mutant, read(drawn.mutant.path)
        if is_equivalent(mutant.path, mutant.change(source)):
            return Result.of(drawn, source, Outcome.EQUIVALENT)
        found = self._known.get(key_of(mutant, source))
        if found is not None and found.outcome is Outcome.EQUIVALENT:
            return None
        if found is not None and found.outcome is Outcome.SURVIVED and self._arguments.again:
            return None
        return found

    def _count(self) -> int:
        return sum(result.outcome is not Outcome.INVALID for result in self.results)

    def go(self, line_map: LineMap, scratches: list[Scratch]) -> None:
        """Try mutants in the order of the sample until enough of them were valid."""
        free: queue.SimpleQueue[Scratch] = queue.SimpleQueue()
        for scratch in scratches:
            free.put(scratch)

        def tried(drawn: Drawn) -> Result:
            scratch = free.get()
            result = run(drawn, line_map, scratch, self._arguments.seconds)
            free.put(scratch)
            return result

        sample = draw(self._arguments.seed, self._arguments.only)
        running: set[Future[Result]] = set()
        with ThreadPoolExecutor(len(scratches)) as pool:
            while True:
                for drawn in self._next(sample, len(scratches) - len(running), len(running)):
                    running.add(pool.submit(tried, drawn))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    self._note(future.result())

    def _next(self, sample: Iterator[Drawn], room: int, running: int) -> Iterator[Drawn]:
        """Yield what is to be tried next; notes what is known without."""
        while room and self._count() + running < self._arguments.count:
            drawn = next(sample, None)
            if drawn is None:
                return
            earlier = self._earlier(drawn)
            if earlier is not None:
                self.results.append(earlier)
                continue
            yield drawn
            room, running = room - 1, running + 1

    def _note(self, result: Result) -> None:
        self.results.append(result)
        self._tried += result.outcome is not Outcome.INVALID
        if self._arguments.resume:
            append_result(self._arguments.resume, result)
        if result.outcome is Outcome.SURVIVED:
            _say(f"survived: {result.diff()}")
        left = self._arguments.count - self._count()
        each = (time.monotonic() - self._began) / max(self._tried, 1)
        killed = sum(result.is_killed for result in self.results)
        line = f"{self._count()} of {self._arguments.count}, {killed} killed, {each * left / 60:.0f} min to go"
        if sys.stdout.isatty():
            print(f"\r{line}\x1b[K", end="", flush=True)
        elif self._count() % 20 == 0:
            print(line, flush=True)


def _say(line: str) -> None:
    start = "\r\x1b[K" if sys.stdout.isatty() else ""
    print(start + line, flush=True)


def _report(results: list[Result], path: Path | None) -> int:
    """Print survivors and the table, and write all results; returns the exit code."""
    if path is not None:
        path.write_text(json.dumps([result._asdict() for result in results], indent=1) + "\n")
    for result in sorted(results):
        if result.outcome is Outcome.SURVIVED:
            _say(result.diff())
    _say(table(results))
    missed = misses(results)
    for line in missed:
        _say(line)
    return 1 if missed else 0


def main() -> int:
    """Do what the arguments say; returns the exit code: 1 if a goal is missed."""
    arguments = _arguments()
    campaign = Campaign(arguments)
    if arguments.list:
        for _, drawn in zip(
            range(arguments.count), draw(arguments.seed, arguments.only), strict=False
        ):
            _say(Result.of(drawn, read(drawn.mutant.path), Outcome.SURVIVED).diff())
        return 0
    with tempfile.TemporaryDirectory(prefix="penstock-mutants-") as folder:
        _say("noting which tests run which lines, where that is not known")
        paths = files_of_tests(arguments.tests.split(","))
        line_map = make_line_map(Path(folder), paths, arguments.jobs, _say)
        _say(f"{len(line_map.tests)} tests; copying and building")
        scratches = [Scratch(Path(folder) / str(number)) for number in range(arguments.jobs)]
        for scratch in scratches:
            scratch.build()
        campaign.go(line_map, scratches)
    return _report(campaign.results, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
