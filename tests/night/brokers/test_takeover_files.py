"""Queue entries and configuration files, byte by byte, where a directory changes hands with delays, retries and dead letters."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from tests.interop.brokers import sent
from tests.interop.compare import same
from tests.interop.javastore import JavaStore
from tests.interop.jvms import MakeBroker
from tests.interop.takeover import LIMIT_S, RETRY, SCHEDULE, SETTINGS, committed, config, opened

from penstock.testing import ManualClock, ManualWorkers, open_store
from penstock_messaging.extension import MessagingExtension
from penstock_messaging.retries.copies import retry_copy

BROKER_VERSIONS = ("4.9.7", "5.3.3")
HOUR_MS = 3_600_000


def entries(root: Path) -> dict[str, bytes]:
    """Return the bytes of all queue files, without the zeros at their ends."""
    folder = root / "consumequeue"
    return {
        str(path.relative_to(folder)): path.read_bytes().rstrip(b"\0")
        for path in folder.rglob("*")
        if path.is_file()
    }


def without_times(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return queue files without the third field of the entries of delayed messages."""
    changed = dict(files)
    for name, data in files.items():
        if name.startswith(SCHEDULE):
            whole = data + bytes(-len(data) % 20)
            changed[name] = b"".join(whole[at : at + 12] for at in range(0, len(whole), 20))
    return changed


def fill(root: Path) -> None:
    """Put a message at each of the 18 levels, refuse messages once and several times, and deliver some of them."""
    now, workers = int(time.time() * 1000), ManualWorkers()
    clock = ManualClock(now)
    with open_store(root, clock=clock, spawn=workers, **SETTINGS) as store:
        for level in range(1, 19):
            store.put(
                "orders",
                b"late %d" % level,
                queue=level % 3,
                delay_level=level,
                tag=f"t{level}",
                keys=["k"],
            )
        for number in range(4):
            store.put("orders", b"refused %d" % number, queue=3, tag="t", properties={"a": "b"})
        for tries in range(4):
            # 0 to 3 retries behind it, and one for each of two groups.
            message = source = store.read("orders", 3, tries).messages[0]
            for group in ("audit", "billing"):
                message = source
                for _ in range(tries + 1):
                    made = retry_copy(message, group)
                    assert made is not None
                    store.lowlevel.put_copies([made])
                    clock.now_ms += HOUR_MS
                    workers.run("penstock-deliver")
                    queue = store.max_offset(RETRY + group, 0)
                    message = store.read(RETRY + group, 0, queue - 1).messages[0]
            dead = retry_copy(message, "billing", level=-1)
            assert dead is not None
            store.lowlevel.put_copies([dead])
        for level in (5, 18):
            store.put("orders", b"waits %d" % level, queue=0, delay_level=level, tag="t")


