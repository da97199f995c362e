"""Topics as a broker's file lists them: declared, created by messages, found again after a kill, changed, deleted; and which messages they refuse."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest
from tests.lanes import cases
from tests.shop import Shop

import penstock
from penstock import Message, Store, errors
from penstock.contracts import NO_HISTORY
from penstock.format.names import FORBIDDEN_TOPICS
from penstock.format.rocketmq_json import parse_rocketmq_json
from penstock.testing import FaultyFiles, InlineWorkers, SimulatedDisk, make_context
from penstock.testing.platter import Image, Survival
from penstock_messaging.configuration.checks import check_put
from penstock_messaging.configuration.topics import TopicConfigs, config_of

GOLDEN = Path(__file__).parents[2] / "golden" / "broker-config"


class Kernel:
    """The parts of a store that topics use, and its history."""

    removed: ClassVar[dict[str, int]] = {"removed": 7}

    def __init__(self, *, ours: bool = True, **queues: list[int]) -> None:
        self.ours, self.queues = ours, queues
        self.calls: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def topics(self, *, system: bool) -> dict[str, list[int]]:
        return self.queues

    def groups(self, *, system: bool) -> None:
        """Has none."""

    def remove_topic(self, topic: str) -> None:
        self.calls.append(f"remove {topic}")
        self.queues.pop(topic, None)
        self.meanwhile()

    def recheck_puts(self, topic: str) -> None:
        self.calls.append(f"recheck {topic}")

    def is_one_run(self, first: int, last: int) -> bool:
        assert first == 0
        assert last > 1 << 60
        return self.ours

    def is_unlisted(self, topic: str) -> bool:
        return not topic.startswith("%RETRY%")


def kernel(**given: Any) -> Any:
    return Kernel(**given)


def topics_of(root: Path, *, auto_create: bool = True, **more: Any) -> TopicConfigs:
    context = make_context(root, **more)
    return TopicConfigs(context, default_queues=4, auto_create=auto_create)


def give(root: Path, entries: object, **auto: int) -> Path:
    path = root / "config" / "topics.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"topicConfigTable": entries}))
    (root / "penstock").mkdir(exist_ok=True)
    (root / "penstock" / "auto-topics").write_text(json.dumps(auto))
    return path


def listed(root: Path) -> Any:
    text = (root / "config" / "topics.json").read_text()
    return parse_rocketmq_json(text)["topicConfigTable"]


def counts(topics: TopicConfigs | Store) -> dict[str, int]:
    configs = topics.topic_configs() if isinstance(topics, Store) else topics.all()
    return {name: each.queues for name, each in configs.items()}


# --- the file of a broker


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_an_added_topic_looks_as_if_the_broker_had_added_it(tmp_path: Path, version: str) -> None:
    """The broker created T3 by a message with 4 queues: taken out and created again, it is the same in every byte."""
    path = give(tmp_path, {})
    raw = (GOLDEN / version / "topics.json").read_bytes()
    path.write_bytes(raw)
    topics = topics_of(tmp_path)
    orders = topics.get("orders")
    assert orders is not None
    assert (orders[1:4], orders.is_auto, topics.get("gone")) == ((4, 4, 6), False, None)
    assert counts(topics)["SCHEDULE_TOPIC_XXXX"] == 18
    assert list(topics.all()) == sorted(topics.all())
    if version == "5.3.3":
        assert topics.all()["fifo"].attributes == {"message.type": "FIFO"}
    topics.delete("T3", kernel())
    assert b'"T3":{' not in path.read_bytes()
    topics.ensure("T3", 1)
    topics.save()
    table = b'"topicConfigTable":{'
    assert path.read_bytes().partition(table)[2] == raw.partition(table)[2]


ODD: list[Any] = [
    None, 3, [], {"perm": "6"}, {"perm": True}, {"perm": -1}, {"readQueueNums": 1.0}, {"writeQueueNums": 1 << 31},
    {"attributes": [1]}, {"attributes": {"a": 1}}, {"readQueueNums": "9" * 2000},
]  # fmt: skip


@pytest.mark.parametrize("entry", ODD)
def test_an_entry_that_cannot_be_understood_is_set_aside_and_kept(
    tmp_path: Path, entry: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert config_of("t", {"perm": None, "order": True, "x": 1})[:5] == ("t", 16, 16, 6, True)
    give(tmp_path, {"odd": entry, "good": {}})
    topics = topics_of(tmp_path)
    assert list(topics.all()) == ["good"]
    assert "entry of topic 'odd' is not used" in caplog.text
    assert topics.has_none("odd")
    assert topics.ensure("odd", 9) is None
    with pytest.raises(errors.TopicExistsError):
        topics.create("odd")
    with pytest.raises(errors.UnknownTopicError, match="cannot be understood"):
        topics.alter("odd", queues=3)
    topics.create("new")
    assert listed(tmp_path)["odd"] == entry
    topics.delete("odd", kernel())
    assert list(listed(tmp_path)) == ["good", "new"]
    assert topics.ensure("odd") is not None


@pytest.mark.parametrize("raw", [b"{", b"[]", b"\0\0"])
def test_an_unreadable_file_is_not_replaced_and_messages_still_create_topics(
    tmp_path: Path, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = give(tmp_path, {})
    path.write_bytes(raw)
    topics, store = topics_of(tmp_path), kernel(t=[0])
    assert topics.ensure("t") is not None
    topics.save()
    assert "it is not replaced" in caplog.text
    assert topics.remarks()
    for call, given in (("create", ()), ("alter", ()), ("delete", (store,))):
        with pytest.raises(errors.CorruptionError, match="it is not replaced"):
            getattr(topics, call)("u" if call == "create" else "t", *given)
    assert store.queues == {"t": [0]}
    assert path.read_bytes() == raw


def test_a_reader_sees_each_change_and_makes_none(tmp_path: Path) -> None:
    reader, writer = topics_of(tmp_path, read_only=True), topics_of(tmp_path)
    assert reader.all() == {}
    for call, given in (("ensure", ()), ("create", ()), ("alter", ()), ("delete", (kernel(),))):
        with pytest.raises(errors.ReadOnlyError):
            getattr(reader, call)("t", *given)
    assert not (tmp_path / "config").exists()
    writer.create("t", queues=2)
    assert reader.get("t") == writer.get("t")
    writer.alter("t", queues=3)
    assert reader.get("t") == writer.get("t")
    writer.delete("t", kernel())
    assert reader.get("t") is None


# --- created by messages


def test_a_topic_that_messages_create_grows_with_them(tmp_path: Path) -> None:
    changes: list[int] = []
    topics = TopicConfigs(
        make_context(tmp_path), default_queues=4, auto_create=True, on_change=lambda: changes.append(1)
    )  # fmt: skip
    for queue, count in ((0, 4), (3, 4), (9, 10), (1, 10)):
        found = topics.ensure("t", queue)
        assert found is not None
        assert (found[1:3], found.is_auto) == ((count, count), True)
    assert len(changes) == 2
    assert not (tmp_path / "config").exists()
    topics.save()
    assert listed(tmp_path)["t"]["writeQueueNums"] == 10
    again = topics_of(tmp_path)
    assert again.get("t") == topics.get("t")
    again.ensure("t", 12)
    # As many as a broker gives it.
    system = {"SCHEDULE_TOPIC_XXXX": 18, "%RETRY%g": 1, "%DLQ%g": 1, "RMQ_SYS_X": 1}
    for name in system:
        again.ensure(name)
    assert counts(again) == {"t": 13, **system}
    assert again.ensure("%LMQ%a", 3) is None, "of a light message queue nothing is listed"
    again.create("declared", queues=2)
    again.ensure("declared", 5)
    assert counts(again)["declared"] == 2


def test_what_the_queue_index_has_is_adopted(tmp_path: Path) -> None:
    store = kernel(a=[0, 7], b=[1], **{"%LMQ%x": [0], "SELF_TEST_TOPIC": [0], "%RETRY%g": [0, 1]})
    topics = topics_of(tmp_path)
    topics.adopt(store, lambda: NO_HISTORY)
    assert counts(topics) == {"%RETRY%g": 2, "a": 8, "b": 4}
    topics.save()
    again, store = topics_of(tmp_path), kernel(a=[0, 9], c=[0])
    # In a directory that no broker has written.
    again.adopt(store, lambda: store)
    assert (counts(again)["a"], again.all()["c"].is_auto, "c" in listed(tmp_path)) == (
        10,
        True,
        False,
    )


def test_what_a_broker_may_have_deleted_is_not_adopted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages of Penstock in a topic that a broker has deleted are kept: listed, the topic would have the others again."""
    give(tmp_path, {"kept": {"writeQueueNums": 2, "readQueueNums": 2}})
    retries = {"%RETRY%g": [0]}
    store = kernel(ours=False, kept=[0, 5], unlisted=[0], other=[0], removed=[0], **retries)
    topics = topics_of(tmp_path)
    topics.adopt(store, lambda: store)
    assert counts(topics) == {"%RETRY%g": 1, "kept": 2, "removed": 4}
    assert "lacks topics that have messages: 'other', 'unlisted'" in caplog.text
    # It takes messages, as before, until somebody says that it is to be listed, or deleted.
    assert topics.ensure("unlisted", 9) is None
    topics.create("unlisted", queues=1)
    assert listed(tmp_path).keys() == {"%RETRY%g", "kept", "removed", "unlisted"}
    topics.delete("other", store)
    assert topics.ensure("other") is not None


