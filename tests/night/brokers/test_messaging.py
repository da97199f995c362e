"""Records of delays and retries that Penstock and a real broker make of the same messages; how directories change hands is in test_takeover."""

import base64
from pathlib import Path
from typing import Any

import pytest
from tests.interop.brokers import sent
from tests.interop.jvms import MakeBroker
from tests.interop.takeover import opened

from penstock import Store

VERSIONS = ("4.9.7", "5.3.3")


@pytest.mark.parametrize("version", VERSIONS)
def test_records_of_delays_and_retries_are_those_of_a_broker(
    version: str, make_broker: MakeBroker, tmp_path: Path
) -> None:
    """The same messages through both: every field but times, offsets and ids is the same, in the schedule topic too."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    broker = make_broker(version)
    broker.start(theirs)
    broker.create("orders", 2)
    broker.send(sent("orders", b"late", 1, tag="t", keys="k", delay_level=2, properties={"a": "b"}), sent("orders", b"refused", 0))  # fmt: skip
    assert len(broker.consume("g", "orders", 3, failures={b"refused": 1})) == 3
    broker.stop()
    with opened(ours) as store:
        store.create_topic("orders", queues=2)
        store.put(
            "orders", b"late", queue=1, tag="t", keys=["k"], delay_level=2, properties={"a": "b"}
        )
        store.put("orders", b"refused", queue=0)
        done = []
        with store.consumer("g", "orders") as consumer:
            for message in consumer:
                done.append(message.body)
                if message.body == b"refused" and message.attempt == 1:
                    message.nack()
                else:
                    message.ack()
                if len(done) == 3:
                    break
        store.flush()
    with opened(theirs, read_only=True) as there, opened(ours, read_only=True) as here:
        assert schedule(here) == schedule(there)


# What a client adds to each message, and what differs by its nature.
OF_CLIENTS = {"UNIQ_KEY", "WAIT", "MSG_REGION", "TRACE_ON", "CLUSTER", "ORIGIN_MESSAGE_ID"}


def schedule(store: Store) -> list[Any]:
    """Return the records of the topics of delays and retries, and delivered ones, without what differs by its nature."""
    found = []
    for topic, queues in sorted(store.topics(system=True).items()):
        if topic in ("SCHEDULE_TOPIC_XXXX", "orders") or topic.startswith("%"):
            for queue in sorted(queues):
                for m in store.scan(topic, queue=queue):
                    properties = {
                        k: v
                        for k, v in m.all_properties.items()
                        if k not in OF_CLIENTS | {"__CRC32#"}
                    }
                    body = base64.b64encode(m.body).decode()
                    found.append((topic, queue, m.queue_offset, body, m.flag, m.sys_flag, m.reconsume_times, properties))  # fmt: skip
    assert any(each[0] == "SCHEDULE_TOPIC_XXXX" for each in found)
    assert any(each[0] == "%RETRY%g" for each in found)
    return found
