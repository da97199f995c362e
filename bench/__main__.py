"""`python -m bench`: runs the same work on every engine, in one run, and prints the table of goals.

Compare ratios: engines take turns, so anything that slows the machine slows all of them. Above 1 Penstock is faster.
"""

import argparse
import tempfile
import time
from pathlib import Path

from bench import history, machine, results
from bench.goals import judge, table
from bench.measure import Bench
from bench.workloads import consumers, lives, puts, reads, tails

BUILD = Path(__file__).parents[1] / "build"


def main() -> None:
    """Run the requested work."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--only", default="", help="families of work, separated by commas: put,read"
    )
    parser.add_argument("--rounds", type=int, help="how often everything is measured (5; full: 7)")
    parser.add_argument("--full", action="store_true", help="every size, 10 million keys; long")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument(
        "--keep", action="store_true", help=f"add the ratios to {history.FILE.name}"
    )
    parser.add_argument(
        "--before",
        default="",
        metavar="COMMIT",
        help="also compare puts with this commit of Penstock",
    )
    asked = parser.parse_args()
    rounds = asked.rounds or (7 if asked.full else 5)
    only = [word for word in asked.only.split(",") if word]
    began = time.monotonic()
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="bench-") as home:
        bench = Bench(Path(home), rounds=rounds, full=asked.full, only=only, commit=asked.before)
        for workload in (puts, reads, lives, tails, consumers):
            workload.run(bench)
    outcomes = judge(bench.figures, bench.missing)
    minutes = (time.monotonic() - began) / 60
    print(
        f"\n{machine.words()}; {rounds} rounds, {minutes:.1f} minutes; median, minimum and maximum"
    )
    if not asked.full:
        print("find: 1 million keys; with --full 10 million")
    print(f"\n{table(outcomes)}")
    result = results.of(bench, outcomes)
    if asked.json:
        results.save(result, asked.json)
    if asked.keep:
        history.keep(result)


if __name__ == "__main__":
    main()
