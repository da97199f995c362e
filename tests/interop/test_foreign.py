"""What a real broker keeps that Penstock does not understand: named, never changed, and the broker goes on.

Each session is one broker that leaves several kinds of the table in `penstock.contracts.foreign`. Version 0.1 wrote into all
of these directories: after it a broker with a BatchCQ topic did not start, light queues were emptied by the repair
that `verify` advised, and a put into a RocksDB store was never seen by the broker.
"""

import hashlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs
import pytest
from tests.interop.brokers import Broker, body_of, sent
from tests.interop.jvms import MakeBroker
from tests.interop.timers import wait_until_saved
from tests.lanes import at_night

import penstock
from penstock.contracts.foreign import KINDS
from penstock.errors import ForeignContentError
from penstock_messaging.properties_text import TIMER_TOPIC
from penstock_tools import segmentwise

LIGHT = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"}
STOPPING = {kind.name for kind in KINDS if kind.stops_writing}
NUMBERS = [b"%d" % i for i in range(6)]


@attrs.frozen(kw_only=True)
class Session:
    """What a broker is told, what it is sent, and which kinds it leaves."""

    version: str
    kinds: set[str]
    settings: Mapping[str, object] = attrs.Factory(dict)
    fill: Callable[[Broker], None] = lambda broker: None


def batch_and_compaction(broker: Broker) -> None:
    broker.create("batched", 1, {"queue.type": "BatchCQ"})
    broker.batch(*(sent("batched", body, keys=f"k{body!r}") for body in NUMBERS))
    broker.create("compacted", 1, {"cleanup.policy": "COMPACTION"})
    broker.send(*(sent("compacted", body, keys="same") for body in NUMBERS))


def several(broker: Broker) -> None:
    batch_and_compaction(broker)
    light(broker)


def light(broker: Broker) -> None:
    broker.create("light")
    broker.send(*(sent("light", body, properties=LIGHT) for body in NUMBERS))


def timer(broker: Broker) -> None:
    broker.send(sent("plain", b"later", properties={"TIMER_DELAY_SEC": "600"}))
    assert broker.root is not None
    (waiting,) = broker.pull(TIMER_TOPIC)
    wait_until_saved(broker.root, waiting["store_time_ms"])


LMQ = {"enableLmq": True, "enableMultiDispatch": True}
SESSIONS = {
    "light-4.9": Session(version="4.9.7", settings=LMQ, fill=light, kinds={"light-queues", "lmq-offsets", "broker-config"}),
    "several-5.3": Session(
        version="5.3.3", settings=LMQ, fill=several,
        kinds={"batch-queues", "compaction-topics", "light-queues", "lmq-offsets", "broker-config"},
    ),
    "rocksdb-5.3": Session(
        version="5.3.3", settings={"storeType": "defaultRocksDB"},
        kinds={"rocksdb-queues", "rocksdb-config", "broker-config"},
    ),
    "tags-5.5": Session(version="5.5.0", kinds={"tag-keys", "broker-config"}),
    "rocksdb-5.5": Session(
        version="5.5.0", settings={"indexRocksDBEnable": True},
        kinds={"rocksdb-store", "tag-keys", "broker-config"},
    ),
    "left-alone-5.3": Session(
        version="5.3.3",
        settings={
            "popConsumerKVServiceInit": True, "popConsumerKVServiceEnable": True, "timerFlushIntervalMs": 500,
        },
        fill=timer, kinds={"pop-state", "broker-config", "unknown"},
    ),
}  # fmt: skip


def test_each_kind_is_in_a_session() -> None:
    # A broker with DLedger needs a port that is chosen before it is bound.
    found = {"dledger-log"}.union(*(s.kinds for s in SESSIONS.values()))
    assert found == {kind.name for kind in KINDS}


def content(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*")) if path.is_file()
    }  # fmt: skip


