"""`python -m bench`: every engine through the same work, in one run, and the table of goals.

Ratios are what to look at: engines take turns, so that what slows the machine slows all. Above 1 Penstock is faster.
"""

import argparse
import tempfile
from pathlib import Path

from bench.measure import Bench
from bench.workloads import puts, reads

BUILD = Path(__file__).parents[1] / "build"


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", default="", help="families of work, parted by commas: put,read")
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is measured")
    parser.add_argument("--full", action="store_true", help="all sizes, 10 million keys; long")
    asked = parser.parse_args()
    BUILD.mkdir(exist_ok=True)
    only = [word for word in asked.only.split(",") if word]
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="bench-") as home:
        bench = Bench(Path(home), rounds=asked.rounds, full=asked.full, only=only)
        for workload in (puts, reads):
            workload.run(bench)


if __name__ == "__main__":
    main()
