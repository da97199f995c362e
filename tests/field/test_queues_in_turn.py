"""Messages are spread over the queues of a topic: nobody who names a queue, reads all of them, or changes their number loses one."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.cli.commands import run

import penstock
from penstock import ArgumentError, Message, MessageError, Store
from penstock.contracts.extension import Extension, OpenStore
from penstock.testing import ManualClock, ManualWorkers, open_store

HOUR_MS = 3_600_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


def test_an_import_adds_queues_as_often_as_its_rows_name_new_ones(
    path: Path, tmp_path: Path
) -> None:
    """The first queue that was added made the topic a declared one, and the next one was refused."""
    rows = [{"topic": "t", "queue": 5 if n < 2500 else 9, "body": f"{n}"} for n in range(5000)]
    (tmp_path / "rows.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run("import", path, tmp_path / "rows.ndjson", "--quiet").expect(0)
    with penstock.open(path) as store:
        assert store.topics() == {"t": [5, 9]}
        config = store.topic_configs()["t"]
        assert (config.queues, config.is_auto) == (10, True)
        store.create_topic("declared", queues=2)
        store.lowlevel.add_queue("declared", 7)
        assert store.topic_configs()["declared"].queues == 2


def test_what_was_accepted_for_a_queue_reaches_a_topic_that_was_made_again_with_fewer(
    path: Path,
) -> None:
    clock, workers = ManualClock(), ManualWorkers()
    with penstock.open(path, clock=clock, spawn=workers, retention=[]) as store:
        store.create_topic("t", queues=8)
        store.put("t", b"time", queue=6, delay=2)
        store.put("t", b"level", queue=6, delay_level=1)
        prepared = store.prepare("t", b"half", queue=6, group="g")
        store.delete_topic("t")
        store.put("t", b"new", queue=0)
        assert store.topic_configs()["t"].queues == 4
        clock.now_ms += HOUR_MS
        for _ in range(4):
            workers.run_all()
        prepared.commit(wait=False)
        assert {(m.body, m.queue) for m in store.scan("t")} == {(b"new", 0), (b"time", 6), (b"level", 6), (b"half", 6)}  # fmt: skip


class Altered(Extension):
    """Changes the number of a topic's queues while it is asked for it."""

    name = "altered"
    answers: list[int]

    def attach(self, store: OpenStore) -> None:
        self.store, self.answers = store, [4]

    def queues_of(self, topic: str) -> int:
        if self.answers:
            self.store.recheck_puts(topic)
            return self.answers.pop()
        return 2


def test_a_number_that_changes_while_it_is_asked_for_is_not_kept(path: Path) -> None:
    with open_store(path, strategies=[Altered], extensions=["altered"]) as store:
        first, *others = [store.put("t", b"x").queue for _ in range(9)]
        assert first < 4
        assert others == [1, 0] * 4


def between(store: Store, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let a queue get its first message, and an older queue the next, after the store has looked `count` times which there are."""
    topics, looks = store.topics, [0]

    def look(*, system: bool = False) -> dict[str, list[int]]:
        found = topics(system=system)
        looks[0] += 1
        if looks[0] == count:
            store.put("t", b"1", queue=1)
            store.put("t", b"2", queue=0)
            store.read("t", 0)
        return found

    monkeypatch.setattr(store, "topics", look)


@pytest.mark.parametrize("queues", [[0], [0, 2]], ids=str)
def test_following_passes_over_no_queue_that_begins_meanwhile(
    path: Path, monkeypatch: pytest.MonkeyPatch, queues: list[int]
) -> None:
    with penstock.open(path) as store:
        for queue in queues:
            store.put("t", b"0", queue=queue)
        between(store, monkeypatch, 2)
        bodies = [m.body for m in store.scan("t", follow=True, limit=len(queues) + 2)]
        assert bodies == [*[b"0"] * len(queues), b"1", b"2"]


@pytest.mark.parametrize("read", ["scan", "to_arrow"])
def test_a_read_ends_before_what_arrives_while_it_begins(
    path: Path, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """It returned the later of two messages, and not the earlier one, whose queue it had not seen."""
    with penstock.open(path) as store:
        for queue in (0, 2):
            store.put("t", b"0", queue=queue)
        between(store, monkeypatch, 1)
        if read == "scan":
            bodies = [m.body for m in store.scan("t")]
        else:
            bodies = store.to_arrow("t", ["body"])["body"].to_pylist()
        assert bodies == [b"0", b"0"]


def test_following_begins_where_it_is_told_also_in_what_does_not_exist_yet(path: Path) -> None:
    clock = ManualClock()
    with penstock.open(path, clock=clock, retention=[]) as store:
        later = (clock.now_ms + HOUR_MS) / 1000
        since = store.scan("t", since=later, follow=True)
        start = store.scan("t", start={("t", 1): 2}, follow=True)
        single = store.scan("t", queue=1, start=1, follow=True)
        for number in range(3):
            store.put("t", b"%d" % number, queue=1)
        clock.now_ms += HOUR_MS
        store.put("t", b"3", queue=1)
        assert [next(each).body for each in (since, start, single)] == [b"3", b"2", b"1"]


def test_a_check_takes_no_turn(path: Path) -> None:
    with penstock.open(path) as store:
        queues = []
        for _ in range(4):
            store.lowlevel.check(Message("t", b"x"))
            queues.append(store.put("t", b"x").queue)
        assert queues == [0, 1, 2, 3]


def test_a_column_of_keys_takes_what_put_takes(path: Path) -> None:
    with penstock.open(path) as store:
        made: Any = pa.table({"topic": ["t"], "body": [b"x"], "keys": [["p q"]]})
        with pytest.raises(MessageError, match="'p q': a space separates keys"):
            store.put_arrow(made)
        assert store.topics() == {}


def test_finding_by_time_leaves_out_messages_that_wait(path: Path) -> None:
    with penstock.open(path) as store:
        store.put("t", b"here")
        store.put("t", b"later", delay=3600)
        store.put("t", b"later", delay_level=18)
        store.prepare("t", b"half", group="g")
    assert [each["body"] for each in run("find", path, "--since", "1h", "--json").rows] == ["here"]


def test_milliseconds_are_no_time_before_which_everything_is_deleted(path: Path) -> None:
    with penstock.open(path) as store:
        time_ms = store.put("t", b"x").store_time_ms
        with pytest.raises(ArgumentError, match="not milliseconds"):
            store.discard_before(time=time_ms)
