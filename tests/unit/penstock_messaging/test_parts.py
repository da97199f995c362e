"""Topics as configuration in a whole store: when files are written, what a crash leaves, what readers and older versions see."""

import json
import shutil
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.lanes import cases

import penstock
from penstock.errors import ConfigError, ReadOnlyError, StoreClosedError, UnknownTopicError
from penstock.format.rocketmq_json import parse_rocketmq_json
from penstock.message import Message
from penstock.store.store import Store
from penstock.testing import ManualClock, ManualWorkers, SimulatedDisk, open_store
from penstock.testing.control import InlineWorkers
from penstock.testing.platter import Image, Survival


def opened(root: Path, **more: Any) -> Store:
    return open_store(root, **{"spawn": ManualWorkers(), **more})


def listed(root: Path) -> dict[str, Any]:
    found: Any = parse_rocketmq_json((root / "config" / "topics.json").read_text())
    table: dict[str, Any] = found["topicConfigTable"]
    return table


def test_topics_that_messages_create_are_listed_a_second_later(tmp_path: Path) -> None:
    clock, workers = ManualClock(), ManualWorkers()
    with opened(tmp_path / "s", spawn=workers, clock=clock) as store:
        assert "penstock-topics" not in workers.by_name
        store.put_many([Message(f"t{number}", b"x") for number in range(50)])
        workers.run("penstock-topics")
        assert not (tmp_path / "s" / "config").exists()
        clock.now_ms += 1000
        workers.run("penstock-topics")
        assert len(listed(tmp_path / "s")) == 50
        store.put("late", b"x")
    assert listed(tmp_path / "s")["late"]["readQueueNums"] == 4


def test_an_opening_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with opened(root) as store:
        store.put("t", b"x")
    before = {path: path.stat().st_mtime_ns for path in (root / "config").iterdir()}
    for _ in range(2):
        with opened(root) as store:
            store.put("t", b"x", queue=3)
            assert store.topic_configs()["t"].is_auto
    assert {path: path.stat().st_mtime_ns for path in (root / "config").iterdir()} == before


