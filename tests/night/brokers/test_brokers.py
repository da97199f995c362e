"""A broker's directory as the whole broker leaves it: delayed, retried, transactional, deleted, killed."""

from pathlib import Path

import pytest
from tests.interop.brokers import BROKERS, body_of, sent
from tests.interop.jvms import MakeBroker

import penstock


@pytest.mark.parametrize("version", BROKERS)
def test_what_a_broker_stored_is_read(
    version: str, make_broker: MakeBroker, tmp_path: Path
) -> None:
    broker = make_broker(version)
    broker.start(tmp_path)
    broker.create("orders", 2)
    broker.send(
        *(sent("orders", b"%d" % i, i % 2, tag="t", keys=f"k{i}", properties={"a": "b"})
          for i in range(8)),
        sent("orders", b"late", delay_level=1),
    )  # fmt: skip
    broker.transaction(sent("orders", b"kept"), "COMMIT_MESSAGE")
    broker.transaction(sent("orders", b"dropped"), "ROLLBACK_MESSAGE")
    taken = broker.consume("g", "orders", 11, failures={b"3": 1})
    assert sorted(body_of(one) for one in taken if not one["failed"]) == sorted(
        [b"%d" % i for i in range(8)] + [b"late", b"kept"]
    )
    assert [one["reconsume_times"] for one in taken if body_of(one) == b"3"] == [0, 1]
    stored = broker.pull("orders", 0) + broker.pull("orders", 1)
    found = broker.query("orders", "k3")
    broker.kill()
    with penstock.open(tmp_path, read_only=True) as store:
        seen = [
            message
            for queue in (0, 1)
            for message in store.scan("orders", queue=queue)
        ]  # fmt: skip
        assert [m.body for m in seen] == [body_of(one) for one in stored]
        assert [m.log_offset for m in seen] == [one["log_offset"] for one in stored]
        assert [m.body for m in store.find("k3", "orders")] == [body_of(one) for one in found]
