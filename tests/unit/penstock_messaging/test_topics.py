"""Topics in a broker's file: declared, created by messages, found again after a kill, changed, deleted."""

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock.contracts import NO_HISTORY
from penstock.errors import (
    ArgumentError,
    CorruptionError,
    ReadOnlyError,
    StorageError,
    TopicError,
    TopicExistsError,
    UnknownTopicError,
)
from penstock.format.rocketmq_json import parse_rocketmq_json
from penstock.testing import FaultyFiles, make_context
from penstock_messaging.configuration.topics import FORBIDDEN, TopicConfigs, config_of

GOLDEN = Path(__file__).parents[2] / "golden" / "broker-config"


class Kernel:
    """A store that deletes queues, as the kernel does; it notes the order of calls."""

    def __init__(self, **queues: list[int]) -> None:
        self.queues = queues
        self.calls: list[str] = []
        self.failure: Exception | None = None
        self.ours = True

    def topics(self) -> dict[str, list[int]]:
        return self.queues

    def groups(self) -> dict[tuple[str, str], dict[int, int]]:
        if isinstance(self.failure, CorruptionError):
            raise self.failure
        return {}

    def remove_topic(self, topic: str) -> None:
        if self.failure is not None:
            raise self.failure
        self.calls.append(f"remove {topic}")
        self.queues.pop(topic, None)

    def recheck_puts(self, topic: str) -> None:
        self.calls.append(f"recheck {topic}")

    # As a `History`.

    removed: ClassVar[dict[str, int]] = {"removed": 7}

    def is_one_run(self, first: int, last: int) -> bool:
        assert first == 0
        assert last > 1 << 60
        return self.ours

    def is_unlisted(self, topic: str) -> bool:
        return not topic.startswith("%RETRY%")


def made(root: Path, *, read_only: bool = False, auto_create: bool = True, **more: Any) -> TopicConfigs:  # fmt: skip
    context = make_context(root, read_only=read_only, **more)
    return TopicConfigs(context, default_queues=4, auto_create=auto_create)


def give(root: Path, entries: object, **auto: int) -> Path:
    path = root / "config" / "topics.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"topicConfigTable": entries}))
    (root / "penstock").mkdir(exist_ok=True)
    (root / "penstock" / "auto-topics").write_text(json.dumps(auto))
    return path


