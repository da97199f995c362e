"""`penstock topic`: what it shows, changes and deletes, and what it says."""

from pathlib import Path

import pytest
from tests.cli.commands import run

import penstock


@pytest.fixture
def store(tmp_path: Path) -> str:
    with penstock.open(tmp_path / "data", environ={}) as made:
        made.create_topic("orders", queues=5)
        for number in range(5):
            made.put("orders", b"x", queue=number)
        made.commit_offset("billing", "orders", 0, offset=1)
    return str(tmp_path / "data")


def test_topics_are_listed_with_their_configuration(store: str) -> None:
    options = ("--queues", "8", "--write-queues", "2", "--perm", "4", "--attribute", "message.type=FIFO")  # fmt: skip
    assert run("topic", "create", store, "b", *options).code == 0
    with penstock.open(store, environ={}, extensions=[]) as made:
        made.put("%LMQ%light", b"x", queue=0)
    done = run("topic", "list", store)
    assert (done.code, done.err) == (0, "")
    for text in ("orders", "6 (read, write)", "message", "4 (read)", "declaration", "message.type=FIFO", "not listed"):  # fmt: skip
        assert text in done.out
    assert run("topic", "list", store, "--json").rows == [
        {"topic": "%LMQ%light", "messages": 1, "read_queues": None, "write_queues": None, "perm": None, "order": None, "attributes": None, "is_auto": None},
        {"topic": "b", "messages": 0, "read_queues": 8, "write_queues": 2, "perm": 4, "order": False, "attributes": {"message.type": "FIFO"}, "is_auto": False},
        {"topic": "orders", "messages": 5, "read_queues": 5, "write_queues": 5, "perm": 6, "order": False, "attributes": {}, "is_auto": False},
    ]  # fmt: skip


def test_a_list_that_cannot_be_read_is_named(store: str) -> None:
    (Path(store) / "config" / "topics.json").write_text("{")
    (Path(store) / "config" / "topics.json.bak").unlink(missing_ok=True)
    run("topic", "list", store).expect(0, out="not listed", err="it is not replaced")
    run("topic", "create", store, "new").expect(5, err="it is not replaced")


def test_a_topic_is_created_and_changed(store: str) -> None:
    done = run("topic", "create", store, "new", "--queues", "8")
    assert (done.code, done.err) == (0, "created topic new: 8 queues, perm 6 (read, write)\n")
    run("topic", "create", store, "new").expect(2, err="there is a topic of that name already")
    done = run("topic", "alter", store, "new", "--write-queues", "1", "--perm", "2")
    assert (done.code, done.err) == (0, "changed topic new: 8 queues, new messages go to 1 of them, perm 2 (write)\n")  # fmt: skip
    done = run("topic", "alter", store, "new", "--attribute", "a=1", "--attribute", "b=2", "--json")
    assert (done.code, done.rows[0]["attributes"]) == (0, {"a": "1", "b": "2"})
    done = run("topic", "alter", store, "new", "--attribute", "a=", "--json")
    assert done.rows[0]["attributes"] == {"b": "2"}
    with penstock.open(store, read_only=True) as reader:
        assert reader.topic_configs()["new"][1:4] == (8, 1, 2)


@pytest.mark.parametrize(("words", "reason"), [
    (("alter", "orders"), "nothing to change: give --queues"),
    (("alter", "none", "--perm", "4"), "there is no topic"),
    (("alter", "orders", "--write-queues", "99"), "write_queues 99 is refused: it must be at most"),
    (("alter", "orders", "--attribute", "x"), "--attribute takes NAME=VALUE, not 'x'"),
    (("alter", "orders", "--attribute", "=x"), "--attribute takes NAME=VALUE"),
    (("create", "t", "--attribute", "queue.type=BatchCQ"), "Penstock stores no other kind"),
    (("create", "SELF_TEST_TOPIC"), "RocketMQ reserves that name"),
    (("create", "t", "--queues", "0"), "0 is not in the range"),
    (("delete", "none"), "there is no topic"),
    (("delete", "none", "--apply"), "there is no topic"),
])  # fmt: skip
def test_a_mistake_is_named_and_changes_nothing(store: str, words: tuple[str, ...], reason: str) -> None:  # fmt: skip
    path = Path(store) / "config" / "topics.json"
    before = path.read_bytes()
    done = run("topic", words[0], store, *words[1:])
    done.expect(2, err=reason)
    assert done.out == ""
    assert path.read_bytes() == before


