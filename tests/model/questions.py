"""Questions to a store, and a process that answers them: it opens folders read-only, as it is told.

A question is a name and arguments that JSON knows; so is the answer. Lines of the protocol: `["open", FOLDER]` and
`["ask", [QUESTION, ...]]`; each is answered by one line, `{"is": ...}` or `{"error": ...}`.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.model.model import Question, brief

import penstock
from penstock import ArgumentError, OffsetError, ReadStatus, Store, StoredMessage, UnknownTopicError

ROOT = Path(__file__).parents[2]


def shown(message: StoredMessage) -> list[Any]:
    """Return what a reader sees of a message."""
    return [
        message.topic, message.queue, message.queue_offset, message.log_offset, message.store_time_ms,
        message.message_id, message.tag, list(message.keys), brief(message.body),
    ]  # fmt: skip


def ask(store: Store, question: Question) -> Any:
    """Return what a store answers."""
    name, *given = question
    return ANSWERS[name](store, *given)


def _read(store: Store, *given: Any) -> list[Any]:
    try:
        found = store.read(*given)
    except (UnknownTopicError, ArgumentError):
        assert given[1] not in store.topics().get(given[0], [])
        return [ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, []]
    messages = [shown(message) for message in found.messages]
    return [found.status, found.next_offset, found.min_offset, found.max_offset, messages]


def _scan(store: Store, topic: str, queue: int | None, start: int | None) -> list[Any]:
    there = [each for each in store.topics().get(topic, []) if queue in (None, each)]
    starts = None if start is None else {(topic, each): start for each in there}
    return [shown(m) for m in store.scan(topic, queue=queue, start=starts)] if there else []


def _find(
    store: Store, topic: str, key: str, limit: int, begin: int | None, end: int | None
) -> list[Any]:
    if topic not in store.topics():
        return []
    since, until = (None if ms is None else ms / 1000 for ms in (begin, end))
    return [shown(m) for m in store.find(key, topic, limit=limit, since=since, until=until)]


def _get(store: Store, message_id: str) -> list[Any] | None:
    try:
        return shown(store.get(message_id))
    except OffsetError:
        return None


def _offset_at(store: Store, topic: str, queue: int, time_ms: int, boundary: str) -> int:
    if queue not in store.topics().get(topic, []):
        return 0
    return store.offset_at(topic, queue, time_ms / 1000, boundary=boundary)


def _bounds(store: Store, topic: str, queue: int) -> list[int]:
    return [store.min_offset(topic, queue), store.max_offset(topic, queue)]


def _queues(store: Store) -> list[list[Any]]:
    """Return the queues that have messages."""
    bounds = {
        (t, q): _bounds(store, t, q) for t, numbers in store.topics().items() for q in numbers
    }
    return sorted(list(place) for place, (low, high) in bounds.items() if low < high)


ANSWERS: dict[str, Callable[..., Any]] = {
    "read": _read,
    "scan": _scan,
    "find": _find,
    "get": _get,
    "offset_at": _offset_at,
    "bounds": _bounds,
    "queues": _queues,
    "committed": Store.committed_offset,
}  # fmt: skip


class SecondProcess:
    """A process that reads. It is started once, and again only if it has died."""

    def __init__(self) -> None:
        self._child = self._started()

    def _started(self) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "tests.model.questions"]
        return subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def open(self, folder: Path) -> None:
        """Open another store."""
        self._tell("open", str(folder))

    def ask(self, questions: Sequence[Question]) -> list[Any]:
        """Return what it answers."""
        answers: list[Any] = self._tell("ask", questions)
        return answers

    def end(self) -> None:
        """End the process."""
        self._child.communicate()

    def _tell(self, *line: Any) -> Any:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps(line) + "\n")
        self._child.stdin.flush()
        said = self._child.stdout.readline()
        if not said:
            self.end()
            code, self._child = self._child.returncode, self._started()
            raise AssertionError(f"the second process has died: {code}")
        answers = json.loads(said)
        assert "error" not in answers, answers["error"]
        return answers["is"]


def main() -> None:
    """Answer line by line."""
    logging.disable()
    store: Store | None = None
    for line in sys.stdin:
        name, given = json.loads(line)
        said: dict[str, Any] = {"is": None}
        try:
            if name == "ask":
                assert store is not None
                said = {"is": [ask(store, question) for question in given]}
            else:
                if store is not None:
                    store.close()
                store = penstock.open(given, read_only=True, environ={})
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
