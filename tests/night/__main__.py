"""`python -m tests.night`: what the gate has no time for, and what needs luck to be drawn; see `make night`.

Each part is run in rounds until its share of the time is over, each round with a seed of its own, which is printed. At the
end of a part a line is added to `night.jsonl`, and the table in `docs/track-record.md` is made from that file.
"""

import argparse
import datetime
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from tests.night.record import HISTORY, Night, add, write_page

ROOT = Path(__file__).parents[2]

PYTEST = [
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "-n",
    str(os.cpu_count() or 1),
    "--dist",
    "loadfile",
]
# A test of the night may take an hour where one of the gate takes a minute.
PYTEST += ["-o", "faulthandler_timeout=7200"]
KILLS = [
    *(f"tests/crash/test_{name}.py" for name in ("kill", "transaction_kills", "prepared_kills")),
    "tests/replicas/test_kills.py",
]
# Those whose rounds differ by their seeds; the others run once.
SEEDED = {"kills", "explorations", "properties", "spark"}
# Nothing is passed over for want of a program.
NEEDED = ("INTEROP", "SPARK", "STRACE", "CHROMIUM", "SHELLS", "REDIS", "DISK", "ZIG")
PARTS: dict[str, list[str]] = {
    "kills": [*PYTEST, "tests/night/kills", "tests/examples", *KILLS],
    "explorations": [*PYTEST, "tests/crash", "tests/replicas", "tests/matrix", "tests/damage", "tests/plants"],
    "properties": [*PYTEST, "tests/property", "tests/model", "tests/fuzz", "tests/unit", "tests/contract"],
    "pages": [*PYTEST, "tests/night/pages", "tests/cli", "tests/docs"],
    "bench": [*PYTEST, "tests/night/bench"],
    "brokers": [*PYTEST, "tests/interop", "tests/night/brokers"],
    "spark": [*PYTEST, "tests/spark", "tests/night/spark"],
    "faults": [*PYTEST, "tests/faults", "tests/night/faults"],
    "packages": [*PYTEST, "tests/packaging", "tests/night/packages"],
    "pythons": [sys.executable, "-m", "tests.packaging.installs", "--extras", "--lowest"],
}  # fmt: skip


def run_round(part: str, seed: int) -> int:
    """Run a part once; returns the exit code of its command."""
    words = PARTS[part]
    required = {f"PENSTOCK_REQUIRE_{name}": "1" for name in NEEDED}
    environ = {**os.environ, **required, "PENSTOCK_NIGHT": "1", "PENSTOCK_SEED": str(seed)}
    print(f"{part}: PENSTOCK_NIGHT=1 PENSTOCK_SEED={seed} {' '.join(words)}", flush=True)
    return subprocess.run(words, cwd=ROOT, env=environ, check=False).returncode


def run_part(part: str, minutes: float, commit: str) -> Night:
    """Run rounds of a part until its minutes are over or one fails, one round at least."""
    end = time.monotonic() + minutes * 60
    began = datetime.datetime.now(datetime.UTC)
    seeds: list[int] = []
    code = 0
    while not code and (not seeds or (part in SEEDED and time.monotonic() < end)):
        seeds.append(random.SystemRandom().randrange(1 << 31))
        code = run_round(part, seeds[-1])
    result = f"exit code {code} with the last seed" if code else "passed"
    return Night(f"{began:%Y-%m-%d}", commit, part, len(seeds), seeds, result)


def main() -> int:
    """Run the parts, and note each."""
    parser = argparse.ArgumentParser(prog="python -m tests.night", description=__doc__)
    parser.add_argument(
        "--minutes",
        type=float,
        default=60,
        help="of all parts together (60); each runs one round at least",
    )
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    given = parser.parse_args()
    parts = given.only.split(",")
    if unknown := set(parts) - PARTS.keys():
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    # Before the first note makes the checkout another one.
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()  # fmt: skip
    nights = []
    for part in parts:
        nights.append(run_part(part, given.minutes / len(parts), commit))
        add(HISTORY, nights[-1])
        write_page()
    for night in nights:
        print(f"{night.part}: {night.rounds} rounds, {night.result}")
    return any(night.result != "passed" for night in nights)


if __name__ == "__main__":
    sys.exit(main())