def test_in_a_brokers_directory_a_new_topic_is_saved_at_once(tmp_path: Path) -> None:
    """So that no topic without an entry is Penstock's own; and a full disk stops no message."""
    give(tmp_path, {})
    files, store = FaultyFiles(), kernel(ours=False)
    topics = topics_of(tmp_path, files=files)
    topics.adopt(store, lambda: store)
    topics.ensure("a")
    topics.ensure("a", 9)
    assert listed(tmp_path)["a"]["readQueueNums"] == 4
    files.plan.fail("create")
    assert topics.ensure("b") is not None


# --- declared, changed, deleted


def test_a_topic_is_declared_durably_and_once(tmp_path: Path) -> None:
    rechecked: list[str] = []
    topics = TopicConfigs(
        make_context(tmp_path), default_queues=4, auto_create=True, on_recheck=rechecked.append
    )
    topics.create("a")
    topics.create("b", queues=8, write_queues=2, perm=4, attributes={"message.type": "FIFO"})
    topics.create("c", write_queues=6)
    again = topics_of(tmp_path).all()
    assert again == topics.all()
    assert again["a"][1:4] == (4, 4, 6)
    assert again["b"][1:6] == (8, 2, 4, False, {"message.type": "FIFO"})
    assert again["c"][1:3] == (6, 6)
    assert rechecked == ["a", "b", "c"]
    with pytest.raises(errors.TopicExistsError, match=r"already\. To change it"):
        topics.create("a")
    topics.ensure("auto")
    with pytest.raises(errors.TopicExistsError, match="its first message created it"):
        topics.create("auto")
    with pytest.raises(errors.TopicError, match="light message queues"):
        topics.create("%LMQ%a")
    for name in FORBIDDEN_TOPICS:
        with pytest.raises(errors.TopicError, match="cannot be created"):
            topics.create(name)
        topics.ensure(name)
        with pytest.raises(errors.TopicError, match="cannot be deleted"):
            topics.delete(name, kernel())


