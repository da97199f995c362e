"""Runs commands in the process of a test: one of their own takes seconds on a busy machine."""

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from types import MappingProxyType
from unittest.mock import patch

from penstock_tools.cli.root import run as run_command

_NOTHING: Mapping[str, str] = MappingProxyType({})


class Pipe(io.BytesIO):
    """Standard input as a pipe has it."""

    def seekable(self) -> bool:
        return False


def run(
    *arguments: str, cwd: Path, given: bytes = b"", environ: Mapping[str, str] = _NOTHING
) -> "subprocess.CompletedProcess[bytes]":
    """Run `penstock` with these arguments; returns its exit code and what it wrote."""
    streams = [io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2)]
    with (
        chdir(cwd),
        patch.dict(os.environ, environ),
        patch.object(sys, "stdin", io.TextIOWrapper(Pipe(given))),
        redirect_stdout(streams[0]),
        redirect_stderr(streams[1]),
    ):
        code = run_command(arguments)
    out, err = (stream.buffer.getvalue() for stream in streams)
    return subprocess.CompletedProcess(arguments, code, out, err)