def test_a_topic_is_deleted_only_with_apply(store: str) -> None:
    done = run("topic", "delete", store, "orders")
    assert (done.code, done.err) == (1, "would delete topic orders with 5 messages and offsets of 1 group; nothing was changed: run it again with --apply to delete\n")  # fmt: skip
    with penstock.open(store, read_only=True) as reader:
        assert len(list(reader.scan("orders"))) == 5
    done = run("topic", "delete", store, "orders", "--json")
    assert (done.code, done.rows) == (1, [{"topic": "orders", "messages": 5, "groups": ["billing"], "applied": False}])  # fmt: skip
    done = run("topic", "delete", store, "orders", "--apply")
    assert (done.code, done.err) == (0, "deleted topic orders with 5 messages and offsets of 1 group\n")  # fmt: skip
    with penstock.open(store, read_only=True) as reader:
        assert (reader.topics(), reader.groups(), reader.topic_configs()) == ({}, [], {})


def test_a_name_cannot_reach_the_terminal_raw(store: str) -> None:
    with penstock.open(store, environ={}) as made:
        made.create_topic("e\u202evil", attributes={"a\x1b[2J": "\x1b[2J"})
    for words in (("list",), ("alter", "e\u202evil", "--perm", "4"), ("delete", "e\u202evil"), ("delete", "no\x1b[2J")):  # fmt: skip
        done = run("topic", words[0], store, *words[1:])
        assert not {"\x1b", "\u202e"} & set(done.out + done.err)


def test_put_picks_a_queue_by_a_key_and_delays(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert run("topic", "create", path, "orders", "--queues", "4").code == 0
    for _ in range(2):
        assert run("put", path, "orders", "x", "--partition-key", "A-17").code == 0
    assert run("put", path, "orders", "later", "--queue", "3", "--delay-level", "5").code == 0
    assert run("put", path, "orders", "x", "--partition-key", "A-17", "--queue", "1").code == 2
    assert run("put", path, "orders", "x", "--delay-level", "19").code == 2
    with penstock.open(path, read_only=True) as store:
        queues = [m.queue for m in store.scan("orders")]
        assert len(queues) == 2
        assert len(set(queues)) == 1
        (waiting,) = store.scan("SCHEDULE_TOPIC_XXXX")
        assert waiting.properties["REAL_QID"] == "3"


def test_system_topics_are_listed_where_they_are_asked_for(store: str) -> None:
    """A store with delays and retries showed more topics of RocketMQ's own than of the user's."""
    with penstock.open(store, environ={}) as made:
        made.put("orders", b"x", queue=0, delay_level=1)
        made.lowlevel.put_copies([(penstock.Message("%RETRY%billing", b"x", queue=0), b"")])
        for topic in ("SCHEDULE_TOPIC_XXXX", "%RETRY%billing"):
            made.commit_offset("billing", topic, 0, offset=0)
        made.commit_offset("penstock-dlq-replay", "orders", 0, offset=0)
        assert [*made.topics()] == ["orders"]
        own = [("billing", "orders")]
        assert [(each.group, each.topic) for each in made.groups()] == own
        assert {each.topic for each in made.groups(system=True)} >= made.topics(system=True).keys()
        assert not {*made.topic_configs()} & {"SCHEDULE_TOPIC_XXXX", "%RETRY%billing"}
    for words in (["topics"], ["topic", "list"], ["groups"]):
        done = run(*words, store, "--json")
        assert {line["topic"] for line in done.rows} == {"orders"}, words
        done.expect(0, err="of system topics left out; --system shows all")
        done = run(*words, store, "--system", "--json")
        assert done.code == 0
        assert {line["topic"] for line in done.rows} > {"orders"}, words
        assert "left out" not in done.err
        assert ("1 nacked message waits to be retried" in done.err) is (words == ["groups"])


def test_a_topic_without_messages_is_told_from_one_that_is_not_there(store: str) -> None:
    """A topic that was declared, or whose messages all wait, was denied, and RocketMQ's own topics were listed instead."""
    with penstock.open(store, environ={}) as made:
        made.create_topic("events", queues=2)
        made.put("later", b"x", queue=0, delay=3600)
    for words, said in (
        (["read", store, "events"], "topic 'events' has no message"),
        (["read", store, "later"], "topic 'later' has no message"),
        (["tail", store, "events"], "topic 'events' has no message"),
        (["read", store, "events", "--queue", "2"], "no queue 2; it has queues 0 to 1"),
        (["read", store, "event"], "did you mean 'events'?"),
    ):
        run(*words).expect(1, err=said)
