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
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HERE = Path(__file__).parent
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
    "deleteWhen": "25",
}
# The same sizes for Penstock.
SMALL_GEOMETRY = {
    "geometry.segment_bytes": 64 * 1024,
    "geometry.queue_entries": 200,
    "geometry.index_slots": 100,
    "geometry.index_entries": 400,
}


def build(version: str, cache: Path) -> str:
    """Return the class path of driver and store, building it once per version."""
    home = cache / version
    listed = home / "classpath.txt"
    if not listed.exists():
        home.mkdir(parents=True, exist_ok=True)
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"
        _run("mvn", "-q", "-B", "-f", str(HERE / "java" / "pom.xml"), f"-Drocketmq.version={version}",
             goal, f"-Dmdep.outputFile={listed}")  # fmt: skip
    path = listed.read_text().strip()
    source = HERE / "java" / "src" / "main" / "java" / "penstock" / "Driver.java"
    classes = home / "classes"
    built = classes / "penstock" / "Driver.class"
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


class JavaStore:
    """A JVM with one RocketMQ store in it."""

    def __init__(self, classpath: str, prefix: Iterable[str] = ()) -> None:
        self._home = tempfile.TemporaryDirectory()
        logback = Path(self._home.name) / "logback.xml"
        logback.write_text(LOGBACK)
        self._errors = (Path(self._home.name) / "stderr").open("w+b")
        self._process = subprocess.Popen(
            [*prefix, "java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m",
             f"-Duser.home={self._home.name}", f"-Drmq.logback.configurationFile={logback}",
             "--add-opens=java.base/java.nio=ALL-UNNAMED",
             "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
             "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
             "-cp", classpath, "penstock.Driver"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip

    def call(self, do: str, **facts: object) -> dict[str, Any]:
        """Send one command and return its answer; an error of the store raises."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **facts}).encode() + b"\n")
        self._process.stdin.flush()
        timer = threading.Timer(ANSWER_SECONDS, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise RuntimeError(f"the JVM ended during {do}:\n{self.errors()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise JavaStoreError(answer["error"])
        return answer

    def errors(self) -> str:
        """Return the end of what the JVM wrote to stderr."""
        self._errors.flush()
        self._errors.seek(0)
        return self._errors.read().decode("utf-8", "replace")[-4000:]

    def open(self, root: Path, settings: Mapping[str, object] | None = None) -> bool:
        """Load and start a store; says whether it loaded."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        config = {**SMALL, "haListenPort": port, **(settings or {})}
        return bool(self.call("open", root=str(root), config=config)["loaded"])

    def put(self, *messages: Mapping[str, object]) -> list[dict[str, Any]]:
        """Put messages one by one."""
        found: list[dict[str, Any]] = self.call("put", messages=[*messages])["results"]
        return found

    def batch(self, *messages: Mapping[str, object]) -> dict[str, Any]:
        """Put messages as one client batch."""
        found: dict[str, Any] = self.call("batch", messages=[*messages])["result"]
        return found

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
        self._process.stdin.close()
        self._process.stdout.close()
        self._errors.close()
        self._home.cleanup()


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
