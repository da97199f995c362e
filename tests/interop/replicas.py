"""Masters and slaves of both kinds for the replication tests, and what is compared between them."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.interop.brokers import Broker
from tests.interop.javastore import SMALL_GEOMETRY

from penstock import Store
from penstock.format.rocketmq_json import parse_rocketmq_json
from penstock.runtime.clock import Clock
from penstock.testing import open_store
from penstock_replicate.master.ha import HaReplicator

SEGMENT_BYTES = 64 * 1024
# A slave looks and reconnects at these intervals, of 5 s each by default.
QUICK_SLAVE = {"brokerId": 1, "brokerRole": "SLAVE", "haSendHeartbeatInterval": 200}
SETTINGS: dict[str, Any] = {**SMALL_GEOMETRY, "retention.use": []}


def until(what: str, is_so: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Wait until something is so; fails with what it was if that takes too long."""
    end = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def log_bytes(root: Path, start: int, stop: int) -> bytes:
    """Return the bytes of a store's log."""
    parts = []
    while start < stop:
        base = start - start % SEGMENT_BYTES
        size = min(base + SEGMENT_BYTES, stop) - start
        with (root / "commitlog" / f"{base:020d}").open("rb") as file:
            file.seek(start - base)
            part = file.read(size)
        assert len(part) == size, (root, start)
        parts.append(part)
        start += size
    return b"".join(parts)


def same_logs(one: Path, other: Path, start: int, stop: int) -> None:
    """Assert that two logs are equal, and say where they are not."""
    ours, theirs = log_bytes(one, start, stop), log_bytes(other, start, stop)
    if ours != theirs:
        at = next(n for n, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
        raise AssertionError(f"{one} and {other} differ at log offset {start + at} of {stop}")


def read_copy(root: Path, target: Path) -> Store:
    """Open a copy of a store that a broker has, for reading."""
    shutil.copytree(root, target, dirs_exist_ok=True)
    return open_store(target, read_only=True)


def same_answers(one: Store, other: Store, keys: list[str] | None = None) -> int:
    """Assert that queues and `find` of two stores answer the same; returns the number of messages."""
    count = 0
    topics = {topic: sorted(queues) for topic, queues in one.topics().items()}
    assert topics == {topic: sorted(queues) for topic, queues in other.topics().items()}
    for topic, queues in topics.items():
        for queue in queues:
            assert one.max_offset(topic, queue) == other.max_offset(topic, queue), (topic, queue)
            ours = [(m.queue_offset, m.log_offset, m.record) for m in one.scan(topic, queue)]
            theirs = [(m.queue_offset, m.log_offset, m.record) for m in other.scan(topic, queue)]
            assert ours == theirs, (topic, queue)
            count += len(ours)
        for key in keys or []:
            found = [m.log_offset for m in one.find(topic, key)]
            assert found == [m.log_offset for m in other.find(topic, key)], (topic, key)
    return count


def table(root: Path, name: str, table_name: str) -> dict[str, Any]:
    """Return a table of a broker's configuration file; empty if there is no file yet."""
    path = root / "config" / name
    if not path.exists() or not path.stat().st_size:
        return {}
    found = parse_rocketmq_json(path.read_text())[table_name]
    assert isinstance(found, dict)
    return found


def start_slave(broker: Broker, root: Path, names: str, **more: object) -> None:
    """Start a Java slave; it learns from the name server where its master is, when it registers.

    A slave of 5.x does not use the setting `haMasterAddress`, and with it does not listen to the name server.
    """
    broker.start(root, {**QUICK_SLAVE, "namesrvAddr": names, **more})
    broker.register()


def open_master(root: Path, **more: Any) -> Store:
    """Open a master of ours with small files and real threads and time."""
    settings = {"replicate.use": "ha", "replicate.ha.listen": "127.0.0.1:0", "retention.use": []}
    clock: Any = Clock()
    return open_store(root, strategies=[HaReplicator], clock=clock, **{**settings, **more})
