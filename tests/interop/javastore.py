"""The real RocketMQ message store in a JVM of its own, driven from Python.

One `JavaStore` is one JVM; it speaks the line protocol of `java/.../Driver.java`. Every answer has a
time-out, and what the JVM said on stderr is in the error.
"""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache" / "interop"
VERSIONS = ("5.3.3", "4.9.8")
ANSWER_SECONDS = 120

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


def build(version: str, pom: str = "pom.xml", driver: str = "Driver") -> str:
    """Return the class path of a driver and what it drives, building it once per version."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        # Several processes that run tests may need it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _build(version, pom, driver)


def _build(version: str, pom: str, driver: str) -> str:
    home = CACHE / version if driver == "Driver" else CACHE / f"{version}-{driver}"
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
    """A JVM that runs one of our drivers: a JSON command a line in, a JSON answer a line out.

    Not thread-safe.
    """

    # The commands after which it has a store or broker open, and none.
    OPENING: ClassVar = "open"
    CLOSING: ClassVar = "close"

    def __init__(
        self, classpath: str, prefix: Iterable[str] = (), driver: str = "Driver", *flags: str
    ) -> None:
        self._has_failed = self._is_open = False
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
        try:
            answer = self._ask(do, facts)
        except BaseException:
            self._has_failed = True
            raise
        self._is_open = do == self.OPENING or (self._is_open and do != self.CLOSING)
        return answer

    def rest(self) -> bool:
        """Close what is open; returns whether it is as new then: it runs, and no command has failed."""
        if self._has_failed or self._process.poll() is not None:
            return False
        if self._is_open:
            with suppress(JavaStoreError, RuntimeError):
                self.call(self.CLOSING)
        return not self._has_failed

    def _ask(self, do: str, facts: Mapping[str, object]) -> dict[str, Any]:
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

    def open(self, root: Path, settings: Mapping[str, object] | None = None) -> bool:
        """Load and start a store; says whether it loaded. Raises where another process holds the lock."""
        # It listens for replicas at whatever port is free.
        config = {**SMALL, "haListenPort": 0, **(settings or {})}
        return bool(self.call("open", root=str(root), config=config)["loaded"])

    def put(self, *messages: Mapping[str, object]) -> list[dict[str, Any]]:
        """Put messages one by one."""
        found: list[dict[str, Any]] = self.call("put", messages=[*messages])["results"]
        return found

    def batch(self, *messages: Mapping[str, object]) -> dict[str, Any]:
        """Put messages as one client batch."""
        found: dict[str, Any] = self.call("batch", messages=[*messages])["result"]
        return found

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

    def offset_by_time(
        self, topic: str, queue: int, time_ms: int, boundary: str | None = None
    ) -> int:
        """Return what getOffsetInQueueByTime answers; a boundary is known to 5.x only."""
        return int(
            self.call("time", topic=topic, queue=queue, time_ms=time_ms, boundary=boundary)[
                "offset"
            ]
        )

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


OneJvm = TypeVar("OneJvm", bound=Jvm)


class JvmPool(Generic[OneJvm]):
    """JVMs for several tests: one that a test gives back as new is the next one's, which saves seconds of a processor.

    One that was killed, or that refused anything, is ended. Not thread-safe.
    """

    def __init__(self, make: Callable[[str], OneJvm]) -> None:
        """Make the JVM of a version with `make`."""
        self._make = make
        self._idle: dict[str, list[OneJvm]] = {}

    @contextmanager
    def take(self, version: str) -> Iterator[OneJvm]:
        """Give a JVM that has nothing open, and is nobody else's meanwhile."""
        idle = self._idle.setdefault(version, [])
        jvm = idle.pop() if idle else self._make(version)
        with ExitStack() as ending:
            ending.push(jvm)
            yield jvm
            if jvm.rest():
                ending.pop_all()
                idle.append(jvm)

    def end(self) -> None:
        """End all JVMs that were given back."""
        for jvm in chain.from_iterable(self._idle.values()):
            jvm.__exit__(None, None, None)
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
