"""Delayed and retried messages that wait in a directory when it changes hands between Penstock and a broker."""

import itertools
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.interop.brokers import BROKERS, body_of, sent
from tests.interop.javastore import SMALL_GEOMETRY
from tests.interop.jvms import MakeBroker
from tests.lanes import eventually

import penstock
from penstock import Message, Store, StoredMessage
from penstock.testing import ManualClock, ManualWorkers, open_store
from penstock_messaging.delays.schedule import delivered
from penstock_messaging.properties_text import pairs_of, stored_text
from penstock_messaging.retries.copies import retry_copy

GEOMETRY: dict[str, Any] = {**SMALL_GEOMETRY}
SCHEDULE, RETRY = "SCHEDULE_TOPIC_XXXX", "%RETRY%g"
# Penstock does not write a directory of 5.5.
VERSIONS = BROKERS[:2]
HOUR = 3_600_000
# Level 2 is longer than Penstock's, and the first retry (level 3) waits until a test is over.
LEVELS = {"messageDelayLevel": "1s 1h 1h 1h"}
# What a store sets by itself.
COPIED = ("topic", "queue", "body", "flag", "sys_flag", "born_time_ms", "born_host", "reconsume_times", "prepared_offset")  # fmt: skip


def open_here(root: Path, clock: ManualClock, workers: ManualWorkers) -> Store:
    return open_store(root, clock=clock, spawn=workers, **GEOMETRY)


def facts(message: StoredMessage | Message, text: bytes) -> dict[str, Any]:
    """Return every field that a copy takes over, and its properties; their order has no meaning."""
    shown: dict[str, Any] = {name: getattr(message, name) for name in COPIED}
    return shown | {"properties": pairs_of(text)}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_delivers_what_waits_and_not_again_what_penstock_delivered(
    version: str, make_broker: MakeBroker, tmp_path: Path
) -> None:
    with penstock.open(tmp_path, environ={}, **GEOMETRY) as store:
        for number in range(3):
            store.put("orders", b"done %d" % number, queue=1, delay_level=1)
        first = [m.body for m in itertools.islice(store.scan("orders", follow=True), 3)]
        assert first == [b"done 0", b"done 1", b"done 2"]
        for number in range(3):
            # A broker whose levels are shorter delivers at once what waits for longer than its level.
            store.put(
                "orders",
                b"waits %d" % number,
                queue=1,
                delay_level=18,
                tag="t",
                keys=[f"k{number}"],
            )
        refused = store.read("orders", 1).messages[0]
        made = retry_copy(refused, "g", level=17)
        assert made is not None
        store.put_copies([made])
    expected = Counter([b"done 0", b"done 1", b"done 2", b"waits 0", b"waits 1", b"waits 2"])
    broker = make_broker(version)
    broker.start(tmp_path)
    broker.create("orders", 2)
    broker.create(RETRY, 1)
    eventually(lambda: Counter(broker.bodies("orders", 1)) == expected)
    eventually(lambda: broker.bodies(RETRY) == [b"done 0"])
    assert [body_of(one) for one in broker.query("orders", "k1")] == [b"waits 1"]
    (retried,) = broker.pull(RETRY)
    assert retried["reconsume_times"] == 1
    assert retried["properties"]["ORIGIN_MESSAGE_ID"] == refused.message_id
    broker.stop()
    workers = ManualWorkers()
    with open_here(tmp_path, ManualClock(int(time.time() * 1000) + 10 * HOUR), workers) as store:
        assert "penstock-deliver" not in workers.by_name, "the broker has saved its progress"
        assert Counter(m.body for m in store.scan("orders", 1)) == expected
        assert [finding.text for finding in store.verify()] == []


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("version", VERSIONS)
def test_penstock_delivers_what_waits_in_a_brokers_directory(
    version: str, end: str, make_broker: MakeBroker, tmp_path: Path
) -> None:
    broker = make_broker(version)
    broker.start(tmp_path, LEVELS)
    broker.create("orders", 2)
    broker.send(
        sent("orders", b"waits", 1, delay_level=2, tag="t", keys="k", properties={"a": "b"}),
        sent("orders", b"refused", 1, tag="t"),
    )
    taken = broker.consume("g", "orders", 1, failures={b"refused": 1})
    assert [body_of(one) for one in taken] == [b"refused"]
    getattr(broker, end)()
    now, workers = int(time.time() * 1000), ManualWorkers()
    clock = ManualClock(now + 60_000)
    with open_here(tmp_path, clock, workers) as store:
        waits, retried = store.read(SCHEDULE, 1).messages[0], store.read(SCHEDULE, 2).messages[0]
        original = store.read("orders", 1).messages[0]
        ours = retry_copy(original, "g")
        assert ours is not None
        assert facts(*ours) == facts(retried, stored_text(retried)), "as the broker made it"
        clock.now_ms += HOUR
        workers.run("penstock-deliver")
        for before in (waits, retried):
            copy, text = delivered(before)
            # A client that is told too late that its send-back worked sends a retry of its own as well.
            found = [facts(m, stored_text(m)) for m in store.scan(copy.topic, copy.queue)]
            assert facts(copy, text) in found
    broker = make_broker(version)
    broker.start(tmp_path, LEVELS)
    taken = broker.consume("g", "orders", wanted={(b"refused", 1), (b"waits", 0)})
    # A killed broker may have lost that the group had read the first message.
    given = {(body_of(one), one["reconsume_times"]) for one in taken}
    assert given - {(b"refused", 0)} == {(b"refused", 1), (b"waits", 0)}
    assert Counter(broker.bodies("orders", 1)) == Counter([b"refused", b"waits"]), "each once"
    assert set(broker.bodies(RETRY)) == {b"refused"}