def test_a_store_of_an_earlier_version_is_listed_when_it_is_opened(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with opened(root, extensions=[]) as store:
        store.put("t", b"x", queue=7)
        store.put("u", b"x")
    assert not (root / "config").exists()
    with opened(root) as store:
        assert {name: each.queues for name, each in store.topic_configs().items()} == {"t": 8, "u": 4}  # fmt: skip
    assert list(listed(root)) == ["t", "u"]


def test_what_a_killed_process_had_not_listed_is_listed_by_the_next(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with opened(root) as store:
        store.put("old", b"x")
    with opened(root) as store:
        store.put("old", b"x", queue=9)
        store.put("new", b"x", queue=5)
        store.flush()
        shutil.copytree(root, tmp_path / "killed", copy_function=shutil.copy2)
    assert list(listed(tmp_path / "killed")) == ["old"]
    with opened(tmp_path / "killed"):
        pass
    assert {name: each["readQueueNums"] for name, each in listed(tmp_path / "killed").items()} == {"new": 6, "old": 10}  # fmt: skip


def test_a_topic_of_a_brokers_directory_keeps_its_queues(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with opened(root, extensions=[]) as store:
        store.put("t", b"x", queue=1)
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": {"t": {"readQueueNums": 2, "writeQueueNums": 2}}}))  # fmt: skip
    with opened(root) as store:
        with pytest.raises(penstock.TopicQueueError):
            store.put("t", b"x", queue=2)
        store.put("new", b"x", queue=2)
    assert listed(root).keys() == {"new", "t"}


def test_a_reader_sees_what_is_listed(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store, opened(tmp_path / "s", read_only=True) as reader:
        assert reader.topic_configs() == {}
        store.create_topic("t", queues=3, attributes={"message.type": "NORMAL"})
        assert reader.topic_configs() == store.topic_configs()
        for change in ("create_topic", "alter_topic", "delete_topic"):
            with pytest.raises(ReadOnlyError):
                getattr(reader, change)("t")
    with pytest.raises(StoreClosedError):
        reader.topic_configs()


def test_without_the_extension_the_calls_say_what_to_do(tmp_path: Path) -> None:
    with opened(tmp_path / "s", extensions=[]) as store:
        for call in ("create_topic", "alter_topic", "delete_topic"):
            with pytest.raises(ConfigError, match=r"add messaging to extensions\.use"):
                getattr(store, call)("t")


def test_a_deleted_topic_is_gone_and_begins_at_0_when_it_is_created_again(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with opened(root) as store:
        store.put("kept", b"x")
        for number in range(10):
            store.put("t", b"old", queue=number)
        store.commit_offset("g", "t", 0, offset=1)
        store.delete_topic("t")
        assert list(store.topics()) == list(store.topic_configs()) == ["kept"]
        assert store.groups() == {}
        assert store.topic_life("t") == 1
        with pytest.raises(UnknownTopicError):
            store.delete_topic("t")
    assert list(listed(root)) == ["kept"]
    with opened(root) as store:
        assert list(store.topics()) == ["kept"]
        assert store.put("t", b"new", queue=None).queue_offset == 0
        assert store.topic_configs()["t"].queues == 4
        assert [message.body for message in store.scan("t")] == [b"new"]
        assert [finding for finding in store.verify(deep=True) if not finding.is_note] == []


def test_puts_during_changes_are_stored_or_refused(tmp_path: Path) -> None:
    """A topic deleted between two puts of one program is created again by the second."""
    with opened(tmp_path / "s") as store:
        for life in range(5):
            assert store.put("t", b"%d" % life, queue=2).queue_offset == 0
            assert store.topic_life("t") == life
            store.delete_topic("t")
        assert store.topics() == {}


SETTINGS: dict[str, Any] = {
    "geometry.segment_bytes": 16384, "geometry.queue_entries": 20, "geometry.index_slots": 20,
    "geometry.index_entries": 40, "retention.use": [],
}  # fmt: skip
ROOT = Path("/store")


def on(disk: SimulatedDisk) -> Store:
    return penstock.open(ROOT, files=disk, environ={}, spawn=InlineWorkers(), clock=disk.clock, **SETTINGS)  # fmt: skip


@pytest.fixture(scope="module")
def images() -> list[Image]:
    """The disk before each call of a story with topics that are created, declared, altered and deleted."""
    disk, taken = SimulatedDisk(), []
    with on(disk) as store:
        store.put("gone", b"x", queue=1)
        store.put("auto", b"x")
    with on(disk) as store:
        disk.plan.before = lambda: taken.append(disk.image())
        store.put("auto", b"x", queue=6)
        store.create_topic("made", queues=2)
        store.put("made", b"x", queue=1)
        store.alter_topic("made", queues=3)
        store.delete_topic("gone")
        store.alter_topic("auto", perm=4)
    disk.plan.before = None
    taken.append(disk.image())
    return taken


@pytest.mark.slow
def test_a_crash_at_any_moment_leaves_each_change_done_or_not(images: list[Image]) -> None:
    states = [(at, survival) for at in range(len(images)) for survival in Survival]
    seen = Counter[str]()
    for at, survival in cases(states, "topics"):
        where = (at, survival)
        with on(SimulatedDisk.after(images[at], survival, Random(at))) as store:
            configs, topics = store.topic_configs(), store.topics()
            remarks = store.extension("messaging").stats()["config_remarks"]
            assert remarks == [], where
            # What has messages is listed, and nothing declared by itself.
            assert topics.keys() <= configs.keys(), where
            auto = configs["auto"]
            assert (auto.is_auto, auto.perm, auto.queues) in (
                (True, 6, 4), (True, 6, 7), (False, 4, 7)), where  # fmt: skip
            assert auto.queues > max(topics["auto"]), where
            made = configs.get("made")
            assert made is None or (made.is_auto, made.queues) in ((False, 2), (False, 3)), where
            if "gone" not in topics:
                assert store.topic_life("gone") == 1, where
                # Between the two: it can be deleted again, or used.
                seen["listed without queues"] += "gone" in configs
            if auto.perm == 6:
                store.put("auto", b"y", queue=9)
                seen["still auto"] += 1
            seen[f"made {made.queues if made else 0}"] += 1
            store.put("gone", b"y")
            if store.topic_life("gone"):
                assert [message.body for message in store.scan("gone")] == [b"y"], where
    assert {"listed without queues", "still auto", "made 0", "made 2", "made 3"} <= seen.keys()
