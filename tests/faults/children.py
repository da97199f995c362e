"""Child processes that live through a fault, so that the tests do not have to."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lanes import rounds

ROOT = Path(__file__).parents[2]
# Multiplies how often stories are gone through.
TIMES = rounds(gate=1, night=3)


def environment() -> dict[str, str]:
    """Return what a child needs to find what this process imports."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}


@contextmanager
def writing(path: Path, flush: str) -> Iterator[None]:
    """Have the writer of the crash tests write a store in a process of its own; it is killed at the end."""
    writer = subprocess.Popen(
        [sys.executable, str(ROOT / "tests/crash/writer.py"), str(path), json.dumps({"flush": flush}), "0"],
        stdout=subprocess.PIPE, cwd=ROOT, env=environment(),
    )  # fmt: skip
    assert writer.stdout is not None
    writer.stdout.readline()
    drain = threading.Thread(target=writer.stdout.read)
    drain.start()
    try:
        yield
    finally:
        writer.kill()
        writer.wait()
        drain.join()
        writer.stdout.close()


def start(
    script: str, path: Path, *arguments: str, before: Callable[[], None] | None = None
) -> "subprocess.Popen[str]":
    """Start a child that gets the path and the arguments; `before` runs in it first of all."""
    return subprocess.Popen(
        [sys.executable, "-c", script, str(path), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env=environment(),
        preexec_fn=before,  # noqa: PLW1509 - no thread of ours runs that could hold a lock it needs
    )  # fmt: skip


def say(
    script: str, path: Path, *arguments: str, before: Callable[[], None] | None = None
) -> list[str]:
    """Return the lines a child says, however it ends. What it leaves running may hold its output open."""
    process = start(script, path, *arguments, before=before)
    assert process.stdout is not None
    assert process.stderr is not None
    process.wait(120)
    os.set_blocking(process.stdout.fileno(), False)
    lines = [line.rstrip("\n") for line in process.stdout]
    process.stdout.close()
    process.stderr.close()
    return lines


def run(
    script: str, path: Path, *arguments: str, before: Callable[[], None] | None = None
) -> list[str]:
    """Return the lines a child says; it must end well."""
    process = start(script, path, *arguments, before=before)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, f"exit {process.returncode}\n{out}\n{err}"
    return out.splitlines()
