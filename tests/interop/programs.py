"""Runs a program that has a store open with Penstock until it has done its part, and closes or kills it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.lanes import eventually

READY = "ready\n"


def run_program(
    module: str,
    *arguments: str,
    is_killed: bool,
    until: Callable[[list[str]], bool] = lambda lines: True,
) -> list[str]:
    """Run a module of the tests as a program; returns the lines that it has written.

    Args:
        module: its full name; it calls `wait_for_end`.
        arguments: what it is given.
        is_killed: whether it is killed, else it closes its store.
        until: what must hold before it is ended; it is given the lines.
    """
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    ) as child:  # fmt: skip
        assert child.stdout is not None
        lines: list[str] = []
        for line in child.stdout:
            if line == READY:
                break
            lines.append(line)
        else:
            raise AssertionError(f"{module} ended early")
        eventually(lambda: until(lines), f"what {module} has done is saved")
        if is_killed:
            child.kill()
        else:
            child.communicate("end\n")
            assert child.returncode == 0
    return lines


def wait_for_end() -> None:
    """Say that the program is ready, and return when it has to close its store."""
    sys.stdout.write(READY)
    sys.stdout.flush()
    sys.stdin.readline()
