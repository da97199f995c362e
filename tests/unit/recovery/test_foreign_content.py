"""What is recognised in a broker's directory without a broker; `tests/interop/test_foreign.py` has real ones."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from tests.conftest import OpenStore

import penstock
from penstock import Message, staged
from penstock.contracts.foreign import BATCH_QUEUES, LIGHT_QUEUES, Foreign
from penstock.errors import ForeignContentError, LongTopicError
from penstock.files import Files
from penstock.log.segmented_log import SegmentedLog
from penstock.recovery.store_layout import find_foreign, foreign_in
from penstock.store.store import Store
from penstock.testing.kit import SMALL
from penstock_tools.cli.root import run

LONG = "t" * 128


TOPICS = "config/topics.json"


@pytest.fixture
def made(open_small: OpenStore, tmp_path: Path) -> Path:
    with open_small() as store:
        store.put_many([Message("t", b"%d" % n, queue=0, tag="g", keys=["k"]) for n in range(9)])
    return tmp_path / "store"


def declare(root: Path, topic: str, **attributes: str) -> None:
    attributes = {name.replace("_", "."): value for name, value in attributes.items()}
    # Every broker declares the second one.
    declared = {topic: {"attributes": attributes, "perm": 6}, "SELF_TEST_TOPIC": {"perm": 6}}
    table = {**declared, "other": {"perm": 6}, "odd": None}
    (root / "config").mkdir(exist_ok=True)
    (root / TOPICS).write_text(json.dumps({"topicConfigTable": table}))


def file(root: Path, name: str, data: bytes = b"x") -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


# What lies there, and the kinds that it is.
SIGNS: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "declared-batch": (lambda r: declare(r, "b", queue_type="BatchCQ"), ["batch-queues"]),
    "batch-files": (lambda r: file(r, "batchconsumequeue/b/0/00"), ["batch-queues"]),
    "no-batch-files": (lambda r: (r / "batchconsumequeue/b/0").mkdir(parents=True), []),
    "other-queues": (lambda r: declare(r, "b", queue_type="SimpleCQ"), []),
    "compacted": (lambda r: declare(r, "c", cleanup_policy="COMPACTION"), ["compaction-topics"]),
    "compacted-files": (lambda r: file(r, "compaction/compactionLog/c/0/00"), ["compaction-topics"]),
    "compaction-position": (lambda r: file(r, "compaction/position-checkpoint"), []),
    "rocksdb": (lambda r: file(r, "consumequeue/CURRENT"), ["rocksdb-queues"]),
    "rocksdb-beside": (lambda r: file(r, "consumequeue_rocksdb/CURRENT"), ["rocksdb-queues"]),
    "rocksdb-config": (lambda r: file(r, "config/topics/CURRENT"), ["rocksdb-config", "broker-config"]),
    "rocksdb-store": (lambda r: file(r, "rocksdbstore/01.sst"), ["rocksdb-store", "tag-keys"]),
    "rocksdb-log": (lambda r: file(r, "rocksdbstore/01.log"), ["rocksdb-store", "tag-keys"]),
    "rocksdb-empty": (lambda r: file(r, "rocksdbstore/01.log", b""), ["tag-keys"]),
    "timer": (lambda r: file(r, "timerwheel"), []),
    "timers-read": (lambda r: file(r, "config/timercheck"), []),
    "lmq-offsets": (lambda r: file(r, "config/lmqConsumerOffset.json"), ["lmq-offsets"]),
    "lmq-backup": (lambda r: file(r, "config/lmqConsumerOffset.json.bak"), ["lmq-offsets"]),
    "dledger": (lambda r: file(r, "dledger-n0/data/00"), ["dledger-log"]),
    "pop": (lambda r: file(r, "kvStore/CURRENT"), ["pop-state"]),
    "config": (lambda r: file(r, "config/consumerFilter.json"), ["broker-config"]),
    "stranger": (lambda r: file(r, "lost+found/x"), ["unknown"]),
    "offsets": (lambda r: file(r, "config/consumerOffset.json", b"{}"), []),
    "no-json": (lambda r: file(r, TOPICS, b"\xff{" * 99), []),
    "deep-json": (lambda r: file(r, TOPICS, b"[" * 100_000), []),
    "other-json": (lambda r: file(r, TOPICS, b'{"topicConfigTable": [1]}'), []),
}  # fmt: skip


@pytest.mark.parametrize("name", SIGNS)
def test_each_sign_is_recognised_and_what_stops_writing_stops_it(made: Path, name: str) -> None:
    leave, kinds = SIGNS[name]
    leave(made)
    with penstock.open(made, read_only=True) as store:
        found = store.lowlevel.not_understood
        assert [each.kind.name for each in found] == kinds
        assert [f["kind"] for f in store.stats()["not_understood"]] == kinds
    stopping = tuple(each.kind.name for each in found if each.kind.stops_writing)
    if stopping:
        with pytest.raises(ForeignContentError) as caught:
            penstock.open(made)
        assert caught.value.kinds == stopping
    else:
        with penstock.open(made) as store:
            store.put("t", b"more", queue=0)


def test_offsets_that_a_broker_does_not_read_are_not_shown(made: Path) -> None:
    file(made, "config/lmqConsumerOffset.json", b'{"offsetTable":{"t@g":{"0":3}}}')
    with penstock.open(made, read_only=True) as store, pytest.raises(ForeignContentError, match="enableLmq"):  # fmt: skip
        store.groups()


def test_what_a_dispatcher_does_not_understand_is_told_once(made: Path) -> None:
    declare(made, "b", queue_type="BatchCQ")
    told = [Foreign(kind, made, ("theirs",)) for kind in (BATCH_QUEUES, LIGHT_QUEUES)]
    dispatcher: Any = SimpleNamespace(not_understood=lambda _log: told)
    log = SegmentedLog(Files(), made / "commitlog", SMALL.segment_bytes, mapped=False)
    log.load(repair=False)
    found = foreign_in(Files(), made, log, [dispatcher, dispatcher])
    assert [(each.kind, each.names) for each in found] == [
        (BATCH_QUEUES, ("b",)), (LIGHT_QUEUES, ("theirs",)),
    ]  # fmt: skip


def test_a_backup_tells_where_the_file_is_damaged(made: Path) -> None:
    declare(made, "b", queue_type="BatchCQ")
    (made / TOPICS).rename(made / f"{TOPICS}.bak")
    (made / TOPICS).write_bytes(b"{")
    assert [each.names for each in find_foreign(Files(), made)] == [("b",)]


def test_light_queues_are_a_broker_s_where_one_has_been(
    open_small: OpenStore, tmp_path: Path
) -> None:
    """A store of Penstock's own may have such a topic."""
    root = tmp_path / "store"
    with open_small() as store:
        store.put("%LMQ%mine", b"x", queue=0)
    with open_small() as store:
        store.put("%LMQ%mine", b"y", queue=0)
    declare(root, "t")
    with pytest.raises(ForeignContentError, match="%LMQ%mine"):
        open_small()


