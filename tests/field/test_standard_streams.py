"""Closed and full standard streams: a command ends with an exit code, and nothing prints into a store."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

COMMAND = [sys.executable, "-m", "penstock"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "s"
    with penstock.open(path, environ={}) as store:
        store.put("t", b"hello", queue=0)
    return path


def run(words: list[str], redirections: str) -> tuple[int, str, str]:
    """Run a command with redirections of a shell; returns its exit code, its output, and its words for people."""
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {redirections}', "sh", *COMMAND, *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("redirections", "code", "said"),
    [
        (">&-", 4, "standard output: Bad file descriptor"),
        (">&- 2>&-", 4, ""),
        ("<&- >&- 2>&-", 4, ""),
        ("2>&-", 0, ""),
        (">/dev/full", 4, "No space left on device"),
        ("2>/dev/full", 0, ""),
    ],
)
def test_a_command_that_cannot_write_its_data_says_so_by_its_exit_code(
    root: Path, redirections: str, code: int, said: str
) -> None:
    """It ended with a traceback: Python has no `sys.stdout` where the descriptor is closed."""
    found = run(["read", str(root), "t"], redirections)
    assert (found[0], said in found[2]) == (code, True), found
    assert ("hello" in found[1]) == (code == 0)


def test_a_command_without_data_needs_no_output(root: Path) -> None:
    assert run(["verify", str(root), "--quiet"], "<&- >&- 2>&-")[0] == 0
    assert run(["no-such-command"], ">&-")[0] == 2
    assert run(["put", str(root), "other", "-"], "<&-")[0] == 4


STANDARD = """
import os, sys, penstock
with penstock.open(sys.argv[1]) as store:
    store.put("t", b"m", queue=0)
    opened = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in range(3)}
    os.write(1, b"printed by the program")
    os.write(2, b"printed by the system")
    # Closed while the store is open, too; once, since a file that is being opened may have the number for a moment.
    os.close(1)
    for _ in range(2):
        store.put("t", b"x" * 40_000, queue=0)
        store.flush()
    assert not [fd for fd, path in opened.items() if path.startswith(sys.argv[1])], opened
    code = len(store.read("t", 0, limit=9).messages)
os._exit(40 + code)
"""


@pytest.mark.parametrize("redirections", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_no_file_of_a_store_gets_the_number_of_a_standard_stream(
    tmp_path: Path, redirections: str
) -> None:
    """The system gives the lowest free number to the next file: what was printed went into the log."""
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-c", STANDARD, str(tmp_path / "s")],
        env={**os.environ, "PENSTOCK_GEOMETRY__SEGMENT_BYTES": "65536"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 43, done.stderr
    with penstock.open(tmp_path / "s", read_only=True, environ={}) as store:
        assert list(store.verify()) == []
