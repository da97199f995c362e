"""Fuzzes readers with atheris: `python -m tests.fuzz TARGET|all --seconds N`; seeds and finds are in `seeds/`.

Each target runs in a process of its own and grows a corpus under `build/fuzz/`. What makes a target raise
is written there as `crash-*`: make it a seed, so that every test run looks at it again.
"""

import argparse
import logging
import subprocess
import sys
from pathlib import Path

from tests.fuzz import TARGETS, load

SEEDS = Path(__file__).parent / "seeds"
CORPUS = Path("build") / "fuzz"
INPUT_BYTES_MAX = 4096


def run(name: str, seconds: int) -> None:
    """Fuzz one target in this process; libFuzzer ends it."""
    import atheris  # noqa: PLC0415 - an extra

    with atheris.instrument_imports(include=["penstock", "penstock_index", "tests.fuzz"]):
        target = load(name)
    own = CORPUS / name
    own.mkdir(parents=True, exist_ok=True)
    logging.disable()
    flags = [
        f"-max_total_time={seconds}", f"-max_len={INPUT_BYTES_MAX}", "-timeout=20",
        "-rss_limit_mb=4096", "-malloc_limit_mb=256", "-print_final_stats=1", f"-artifact_prefix={own.parent}/crash-{name}-",
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *flags, str(own), str(SEEDS / name)], target)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=[*TARGETS, "all"])
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    asked = parser.parse_args()
    if asked.target != "all":
        run(asked.target, asked.seconds)
        return 0
    command = [sys.executable, "-m", "tests.fuzz"]
    codes = [
        subprocess.run([*command, name, "--seconds", str(asked.seconds)], check=False).returncode
        for name in TARGETS
    ]
    return max(map(abs, codes))


if __name__ == "__main__":
    sys.exit(main())
