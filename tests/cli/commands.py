"""Runs commands in the process of a test: one of their own takes seconds on a busy machine."""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NamedTuple
from unittest.mock import patch

from penstock_tools.cli.root import run as run_command


class Pipe(io.BytesIO):
    """Standard input as a pipe has it."""

    def seekable(self) -> bool:
        return False


class Done(NamedTuple):
    """How a command ended: its exit code, what it wrote to standard output, and its words for people."""

    code: int
    data: bytes
    err: str

    @property
    def out(self) -> str:
        return self.data.decode()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return its lines of JSON."""
        return [json.loads(line) for line in self.data.splitlines()]

    def expect(self, code: int, *, out: str = "", err: str = "") -> None:
        """Check the exit code, and that these texts are in what was written."""
        assert self.code == code, self
        assert out in self.out, self
        assert err in self.err, self


def run(*arguments: object, given: bytes = b"") -> Done:
    """Run `penstock` with these arguments, in the current folder and environment."""
    streams = [io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2)]
    with (
        patch.object(sys, "stdin", io.TextIOWrapper(Pipe(given))),
        redirect_stdout(streams[0]),
        redirect_stderr(streams[1]),
    ):
        code = run_command([str(each) for each in arguments])
    out, err = (stream.buffer.getvalue() for stream in streams)
    return Done(code, out, err.decode())
