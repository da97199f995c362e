"""A topic that was removed stays removed after a crash at any moment, after repairs and rebuilds, and when it is created again."""

import errno
import shutil
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.conftest import SMALL, messages_in
from tests.lanes import cases

import penstock
from penstock.errors import StorageError, StoreFailedError
from penstock.message import ReadStatus
from penstock.store.store import Store
from penstock.testing import FaultyFiles, SimulatedDisk
from penstock.testing.kit import InlineWorkers, copy_store
from penstock.testing.platter import Survival
from penstock_tools.segmentwise import start_reindex

ROOT = Path("/store")
SETTINGS: dict[str, Any] = {
    **SMALL, "retention.use": [], "geometry.segment_bytes": 16384, "geometry.queue_entries": 20,
}  # fmt: skip

READING = {name: size for name, size in SETTINGS.items() if name.startswith("geometry")}


def opened(disk: SimulatedDisk, **more: Any) -> Store:
    given = {"spawn": InlineWorkers(), "clock": disk.clock, **SETTINGS, **more}
    return penstock.open(ROOT, files=disk, environ={}, **given)


def fill(store: Store, topic: str, name: str, count: int) -> None:
    for number in range(count):
        body = f"{name} {number}".encode()
        store.put(topic, body, queue=number % 2, keys=[f"{topic}{number}"])


def bodies(store: Store, topic: str) -> list[str]:
    return [m.body.decode() for m in messages_in(store, topic)]


def expected(name: str, count: int) -> list[str]:
    return [f"{name} {number}" for number in range(count)]


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_removed_topic_stays_removed_after_a_crash_before_any_call(flush: str) -> None:
    disk, images = SimulatedDisk(), []
    with opened(disk, flush=flush) as store:
        fill(store, "a", "old", 50)
        fill(store, "b", "other", 10)
        store.commit_offset("g", "a", 0, offset=7)
        store.flush()
        disk.plan.before = lambda: images.append(disk.image())
        store.lowlevel.remove_topic("a")
        fill(store, "a", "new", 30)
        store.flush()
        disk.plan.before = None
        assert bodies(store, "a") == expected("new", 30)
    assert len(images) > 15
    states = [(at, survival) for at in range(len(images)) for survival in Survival]
    seen = Counter[str]()
    for at, survival in cases(states, flush):
        disk = SimulatedDisk.after(images[at], survival, Random(at))
        with opened(disk, flush=flush) as store:
            found, where = bodies(store, "a"), (at, survival)
            if store.lowlevel.topic_generation("a") == 0:
                seen["not yet"] += 1
                assert found == expected("old", 50), where
                store.lowlevel.remove_topic("a")
                found = []
            # Already now, since a copy gets it.
            assert store.committed_offset("g", "a", 0) in (None, 0), where
            seen["partly"] += 0 < len(found) < 30
            # Of each queue the messages before some moment are there.
            assert found == sorted(found, key=lambda body: int(body.split()[1])), where
            assert set(found) <= set(expected("new", 30)), where
            assert bodies(store, "b") == expected("other", 10), where
            with_key = store.find("a3", "a") if found else []
            assert [m.body for m in with_key] == ([b"new 3"] if "new 3" in found else [])
            assert findings(store) == [], where
            fill(store, "a", "newest", 4)
            # The group misses none of the new messages.
            assert store.committed_offset("g", "a", 0) in (None, 0), where
            assert bodies(store, "a") == found + expected("newest", 4), where
        with opened(disk, flush=flush) as store:
            assert bodies(store, "a") == found + expected("newest", 4), where
            assert findings(store) == [], where
    assert seen["not yet"]
    # Under async, few calls are between the puts.
    assert seen["partly"] or flush == "async"


def test_no_moment_of_a_removal_shows_the_next_generation_with_the_old_queues() -> None:
    """A consumer that looked then took the old messages for new ones, and passed over as many of the new ones."""
    disk, seen = SimulatedDisk(), []
    with opened(disk) as store:
        fill(store, "a", "old", 4)
        store.commit_offset("g", "a", 0, offset=1)

        def look() -> None:
            disk.plan.before = None
            seen.append((store.lowlevel.topic_generation("a"), store.max_offset("a", 0)))
            disk.plan.before = look

        disk.plan.before = look
        store.lowlevel.remove_topic("a")
        disk.plan.before = None
    assert set(seen) == {(0, 2), (0, 0), (1, 0)}


def findings(store: Store) -> list[str]:
    # That a queue has a new generation is a note.
    return [each.text for each in store.verify(deep=True) if not each.is_note]


def reindex(path: Path) -> None:
    settings = {name: size for name, size in SETTINGS.items() if name.startswith("geometry")}
    with start_reindex(path, shards=3, settings=settings) as work:
        walked = [work.task.condense(base) for base in work.bases]
        work.finish(walked, {part: work.task.make(part) for part in work.parts})


def check_healthy(path: Path) -> None:
    """A repair would change nothing."""
    settings = {name: size for name, size in SETTINGS.items() if name.startswith("geometry")}
    steps = penstock.repair(path, environ={}, **settings).steps
    assert [step for step in steps if step.action != "marks"] == []


