"""Delayed and retried messages that wait in a directory when it changes hands between Penstock and a broker."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.interop.brokers import BROKERS, body_of, sent
from tests.interop.javastore import SMALL_GEOMETRY
from tests.interop.jvms import MakeBroker

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
            found = [facts(m, stored_text(m)) for m in store.scan(copy.topic, queue=copy.queue)]
            assert facts(copy, text) in found
    broker = make_broker(version)
    broker.start(tmp_path, LEVELS)
    taken = broker.consume("g", "orders", wanted={(b"refused", 1), (b"waits", 0)})
    # A killed broker may have lost that the group had read the first message.
    given = {(body_of(one), one["reconsume_times"]) for one in taken}
    assert given - {(b"refused", 0)} == {(b"refused", 1), (b"waits", 0)}
    assert Counter(broker.bodies("orders", 1)) == Counter([b"refused", b"waits"]), "each once"
    assert set(broker.bodies(RETRY)) == {b"refused"}
