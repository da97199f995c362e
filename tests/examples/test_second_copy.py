"""The ledger of `examples/second-copy`: killed, taken over by its copy, and followed by the old one."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lanes import eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "second-copy" / "ledger.py"
BOTH = "on disk here and there"


def run(*arguments: str) -> list[str]:
    """Run a part of the example to its end; return the lines that it prints."""
    command = [sys.executable, str(EXAMPLE), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a part of the example, and kill it in the end."""
    command = [sys.executable, str(EXAMPLE), *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def listen_of(path: Path) -> str:
    status = path / "penstock" / "replica-status"
    found = eventually(lambda: status.exists() and json.loads(status.read_text()).get("listen"))
    return str(found)


def entered(process: subprocess.Popen[str], line: str) -> str:
    """Return what the ledger says of a new entry."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{line}\n")
    said, _, entry = process.stdout.readline().strip().partition(": ")
    assert entry == line
    return said


def test_what_the_readme_says(tmp_path: Path) -> None:
    first, second = tmp_path / "data", tmp_path / "data-2"
    with running("write", str(first), "127.0.0.1:0") as writer:
        assert entered(writer, "alone") == "on disk"
        with running("copy", str(second), listen_of(first)):
            eventually(lambda: entered(writer, "both") == BOTH)
            writer.kill()
    run("take-over", str(second))
    kept = run("read", str(second))
    assert (kept[0], kept[-1]) == ("alone", "both")
    with (
        running("write", str(second), "127.0.0.1:0") as writer,
        running("copy", str(first), listen_of(second)),
    ):
        eventually(lambda: entered(writer, "more") == BOTH)
        # Readers of a copy that is killed see what was in its queues by then.
        eventually(lambda: run("read", str(first))[-1] == "more")
    assert run("read", str(first))[: len(kept)] == kept