def test_java_makes_the_same_entries_of_the_same_log(
    java: JavaStore, version: str, tmp_path: Path
) -> None:
    """Tag codes of all topics, delivery times of all levels among them, and every field of every message."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    fill(ours)
    shutil.copytree(ours, theirs)
    for name in ("consumequeue", "index"):
        shutil.rmtree(theirs / name)
    # After a kill, and without a time to begin at, Java makes queues of the whole log.
    (theirs / "abort").touch()
    (theirs / "checkpoint").unlink()
    assert java.open(theirs)
    dumped = java.dump()
    with opened(ours, read_only=True) as store:
        assert same(store, dumped) >= 60
        assert set(store.topics(system=True)[SCHEDULE]) == set(range(18))
    java.close()
    made, expected = entries(theirs), entries(ours)
    assert len(expected) >= 18 + 4 + 3
    if version.startswith("4"):
        # 4.x does not know its levels yet when it recovers: the tag of a delayed message stands where its time should be.
        made, expected = without_times(made), without_times(expected)
    assert made == expected


@pytest.mark.parametrize("version", BROKER_VERSIONS)
def test_the_files_of_configuration_go_to_and_fro(
    version: str, make_broker: MakeBroker, tmp_path: Path
) -> None:
    broker = make_broker(version)
    broker.start(tmp_path)
    more = {"message.type": "NORMAL"} if version.startswith("5") else {}
    broker.create("orders", 2, more)
    broker.send(sent("orders", b"now"), sent("orders", b"late", 1, delay_level=3))
    assert len(broker.consume("billing", "orders", 2)) == 2
    assert len(broker.consume("everyone", "orders", 2, is_broadcast=True)) == 2
    broker.stop()
    names = ("topics.json", "subscriptionGroup.json", "delayOffset.json", "consumerOffset.json")
    theirs = {name: (tmp_path / "config" / name).read_bytes() for name in names}
    parsed = {name: config(tmp_path, name) for name in names}
    with opened(tmp_path) as store:
        store.put("orders", b"ours", queue=0)
        with store.consumer("billing", "orders") as consumer:
            (message,) = consumer.poll(10, timeout=LIMIT_S)
            message.ack()
    # Nothing that these three say has changed.
    for name in names[:3]:
        assert (tmp_path / "config" / name).read_bytes() == theirs[name], name
    offsets = parsed["consumerOffset.json"]["offsetTable"]
    now = config(tmp_path, "consumerOffset.json")["offsetTable"]
    assert {key: table for key, table in now.items() if key != "orders@billing"} == {
        key: table for key, table in offsets.items() if key != "orders@billing"
    }
    assert committed(tmp_path, "billing")["orders", 0] == 2

    change_all(tmp_path)
    ours = {name: config(tmp_path, name) for name in names}
    check_kept(parsed, ours)
    broker.start(tmp_path)
    # 5.x cannot be stopped before all of it has started.
    broker.send(sent("orders", b"more"))
    broker.save()
    broker.stop()
    for name in names:
        again = config(tmp_path, name)
        for key, table in ours[name].items():
            # A broker keeps no field that it does not know, such as where the log ended.
            if key not in ("dataVersion", "penstockLogEnd") and table:
                check_table(name, table, again[key], knows_attributes=bool(more))


def change_all(root: Path) -> None:
    """Change a topic and a group, add one of each, deliver a delayed message, acknowledge."""
    with opened(root) as store:
        store.create_topic("ours", queues=3, attributes={"message.type": "FIFO"})
        extension = store.lowlevel.extension("messaging")
        assert isinstance(extension, MessagingExtension)
        extension.configuration.groups.alter("auditing", retry_max=2)
        store.put("orders", b"late ours", queue=1, delay_level=1)
        with store.consumer("billing", "orders") as consumer:
            (message,) = consumer.poll(10, timeout=LIMIT_S)
            message.ack()


def check_kept(before: dict[str, Any], after: dict[str, Any]) -> None:
    """All that the broker had written is there, other fields of 5.x among it."""
    for name, key in (
        ("topics.json", "topicConfigTable"),
        ("subscriptionGroup.json", "subscriptionGroupTable"),
    ):
        for each, about in before[name][key].items():
            assert after[name][key][each] == about, each
        others = set(before[name]) - {key, "dataVersion"}
        assert {other: after[name][other] for other in others} == {
            other: before[name][other] for other in others
        }
    assert after["topics.json"]["topicConfigTable"]["ours"]["attributes"] == {
        "message.type": "FIFO"
    }
    assert (
        after["subscriptionGroup.json"]["subscriptionGroupTable"]["auditing"]["retryMaxTimes"] == 2
    )
    # The message of level 1 was delivered, and that of level 3 before.
    assert after["delayOffset.json"]["offsetTable"] == {"1": 1, "3": 1}


def check_table(
    name: str, ours: dict[str, Any], again: dict[str, Any], *, knows_attributes: bool
) -> None:
    """The broker has read and written what Penstock wrote; 4.x drops the fields that it does not know."""
    for key, value in ours.items():
        if isinstance(value, dict) and not knows_attributes and name != "consumerOffset.json":
            assert again[key] == {field: value[field] for field in again[key]}, key
            assert {"topicName", "readQueueNums"} <= set(again[key]) or "retryMaxTimes" in again[
                key
            ]
        else:
            assert again[key] == value, (name, key)
