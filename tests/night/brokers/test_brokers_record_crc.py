"""Records with a CRC over the whole, `log.checksum="crc32+record"`, in the hands of real brokers.

Such a record ends in the property `__CRC32#`. A broker reads, serves and takes them over; where it puts one
again (delayed, retried, committed) it copies the properties of the old record, so that the copy may hold the
property of another record, which proves nothing about it.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.interop.brokers import body_of, sent
from tests.interop.javastore import SMALL_GEOMETRY
from tests.interop.jvms import MakeBroker
from tests.lanes import eventually

import penstock
from penstock.message import Message
from penstock.store.store import Store

SETTINGS: dict[str, Any] = {**SMALL_GEOMETRY, "log.checksum": "crc32+record"}
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
# The broker checks prepared messages when it is told to.
BROKER = {"transactionCheckInterval": 3_600_000, "transactionTimeOut": 1}
COPIED = (b"delayed", b"committed")
COUNT = 300  # over several segments of 64 KiB


def fill(store: Store) -> None:
    for n in range(COUNT):
        store.put(
            "orders", b"%d" % n * 80, queue=n % 2, tag="t", keys=[f"k{n}"], properties={"a": "b"}
        )
    # A minute here; the broker's levels are a second each.
    store.put("orders", b"delayed", queue=0, delay_level=5)
    half = {
        "REAL_TOPIC": "orders", "REAL_QID": "0", "TRAN_MSG": "true", "PGROUP": "transactions",
        "UNIQ_KEY": "AB" * 16, "ON_CHECK": "COMMIT_MESSAGE",
    }  # fmt: skip
    text = "".join(f"{name}\x01{value}\x02" for name, value in half.items()).encode()
    store.lowlevel.put_copies([(Message(HALF, b"committed", queue=0), text)])


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_brokers_read_take_over_delay_retry_and_commit_them(
    version: str,
    make_broker: MakeBroker,
    tmp_path: Path,
) -> None:
    with penstock.open(tmp_path, environ={}, **SETTINGS) as store:
        fill(store)
    own = Counter(b"%d" % n * 80 for n in range(COUNT))
    broker = make_broker(version)
    broker.start(tmp_path, BROKER)
    broker.create("orders", 2)
    # The broker asks a producer of the group whether to commit; from now on there is one that it knows.
    broker.transaction(sent("orders", b"rolled back"), "ROLLBACK_MESSAGE")
    broker.check_prepared()
    everything = own + Counter(COPIED)
    eventually(
        lambda: Counter(broker.bodies("orders", 0) + broker.bodies("orders", 1)) == everything
    )
    failing = b"7" * 80
    taken = broker.consume("g", "orders", COUNT + 3, failures={failing: 1})
    assert Counter(body_of(one) for one in taken if not one["failed"]) == everything
    assert [one["reconsume_times"] for one in taken if body_of(one) == failing] == [0, 1]
    assert [body_of(one) for one in broker.query("orders", "k5")] == [b"5" * 80]
    broker.send(sent("orders", b"of the broker"))
    shown = {queue: broker.pull("orders", queue) for queue in (0, 1)}
    retried = broker.bodies("%RETRY%g")
    again = [one for queue in shown.values() for one in queue if body_of(one) in COPIED]
    assert len(again) == len(COPIED)
    assert all("__CRC32#" in one["properties"] for one in again), "brokers copy it; see the module"
    broker.kill()
    assert_read_back(tmp_path, shown, retried)


def assert_read_back(
    root: Path, shown: dict[int, list[dict[str, Any]]], retried: list[bytes]
) -> None:
    """What the broker put again is read, valid, and taken over after its crash; so is all that was there."""
    with penstock.open(root, read_only=True) as store:
        assert_same(store, shown, retried)
    with penstock.open(root, environ={}, **SETTINGS) as store:
        assert_same(store, shown, retried)
        store.put("orders", b"ours again", queue=0)
    with penstock.open(root, read_only=True) as store:
        assert [f.text for f in store.verify(deep=True)] == []
        assert (
            store.read("orders", 0, store.max_offset("orders", 0) - 1).messages[0].body
            == b"ours again"
        )


def assert_same(store: Store, shown: dict[int, list[dict[str, Any]]], retried: list[bytes]) -> None:
    for queue, expected in shown.items():
        found = [*store.scan("orders", queue=queue)]
        assert [m.body for m in found] == [body_of(one) for one in expected]
        assert [m.log_offset for m in found] == [one["log_offset"] for one in expected]
        assert [m.keys for m in found] == [tuple(one.get("keys", "").split()) for one in expected]
        pairs = (
            store.to_arrow("orders", queue=queue, columns=["properties"])
            .column("properties")
            .to_pylist()
        )
        for message, one, columnar in zip(found, expected, pairs, strict=True):
            # What a broker has copied is the CRC of another record: it is shown to no one.
            assert "__CRC32#" not in {**message.properties, **dict(columnar)}
            assert message.properties.get("a") == one["properties"].get("a")
    assert "__CRC32#" not in next(store.scan("%RETRY%g")).properties
    # On a busy machine a client asks for the same retry again.
    assert {m.body for m in store.scan("%RETRY%g")} == set(retried)
    assert store.lowlevel.damaged_reads == 0
