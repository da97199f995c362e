"""Small stores for the tests of jobs, and what stands for the sink in them."""

from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock
from penstock import Message

SIZES: dict[str, Any] = {
    "geometry.segment_bytes": 64 * 1024, "geometry.index_slots": 50, "geometry.index_entries": 500,
}  # fmt: skip
COUNT = 1200


def messages(count: int = COUNT, first: int = 0) -> list[Message]:
    return [
        Message(
            f"topic{n % 2}", b"body %d" % n * (n % 9), queue=n % 3, tag=f"tag{n % 4}" if n % 5 else "",
            keys=[f"k{n % 40}"] if n % 6 else [], properties={"p": f"v{n}"},
        )
        for n in range(first, first + count)
    ]  # fmt: skip


def make_store(root: Path, count: int = COUNT, first: int = 0) -> Path:
    with penstock.open(root, environ={}, **SIZES) as store:
        store.put_many(messages(count, first))
    return root


def everything(root: Path) -> list[Any]:
    """Return all messages of a store, in the order they were stored."""
    with penstock.open(root, read_only=True, environ={}) as store:
        found = [m for topic in store.topics(system=True) for m in store.scan(topic)]
    return sorted(found, key=lambda m: m.log_offset)


def spoil(path: Path, position: int, data: bytes = b"\xa5\x5a") -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


class Sink:
    """Stands for the sink: appends a batch once, by application and version."""

    def __init__(self) -> None:
        self.done: set[tuple[str, int]] = set()
        self.calls: list[tuple[str, int]] = []
        self.dies_at: int | None = None

    def write(self, frame: Any, target: Path, app: str, version: int, _options: Any) -> None:
        self.calls.append((app, version))
        if (app, version) in self.done:
            return
        rows = frame.toArrow()
        names = {
            "value": "body",
            "topic": "topic",
            "partition": "queue",
            "tags": "tag",
            "key": "keys",
        }
        table = pa.table({names[n]: rows.column(n) for n in names if n in rows.schema.names})
        with penstock.open(target, environ={}, **SIZES) as store:
            for topic in {*table["topic"].to_pylist()} - store.topic_configs().keys():
                store.create_topic(topic, queues=16)
            store.put_arrow(table)
        self.done.add((app, version))
        if self.dies_at == version:
            self.dies_at = None
            raise KeyboardInterrupt
