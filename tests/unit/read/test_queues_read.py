"""Queues as readers see them: at every bound, and in a directory that is only partly understood."""

import itertools
from datetime import datetime, timedelta, timezone
from pathlib import Path
from shutil import rmtree
from types import SimpleNamespace
from typing import Any

import pytest
from tests.conftest import OpenStore
from tests.damage.stores import flip
from tests.unit.contracts.test_optional_methods import ROWS, OneQueue

import penstock
from penstock import Message
from penstock.contracts.foreign import BATCH_QUEUES, ROCKSDB_QUEUES, Foreign
from penstock.errors import (
    ArgumentError,
    ForeignContentError,
    MessageError,
)
from penstock.files import Files
from penstock.read.queues import ServedQueues, has_queues, served
from penstock.testing import InlineWorkers, ManualClock, ManualWorkers, SimulatedDisk, open_store


def test_a_time_may_be_a_datetime_with_a_zone() -> None:
    clock = ManualClock()
    store = open_store(Path("/s"), files=SimulatedDisk(), spawn=ManualWorkers(), clock=clock)
    for _ in range(4):
        store.put("t", b"x", queue=0, keys=["k"])
        clock.now_ms += 1000
    first_ms = store.read("t", 0).messages[0].store_time_ms
    third = datetime.fromtimestamp((first_ms + 2000) / 1000, timezone(timedelta(hours=5)))
    assert store.offset_at("t", 0, third) == 2
    assert store.offset_at("t", 0, third + timedelta(microseconds=1)) == 3
    assert store.offset_at("t", 0, third + timedelta(microseconds=1), boundary="upper") == 2
    assert [m.queue_offset for m in store.find("k", "t", since=third)] == [2, 3]
    assert [m.queue_offset for m in store.find("k", "t", until=third)] == [0, 1, 2]
    assert store.discard_before(time=third) == 0
    with pytest.raises(ArgumentError, match="a datetime with a time zone"):
        store.offset_at("t", 0, third.replace(tzinfo=None))


def test_a_time_may_be_so_long_ago(open_small: OpenStore) -> None:
    hour = timedelta(hours=1)
    with open_small() as store:
        store.put("t", b"x", queue=0, keys=["k"])
        for reads in (
            lambda since: [*store.scan("t", since=since)],
            lambda since: [*store.scan("t", since=since, follow=True, limit=1)],
            lambda since: store.find("k", since=since),
            lambda since: store.to_arrow("t", since=since),
        ):
            assert len(reads(hour)) == 1
        assert not [*store.scan("t", since=-hour)], "an hour in the future"
        assert (store.offset_at("t", 0, hour), store.offset_at("t", 0, -hour)) == (0, 1)
        with store.consumer("g", "t", start=-hour) as consumer:
            assert not consumer.poll(timeout=0)
            consumer.seek("t", time=hour)
            assert len(consumer.poll(timeout=0)) == 1
        with pytest.raises(ArgumentError, match="a timedelta: so long ago"):
            store.scan("t", since=timedelta.max)
        with pytest.raises(MessageError, match="deliver_at"):
            store.put("t", b"x", deliver_at=hour)  # type: ignore[arg-type] # so says the type checker


@pytest.mark.parametrize("read_only", [False, True])
def test_a_follower_reads_a_topic_that_is_made_again_from_its_first_message(
    open_small: OpenStore, read_only: bool
) -> None:
    """It went on at the offset where it had been in the old topic."""
    with open_small() as store, open_small(read_only=read_only) if read_only else store as reader:
        store.put_many([Message("t", b"old", queue=queue) for queue in (0, 0, 0, 1)])
        store.put("u", b"kept", queue=0)
        reading = [reader.scan(["t", "u"], follow=True), reader.scan("t", queue=0, follow=True)]
        reading += [reader.scan("t", queue=0, start=3, follow=True)]
        for coming, count in zip(reading, (5, 3, 0), strict=True):
            assert len([*itertools.islice(coming, count)]) == count
        store.delete_topic("t")
        store.put_many([Message("t", b"%d" % number, queue=0) for number in range(10)])
        for coming in reading:
            found = [message.body for message in itertools.islice(coming, 5)]
            assert found == [b"0", b"1", b"2", b"3", b"4"]


