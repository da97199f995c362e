"""A process with one engine: commands are sent to it and answers received, one JSON line each.

Only one runs at a time: the others are stopped (SIGSTOP), so that their threads do not use the processor.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench import rocketmq
from bench.engines import ENGINES

ROOT = Path(__file__).parents[1]
ANSWER_SECONDS = 900


class EngineError(Exception):
    """Raised when an engine returns an error instead of a figure."""


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with these variables, and with Python's byte code cache, as for an installed package."""
    found = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return found | dict(variables)


class EngineProcess:
    """One engine, started and not opened; `variables` are added to its environment."""

    def __init__(self, name: str, variables: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._home = tempfile.TemporaryDirectory(prefix="penstock-bench-")
        home = Path(self._home.name)
        self._errors = (home / "stderr").open("w+b")
        is_java = ENGINES[name].kind == "rocketmq"
        self._process = subprocess.Popen(
            rocketmq.command(home) if is_java else [sys.executable, "-m", "bench.worker", name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, cwd=ROOT,
            env=_environment(variables or {}),
        )  # fmt: skip
        self._is_paused = False

    def send(self, do: str, **facts: Any) -> None:
        """Send a command; `receive` returns its answer."""
        self.resume()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": do, **facts}).encode() + b"\n")
            self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Return the answer to the command that was sent."""
        assert self._process.stdout is not None
        timer = threading.Timer(ANSWER_SECONDS, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise EngineError(f"{self.name} ended:\n{self._error_output()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineError(f"{self.name}: {answer['error']}")
        return answer

    def call(self, do: str, **facts: Any) -> dict[str, Any]:
        """Send a command and return its answer."""
        self.send(do, **facts)
        return self.receive()

    def open(self, root: Path, bodies: Path, number: int = 0, **facts: Any) -> dict[str, Any]:
        """Open the store at `root`."""
        settings = dict(ENGINES[self.name].settings)
        return self.call(
            "open", root=str(root), bodies=str(bodies), number=number, settings=settings, **facts
        )

    def _error_output(self) -> str:
        self._errors.flush()
        self._errors.seek(0)
        return self._errors.read().decode("utf-8", "replace")[-3000:]

    def device_bytes(self) -> int | None:
        """Return the bytes that this process has written to devices; None if the system does not report it."""
        try:
            lines = Path(f"/proc/{self._process.pid}/io").read_text().splitlines()
        except OSError:
            return None
        return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))

    def pause(self) -> None:
        """Stop the process until its next command."""
        if not self._is_paused:
            os.kill(self._process.pid, signal.SIGSTOP)
            self._is_paused = True

    def resume(self) -> None:
        """Continue the process."""
        if self._is_paused:
            os.kill(self._process.pid, signal.SIGCONT)
            self._is_paused = False

    def kill(self) -> None:
        """Kill it, as a crash would."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if ENGINES[self.name].kind == "redis":
            # Its server ends in any case, but nobody would wait for it.
            with suppress(EngineError):
                self.call("close")
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        self._home.cleanup()