def make(path: Path, *, is_created_again: bool) -> list[str]:
    with penstock.open(path, environ={}, **SETTINGS) as store:
        fill(store, "a", "old", 50)
        fill(store, "b", "other", 10)
        store.lowlevel.remove_topic("a")
        assert "a" not in store.topics()
        if is_created_again:
            fill(store, "a", "new", 30)
    return expected("new", 30) if is_created_again else []


@pytest.mark.parametrize("is_created_again", [False, True])
@pytest.mark.parametrize(
    "how", ["reopen", "no queues", "no queues, killed", "reindex", "no progress"]
)
def test_no_rebuild_brings_it_back(how: str, is_created_again: bool, tmp_path: Path) -> None:
    path = tmp_path / "s"
    wanted = make(path, is_created_again=is_created_again)
    if "no queues" in how:
        shutil.rmtree(path / "consumequeue")
        shutil.rmtree(path / "index")
    if "killed" in how:
        (path / "abort").touch()
    if how == "no progress":
        for name in ("progress", "clean", "ranges"):
            (path / "penstock" / name).unlink()
    if how == "reindex":
        reindex(path)
    with penstock.open(path, read_only=True) as store:
        if how in ("reopen", "reindex"):
            assert bodies(store, "a") == wanted
            assert findings(store) == []
    with penstock.open(path, environ={}, **SETTINGS) as store:
        assert bodies(store, "a") == wanted
        assert bodies(store, "b") == expected("other", 10)
        with_key = store.find("a7", "a") if wanted else []
        assert [m.body for m in with_key] == [b"new 7"] * bool(wanted)
        assert findings(store) == []
        assert store.put("a", b"next", queue=1).queue_offset == len(wanted) // 2
    check_healthy(path)


def test_a_queue_that_another_program_restored_is_removed_again(tmp_path: Path) -> None:
    path, kept = tmp_path / "s", tmp_path / "kept"
    with penstock.open(path, environ={}, **SETTINGS) as store:
        fill(store, "a", "old", 50)
    shutil.copytree(path / "consumequeue" / "a", kept)
    with penstock.open(path, environ={}, **SETTINGS) as store:
        store.lowlevel.remove_topic("a")
        fill(store, "b", "other", 10)
    shutil.copytree(kept, path / "consumequeue" / "a")
    with penstock.open(path, environ={}, **SETTINGS) as store:
        assert "a" not in store.topics()
        assert findings(store) == []


def test_a_log_that_lost_its_tail_keeps_the_messages_put_after_that(tmp_path: Path) -> None:
    """The records at the offsets of removed ones are not removed with them."""
    path, early = tmp_path / "s", tmp_path / "early"
    with penstock.open(path, environ={}, **SETTINGS) as store:
        fill(store, "b", "other", 10)
    shutil.copytree(path, early)
    with penstock.open(path, environ={}, **SETTINGS) as store:
        fill(store, "a", "old", 50)
        store.lowlevel.remove_topic("a")
    shutil.copy(path / "penstock" / "removed-topics", early / "penstock" / "removed-topics")
    with penstock.open(early, environ={}, **SETTINGS) as store:
        fill(store, "a", "new", 5)
        assert bodies(store, "a") == expected("new", 5)
    with penstock.open(early, environ={}, **SETTINGS) as store:
        assert bodies(store, "a") == expected("new", 5)
        assert findings(store) == []


@pytest.mark.parametrize("call", ["create", "pwrite", "sync", "rename"])
def test_a_removal_whose_offsets_cannot_be_written_misses_no_message_later(
    call: str, tmp_path: Path
) -> None:
    """The disk was full: the removed topic's offsets stayed, and the group skipped the messages of a new one."""
    path, files = tmp_path / "s", FaultyFiles()
    store = penstock.open(path, environ={}, files=files, **SETTINGS)
    fill(store, "a", "old", 50)
    store.commit_offset("g", "a", 0, offset=20)
    files.plan.fail(call, errno.ENOSPC, path="consumerOffset.json")
    with pytest.raises(StoreFailedError, match="offsets of groups"):
        store.lowlevel.remove_topic("a")
    files.plan.heal()
    for refused in (lambda: store.put("a", b"new", queue=0), store.close):
        with pytest.raises(StoreFailedError):
            refused()
    with penstock.open(path, environ={}, **SETTINGS) as store:
        assert "a" not in store.topics()
        fill(store, "a", "new", 30)
        assert store.committed_offset("g", "a", 0) in (None, 0)
        assert bodies(store, "a") == expected("new", 30)


def test_a_reader_gets_the_messages_of_the_new_topic(tmp_path: Path) -> None:
    """It read the old queue files on, which it had open: a group took their messages for those of the new topic, and missed these."""
    path = tmp_path / "s"
    with (
        penstock.open(path, environ={}, **SETTINGS) as store,
        penstock.open(path, environ={}, read_only=True, **READING) as reader,
    ):
        for name, count in (("old", 10), ("new", 6), ("newer", 4), ("newest", 8)):
            store.lowlevel.remove_topic("a")
            fill(store, "a", name, count)
            for queue in (0, 1):
                # What was put before has its entries then.
                assert store.max_offset("a", queue) == count // 2
                found = [message.body for message in reader.read("a", queue).messages]
                assert found == [f"{name} {n}".encode() for n in range(queue, count, 2)]
                assert reader.max_offset("a", queue) == count // 2


