"""The bank of `examples/transfer`, killed again and again: each transfer is carried out once, and in whole."""

import subprocess
import sys
from pathlib import Path
from random import Random

from tests.lanes import SEED, rounds

EXAMPLE = Path(__file__).parents[2] / "examples" / "transfer" / "transfer.py"
KILLS = rounds(gate=1, night=100)
NAMES = ("anna", "ben", "carl")


def run(part: str, path: Path, given: str = "") -> str:
    """Run a part of the example to its end; return what it prints."""
    command = [sys.executable, str(EXAMPLE), part, str(path)]
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def orders(chance: Random, count: int) -> list[tuple[str, str, int]]:
    """Return transfers between two different people each."""
    return [(*chance.sample(NAMES, 2), chance.randint(1, 99)) for _ in range(count)]  # type: ignore[misc] # two names


def test_what_the_readme_says(tmp_path: Path) -> None:
    run("order", tmp_path / "s", "anna ben 20\nben carl 5\n")
    assert run("move", tmp_path / "s") == "moved 20 from anna to ben\nmoved 5 from ben to carl\n"
    assert run("balance", tmp_path / "s") == (
        "anna -20 in 1 entries\nben 15 in 2 entries\ncarl 5 in 1 entries\n"
    )


def test_no_kill_makes_money_or_loses_it(tmp_path: Path) -> None:
    seed = SEED
    chance, path = Random(seed), tmp_path / "s"
    expected = dict.fromkeys(NAMES, (0, 0))
    for _ in range(KILLS):
        some = orders(chance, 200)
        run(
            "order",
            path,
            "".join(f"{source} {target} {amount}\n" for source, target, amount in some),
        )
        for source, target, amount in some:
            for name, change in ((source, -amount), (target, amount)):
                expected[name] = expected[name][0] + change, expected[name][1] + 1
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLE), "move", str(path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for _ in range(chance.randrange(1, 150)):
            assert process.stdout.readline().startswith("moved")
        process.kill()
        process.communicate()
    run("move", path)
    lines = [
        f"{name} {total} in {count} entries\n" for name, (total, count) in sorted(expected.items())
    ]
    assert run("balance", path) == "".join(lines), f"seed {seed}"