def test_what_is_not_given_stays_when_a_topic_is_altered(tmp_path: Path) -> None:
    entry = {"readQueueNums": 3, "writeQueueNums": 3, "topicSysFlag": 1, "later": [1]}
    give(tmp_path, {"t": entry}, t=3)
    topics = topics_of(tmp_path)
    topics.alter("t", perm=4)
    found = listed(tmp_path)["t"]
    assert (found["perm"], found["topicSysFlag"], found["later"]) == (4, 1, [1])
    # A file of 4.x has no attributes, and gets none unless they are asked for.
    assert "attributes" not in found
    assert json.loads((tmp_path / "penstock" / "auto-topics").read_text()) == {}
    topics.alter("t", queues=5, attributes={"a": "1", "b": "2"})
    topics.alter("t", write_queues=2, attributes={"a": "", "none": ""})
    assert topics.all()["t"][1:] == (5, 2, 4, False, {"b": "2"}, False)
    assert topics_of(tmp_path).all() == topics.all()
    with pytest.raises(errors.UnknownTopicError, match="there is no topic"):
        topics.alter("none", perm=6)


def test_numbers_of_queues_and_attributes_that_cannot_be_are_refused(tmp_path: Path) -> None:
    give(tmp_path, {"odd": {"readQueueNums": 2, "writeQueueNums": 8}})
    topics = topics_of(tmp_path)
    for queues, write_queues in ((None, 9), (3, 4)):
        with pytest.raises(errors.ArgumentError, match="write_queues must be at most"):
            topics.alter("odd", queues=queues, write_queues=write_queues)
    with pytest.raises(
        errors.ArgumentError, match="at most the number of queues that consumers read, 1"
    ):
        topics.create("t", queues=1, write_queues=2)
    # What a broker has set does not stand in the way of other changes.
    assert topics.alter("odd", perm=4)[1:4] == (2, 8, 4)
    topics.create("t", attributes={"queue.type": "SimpleCQ", "cleanup.policy": "DELETE"})
    for wrong in ({"queue.type": "BatchCQ"}, {"cleanup.policy": "COMPACTION"}, {"": "x"}):
        for change in (topics.alter, topics.create):
            with pytest.raises(errors.ArgumentError, match="attributes must be a mapping"):
                change("t" if change == topics.alter else "u", attributes=wrong)
    for option, value in {"queues": 0, "write_queues": 65_537, "perm": 8, "queue": 1}.items():
        with pytest.raises(errors.ArgumentError, match=option):
            topics.create("u", **{option: value})  # type: ignore[arg-type] # what a type checker finds
    assert listed(tmp_path).keys() == {"odd", "t"}


