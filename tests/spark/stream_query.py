"""A query as Spark runs it, without Spark: stores to read, and a checkpoint that outlives its reader."""

import json
import pickle
from pathlib import Path
from typing import Any

import penstock
from penstock import Message
from penstock_spark.source.options import parse_options
from penstock_spark.source.stream_state import Follower
from penstock_spark.source.tasks import read_spans

SMALL: dict[str, Any] = {"geometry.segment_bytes": 16384, "flush": "sync"}
NAMES = ("topic", "partition", "offset", "value", "store")


def put(root: Path, count: int, topic: str = "t", queues: int = 2, size: int = 20) -> None:
    with penstock.open(root, environ={}, **SMALL) as store:
        config = store.topic_configs().get(topic)
        if config is None:
            store.create_topic(topic, queues=queues)
        elif config.queues < queues:
            store.alter_topic(topic, queues=queues)
        store.put_many([Message(topic, b"x" * size, queue=n % queues) for n in range(count)])


def follower(path: object, **more: str) -> Follower:
    return Follower(parse_options({"path": str(path), **more}, streaming=True))


class Query:
    """A query as Spark runs it: a checkpoint of planned and of committed batches, and a reader that may die."""

    def __init__(self, path: object, **more: str) -> None:
        self.path, self.more = path, more
        self.planned: list[str] = []
        self.starts: list[str] = []
        self.committed = 0
        self.rows: list[tuple[Any, ...]] = []
        self.restart()

    def restart(self) -> None:
        """Forget everything but the checkpoint, as a new process does; replay what was not committed."""
        self.reader = follower(self.path, **self.more)

    def start(self) -> dict[str, Any]:
        if self.committed == 0:
            start: dict[str, Any] = json.loads(json.dumps(self.reader.start()))
        else:
            start = json.loads(self.planned[self.committed - 1])
        return start

    def batch(self, *, crash: str = "", rows: int = 0, size: int = 0) -> bool:
        """Run one batch; says whether there was one. `crash` is where it dies: plan, tasks or commit."""
        start = self.start()
        if len(self.planned) == self.committed:
            end = json.dumps(self.reader.latest(start, rows=rows, size=size))
            if end == json.dumps(start):
                return False
            if crash == "plan":
                self.restart()
                return True
            self.planned.append(end)
        end = json.loads(self.planned[self.committed])
        tasks = self.reader.tasks(start, end)
        if crash == "tasks":
            self.restart()
            return True
        found = [
            tuple(row[name] for name in NAMES)
            for task in pickle.loads(pickle.dumps(tasks))
            for batch in read_spans(self.reader.options, NAMES, task)
            for row in batch.to_pylist()
        ]
        if crash == "commit":
            self.restart()
            return True
        self.rows += found
        self.committed += 1
        return True

    def places(self) -> list[tuple[Any, ...]]:
        return [(row[4], row[0], row[1], row[2]) for row in self.rows]


def everything(*roots: Path) -> list[tuple[Any, ...]]:
    found = []
    for root in roots:
        with penstock.open(root, read_only=True, environ={}) as store:
            for b in store.lowlevel.bounds():
                found += [(str(root), b.topic, b.queue, n) for n in range(b.max_offset)]
    return sorted(found)


def lose(root: Path, segments: int) -> None:
    with penstock.open(root, environ={}, **SMALL) as store:
        assert store.discard_before(log_offset=segments * 16384) > 0


def retain_unread(query: Query, roots: list[Path]) -> None:
    """Retention takes segments that the query has read wholly."""
    done = json.loads(query.planned[-1])
    for root in roots:
        topics = done if len(roots) == 1 else done.get(str(root), {})
        with penstock.open(root, environ={}, **SMALL) as store:
            first = [
                store.lowlevel.queue_entries(b.topic, b.queue, at, at + 1).log_offsets.tolist()
                for b in store.lowlevel.bounds()
                if (at := topics.get(b.topic, {}).get(str(b.queue), b.min_offset)) < b.max_offset
            ]
            limit = min((offsets[0] for offsets in first if offsets), default=1 << 60)
            store.discard_before(log_offset=limit)
