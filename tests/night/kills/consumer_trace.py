"""What the processes of consumer groups did: each appends its events to a file of its own.

A line is one event, as JSON, written by one call with O_APPEND: a SIGKILL loses no event before it, and what another thread writes
is never mixed into it. Times are those of CLOCK_MONOTONIC, which is one clock for all processes of a machine.
"""

import json
import os
import time
from pathlib import Path

import attrs


@attrs.frozen
class Event:
    """One event.

    Attributes:
        kind: what happened; see `Trace.add` for the fields that each kind has.
        process: the name of the process that did it, or that it was done to.
        at_ns: when.
        group, topic, queue, offset: which message or queue.
        epoch: of the queue's owner.
        number: what the message says of itself: the same in all its copies.
        attempt: how often it was handed out to be processed.
        since_ns: when it was handed out, or earlier.
        note: anything else.
    """

    kind: str
    process: str
    at_ns: int
    group: str = ""
    topic: str = ""
    queue: int = -1
    offset: int = -1
    epoch: int = 0
    number: str = ""
    attempt: int = 0
    since_ns: int = 0
    note: str = ""

    @property
    def place(self) -> tuple[str, str, int]:
        """The group's queue: (group, topic, queue)."""
        return self.group, self.topic, self.queue

    @property
    def message(self) -> tuple[str, str, int, int]:
        """The message as the group reads it: (group, topic, queue, offset)."""
        return self.group, self.topic, self.queue, self.offset


class Trace:
    """The events of one process. Safe from any thread."""

    def __init__(self, folder: Path, process: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(folder / f"{process}.trace", flags, 0o600)
        self._folder = folder
        self.process = process

    def of(self, process: str) -> "Trace":
        """Return the trace of another process, such as a forked child."""
        return Trace(self._folder, process)

    def add(self, kind: str, **fields: str | int) -> None:
        """Append an event that happens now.

        Of processes (written by what starts and kills them): started (note: what it is), killed, stopped, continued, ended
        (note: its status; not for those killed), forked (note: the child).
        Of members: joined, closing; taken and back (a queue, epoch); out, acking, acked, nacking, nacked, releasing, extending,
        lost (a message; the first two words of a call come before it, the last after it returned).
        Of forked children: refused (note: the call), child-out (a message that it got).
        Of the writer: put (number), exists (number: it is in the store), dead (group, number: it is a dead letter).
        """
        text = json.dumps({"kind": kind, "at_ns": time.monotonic_ns(), **fields})
        data = text.encode() + b"\n"
        if os.write(self._descriptor, data) != len(data):
            raise OSError("a line of the trace was cut")


class TraceReader:
    """Reads the traces in a folder while they are written. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def new(self) -> list[Event]:
        """Return the events since the last call, sorted by time; a last line that is not whole is left to the next call."""
        found: list[Event] = []
        for path in sorted(self._folder.glob("*.trace")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                fields = json.loads(line)
                found.append(Event(**{"process": path.stem, **fields}))
        return sorted(found, key=lambda event: event.at_ns)