@pytest.mark.parametrize("name", [at_night(name) for name in SESSIONS])
def test_what_is_not_understood_is_left_as_it_was_and_the_broker_goes_on(
    name: str, make_broker: MakeBroker, tmp_path: Path
) -> None:
    session = SESSIONS[name]
    root = tmp_path / "store"
    root.mkdir()
    broker = make_broker(session.version)
    broker.start(root, session.settings)
    broker.create("plain")
    broker.send(*(sent("plain", body, tag="t", keys=f"k{body!r}") for body in NUMBERS))
    session.fill(broker)
    broker.stop()
    if "unknown" in session.kinds:
        (root / "notes.txt").write_text("of the operator")
    before = content(root)
    look(root, session)
    if session.kinds & STOPPING:
        refuses(root, session)
        assert content(root) == before
    else:
        with penstock.open(root) as store:
            store.put("plain", b"ours", queue=0, tag="t")
    written = NUMBERS if session.kinds & STOPPING else [*NUMBERS, b"ours"]
    broker.start(root, session.settings)
    assert broker.bodies("plain") == written
    broker.send(sent("plain", b"after"))
    assert broker.bodies("plain") == [*written, b"after"]
    goes_on(broker, session)


def look(root: Path, session: Session) -> None:
    """Reading: all kinds are named, what is understood is served, and nothing is a finding."""
    with penstock.open(root, read_only=True) as store:
        assert {each.kind.name for each in store.lowlevel.not_understood} == session.kinds
        assert [*store.verify(deep=True)] == []
        assert [m.body for m in store.find("k" + repr(b"3"), "plain")] == [b"3"]
        if "rocksdb-queues" in session.kinds:
            with pytest.raises(ForeignContentError):
                store.topics()
            with pytest.raises(ForeignContentError):
                store.groups()
            return
        assert [m.body for m in store.scan("plain")] == NUMBERS
        assert "batched" not in store.topics()
        if "batch-queues" in session.kinds:
            for ask in (lambda t: store.read(t, 0), store.to_arrow, lambda t: [*store.scan(t)]):
                with pytest.raises(ForeignContentError, match="batched"):
                    ask("batched")
        if "light-queues" in session.kinds:
            assert [m.body for m in store.scan("%LMQ%a")] == NUMBERS
        if "compaction-topics" in session.kinds:
            assert [m.body for m in store.scan("compacted")] == NUMBERS
    assert penstock.repair(root).steps == ()


def refuses(root: Path, session: Session) -> None:
    """Writing: every way in raises the same error, which names all kinds that stop it."""
    ways: list[Callable[[], object]] = [
        lambda: penstock.open(root),
        lambda: penstock.repair(root, apply=True),
        lambda: segmentwise.start_reindex(root, shards=1),
    ]
    for way in ways:
        with pytest.raises(ForeignContentError) as caught:
            way()
        assert set(caught.value.kinds) == session.kinds & STOPPING


def goes_on(broker: Broker, session: Session) -> None:
    """The broker serves what only it understands, and takes more of it."""
    if "batch-queues" in session.kinds:
        assert broker.bodies("batched") == NUMBERS
        broker.batch(sent("batched", b"x"), sent("batched", b"y"))
        assert broker.bodies("batched") == [*NUMBERS, b"x", b"y"]
        assert broker.bodies("compacted")[-1] == NUMBERS[-1]
    if "light-queues" in session.kinds:
        broker.send(sent("light", b"more", properties=LIGHT))
        assert broker.bodies("%LMQ%b") == [*NUMBERS, b"more"]
    if "tag-keys" in session.kinds and "rocksdb-store" not in session.kinds:
        assert [body_of(m) for m in broker.query("plain", "k" + repr(b"3"))] == [b"3"]


@pytest.mark.night
def test_tags_in_an_index_are_seen_without_the_broker_s_other_files(
    make_broker: MakeBroker, tmp_path: Path
) -> None:
    """A copy of log, queues and index alone tells by the index itself."""
    broker = make_broker("5.5.0")
    broker.start(tmp_path / "store")
    broker.create("plain")
    broker.send(*(sent("plain", body, tag="t\u00e4g", keys="k") for body in NUMBERS))
    broker.query("plain", "k")
    broker.kill()
    copy = tmp_path / "copy"
    for name in ("commitlog", "consumequeue", "index"):
        shutil.copytree(tmp_path / "store" / name, copy / name)
    with penstock.open(copy, read_only=True) as store:
        assert [each.kind.name for each in store.lowlevel.not_understood] == ["tag-keys"]
        assert [f.text for f in store.verify() if f.part == "index"] == []
    with pytest.raises(ForeignContentError, match="tags"):
        penstock.open(copy)
