"""A redis server of its own, with a stream and a consumer group, through redis-py (with hiredis) on a Unix socket.

Guarantees: `appendfsync always` is on disk at the answer; `everysec` survives a crash of the server, and a power cut
after about a second. The append-only file is never rewritten during a run, and there are no snapshots, to redis's
advantage.

The server has no TCP port. It ends with the process that started it, also if that is killed.
"""

import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import util
from pathlib import Path
from typing import Any

from bench.engines.contract import MOMENT_S, Engine
from bench.supply import TAG, TOPIC, Row

GROUP, MEMBER = "bench", "member"
_START_S = 10.0
# The file in the engine's folder that has the path of the socket, for other processes.
_PLACE = "socket"


def missing() -> str:
    """Return why it cannot be measured, or an empty string."""
    if shutil.which("redis-server") is None:
        return "needs redis-server: apt-get install redis-server"
    if shutil.which("setpriv") is None:
        return "needs setpriv, of util-linux, so that no server stays behind"
    if util.find_spec("redis") is None:
        return "needs redis-py: pip install 'penstock[bench]'"
    return ""


def version() -> str:
    """Return the server's version; an empty string if there is no server."""
    if missing():
        return ""
    words = subprocess.run(
        ("redis-server", "--version"), check=True, capture_output=True, text=True
    ).stdout.split()
    return next((word[2:] for word in words if word.startswith("v=")), "")


class RedisEngine(Engine):
    """See the module."""

    def open(self, root: Path) -> None:
        """See `Engine`."""
        root.mkdir(parents=True, exist_ok=True)
        # A socket's path has at most 107 bytes.
        self._home = tempfile.TemporaryDirectory(prefix="penstock-redis-")
        socket = Path(self._home.name) / "socket"
        options = {
            "port": "0", "unixsocket": str(socket), "unixsocketperm": "700", "dir": str(root), "daemonize": "no",
            "loglevel": "warning", "save": "", "appendonly": "yes", "appendfsync": self.settings["appendfsync"],
            "auto-aof-rewrite-percentage": "0",
        }  # fmt: skip
        given = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._server = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "redis-server", *given],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            self._connect(socket)
            self.client.xgroup_create(TOPIC, GROUP, mkstream=True)
            (root / _PLACE).write_text(str(socket))
        except BaseException:
            self.close()
            raise

    def _connect(self, socket: Path) -> None:
        import redis  # noqa: PLC0415 - an extra; `missing` is asked without it

        self._numbers = itertools.count()
        self.client: Any = redis.Redis(unix_socket_path=str(socket), protocol=2)
        until = time.monotonic() + _START_S
        while True:
            try:
                self.client.ping()
            except redis.ConnectionError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)
            else:
                return

    def close(self) -> None:
        """See `Engine`."""
        with suppress(AttributeError):
            self.client.close()
        self._server.kill()
        self._server.wait()
        self._home.cleanup()

    def put_all(self, singles: Sequence[Any]) -> None:
        """See `Engine`."""
        for _, key, body in singles:
            self.client.xadd(TOPIC, {"tag": TAG, "key": key, "body": body})

    def put_batch(self, batch: Sequence[Row]) -> None:
        """See `Engine`."""
        pipeline = self.client.pipeline(transaction=False)
        for _, key, body in batch:
            pipeline.xadd(TOPIC, {"tag": TAG, "key": key, "body": body})
        pipeline.execute()

    def consume(self, limit: int, count: int) -> int:
        """See `Engine`; the acknowledgement of a batch and the request for the next one are one pipeline: one sync."""
        entries = self._taken(limit)
        seen = len(entries)
        while entries:
            pipeline = self.client.pipeline(transaction=False)
            pipeline.xack(TOPIC, GROUP, *(number for number, _ in entries))
            pipeline.xreadgroup(GROUP, MEMBER, {TOPIC: ">"}, count=limit)
            acknowledged, answer = pipeline.execute()
            if acknowledged != len(entries):
                raise LookupError(f"{acknowledged} of {len(entries)} were acknowledged")
            entries = _entries(answer)
            seen += len(entries)
        return seen

    def consume_each(self, limit: int, count: int) -> int:
        """See `Engine`."""
        seen, acknowledge = 0, self.client.xack
        while entries := self._taken(limit):
            for number, _ in entries:
                acknowledge(TOPIC, GROUP, number)
            seen += len(entries)
        return seen

    def join(self, root: Path) -> None:
        """See `Engine`."""
        self._connect(Path((root / _PLACE).read_text()))

    def member(self) -> Callable[[int], int]:
        """See `Engine`; each thread is a consumer of the group, and acknowledges a batch with its next request."""
        name = f"{MEMBER}-{os.getpid()}-{next(self._numbers)}"
        handled: list[bytes] = []

        def some(limit: int) -> int:
            nonlocal handled
            pipeline = self.client.pipeline(transaction=False)
            if handled:
                pipeline.xack(TOPIC, GROUP, *handled)
            pipeline.xreadgroup(GROUP, name, {TOPIC: ">"}, count=limit, block=int(1000 * MOMENT_S))
            entries = _entries(pipeline.execute()[-1])
            handled = [number for number, _ in entries]
            return len(entries)

        return some

    def _taken(self, limit: int) -> list[Any]:
        return _entries(self.client.xreadgroup(GROUP, MEMBER, {TOPIC: ">"}, count=limit))

    def arrivals(self) -> Iterator[bytes]:
        """See `Engine`."""
        return self._waited("arrivals")

    def watch(self, root: Path) -> Iterator[bytes]:
        """See `Engine`."""
        self._connect(Path((root / _PLACE).read_text()))
        return self._waited("watch")

    def _waited(self, group: str) -> Iterator[bytes]:
        self.client.xgroup_create(TOPIC, group, id="$")
        return self._bodies(group)

    def _bodies(self, group: str) -> Iterator[bytes]:
        while True:
            answer = self.client.xreadgroup(group, MEMBER, {TOPIC: ">"}, count=100, block=0)
            for number, fields in _entries(answer):
                yield fields[b"body"]
                self.client.xack(TOPIC, group, number)


def _entries(answer: Any) -> list[Any]:
    """Return the entries of the only stream of an answer, as (number, fields), after looking at each body."""
    entries = answer[0][1] if answer else []
    for _, fields in entries:
        len(fields[b"body"])
    return entries