def test_a_delete_removes_the_queues_first_and_refuses_puts_meanwhile(tmp_path: Path) -> None:
    topics, store = topics_of(tmp_path), kernel(t=[0, 5], unlisted=[0])
    topics.ensure("t", 5)
    topics.save()

    def meanwhile() -> None:
        assert "t" in listed(tmp_path)
        with pytest.raises(errors.BusyError, match="nothing was stored"):
            check_put(topics, "t", 0)

    store.meanwhile = meanwhile
    topics.delete("t", store)
    assert store.calls == ["recheck t", "remove t", "recheck t"]
    assert listed(tmp_path) == topics.all() == {}
    assert json.loads((tmp_path / "penstock" / "auto-topics").read_text()) == {}
    # Created again, it is as new.
    check_put(topics, "t", 0)
    assert counts(topics)["t"] == 4
    # One that only the queue index has.
    store.meanwhile = lambda: None
    topics.delete("unlisted", store)
    with pytest.raises(errors.UnknownTopicError, match="there is no topic"):
        topics.delete("unlisted", store)


# --- which messages are refused, whichever way they are put


# Each way to put a message.
PUTS: list[Callable[[Store, str, int], object]] = [
    lambda store, topic, queue: store.put(topic, b"x", queue=queue),
    lambda store, topic, queue: store.put_many([Message("good", b"y"), Message(topic, b"x", queue=queue)]),
    lambda store, topic, queue: store.submit(topic, b"x", queue=queue),
]  # fmt: skip


@pytest.mark.parametrize("put", PUTS)
def test_messages_are_refused_by_name_by_queue_and_by_permission(shop: Shop, put: Any) -> None:
    """A mistyped number would hide messages from consumers that another program gave the topic's queues to."""
    give(shop.root, {"odd": {"perm": "x"}})
    store = shop.store
    for topic in sorted(FORBIDDEN_TOPICS):
        for _ in range(2):
            with pytest.raises(errors.TopicError, match="RocketMQ reserves that name"):
                put(store, topic, 0)
        # A copy is no message of a caller.
        store.lowlevel.put_copies([(Message(topic, b"x", queue=0), b"")])
    assert "good" not in store.topics()
    put(store, "auto", 3)
    for queue in (4, 65_535):
        with pytest.raises(errors.TopicQueueError, match="4 queues"):
            put(store, "auto", queue)
    # Its entry is not understood, and stays.
    put(store, "odd", 77)
    assert listed(shop.root)["odd"] == {"perm": "x"}
    store.create_topic("t", queues=8, write_queues=2)
    put(store, "t", 7)
    named = r"queue 8 of topic 't' .* 8 queues, from 0 to 7"
    with pytest.raises(errors.TopicQueueError, match=named) as caught:
        put(store, "t", 8)
    assert (caught.value.topic, caught.value.queue, caught.value.limit) == ("t", 8, 7)
    # A cached cursor must not let it pass.
    store.alter_topic("t", perm=4)
    for _ in range(2):
        with pytest.raises(
            errors.TopicPermissionError, match=r"perm 4 lacks 2.*A broker would store"
        ):
            put(store, "t", 7)
    store.alter_topic("t", perm=2)
    put(store, "t", 7)
    assert store.max_offset("t", 7) == 2
    assert store.topics()["t"] == [7]


