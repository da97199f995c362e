"""Turns between Penstock and the real RocketMQ store on one directory. Every field is compared."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.interop.compare import facts, same, shown_by_java
from tests.interop.javastore import SMALL_GEOMETRY, JavaStore, message
from tests.interop.jvms import JavaStores
from tests.lanes import at_night

import penstock
from penstock import Message
from penstock.config.broker_conf import to_broker_conf
from penstock.durability.progress import Checkpoint
from penstock.errors import StoreLockedError
from penstock.files import Files
from penstock.store.open import make_opener
from penstock.store.store import Store
from penstock.testing.kit import copy_files

FOREVER = 1 << 50


def open_here(root: Path, **settings: Any) -> Store:
    return penstock.open(root, environ={}, **{**SMALL_GEOMETRY, **settings})


def java_messages(count: int, start: int = 0) -> list[dict[str, object]]:
    """Messages of every kind that both versions know."""
    chance = random.Random(start)
    made = []
    for number in range(start, start + count):
        more: dict[str, object] = {
            "queue": number % 3, "tag": f"tag{number % 4}", "keys": f"k{number} every{number % 10}",
            "flag": number, "properties": {"UNIQ_KEY": f"U{number}", "farbe": "grün"},
        }  # fmt: skip
        if number % 7 == 0:
            more |= {"born_host": "[2001:db8::7]:4000", "reconsume_times": 2}
        if number % 11 == 0:
            more["store_host"] = "[::1]:10911"
        if number % 13 == 0:
            more |= {"sys_flag": (0x4, 0x8, 0xC)[number // 13 % 3], "prepared_offset": number}
        if number % 17 == 0:
            more |= {"tag": "", "keys": "", "properties": {}}
        made.append(message(f"topic{number % 2}", chance.randbytes(number % 400), **more))
    return made


def our_messages(count: int, start: int = 0) -> list[Message]:
    return [
        Message(
            f"topic{number % 2}", b"from python %d" % number, queue=number % 3, tag=f"tag{number % 4}",
            keys=[f"k{number}", f"every{number % 10}"] if number % 5 else [],
            properties={"farbe": "grün"} if number % 3 else {}, flag=-number,
            born_host="[2001:db8::9]:1" if number % 7 == 0 else None, born_time_ms=number,
            reconsume_times=number % 2,
        )
        for number in range(start, start + count)
    ]  # fmt: skip


def same_by_key(store: Store, java: JavaStore, keys: list[tuple[str, str]]) -> None:
    for topic, key in keys:
        ours = [facts(m) for m in store.find(key, topic, limit=64)]
        theirs = [shown_by_java(m) for m in java.query(topic, key, 0, FOREVER)]
        # Java returns a record once for each of its keys that fits, and does not check for collisions.
        distinct = {m["log_offset"]: m for m in theirs}
        assert {m["log_offset"] for m in ours} <= set(distinct), (topic, key)
        for one in ours:
            assert distinct[one["log_offset"]] == one
        assert ours or not theirs


KEYS = [(f"topic{n % 2}", f"k{n}") for n in range(0, 700, 37)] + [
    ("topic1", "every3"),
    ("topic0", "none"),
]


def test_java_writes_and_penstock_reads(java: JavaStore, tmp_path: Path) -> None:
    root = tmp_path / "store"
    assert java.open(root)
    results = java.put(*java_messages(700))
    assert {r["status"] for r in results} == {"PUT_OK"}
    java.batch(
        *[message("topic1", b"batch %d" % n, queue=1, tag="b", keys=f"b{n}") for n in range(30)]
    )
    dumped = java.dump()
    queried = {key: java.query(*key, 0, FOREVER) for key in KEYS}
    with penstock.open(root, read_only=True) as live:
        assert same(live, dumped) > 600, "also while the broker has it open"
    java.close()
    with penstock.open(root, read_only=True) as store:
        assert same(store, dumped) > 600
        assert not list(store.verify())
        for (topic, key), theirs in queried.items():
            assert {m.log_offset for m in store.find(key, topic)} <= {
                m["log_offset"] for m in theirs
            }
            assert bool(store.find(key, topic)) == bool(theirs)
        assert store.find("U2", "topic0"), "UNIQ_KEY is a key"
        for result in results[::50]:
            assert store.get(result["message_id"]).log_offset == result["log_offset"]
    with open_here(root) as store:
        assert store.recovery is not None
        assert store.recovery.state == "foreign"
        assert same(store, dumped) > 600
        assert not list(store.verify())


def test_penstock_writes_and_java_reads(java: JavaStore, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with open_here(root, **{"log.store_host": "[::1]:10911"}) as store:
        store.put_many(our_messages(100))
    with open_here(root) as store:
        for one in our_messages(300, 100):
            store.put(one.topic, one.body, queue=one.queue, tag=one.tag, keys=one.keys)
        store.put_many(our_messages(300, 400))
    assert java.open(root)
    dumped = java.dump()
    with penstock.open(root, read_only=True) as store:
        assert same(store, dumped) == 700
        same_by_key(store, java, KEYS)
    state = java.call("state")
    assert state["behind"] == 0
    assert java.put(*java_messages(5))[0]["status"] == "PUT_OK"


@pytest.mark.parametrize("checksum", [at_night("crc32"), "crc32+record"])
def test_turns_on_one_directory(
    version: str, checksum: str, javas: JavaStores, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    with_property = checksum == "crc32+record" and version.startswith("5")
    settings = {"enabledAppendPropCRC": True, "forceVerifyPropCRC": True} if with_property else {}
    total = 0
    for turn in range(3):
        with open_here(root, **{"log.checksum": checksum}) as store:
            total += len(store.put_many(our_messages(200, turn * 1000)))
        with javas.take(version) as java:
            assert java.open(root, settings), f"turn {turn}"
            results = java.put(*java_messages(200, turn * 1000 + 500))
            total += sum(r["status"] == "PUT_OK" for r in results)
            dumped = java.dump()
            with penstock.open(root, read_only=True) as store:
                same(store, dumped)
                same_by_key(
                    store, java, [("topic0", "every4"), ("topic1", f"k{turn * 1000 + 501}")]
                )
            java.close()
        with open_here(root) as store:
            assert store.recovery is not None
            assert store.recovery.cut_bytes == 0
            seen = same(store, dumped)
            assert not list(store.verify())
        if turn == 2:
            prepared = sum(
                m.get("sys_flag") in (0x4, 0xC)
                for t in range(3)
                for m in java_messages(200, t * 1000 + 500)
            )
            assert seen == total - prepared


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_sparse_store_of_our_default_sizes_is_served_by_a_broker_that_is_told_them(
    java: JavaStore, is_killed: bool, tmp_path: Path
) -> None:
    """What `penstock config PATH --broker-conf` prints is all that the broker's store needs; then both go on."""
    root = tmp_path / "store"
    store = penstock.open(root, environ={})
    store.put_many(our_messages(100))
    store.flush()
    assert store.max_offset("topic0", 0) > 0
    if is_killed:
        # As `kill -9` leaves it: what is ahead of the tail has blocks, and no mark says that it is clean.
        killed = tmp_path / "killed"
        copy_files(root, killed)
        store.close()
        root = killed
    else:
        store.close()
    printed = to_broker_conf(make_opener(root, None, None, None, None, {}, {}).geometry(), root)
    pairs = [line.split("=") for line in printed.splitlines() if not line.startswith("#")]
    settings = {name: int(value) for name, value in pairs}
    assert len(settings) == 4
    assert java.open(root, settings)
    assert java.put(*java_messages(50))[0]["status"] == "PUT_OK"
    dumped = java.dump()
    java.close()
    for _ in range(2):
        with penstock.open(root, environ={}) as store:
            assert same(store, dumped) > 140
            assert not list(store.verify())
    assert java.open(root, settings)
    assert {where: queue["max"] for where, queue in java.dump().items()} == {
        where: queue["max"] for where, queue in dumped.items()
    }


