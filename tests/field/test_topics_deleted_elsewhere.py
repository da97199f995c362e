"""A topic that a broker deleted stays deleted, also if Penstock had put messages into it."""

import json
import os
from pathlib import Path
from shutil import rmtree

import penstock
from penstock import Store


def opened(root: Path, *, read_only: bool = False) -> Store:
    return penstock.open(root, read_only=read_only, environ={})


def delete_as_a_broker(root: Path, topic: str) -> None:
    """Do to the files what a broker does that has the store open; it changes the time of the lock's file."""
    listed = root / "config" / "topics.json"
    table = json.loads(listed.read_text())
    del table["topicConfigTable"][topic]
    listed.write_text(json.dumps(table))
    rmtree(root / "consumequeue" / topic)
    os.utime(root / "lock", ns=(1, 1))


def test_its_messages_are_not_restored_and_nothing_is_missing(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with opened(root) as store:
        for number in range(3):
            store.put("gone", b"%d" % number, queue=0)
            store.put("kept", b"%d" % number, queue=0)
    delete_as_a_broker(root, "gone")
    with opened(root, read_only=True) as store:
        assert [finding.text for finding in store.verify()] == []
    with opened(root) as store:
        assert [*store.topics()] == ["kept"]
        assert store.put("gone", b"new", queue=0).queue_offset == 0
        with store.consumer("g", "gone") as consumer:
            assert [message.body for message in consumer.poll(10, timeout=0)] == [b"new"]
    with opened(root) as store:
        assert [message.body for message in store.scan("gone")] == [b"new"]
        assert [message.body for message in store.scan("kept")] == [b"0", b"1", b"2"]
        assert [finding.text for finding in store.verify()] == []