def test_a_name_cannot_reach_the_terminal_raw(made: Path) -> None:
    (made / "bad\x1b[31m\u202e").write_text("")
    with penstock.open(made, read_only=True) as store:
        (found,) = store.lowlevel.not_understood
    assert found.text.isprintable()


def test_what_is_not_understood_is_never_shown_as_empty(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file(made, "batchconsumequeue/b/0/00")
    assert run(["topics", str(made)]) == 0
    shown = capsys.readouterr()
    assert "BatchCQ" in shown.err
    assert "b " not in shown.out
    for verb in ("read", "tail"):
        assert run([verb, str(made), "b"]) == 4
        assert "topic 'b' cannot be read" in capsys.readouterr().err
    with penstock.open(made, read_only=True) as store:
        assert [b.topic for b in store.lowlevel.bounds()] == ["t"]
        with pytest.raises(ForeignContentError):
            store.lowlevel.bounds(lambda topic: topic == "b")


def test_a_store_whose_queues_are_in_a_database_does_not_show_zero(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file(made, "consumequeue/CURRENT")
    assert run(["stat", str(made), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["messages"] is facts["queues"] is facts["log_end_offset"] is None
    assert run(["stat", str(made)]) == 0
    assert "not known" in capsys.readouterr().out
    assert run(["topics", str(made)]) == 4
    assert run(["verify", str(made)]) == 0
    assert "neither shown nor checked" in capsys.readouterr().err
    with penstock.open(made, read_only=True) as store:
        assert len(store.find("k", "t")) == 9


# --- topics that older brokers do not know


WAYS: dict[str, Callable[[Store], object]] = {
    "put": lambda s: s.put(LONG, b"x", queue=0),
    "put_many": lambda s: s.put_many([Message("t", b"x", queue=0), Message(LONG, b"x", queue=0)]),
    "put_many-large": lambda s: s.put_many([Message(LONG, b"x", queue=0)] * 100),
    "put_arrow": lambda s: s.put_arrow(pa.table({"topic": ["t", LONG], "body": [b"x", b"y"]})),
    "submit": lambda s: s.submit(LONG, b"x", queue=0).result(),
    "staged": lambda s: s.lowlevel.put_staged(staged_batch(s)),
}


def staged_batch(store: Store) -> staged.StagedBatch:
    path = store.path.parent / "staged"
    encoder = staged.Encoder(staged.encoding_for(store.path.parent / "new"))
    path.unlink(missing_ok=True)
    writer = encoder.writer(Files(), path)
    writer.add(encoder.encode(pa.table({"topic": ["t", LONG], "body": [b"x", b"y"]})))
    writer.finish()
    return staged.StagedFile.read(Files(), path).batches[0]


@pytest.fixture
def foreign(made: Path) -> Path:
    """The store as a copy of a broker's directory: without what Penstock notes."""
    for path in (made / "penstock").iterdir():
        path.unlink()
    return made


@pytest.mark.parametrize("way", WAYS)
def test_a_long_topic_is_refused_in_a_directory_that_penstock_did_not_make(
    foreign: Path, way: str
) -> None:
    """One such put made a 4.9.7 broker drop 3,299 acknowledged messages after it."""
    for _ in range(2):  # also when it is opened again
        with penstock.open(foreign) as store:
            end = store.stats()["log_end_offset"]
            with pytest.raises(LongTopicError, match=r"log\.long_topics"):
                WAYS[way](store)
            assert store.stats()["log_end_offset"] == end
            store.put("t" * 127, b"x", queue=0)


@pytest.mark.slow
def test_a_long_topic_is_taken_where_its_brokers_know_it_and_in_own_stores(
    foreign: Path, tmp_path: Path
) -> None:
    knowing: dict[str, Any] = {"log.long_topics": True}
    own: dict[str, Any] = {}
    for root, settings in ((foreign, knowing), (tmp_path / "own", own)):
        for put in WAYS.values():
            with penstock.open(root, **settings) as store:
                end = store.stats()["log_end_offset"]
                put(store)
                assert store.stats()["log_end_offset"] > end
                assert LONG in store.topics()