def test_long_topics_go_both_ways(javas: JavaStores, tmp_path: Path) -> None:
    """V2 records exist since RocketMQ 5.1; 4.x takes them for damage."""
    root = tmp_path / "store"
    topic = "l" * 200
    with open_here(root) as store:
        store.put_many([Message(topic, b"%d" % n, queue=0, keys=[f"k{n}"]) for n in range(300)])
    with javas.take("5.3.3") as java:
        assert java.open(root)
        java.put(*[message(topic, b"java %d" % n, tag="t") for n in range(300)])
        dumped = java.dump()
        assert java.query(topic, "k7", 0, FOREVER)
        java.close()
    with open_here(root) as store:
        assert same(store, dumped) == 600


def test_a_killed_java_store_is_recovered(
    java: JavaStore, java2: JavaStore, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    assert java.open(root)
    java.put(*java_messages(500))
    dumped = java.dump()
    java.kill()
    with open_here(root) as store:
        assert store.recovery is not None
        assert store.recovery.state == "foreign"
        same(store, dumped)
        assert not list(store.verify())
        assert store.find("k101", "topic1"), "the crash costs no index entry"
        store.put_many(our_messages(100))
    assert java2.open(root)
    with penstock.open(root, read_only=True) as store:
        same(store, java2.dump())
        same_by_key(store, java2, KEYS)


def test_a_killed_penstock_is_recovered_by_java(java: JavaStore, tmp_path: Path) -> None:
    root, killed = tmp_path / "store", tmp_path / "killed"
    store = open_here(root)
    store.put_many(our_messages(400))
    store.topics()
    copy_files(root, killed)
    store.close()
    assert (killed / "abort").exists()
    assert java.open(killed)
    dumped = java.dump()
    assert sum(len(q["messages"]) for q in dumped.values()) == 400
    with penstock.open(root, read_only=True) as ours:
        same(ours, dumped)
    java.close()
    with open_here(killed) as again:
        same(again, dumped)
        assert not list(again.verify())


def test_the_two_locks_refuse_each_other(java: JavaStore, java2: JavaStore, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with open_here(root) as store, pytest.raises(Exception, match="Lock failed"):
        store.put("t", b"x", queue=0)
        java.open(root)
    assert java2.open(root)
    with pytest.raises(StoreLockedError):
        open_here(root)
    java2.close()
    open_here(root).close()


def test_offsets_by_time_agree(javas: JavaStores, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with open_here(root) as store:
        times = [store.put("t", b"%d" % n, queue=0).store_time_ms for n in range(60)]
    with javas.take("5.3.3") as java:
        assert java.open(root)
        with penstock.open(root, read_only=True) as store:
            for time_ms in sorted({times[0] - 5, *times, times[-1] + 5}):
                for boundary in ("lower", "upper"):
                    theirs = java.call(
                        "time", topic="t", queue=0, time_ms=time_ms, boundary=boundary
                    )
                    ours = store.offset_at("t", 0, time_ms / 1000, boundary=boundary)
                    assert ours == theirs["offset"], (time_ms - times[0], boundary)


def test_read_statuses_agree(java: JavaStore, version: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with open_here(root) as store:
        store.put_many([Message("t", b"%d" % n, queue=0) for n in range(10)])
    assert java.open(root)
    with penstock.open(root, read_only=True) as store:
        for offset in (-1, 0, 5, 9, 10, 11, 500):
            theirs = java.call("read", topic="t", queue=0, offset=offset, limit=4)
            ours = store.read("t", 0, offset, 4)
            assert str(ours.status) == theirs["status"], offset
            if not (version.startswith("4") and offset > 10):
                # 4.x corrects an offset beyond the end to the beginning where that is 0.
                assert ours.next_offset == theirs["next_offset"], offset
            assert [facts(m) for m in ours.messages] == [
                shown_by_java(m) for m in theirs["messages"]
            ]


def test_checkpoints_are_usable_by_the_other_side(java: JavaStore, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with open_here(root) as store:
        last = store.put_many(our_messages(50))[-1]
    ours = Checkpoint(Files(), root).read()
    assert ours.log_ms == ours.queues_ms == last.store_time_ms
    assert java.open(root)
    state = java.call("state")
    assert (state["log_ms"], state["queues_ms"]) == (ours.log_ms, ours.queues_ms)
    java.put(*java_messages(20))
    java.close()
    theirs = Checkpoint(Files(), root).read()
    assert theirs.queues_ms >= ours.queues_ms
    open_here(root).close()


def test_both_index_files_have_the_same_bytes(java: JavaStore, tmp_path: Path) -> None:
    """The same records, indexed by each side, give the same file but for its name."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    with open_here(ours) as store:
        store.put_many(
            [Message("t", b"%d" % n, queue=0, keys=[f"k{n % 40}"], tag="x") for n in range(150)]
        )
    shutil.copytree(ours, theirs)
    shutil.rmtree(theirs / "index")
    shutil.rmtree(theirs / "consumequeue")
    (theirs / "checkpoint").unlink()
    (theirs / "abort").touch()
    assert java.open(theirs)
    java.close()
    mine = sorted((ours / "index").iterdir())[0].read_bytes()
    java_made = sorted((theirs / "index").iterdir())[0].read_bytes()
    assert java_made == mine
    for name in ("t/0",):
        a = sorted((ours / "consumequeue" / name).iterdir())
        b = sorted((theirs / "consumequeue" / name).iterdir())
        assert [p.read_bytes() for p in a] == [p.read_bytes() for p in b]