def test_a_corrupt_message_is_not_missed_silently_by_its_key(
    open_small: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_small() as store:
        receipts = [store.put("t", b"%d" % number * 50, keys=[f"k{number}"]) for number in range(9)]
        (segment,) = (tmp_path / "store" / "commitlog").iterdir()
        flip(segment, 8 * (receipts[4].log_offset + 95))
        assert len(store.find("k3")) == 1
        assert not caplog.text
        assert store.find("k4") == []
        assert f"log offset {receipts[4].log_offset}" in caplog.text or str(segment) in caplog.text
        assert store.stats()["damaged_reads"] == 1


# A log that hides nothing.
ALL: Any = SimpleNamespace(hidden_from=None)


class TwoTopics(OneQueue):
    """Topics `t` and `batch`."""

    def queues(self) -> list[tuple[str, int]]:
        return [("batch", 0), ("t", 0)]


@pytest.fixture
def index(tmp_path: Path) -> TwoTopics:
    return TwoTopics(tmp_path, ROWS[:10])


def asked(index: Any, topic: str) -> list[Any]:
    return [
        lambda: index.min_offset(topic, 0), lambda: index.max_offset(topic, 0),
        lambda: index.entries(topic, 0, 0, 5), lambda: index.resume_at(topic, 0, 3),
        lambda: list(index.bounds(lambda name: name == topic, None)),
    ]  # fmt: skip


def test_a_topic_of_batch_queues_raises_by_its_name_and_others_are_served(
    index: TwoTopics,
) -> None:
    made = served(index, ALL, Path("/s"), [Foreign(BATCH_QUEUES, Path("/s/x"), ("batch",))])
    assert isinstance(made, ServedQueues)
    assert made.queues() == [("t", 0)]
    for ask in asked(made, "batch"):
        with pytest.raises(ForeignContentError, match="batch"):
            ask()
    assert made.max_offset("t", 0) == 10
    assert [bounds.topic for bounds in made.bounds(lambda _: True, None)] == ["t"]
    assert has_queues(made)


def test_queues_in_a_database_raise_whatever_is_asked(index: TwoTopics) -> None:
    found = [Foreign(ROCKSDB_QUEUES, Path("/s/consumequeue"))]
    made = served(index, ALL, Path("/s"), found)
    for ask in (made.queues, made.end_log_offset, *asked(made, "t")):
        with pytest.raises(ForeignContentError, match="queues cannot be read"):
            ask()
    assert not has_queues(made)


def test_a_database_beside_the_files_hides_none_of_them(tmp_path: Path) -> None:
    found = [Foreign(ROCKSDB_QUEUES, Path("/s/consumequeue_rocksdb"))]
    full, empty = OneQueue(tmp_path / "a", ROWS), OneQueue(tmp_path / "b", [])
    assert served(full, ALL, Path("/s"), found) is full
    empty.queues = list  # type: ignore[method-assign] # it has none
    assert not has_queues(served(empty, ALL, Path("/s"), found))


@pytest.mark.parametrize("call", ["folders", "numbered"])
def test_a_topic_that_another_process_deletes_meanwhile_has_no_bounds(
    call: str, open_small: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a bare error of the system, from `bounds` and from an export."""
    with open_small() as store:
        store.put("a", b"x", queue=0)
        store.put("t", b"x", queue=0)
    files = Files()
    look = getattr(files, call)

    def deleted_first(folder: str) -> Any:
        if folder.removesuffix("/0").endswith("/t"):
            rmtree(store.path / "consumequeue" / "t")
        return look(folder)

    monkeypatch.setattr(files, call, deleted_first)
    with penstock.open(store.path, read_only=True, files=files, environ={}) as reader:
        assert [each.topic for each in reader.lowlevel.bounds() if each.max_offset] == ["a"]


def test_the_log_ends_after_the_last_record_also_if_its_topic_is_deleted(open_small: OpenStore) -> None:  # fmt: skip
    with open_small() as store:
        store.put("t", b"x", queue=0)
        store.delete_topic("t")
        end = store.stats()["log_end_offset"]
    with penstock.open(store.path, read_only=True, environ={}) as reader:
        assert reader.stats()["log_end_offset"] == reader.stats()["dispatched_offset"] == end


def test_a_follower_that_is_slow_reads_no_message_of_a_new_topic_twice() -> None:
    clock = ManualClock()
    workers = InlineWorkers()
    given: dict[str, Any] = {"files": SimulatedDisk(clock=clock), "clock": clock, "spawn": workers}
    with open_store(Path("/s"), **given) as store:
        store.put_many([Message("t", b"old", queue=0)] * 3000)
        workers.run_all()
        with penstock.open(Path("/s"), read_only=True, environ={}, **given) as reader:
            following = reader.scan("t", queue=0, follow=True)
            next(following)
            store.delete_topic("t")
            store.put_many([Message("t", b"%d" % n, queue=0) for n in range(3500)])
            workers.run_all()
            found = (message.body for message in following if message.body != b"old")
            assert [*itertools.islice(found, 3500)] == [b"%d" % n for n in range(3500)]
