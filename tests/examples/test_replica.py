"""`examples/replica` does what it says, in a process of its own."""

import subprocess
import sys
from pathlib import Path

import penstock

EXAMPLE = Path(__file__).parents[2] / "examples" / "replica" / "replica.py"


def test_what_was_promised_is_there_after_the_promotion(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE, tmp_path], capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "PUT_OK",
        "the copy has ['orders']",
        "promoted: epoch 2",
        "[b'promised', b'after the promotion']",
    ]
    with penstock.open(tmp_path / "second", read_only=True) as copy:
        assert copy.read("orders", 0, offset=0).messages


def test_the_example_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60
