"""Random histories of a store that a broker and Penstock use by turns, against a model of its queues."""

import json
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.lanes import examples

import penstock
from penstock import Store
from penstock.testing import ManualClock

SIZES = {
    "geometry.segment_bytes": 8192,
    "geometry.queue_entries": 4,
    "geometry.index_slots": 8,
    "geometry.index_entries": 64,
    # As brokers write it.
    "log.checksum": "crc32",
    "retention.use": [],
    "index.use": ["consume-queue"],
}
TOPICS, QUEUES = ("a", "b", "c"), 2

Steps = list[tuple[str, str, int, int]]


def steps() -> st.SearchStrategy[Steps]:
    """What is done, to which topic, to which queue, how often."""
    kinds = st.sampled_from(["put", "put", "put", "delete", "remake", "restart", "lose", "kill"])
    step = st.tuples(kinds, st.sampled_from(TOPICS), st.integers(0, QUEUES - 1), st.integers(1, 9))
    return st.lists(step, min_size=1, max_size=8)


class World:
    """The directory, and what its queues should hold."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.listed: set[str] = set()
        self.queues: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.used: dict[str, set[int]] = defaultdict(set)
        self.count = 0

    def open(self, *, read_only: bool = False) -> Store:
        sizes: dict[str, Any] = {} if read_only else SIZES
        return penstock.open(
            self.root, environ={}, clock=ManualClock(), read_only=read_only, **sizes
        )

    def list_topics(self) -> None:
        path = self.root / "config" / "topics.json"
        path.parent.mkdir(exist_ok=True, parents=True)
        table: dict[str, dict[str, int]] = {topic: {} for topic in sorted(self.listed)}
        path.write_text(json.dumps({"topicConfigTable": table}))

    def put(self, topic: str, queue: int, times: int) -> None:
        """Put as a broker does, which lists the topic.

        A topic that is made again gets its first message in a queue that it had before: in another one, nothing
        tells an earlier generation from a queue whose files are lost, and lost queues come back.
        """
        self.listed.add(topic)
        if self.used[topic] and not any(self.queues[topic, each] for each in range(QUEUES)):
            queue = min(self.used[topic])
        self.used[topic].add(queue)
        with self.open() as store:
            for _ in range(times):
                body = b"%d" % self.count
                self.count += 1
                got = store.put(topic, body, queue=queue).queue_offset
                assert got == len(self.queues[topic, queue])
                self.queues[topic, queue].append(body)

    def delete(self, topic: str, _queue: int, _times: int) -> None:
        """Delete a topic."""
        self.listed.discard(topic)
        shutil.rmtree(self.root / "consumequeue" / topic, ignore_errors=True)
        for queue in range(QUEUES):
            self.queues.pop((topic, queue), None)

    def remake(self, topic: str, queue: int, times: int) -> None:
        """Delete a topic and make it again, with a message in one queue."""
        self.delete(topic, queue, times)
        self.list_topics()
        self.restart()
        self.put(topic, queue, times)

    def restart(self, *_: object) -> None:
        """Let all of it be a broker's."""
        shutil.rmtree(self.root / "penstock", ignore_errors=True)

    def kill(self, *_: object) -> None:
        """Let the broker end without closing."""
        self.restart()
        self.root.mkdir(exist_ok=True)
        (self.root / "abort").write_text("1")

    def lose(self, topic: str, queue: int, _times: int) -> None:
        """Lose the files of a queue whose topic is listed; of what is lost the last generation comes back."""
        if self.queues.get((topic, queue)):
            for path in sorted((self.root / "consumequeue" / topic / str(queue)).iterdir())[1:]:
                path.unlink()

    def check(self) -> None:
        expected = {place: bodies for place, bodies in self.queues.items() if bodies}
        with self.open() as store:
            found = {
                (topic, queue): [m.body for m in store.scan(topic, queue=queue)]
                for topic, queues in store.topics(system=True).items()
                for queue in queues
            }
            assert found == expected
            for (topic, queue), bodies in expected.items():
                assert store.min_offset(topic, queue) == 0
                assert store.max_offset(topic, queue) == len(bodies)
        with self.open(read_only=True) as store:
            assert [found.text for found in store.verify() if not found.is_note] == []


@pytest.mark.slow
@given(steps())
@settings(
    max_examples=examples(20), deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
def test_queues_hold_their_last_generation_whatever_happened(
    tmp_path_factory: Any, history: Steps
) -> None:
    """Deleted topics stay deleted, those made again have their new messages, lost files come back."""
    world = World(tmp_path_factory.mktemp("world") / "store")
    world.put("a", 0, 1)
    for kind, topic, queue, times in history:
        act: Callable[[str, int, int], None] = getattr(world, kind)
        world.list_topics()
        act(topic, queue, times)
        world.list_topics()
        if kind == "delete":
            # A deletion is a broker's, which has written all there is.
            world.restart()
    world.check()
