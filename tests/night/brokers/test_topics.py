"""Topics and groups that Penstock configures, in real brokers, and theirs in Penstock."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.interop.brokers import BROKERS, sent
from tests.interop.javastore import SMALL_GEOMETRY
from tests.interop.jvms import MakeBroker

import penstock
from penstock_messaging.extension import MessagingExtension

# 5.4 and later keep tags in the key index, so Penstock does not write to their directories.
WRITABLE = BROKERS[:2]


def table(root: Path, name: str, key: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "config" / name).read_text())[key]
    return found


@pytest.mark.parametrize("version", WRITABLE)
def test_topics_and_groups_go_from_penstock_to_a_broker_and_back(
    version: str, make_broker: MakeBroker, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {**SMALL_GEOMETRY, "profile": "rocketmq"}
    settings["extensions.messaging.default_queues"] = 6
    with penstock.open(tmp_path, environ={}, **settings) as store:
        store.put("auto", b"first", queue=5)
        store.create_topic("declared", queues=3, attributes={"message.type": "NORMAL"})
        store.put("declared", b"first", queue=2)
        extension = store.lowlevel.extension("messaging")
        assert isinstance(extension, MessagingExtension)
        extension.configuration.groups.alter("billing", retry_max=2)
    ours = table(tmp_path, "topics.json", "topicConfigTable")

    broker = make_broker(version)
    broker.start(tmp_path)
    assert broker.bodies("auto", 5) == broker.bodies("declared", 2) == [b"first"]
    broker.send(sent("declared", b"x", 1), sent("auto", b"y", 5), sent("brokers", b"z", 3))
    broker.create("more", 7)
    broker.stop()
    theirs = table(tmp_path, "topics.json", "topicConfigTable")
    for topic, entry in ours.items():
        # 4.x does not know attributes.
        assert {**entry, **theirs[topic]} == entry, topic
        assert theirs[topic].get("attributes", entry["attributes"]) == entry["attributes"], topic
    group = table(tmp_path, "subscriptionGroup.json", "subscriptionGroupTable")["billing"]
    assert group["retryMaxTimes"] == 2

    with penstock.open(tmp_path, environ={}) as store:
        configs = store.topic_configs()
        assert {name: configs[name].queues for name in ("auto", "declared", "brokers", "more")} == {
            "auto": 6, "declared": 3, "brokers": 4, "more": 7,
        }  # fmt: skip
        assert configs["auto"].is_auto
        assert not configs["brokers"].is_auto
        with pytest.raises(penstock.TopicQueueError):
            store.put("more", b"refused", queue=7)
        with pytest.raises(penstock.TopicError, match="reserves"):
            store.put("RMQ_SYS_TRANS_HALF_TOPIC", b"refused", queue=0)
        store.alter_topic("auto", queues=10)
        store.put("auto", b"second", queue=9)
        store.put("new", b"first", queue=0)
        store.alter_topic("more", queues=9)
        assert [finding for finding in store.verify(deep=True) if not finding.is_note] == []

    broker.start(tmp_path)
    assert broker.bodies("auto", 9) == [b"second"]
    assert broker.bodies("new") == [b"first"]
    assert broker.bodies("more", 8) == []
    broker.send(sent("more", b"eighth", 8))
    assert broker.bodies("more", 8) == [b"eighth"]


@pytest.mark.parametrize("version", WRITABLE)
def test_a_file_that_penstock_has_changed_is_written_by_the_broker_in_the_same_bytes(
    version: str, make_broker: MakeBroker, tmp_path: Path
) -> None:
    """Order of the table, indentation and fields: the broker's next writing differs in its version only."""
    broker = make_broker(version)
    broker.start(tmp_path)
    broker.create("orders", 2)
    # 5.3.3 cannot be stopped before all of it has started.
    broker.send(sent("orders", b"x"))
    broker.stop()
    with penstock.open(tmp_path, environ={}) as store:
        for number in range(40):
            store.put(f"topic-{number}", b"x", queue=number % 4)
        store.create_topic("declared", queues=3)
    path = tmp_path / "config" / "topics.json"
    ours = path.read_bytes()
    broker.start(tmp_path)
    # Whatever changes makes the broker write the file.
    broker.create("orders", 2)
    broker.send(sent("orders", b"x"))
    broker.stop()
    name = b'"topicConfigTable":{'
    assert b"declared" in ours
    assert path.read_bytes().partition(name)[2] == ours.partition(name)[2]