def entries_in(root: Path) -> dict[str, Any]:
    found: Any = parse_rocketmq_json((root / "config" / "topics.json").read_text())
    table: dict[str, Any] = found["topicConfigTable"]
    return table


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_the_topics_of_a_broker_are_understood(tmp_path: Path, version: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_bytes((GOLDEN / version / "topics.json").read_bytes())  # fmt: skip
    topics = made(tmp_path)
    orders = topics.get("orders")
    assert orders is not None
    assert (orders.read_queues, orders.write_queues, orders.perm, orders.is_auto) == (4, 4, 6, False)  # fmt: skip
    schedule = topics.get("SCHEDULE_TOPIC_XXXX")
    assert schedule is not None
    assert schedule.queues == 18
    assert topics.get("gone") is None
    assert list(topics.all()) == sorted(topics.all())
    if version == "5.3.3":
        assert topics.all()["fifo"].attributes == {"message.type": "FIFO"}


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_a_topic_added_to_a_brokers_file_looks_as_if_the_broker_had_added_it(tmp_path: Path, version: str) -> None:  # fmt: skip
    """The broker created T3 by a message with 4 queues: taken out and created again, it is the same in every byte."""
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / "topics.json"
    raw = (GOLDEN / version / "topics.json").read_bytes()
    path.write_bytes(raw)
    topics = made(tmp_path)
    topics.get("T3")
    topics.delete("T3", Kernel())  # type: ignore[arg-type] # a part of a store
    assert b'"T3":{' not in path.read_bytes()
    topics.ensure("T3", 1)
    topics.save()
    table = b'"topicConfigTable":{'
    assert path.read_bytes().partition(table)[2] == raw.partition(table)[2]


def test_a_missing_field_has_a_brokers_default() -> None:
    found = config_of("t", {"perm": None, "order": True, "more": 1})
    assert found[:5] == ("t", 16, 16, 6, True)


@pytest.mark.parametrize("entry", [
    None, 3, [], {"perm": "6"}, {"perm": True}, {"perm": -1}, {"readQueueNums": 1.0}, {"writeQueueNums": 1 << 31},
    {"attributes": [1]}, {"attributes": {"a": 1}}, {"readQueueNums": "9" * 2000},
])  # fmt: skip
def test_an_entry_that_cannot_be_understood_is_set_aside_and_kept(tmp_path: Path, entry: object, caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    with pytest.raises(ValueError):  # noqa: PT011 - every reason is one
        config_of("odd", entry)
    give(tmp_path, {"odd": entry, "good": {}})
    topics = made(tmp_path)
    assert list(topics.all()) == ["good"]
    assert "entry of topic 'odd' is not used" in caplog.text
    assert topics.has_none("odd")
    assert topics.ensure("odd", 9) is None
    with pytest.raises(TopicExistsError):
        topics.create("odd")
    with pytest.raises(UnknownTopicError, match="cannot be understood"):
        topics.alter("odd", queues=3)
    topics.create("new")
    assert entries_in(tmp_path)["odd"] == entry
    topics.delete("odd", Kernel())  # type: ignore[arg-type] # a part of a store
    assert list(entries_in(tmp_path)) == ["good", "new"]
    assert topics.ensure("odd") is not None


# --- created by messages


def test_a_topic_that_messages_create_grows_with_them(tmp_path: Path) -> None:
    changes: list[int] = []
    topics = TopicConfigs(
        make_context(tmp_path), default_queues=4, auto_create=True, on_change=lambda: changes.append(1)
    )  # fmt: skip
    for queue, count in ((0, 4), (3, 4), (9, 10), (1, 10)):
        found = topics.ensure("t", queue)
        assert found is not None
        assert (found.read_queues, found.write_queues, found.is_auto) == (count, count, True)
    assert len(changes) == 2
    assert not (tmp_path / "config").exists()
    topics.save()
    assert entries_in(tmp_path)["t"]["writeQueueNums"] == 10
    again = made(tmp_path)
    assert again.get("t") == topics.get("t")
    assert again.ensure("t", 12)[1:3] == (13, 13)  # type: ignore[index] # it is not None


@pytest.mark.parametrize(("topic", "count"), [("SCHEDULE_TOPIC_XXXX", 18), ("%RETRY%g", 1), ("%DLQ%g", 1), ("RMQ_SYS_X", 1), ("t", 4)])  # fmt: skip
def test_a_new_topic_has_as_many_queues_as_a_broker_gives_it(tmp_path: Path, topic: str, count: int) -> None:  # fmt: skip
    found = made(tmp_path).ensure(topic)
    assert found is not None
    assert found.queues == count


def test_light_queues_have_no_configuration(tmp_path: Path) -> None:
    topics = made(tmp_path)
    assert topics.ensure("%LMQ%a", 3) is None
    with pytest.raises(TopicError, match="light message queues"):
        topics.create("%LMQ%a")


def test_a_declared_topic_does_not_grow(tmp_path: Path) -> None:
    topics = made(tmp_path)
    topics.create("t", queues=2)
    assert topics.ensure("t", 5) == topics.get("t")
    assert topics.all()["t"].queues == 2


def test_a_topic_that_a_broker_has_changed_since_is_declared(tmp_path: Path) -> None:
    entries = {
        "same": {"readQueueNums": 4, "writeQueueNums": 4},
        "more": {"readQueueNums": 8, "writeQueueNums": 8},
        "closed": {"readQueueNums": 4, "writeQueueNums": 4, "perm": 4},
        "never": {"readQueueNums": 4, "writeQueueNums": 4},
    }
    give(tmp_path, entries, same=4, more=4, closed=4)
    assert [name for name, each in made(tmp_path).all().items() if each.is_auto] == ["same"]


def test_a_growth_of_which_only_the_first_file_was_written_goes_on_after_a_crash(tmp_path: Path) -> None:  # fmt: skip
    give(tmp_path, {"t": {"readQueueNums": 4, "writeQueueNums": 4}}, t=6, u=4)
    topics = made(tmp_path)
    assert topics.ensure("t", 5)[1:] == (6, 6, 6, False, {}, True)  # type: ignore[index] # it is not None
    assert topics.get("u") is None


def test_adoption_lists_what_the_queue_index_has(tmp_path: Path) -> None:
    store = Kernel(a=[0, 7], b=[1], **{"%LMQ%x": [0], "SELF_TEST_TOPIC": [0], "%RETRY%g": [0, 1]})
    topics = made(tmp_path)
    topics.load()
    topics.adopt(store, lambda: NO_HISTORY)  # type: ignore[arg-type] # a part of a store
    assert {name: each.queues for name, each in topics.all().items()} == {"%RETRY%g": 2, "a": 8, "b": 4}  # fmt: skip
    topics.save()
    again = made(tmp_path)
    again.load()
    again.adopt(Kernel(a=[0, 9], b=[1]), lambda: NO_HISTORY)  # type: ignore[arg-type] # as above
    assert again.all()["a"].queues == 10


def test_adoption_leaves_out_what_a_broker_may_have_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    """Messages of Penstock in a topic that a broker has deleted are kept: listed, the topic would have the others again."""
    give(tmp_path, {"kept": {"writeQueueNums": 2, "readQueueNums": 2}})
    store = Kernel(kept=[0, 5], unlisted=[0], removed=[0], **{"%RETRY%g": [0]})
    store.ours = False
    topics = made(tmp_path)
    topics.adopt(store, lambda: store)  # type: ignore[arg-type, return-value] # a part of a store
    assert {name: each.queues for name, each in topics.all().items()} == {"%RETRY%g": 1, "kept": 2, "removed": 4}  # fmt: skip
    assert "lacks topics that have messages: 'unlisted'" in caplog.text
    # It takes messages, as before, until somebody says that it is to be listed.
    assert topics.ensure("unlisted", 9) is None
    topics.create("unlisted", queues=1)
    assert entries_in(tmp_path).keys() == {"%RETRY%g", "kept", "removed", "unlisted"}
    # Or that it is to be deleted.
    again, store = made(tmp_path), Kernel(other=[0])
    store.ours = False
    again.adopt(store, lambda: store)  # type: ignore[arg-type, return-value] # as above
    again.delete("other", store)  # type: ignore[arg-type] # as above
    assert again.ensure("other") is not None


def test_in_a_directory_of_penstock_alone_everything_is_adopted(tmp_path: Path) -> None:
    give(tmp_path, {})
    store = Kernel(unlisted=[0])
    topics = made(tmp_path)
    topics.adopt(store, lambda: store)  # type: ignore[arg-type, return-value] # a part of a store
    assert topics.all()["unlisted"].is_auto
    assert entries_in(tmp_path) == {}


def test_in_a_brokers_directory_a_new_topic_is_saved_at_once(tmp_path: Path) -> None:
    """So that no topic without an entry is Penstock's own; and a full disk stops no message."""
    give(tmp_path, {})
    files, store = FaultyFiles(), Kernel()
    store.ours = False
    topics = made(tmp_path, files=files)
    topics.adopt(store, lambda: store)  # type: ignore[arg-type, return-value] # a part of a store
    topics.ensure("a")
    assert list(entries_in(tmp_path)) == ["a"]
    topics.ensure("a", 9)
    assert entries_in(tmp_path)["a"]["readQueueNums"] == 4
    files.plan.fail("create")
    assert topics.ensure("b") is not None


# --- declared


def test_a_topic_is_declared_durably(tmp_path: Path) -> None:
    rechecked: list[str] = []
    topics = TopicConfigs(
        make_context(tmp_path), default_queues=4, auto_create=True, on_recheck=rechecked.append
    )
    topics.create("a")
    topics.create("b", queues=8, write_queues=2, perm=4, attributes={"message.type": "FIFO"})
    topics.create("c", write_queues=6)
    again = made(tmp_path).all()
    assert again == topics.all()
    assert again["a"][1:4] == (4, 4, 6)
    assert again["b"][1:6] == (8, 2, 4, False, {"message.type": "FIFO"})
    assert again["c"][1:3] == (6, 6)
    assert rechecked == ["a", "b", "c"]


def test_a_topic_that_is_there_is_not_declared_again(tmp_path: Path) -> None:
    topics = made(tmp_path)
    topics.create("a")
    topics.ensure("b")
    with pytest.raises(TopicExistsError, match=r"already\. To change it"):
        topics.create("a")
    with pytest.raises(TopicExistsError, match="its first message created it"):
        topics.create("b")


@pytest.mark.parametrize("topic", sorted(FORBIDDEN))
def test_reserved_names_are_neither_declared_nor_deleted(tmp_path: Path, topic: str) -> None:
    topics = made(tmp_path)
    with pytest.raises(TopicError, match="cannot be created"):
        topics.create(topic)
    topics.ensure(topic)
    with pytest.raises(TopicError, match="cannot be deleted"):
        topics.delete(topic, Kernel())  # type: ignore[arg-type] # a part of a store


def test_what_is_not_given_stays_when_a_topic_is_altered(tmp_path: Path) -> None:
    path = give(tmp_path, {"t": {"readQueueNums": 3, "writeQueueNums": 3, "topicSysFlag": 1, "later": [1]}}, t=3)  # fmt: skip
    topics = made(tmp_path)
    topics.alter("t", perm=4)
    entry = entries_in(tmp_path)["t"]
    assert (entry["perm"], entry["topicSysFlag"], entry["later"]) == (4, 1, [1])
    # A file of 4.x has no attributes, and gets none unless they are asked for.
    assert "attributes" not in entry
    assert json.loads((tmp_path / "penstock" / "auto-topics").read_text()) == {}
    topics.alter("t", queues=5, attributes={"a": "1", "b": "2"})
    topics.alter("t", write_queues=2, attributes={"a": "", "none": ""})
    assert topics.all()["t"][1:] == (5, 2, 4, False, {"b": "2"}, False)
    assert made(tmp_path).all() == topics.all()
    assert path.with_name("topics.json.bak").exists()


def test_more_queues_for_messages_than_for_consumers_are_refused(tmp_path: Path) -> None:
    give(tmp_path, {"odd": {"readQueueNums": 2, "writeQueueNums": 8}})
    topics = made(tmp_path)
    for queues, write_queues in ((None, 9), (3, 4)):
        with pytest.raises(ArgumentError, match="write_queues must be at most"):
            topics.alter("odd", queues=queues, write_queues=write_queues)
    with pytest.raises(ArgumentError, match="at most the number of queues that consumers read, 1"):
        topics.create("t", queues=1, write_queues=2)
    # What a broker has set does not stand in the way of other changes.
    assert topics.alter("odd", perm=4)[1:4] == (2, 8, 4)


@pytest.mark.parametrize("attributes", [{"queue.type": "BatchCQ"}, {"cleanup.policy": "COMPACTION"}, {"": "x"}])  # fmt: skip
def test_attributes_of_topics_that_cannot_be_stored_are_refused(tmp_path: Path, attributes: dict[str, str]) -> None:  # fmt: skip
    topics = made(tmp_path)
    topics.create("t", attributes={"queue.type": "SimpleCQ", "cleanup.policy": "DELETE"})
    with pytest.raises(ArgumentError, match="attributes must be a mapping"):
        topics.alter("t", attributes=attributes)
    with pytest.raises(ArgumentError, match="attributes must be a mapping"):
        topics.create("u", attributes=attributes)
    assert list(entries_in(tmp_path)) == ["t"]


def test_an_unknown_topic_cannot_be_altered(tmp_path: Path) -> None:
    with pytest.raises(UnknownTopicError, match="no such topic"):
        made(tmp_path).alter("t", perm=6)


@pytest.mark.parametrize("raw", [b"{", b"[]", b"\0\0"])
def test_an_unreadable_file_is_not_replaced_and_messages_still_create_topics(tmp_path: Path, raw: bytes, caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    path = give(tmp_path, {})
    path.write_bytes(raw)
    topics = made(tmp_path)
    assert topics.ensure("t") is not None
    topics.save()
    assert "it is not replaced" in caplog.text
    assert topics.remarks()
    store = Kernel(t=[0])
    for change in (
        lambda: topics.create("u"), lambda: topics.alter("t", perm=4), lambda: topics.delete("t", store),  # type: ignore[arg-type] # a part of a store
    ):  # fmt: skip
        with pytest.raises(CorruptionError, match="it is not replaced"):
            change()
    assert store.queues == {"t": [0]}
    assert path.read_bytes() == raw


def test_a_change_that_the_disk_refuses_is_not_made(tmp_path: Path) -> None:
    files = FaultyFiles()
    topics = made(tmp_path, files=files)
    topics.create("t", queues=2)
    files.plan.fail("create")
    with pytest.raises(StorageError, match="unchanged"):
        topics.alter("t", queues=5)
    with pytest.raises(StorageError, match="unchanged"):
        topics.create("u")
    files.plan.heal()
    assert {name: each.queues for name, each in topics.all().items()} == {"t": 2}
    assert made(tmp_path).all() == topics.all()


# --- deleted


def test_a_delete_removes_the_queues_first_and_refuses_puts_meanwhile(tmp_path: Path) -> None:
    topics = made(tmp_path)
    topics.ensure("t", 5)
    topics.save()
    seen: list[object] = []

    class Watching(Kernel):
        def remove_topic(self, topic: str) -> None:
            super().remove_topic(topic)
            seen.extend([topics.is_being_deleted("t"), "t" in entries_in(tmp_path)])

    store = Watching(t=[0, 5])
    topics.delete("t", store)  # type: ignore[arg-type] # a part of a store
    assert seen == [True, True]
    assert store.calls == ["recheck t", "remove t", "recheck t"]
    assert not topics.is_being_deleted("t")
    assert entries_in(tmp_path) == topics.all() == {}
    assert json.loads((tmp_path / "penstock" / "auto-topics").read_text()) == {}
    # Created again, it is as new.
    assert topics.ensure("t")[1] == 4  # type: ignore[index] # it is not None


def test_a_topic_that_only_the_queue_index_has_can_be_deleted(tmp_path: Path) -> None:
    topics, store = made(tmp_path), Kernel(t=[0])
    topics.delete("t", store)  # type: ignore[arg-type] # a part of a store
    assert store.queues == {}
    with pytest.raises(UnknownTopicError, match="no such topic"):
        topics.delete("t", store)  # type: ignore[arg-type] # as above


@pytest.mark.parametrize("failure", [StorageError("no"), CorruptionError(Path("offsets"), 0, "JSON", "none")])  # fmt: skip
def test_a_delete_that_the_kernel_refuses_changes_nothing(tmp_path: Path, failure: StorageError) -> None:  # fmt: skip
    topics, store = made(tmp_path), Kernel(t=[0])
    topics.create("t")
    store.failure = failure
    with pytest.raises(type(failure)):
        topics.delete("t", store)  # type: ignore[arg-type] # a part of a store
    assert not topics.is_being_deleted("t")
    assert list(entries_in(tmp_path)) == list(topics.all()) == ["t"]
    # Again, once the cause is gone.
    store.failure = None
    topics.delete("t", store)  # type: ignore[arg-type] # as above
    assert topics.all() == {}


# --- readers


def test_a_reader_sees_each_change_and_writes_nothing(tmp_path: Path) -> None:
    reader = made(tmp_path, read_only=True)
    assert reader.all() == {}
    for change in (
        lambda: reader.ensure("t"), lambda: reader.create("t"), lambda: reader.alter("t", perm=4),
        lambda: reader.delete("t", Kernel(t=[0])),  # type: ignore[arg-type] # a part of a store
    ):  # fmt: skip
        with pytest.raises(ReadOnlyError):
            change()  # type: ignore[no-untyped-call] # any of them
    assert not (tmp_path / "config").exists()
    writer = made(tmp_path)
    writer.create("t", queues=2)
    assert reader.get("t") == writer.get("t")
    writer.alter("t", queues=3)
    assert reader.get("t") == writer.get("t")
    writer.delete("t", Kernel())  # type: ignore[arg-type] # a part of a store
    assert reader.get("t") is None
