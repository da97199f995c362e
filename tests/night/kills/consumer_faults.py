"""Kills and stops a process between two steps of its work with the files of groups, where a kill from outside rarely hits.

A process that is about to kill or to stop itself says so in its trace; what runs it finds out, and starts another one, or lets it go on.
"""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.night.kills.consumer_trace import Trace

from penstock.files import File, Files
from penstock.store.lowlevel import LowLevelStore

# One of so many calls. Members append to journals for each answer, but take queues rarely.
_RARE, _OFTEN = 250, 20_000
_RARE_CALLS = ("rename", "create", "remove", "lock_one", "sync_folder", "make_folder_durably")
_OFTEN_CALLS = ("pwrite", "pwrite_pieces", "sync", "sync_all", "resize")
_STORE_CALLS = ("put_copies", "move_offsets")
_NAMES = ("groups", "config")


class _Faults:
    """Decides when this process dies or stops."""

    def __init__(self, trace: Trace, stop: Path, seed: str) -> None:
        self._trace, self._stop = trace, stop
        self._chance = random.Random(seed)
        self._process = os.getpid()

    def around(self, owner: Any, name: str, one_of: int) -> None:
        """Let one of so many calls of a method kill or stop this process before it or after it."""
        real: Callable[..., Any] = getattr(owner, name)

        def call(self_: Any, *arguments: Any, **named: Any) -> Any:
            is_it = self._chance.randrange(one_of) == 0 and self._concerns(self_, arguments)
            is_before = is_it and self._chance.random() < 0.5
            if is_before:
                self._fail(name)
            made = real(self_, *arguments, **named)
            if is_it and not is_before:
                self._fail(name)
            return made

        setattr(owner, name, call)

    def _concerns(self, called: Any, arguments: tuple[Any, ...]) -> bool:
        path = called.path if isinstance(called, File) else arguments[0]
        return not isinstance(path, Path) or any(part in _NAMES for part in path.parts)

    def _fail(self, name: str) -> None:
        # Not in a forked child, and not once the run is to end.
        if os.getpid() != self._process or self._stop.exists():
            return
        if self._chance.random() < 0.5:
            self._trace.add("stopped", note=f"at {name}")
            os.kill(self._process, signal.SIGSTOP)
            return
        self._trace.add("killed", note=str(time.time_ns() // 1_000_000), topic=name)
        os.kill(self._process, signal.SIGKILL)


def die_at_random(trace: Trace, stop: Path, seed: str) -> None:
    """Let this process kill or stop itself at random calls that concern groups, until the file `stop` exists."""
    faults = _Faults(trace, stop, f"{seed} faults")
    for name in _RARE_CALLS:
        faults.around(Files, name, _RARE)
    for name in _OFTEN_CALLS:
        faults.around(File, name, _OFTEN)
    for name in _STORE_CALLS:
        faults.around(LowLevelStore, name, _RARE // 10)
