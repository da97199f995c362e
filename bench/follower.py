"""A follower in a process of its own, for `bench.replication`: one JSON command a line in, one answer a line out.

Run as `python -m bench.follower FOLDER HOST:PORT [apart]`. What it imports is imported before its first answer.
"""

import json
import os
import resource
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from bench.process import PausableProcess, environment

_LOOK_S = 0.002


class FollowerProcess(PausableProcess):
    """Follows a master; a context manager.

    Args:
        root: the follower's folder.
        master: where the master listens.
        apart: on Linux it uses only the last processor, so that the master has the others.
    """

    def __init__(self, root: Path, master: str, *, apart: bool = False) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.follower", str(root), master, *["apart"] * apart],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment({}),
        )  # fmt: skip
        super().__init__(self._process)
        self.receive()

    def reach(self, log_offset: int) -> dict[str, float]:
        """Follow, from the first call on, until the log is on disk up to an offset; return the seconds that it took."""
        self.resume()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"log_offset": log_offset}) + "\n")
        self._process.stdin.flush()
        return self.receive()

    def receive(self) -> dict[str, Any]:
        """Return the next answer."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the follower has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.resume()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        self._process.wait()


def _use_last_processor() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def main() -> None:
    """Answer commands until there are no more."""
    # Heavy imports, which are not a part of what is measured.
    import penstock.store.following  # noqa: PLC0415, F401
    from penstock_replicate.following.follow import follow  # noqa: PLC0415

    root, master, *apart = sys.argv[1:]
    if apart:
        _use_last_processor()
    print("{}", flush=True)
    follower = None
    for line in sys.stdin:
        end_offset = json.loads(line)["log_offset"]
        began = time.perf_counter()
        follower = follower or follow(root, master)
        follower.wait_caught_up(log_offset=end_offset)
        received_s = time.perf_counter() - began
        while follower.status().flushed_offset < end_offset:
            time.sleep(_LOOK_S)
        flushed_s = time.perf_counter() - began
        used = resource.getrusage(resource.RUSAGE_SELF)
        answer = {
            "received_s": received_s,
            "flushed_s": flushed_s,
            "cpu_s": used.ru_utime + used.ru_stime,
        }
        print(json.dumps(answer), flush=True)
    if follower is not None:
        follower.close()


if __name__ == "__main__":
    main()