def test_a_reader_gets_nothing_of_a_topic_that_is_being_removed(tmp_path: Path) -> None:
    """Between the mark and the removal of the files, a member took the queue of the new topic and read the old messages."""
    path, files = tmp_path / "s", FaultyFiles()
    with penstock.open(path, environ={}, **SETTINGS) as store:
        fill(store, "a", "old", 50)
        fill(store, "b", "other", 6)
    with penstock.open(path, environ={}, read_only=True, **READING) as reader:
        assert (reader.lowlevel.topic_generation("a"), len(bodies(reader, "a"))) == (0, 50)
        # One queue is gone, and half of the other one; then one; then nothing.
        for after in (3, 1, 0):
            store = penstock.open(path, environ={}, files=files, **SETTINGS)
            files.plan.fail("remove", errno.EIO, path="consumequeue/a", after=after)
            with pytest.raises(StoreFailedError, match="could not be removed"):
                store.lowlevel.remove_topic("a")
            files.plan.heal()
            check_gone(reader)
            with penstock.open(path, environ={}, read_only=True, **READING) as another:
                check_gone(another)
            with pytest.raises(StoreFailedError):
                store.close()
            with penstock.open(path, environ={}, **SETTINGS) as store:
                fill(store, "a", "new", 6)
            assert bodies(reader, "a") == expected("new", 6)
            assert [reader.max_offset("a", queue) for queue in (0, 1)] == [3, 3]
            assert [each[:4] for each in reader.lowlevel.bounds(lambda topic: topic == "a")] == [
                ("a", 0, 0, 3), ("a", 1, 0, 3),
            ]  # fmt: skip


@pytest.mark.parametrize("place", ["removed-topics", "consumequeue/a", "consumerOffset.json"])
def test_a_removal_that_is_interrupted_stops_the_store_and_is_completed(
    tmp_path: Path, place: str
) -> None:
    """A program that went on would have had a topic that is recorded as removed; Ctrl-C came as another error."""
    path, files = tmp_path / "s", FaultyFiles()
    store = penstock.open(path, environ={}, files=files, **SETTINGS)
    fill(store, "a", "old", 50)
    fill(store, "b", "other", 6)
    store.commit_offset("g", "a", 0, offset=3)

    def interrupt(_call: str, changed: Path) -> None:
        if place in str(changed):
            files.plan.watch = None
            raise KeyboardInterrupt

    files.plan.watch = interrupt
    with pytest.raises(KeyboardInterrupt):
        store.lowlevel.remove_topic("a")
    with pytest.raises(StoreFailedError, match="interrupted"):
        store.put("a", b"new")
    with pytest.raises(StoreFailedError):
        store.close()
    with penstock.open(path, environ={}, **SETTINGS) as store:
        if place == "removed-topics":
            store.lowlevel.remove_topic("a")
        fill(store, "a", "new", 6)
        assert (bodies(store, "a"), bodies(store, "b")) == (
            expected("new", 6),
            expected("other", 6),
        )
        assert store.committed_offset("g", "a", 0) in (None, 0)


def check_gone(reader: Store) -> None:
    assert reader.lowlevel.topic_generation("a") > 0
    assert reader.topics() == {"b": [0, 1]}
    assert not reader.read("a", 0).messages
    assert reader.read("a", 1, 3, tag="x || y").status is not ReadStatus.FOUND
    assert (reader.min_offset("a", 1), reader.max_offset("a", 1)) == (0, 0)
    assert len(reader.lowlevel.queue_entries("a", 0, 0, 9).sizes) == 0
    assert reader.offset_at("a", 0, 1 << 35) == 0
    assert (bodies(reader, "a"), reader.find("a3", "a")) == ([], [])
    assert reader.to_arrow("a").num_rows == reader.to_reader("a").read_all().num_rows == 0
    assert all(each.max_offset == 0 for each in reader.lowlevel.bounds(lambda topic: topic == "a"))
    assert bodies(reader, "b") == expected("other", 6)


def test_a_removal_for_which_the_file_has_no_room_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was written, and was too large to be read: all topics that were ever removed were back after a kill."""
    monkeypatch.setattr("penstock.durability.side_folder.REMOVED_BYTES_MAX", 1400)
    refused = []
    with penstock.open(tmp_path / "s", environ={}) as store:
        for number in range(12):
            topic = f"job{number}"
            fill(store, topic, topic, 2)
            try:
                store.delete_topic(topic)
            except StorageError:
                refused.append(topic)
        assert 0 < len(refused) < 12
        assert sorted(store.topics()) == sorted(refused)
        with penstock.open(copy_store(tmp_path / "s", tmp_path / "killed"), environ={}) as again:
            assert {topic: sorted(bodies(again, topic)) for topic in again.topics()} == {
                topic: sorted(expected(topic, 2)) for topic in refused
            }
