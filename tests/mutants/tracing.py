"""Notes which lines of chosen modules run: a byte for each line, in a file that all processes of a test map.

So children count, forked or started, also those that are killed. What a process needs for it is in its environment.
"""

import json
import mmap
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

# The bytes of lines and of the kernel's blocks; and a table of the modules' paths and the places of their lines.
LINES, BLOCKS, TABLE = "PENSTOCK_MUTANTS_LINES", "PENSTOCK_MUTANTS_BLOCKS", "PENSTOCK_MUTANTS_TABLE"
_Trace = Callable[[FrameType, str, Any], Any]


def shared(path: str) -> mmap.mmap:
    """Return the bytes of a file, to be changed, as other processes see them."""
    with Path(path).open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def tracer(hits: mmap.mmap, places: dict[str, int]) -> _Trace:
    """Return a trace function that sets the byte of each line that runs; `places` has a module's line 0."""

    def of_module(place: int) -> _Trace:
        def line(frame: FrameType, event: str, _: Any) -> _Trace:
            hits[place + frame.f_lineno] = 1
            return line

        return line

    traces = {path: of_module(place) for path, place in places.items()}

    def call(frame: FrameType, event: str, _: Any) -> _Trace | None:
        trace = traces.get(frame.f_code.co_filename)
        return None if trace is None else trace(frame, event, None)

    return call


def start(trace: _Trace) -> None:
    """Trace this thread, and those that begin from now on."""
    threading.settrace(trace)
    sys.settrace(trace)


def trace_from_environment() -> None:
    """Trace this process if its environment says so."""
    if LINES in os.environ and TABLE in os.environ:
        places = json.loads(Path(os.environ[TABLE]).read_text())
        start(tracer(shared(os.environ[LINES]), places))
