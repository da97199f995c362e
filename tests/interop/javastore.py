"""The real RocketMQ message store in a JVM of its own, driven from Python.

One `JavaStore` is one JVM; it speaks the line protocol of `java/.../Driver.java`. Every answer has a
time-out, and what the JVM said on stderr is in the error.
"""

import base64
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HERE = Path(__file__).parent
VERSIONS = ("5.3.3", "4.9.8")
ANSWER_SECONDS = 120
# The commands after which a JVM has something open, until it has closed it.
OPENING = ("open", "load", "start")

LOGBACK = '<configuration><root level="OFF"/></configuration>'

# Small files, so that logs, queues and index roll; nothing is deleted because a disk is full.
SMALL = {
    "mappedFileSizeCommitLog": 64 * 1024,
    "mappedFileSizeConsumeQueue": 200 * 20,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "diskMaxUsedSpaceRatio": 99,
    "cleanFileForciblyEnable": False,
    "fileReservedTime": 87600,
    "deleteWhen": "25",
}
# The same sizes for Penstock.
SMALL_GEOMETRY = {
    "geometry.segment_bytes": 64 * 1024,
    "geometry.queue_entries": 200,
    "geometry.index_slots": 100,
    "geometry.index_entries": 400,
}


def build(version: str, cache: Path, pom: str = "pom.xml", driver: str = "Driver") -> str:
    """Return the class path of a driver and what it drives, building it once per version."""
    home = cache / version if driver == "Driver" else cache / f"{version}-{driver}"
    listed = home / "classpath.txt"
    # A list whose jars are gone is of no use: the local repository may have been emptied since.
    if not listed.exists() or not all(
        map(os.path.exists, listed.read_text().strip().split(os.pathsep))
    ):
        home.mkdir(parents=True, exist_ok=True)
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"
        _run("mvn", "-q", "-B", "-f", str(HERE / "java" / pom), f"-Drocketmq.version={version}",
             goal, f"-Dmdep.outputFile={listed}")  # fmt: skip
    path = listed.read_text().strip()
    source = HERE / "java" / "src" / "main" / "java" / "penstock" / f"{driver}.java"
    classes = home / "classes"
    built = classes / "penstock" / f"{driver}.class"
    if not built.exists() or built.stat().st_mtime < source.stat().st_mtime:
        _run("javac", "-nowarn", "-cp", path, "-d", str(classes), str(source))
    return f"{classes}{os.pathsep}{path}"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")


def missing_tools() -> list[str]:
    """Return which of the programs that the interop tests need are not there."""
    return [name for name in ("mvn", "javac", "java") if shutil.which(name) is None]