@pytest.mark.parametrize("put", PUTS)
def test_without_automatic_creation_an_unknown_topic_takes_no_message(shop: Shop, put: Any) -> None:
    shop.store.put_many([Message("old", b"x", queue=1), Message("good", b"x")])
    shop.close()
    shop.settings = {"extensions.messaging.auto_create_topics": False}
    with pytest.raises(errors.UnknownTopicError, match="auto_create_topics is false"):
        put(shop.store, "new", 0)
    assert "new" not in shop.store.topic_configs()
    shop.store.create_topic("new", queues=1)
    put(shop.store, "new", 0)
    # What was created before is there, and does not grow.
    put(shop.store, "old", 3)
    with pytest.raises(errors.TopicQueueError):
        put(shop.store, "old", 4)
    # As a client of a broker does, where it cannot give a message back.
    put(shop.store, "%RETRY%g", 0)


# --- messages without a queue


def test_known_keys_and_turns(shop: Shop) -> None:
    give(shop.root, {"none": {"writeQueueNums": 0, "readQueueNums": 1}})
    store = shop.store

    def queue_of(topic: str = "t", **given: Any) -> int:
        return store.put(topic, b"x", **given).queue

    # Computed with Java: 97, 3366, 0, and -2**31, of which Java's abs() is negative.
    keys = ("a", "k1", "", "polygenelubricants")
    assert [queue_of(partition_key=key) for key in keys] == [1, 2, 0, 0]
    assert [queue_of() for _ in range(5)] == [0, 1, 2, 3, 0]
    store.create_topic("u", queues=8, write_queues=3)
    assert [queue_of("u") for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    store.alter_topic("u", queues=2)
    assert {queue_of("u") for _ in range(4)} == {0, 1}
    assert queue_of("none") == queue_of("none", partition_key="x") == 0
    assert queue_of(queue=3) == 3
    contradictions: list[tuple[dict[str, Any], str]] = [
        ({"partition_key": "k", "queue": 2}, "leave one of them out"),
        ({"partition_key": b"k"}, "it must be a string"),
    ]
    for wrong, reason in contradictions:
        with pytest.raises(errors.MessageError, match=reason):
            queue_of(**wrong)
    for invalid in ({}, {"partition_key": "k"}):
        with pytest.raises(errors.TopicError):
            queue_of("a/b", **invalid)


# --- a whole store


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
        store.put("auto", b"x", queue=3)
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
            remarks = store.lowlevel.extension("messaging").stats()["config_remarks"]
            assert remarks == [], where
            # What has messages is listed, and nothing declared by itself.
            assert topics.keys() <= configs.keys(), where
            auto = configs["auto"]
            assert (auto.is_auto, auto.perm, auto.queues) in (
                (True, 6, 4), (False, 4, 4)), where  # fmt: skip
            assert auto.queues > max(topics["auto"]), where
            made = configs.get("made")
            assert made is None or (made.is_auto, made.queues) in ((False, 2), (False, 3)), where
            if "gone" not in topics:
                assert store.lowlevel.topic_generation("gone") == 1, where
                # Between the two: it can be deleted again, or used.
                seen["listed without queues"] += "gone" in configs
            if auto.perm == 6:
                store.put("auto", b"y", queue=2)
                seen["still auto"] += 1
            seen[f"made {made.queues if made else 0}"] += 1
            store.put("gone", b"y")
            if store.lowlevel.topic_generation("gone"):
                assert [message.body for message in store.scan("gone")] == [b"y"], where
    assert {"listed without queues", "still auto", "made 0", "made 2", "made 3"} <= seen.keys()