class Jvm:
    """A JVM that runs one of our drivers: a JSON command a line in, a JSON answer a line out."""

    def __init__(
        self, classpath: str, prefix: Iterable[str] = (), driver: str = "Driver", *flags: str
    ) -> None:
        self._home = tempfile.TemporaryDirectory()
        logback = Path(self._home.name) / "logback.xml"
        logback.write_text(LOGBACK)
        self._errors = (Path(self._home.name) / "stderr").open("w+b")
        self._process = subprocess.Popen(
            [*prefix, "java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m",
             f"-Duser.home={self._home.name}", f"-Drmq.logback.configurationFile={logback}",
             f"-Dlogback.configurationFile={logback}", f"-Drocketmq.home.dir={self._home.name}",
             "--add-opens=java.base/java.nio=ALL-UNNAMED",
             "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
             "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
             *flags, "-cp", classpath, f"penstock.{driver}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip

    def call(self, do: str, **facts: object) -> dict[str, Any]:
        """Send one command and return its answer; an error of the store raises."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(ANSWER_SECONDS, give_up)
        timer.start()
        line = b""
        try:
            with suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps({"do": do, **facts}).encode() + b"\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            why = f"gave no answer within {ANSWER_SECONDS} s" if late.is_set() else "ended"
            raise RuntimeError(f"the JVM {why} during {do}:\n{self.errors()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise JavaStoreError(answer["error"])
        return answer

    @property
    def pid(self) -> int:
        """The process of the JVM, or of what it was started under."""
        return self._process.pid

    def errors(self) -> str:
        """Return the end of what the JVM wrote to stderr."""
        self._errors.flush()
        self._errors.seek(0)
        return self._errors.read().decode("utf-8", "replace")[-4000:]

    def kill(self) -> None:
        """Kill the JVM, as a crash would."""
        self._process.kill()
        self._process.wait()

    def halt(self) -> int:
        """Let the JVM halt itself at once, without any clean-up; returns its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.write(b'{"do":"kill"}\n')
        self._process.stdin.flush()
        return self._process.wait(ANSWER_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # of a command that never reached the JVM
            self._process.stdin.close()
        self._process.stdout.close()
        self._errors.close()
        self._home.cleanup()


class JavaStore(Jvm):
    """A JVM with one RocketMQ store in it; when that is closed, it may open another."""

    _has_failed = False
    _has_store = False

    @property
    def is_as_new(self) -> bool:
        """Whether it runs, has closed every store that it opened, and all commands succeeded."""
        return not self._has_failed and not self._has_store and self._process.poll() is None

    def call(self, do: str, **facts: object) -> dict[str, Any]:
        """See `Jvm`."""
        try:
            answer = super().call(do, **facts)
        except BaseException:
            self._has_failed = True
            raise
        self._has_store = do in OPENING or (self._has_store and do != "close")
        return answer

    def open(self, root: Path, settings: Mapping[str, object] | None = None) -> bool:
        """Load and start a store; says whether it loaded."""
        return self._load("open", root, settings)

    def load(self, root: Path, settings: Mapping[str, object] | None = None) -> bool:
        """Load a store, with its recovery, and take no lock yet; says whether it loaded."""
        return self._load("load", root, settings)

    def start(self) -> None:
        """Start what was loaded; raises where another process holds the lock."""
        self.call("start")

    def _load(self, do: str, root: Path, settings: Mapping[str, object] | None) -> bool:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        config = {**SMALL, "haListenPort": port, **(settings or {})}
        return bool(self.call(do, root=str(root), config=config)["loaded"])

    def put(self, *messages: Mapping[str, object]) -> list[dict[str, Any]]:
        """Put messages one by one."""
        found: list[dict[str, Any]] = self.call("put", messages=[*messages])["results"]
        return found

    def batch(self, *messages: Mapping[str, object]) -> dict[str, Any]:
        """Put messages as one client batch."""
        found: dict[str, Any] = self.call("batch", messages=[*messages])["result"]
        return found

    def fill(
        self, topic: str, count: int, *, queues: int = 4, seed: int = 0, body_bytes_max: int = 200
    ) -> dict[str, Any]:
        """Put many seeded messages; returns the count of each status and the log's end."""
        return self.call(
            "fill",
            topic=topic,
            count=count,
            queues=queues,
            seed=seed,
            body_bytes_max=body_bytes_max,
        )

    def topics(self) -> dict[str, list[int]]:
        """Return the queues of each topic that the store knows."""
        found: dict[str, list[int]] = self.call("topics")["topics"]
        return found

    def read(self, topic: str, queue: int, offset: int, limit: int = 32) -> dict[str, Any]:
        """Return what getMessage answers."""
        return self.call("read", topic=topic, queue=queue, offset=offset, limit=limit)

    def filtered(self, topic: str, queue: int, tag: str) -> list[dict[str, Any]]:
        """Return the messages of a queue that Java gives a consumer of one tag, by the tag code alone."""
        found: list[dict[str, Any]] = self.call("filter", topic=topic, queue=queue, tag=tag)[
            "messages"
        ]
        return found

    def units(self, topic: str, queue: int) -> list[tuple[int | None, int | None]]:
        """Return tag code and store time of each entry's unit in the extension; None where Java finds none."""
        found = self.call("units", topic=topic, queue=queue)
        return list(zip(found["codes"], found["times"], strict=True))

    def records(self) -> list[dict[str, Any]]:
        """Return every record of the log in order, with blank ones and those that are in no queue."""
        found: list[dict[str, Any]] = self.call("records")["records"]
        return found

    def look(self, *log_offsets: int) -> list[dict[str, Any] | None]:
        """Return the messages at these places in the log."""
        found: list[dict[str, Any] | None] = self.call("look", offsets=log_offsets)["messages"]
        return found

    def offset_by_time(
        self, topic: str, queue: int, time_ms: int, boundary: str | None = None
    ) -> int:
        """Return what getOffsetInQueueByTime answers; a boundary is known to 5.x only."""
        return int(
            self.call("time", topic=topic, queue=queue, time_ms=time_ms, boundary=boundary)[
                "offset"
            ]
        )

    def state(self) -> dict[str, int]:
        """Return the log's bounds, the lag of dispatch, the checkpoint and flushedWhere."""
        return self.call("state")

    def hashes(self, *texts: str) -> list[int]:
        """Return String.hashCode of each."""
        found: list[int] = self.call("hash", texts=texts)["hashes"]
        return found

    def decode(self, *records: bytes) -> list[dict[str, Any]]:
        """Return what MessageDecoder makes of raw records."""
        raw = [base64.b64encode(record).decode() for record in records]
        found: list[dict[str, Any]] = self.call("decode", records=raw)["messages"]
        return found

    def encode_batch(self, *messages: Mapping[str, object]) -> bytes:
        """Return the client's form of a batch."""
        return base64.b64decode(self.call("encode_batch", messages=[*messages])["body"])

    def dump(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Return every queue with its bounds and all its messages."""
        return {(q["topic"], q["queue"]): q for q in self.call("dump")["queues"]}

    def query(self, topic: str, key: str, begin_ms: int, end_ms: int, limit: int = 64) -> list[Any]:
        """Return what queryMessage answers."""
        found: list[Any] = self.call(
            "query", topic=topic, key=key, begin_ms=begin_ms, end_ms=end_ms, limit=limit
        )["messages"]
        return found

    def close(self) -> None:
        """Shut the store down cleanly."""
        self.call("close")


class JavaStores:
    """JVMs for several tests: one that a test gives back as new is the next one's, which saves a second of a processor.

    One that was killed, that still has a store open, or that refused anything, is ended.
    """

    def __init__(self, classpaths: Mapping[str, str]) -> None:
        self._classpaths = classpaths
        self._idle: dict[str, list[JavaStore]] = {}

    @contextmanager
    def take(self, version: str) -> Iterator[JavaStore]:
        """Give a JVM that has no store open, and is nobody else's meanwhile."""
        idle = self._idle.setdefault(version, [])
        java = idle.pop() if idle else JavaStore(self._classpaths[version])
        try:
            yield java
        except BaseException:
            java.__exit__(None, None, None)
            raise
        if java.is_as_new:
            idle.append(java)
        else:
            java.__exit__(None, None, None)

    def end(self) -> None:
        """End all JVMs that were given back."""
        for java in chain.from_iterable(self._idle.values()):
            java.__exit__(None, None, None)
        self._idle.clear()


class JavaStoreError(Exception):
    """What the Java store threw."""


def message(topic: str, body: bytes, **more: object) -> dict[str, object]:
    """Return a message as the driver takes it."""
    return {
        "topic": topic,
        "body": base64.b64encode(body).decode(),
        "born_time_ms": 1_700_000_000_000,
        **more,
    }
