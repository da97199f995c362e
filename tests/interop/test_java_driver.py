"""The driver itself: what the real store wrote, it reads back; field by field, over a close and a kill."""

import base64
from pathlib import Path
from typing import Any

import pytest
from tests.interop.javastore import JavaStore, JavaStoreError, JavaStores, message

FOREVER = 1 << 50
V6_BORN, V6_STORE = 0x10, 0x20


def several(count: int) -> list[dict[str, object]]:
    """Enough to roll log, queues and index, with most fields set."""
    return [
        message(
            f"topic{number % 2}", b"%d " % number * (number % 60), queue=number % 4 // 2, tag=f"tag{number % 3}",
            keys=f"k{number} every{number % 10}", flag=-number, reconsume_times=number % 3,
            properties={"UNIQ_KEY": f"U{number}", "farbe": "grün"}, born_time_ms=number,
            born_host=f"10.1.2.3:{number + 1}", store_host="10.9.8.7:10911",
        )
        for number in range(count)
    ]  # fmt: skip


def files(root: Path, pattern: str) -> int:
    return sum(path.is_file() for path in root.glob(pattern))


def all_messages(dumped: dict[tuple[str, int], dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {m["log_offset"]: m for queue in dumped.values() for m in queue["messages"]}


def test_what_java_writes_it_reads_back_over_a_close(java: JavaStore, tmp_path: Path) -> None:
    root = tmp_path / "store"
    assert java.open(root)
    given = several(900)
    results = java.put(*given)
    dumped = java.dump()
    found = all_messages(dumped)
    assert len(found) == len(given)
    for put, result in zip(given, results, strict=True):
        one = found[result["log_offset"]]
        assert result["status"] == result["append"] == "PUT_OK"
        for name in ("queue_offset", "size", "store_time_ms", "message_id"):
            assert one[name] == result[name], name
        for name in ("topic", "queue", "body", "flag", "born_time_ms", "reconsume_times"):
            assert one[name] == put[name], name
        assert one["born_host"] == f"0a010203:{str(put['born_host']).rpartition(':')[2]}"
        assert one["store_host"] == "0a090807:10911"
        assert one["sys_flag"] == one["prepared_offset"] == 0
        assert one["properties"] == {
            "UNIQ_KEY": f"U{-one['flag']}", "farbe": "grün", "TAGS": put["tag"], "KEYS": put["keys"],
        }  # fmt: skip
    assert [m["queue_offset"] for m in dumped["topic0", 0]["messages"]] == list(
        range(dumped["topic0", 0]["max"])
    )
    assert files(root, "commitlog/*") > 2
    assert files(root, "consumequeue/topic0/0/*") == 2
    assert files(root, "index/*") > 2
    java.close()
    assert not (root / "abort").exists()
    assert java.open(root), "the same JVM may open again"
    assert java.dump() == dumped


def test_a_kill_loses_nothing_that_java_had_answered(
    java: JavaStore, java2: JavaStore, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    assert java.open(root)
    java.put(*several(300))
    dumped = java.dump()
    java.kill()
    assert (root / "abort").exists()
    assert java2.open(root)
    assert java2.dump() == dumped


def test_reads_answer_by_offset_key_and_time(java: JavaStore, tmp_path: Path) -> None:
    assert java.open(tmp_path / "store")
    results = java.put(*several(40))
    read = java.call("read", topic="topic1", queue=0, offset=2, limit=3)
    assert (read["status"], read["next_offset"], read["min"], read["max"]) == ("FOUND", 5, 0, 10)
    assert [m["queue_offset"] for m in read["messages"]] == [2, 3, 4]
    assert java.call("read", topic="topic1", queue=0, offset=10, limit=3)["status"] == (
        "OFFSET_OVERFLOW_ONE"
    )
    for key in ("k7", "U7"):
        assert [m["message_id"] for m in java.query("topic1", key, 0, FOREVER)] == [
            results[7]["message_id"]
        ]
    assert java.query("topic0", "k7", 0, FOREVER) == []
    first = results[1]["store_time_ms"]
    assert java.call("time", topic="topic1", queue=0, time_ms=first - 1000)["offset"] == 0
    state = java.call("state")
    assert state["max_offset"] == results[-1]["log_offset"] + results[-1]["size"]
    assert (state["min_offset"], state["behind"]) == (0, 0)


def test_a_batch_becomes_consecutive_records(java: JavaStore, tmp_path: Path) -> None:
    assert java.open(tmp_path / "store")
    result = java.batch(
        *[message("t", b"b%d" % n, queue=2, tag="x", keys=f"b{n}", flag=n) for n in range(12)]
    )
    assert result["status"] == "PUT_OK"
    messages = java.dump()["t", 2]["messages"]
    assert [base64.b64decode(m["body"]) for m in messages] == [b"b%d" % n for n in range(12)]
    assert [m["flag"] for m in messages] == [m["queue_offset"] for m in messages] == [*range(12)]
    assert result["message_id"] == ",".join(m["message_id"] for m in messages)
    assert result["size"] == sum(m["size"] for m in messages)
    assert java.query("t", "b5", 0, FOREVER) == [messages[5]]


def test_hosts_may_be_of_either_family(java: JavaStore, tmp_path: Path) -> None:
    assert java.open(tmp_path / "store")
    v4, v6 = ("7f000001", "127.0.0.1:7"), ("20010db8000000000000000000000001", "[2001:db8::1]:7")
    for number, (born, store) in enumerate([(v4, v4), (v6, v4), (v4, v6), (v6, v6)]):
        result = java.put(message("t", b"x", born_host=born[1], store_host=store[1]))[0]
        one = java.dump()["t", 0]["messages"][number]
        assert (one["born_host"], one["store_host"]) == (f"{born[0]}:7", f"{store[0]}:7")
        assert one["sys_flag"] == V6_BORN * (born is v6) + V6_STORE * (store is v6)
        assert one["message_id"] == result["message_id"]
        assert len(one["message_id"]) == (56 if store is v6 else 32)
        assert one["size"] == 93 + 12 * (born is v6) + 12 * (store is v6)


def test_a_transaction_type_decides_what_is_queued(java: JavaStore, tmp_path: Path) -> None:
    assert java.open(tmp_path / "store")
    none, prepared, commit, rollback = java.put(
        *[message("t", b"x", sys_flag=kind, prepared_offset=kind * 100, keys=f"k{kind}")
          for kind in (0x0, 0x4, 0x8, 0xC)]
    )  # fmt: skip
    queued = java.dump()["t", 0]["messages"]
    assert [m["log_offset"] for m in queued] == [none["log_offset"], commit["log_offset"]]
    assert queued[1]["prepared_offset"] == 800
    assert [bool(java.query("t", f"k{kind}", 0, FOREVER)) for kind in (0x0, 0x4, 0x8, 0xC)] == [
        True, True, True, False,
    ]  # fmt: skip
    assert {prepared["status"], rollback["status"]} == {"PUT_OK"}


@pytest.mark.parametrize("forced", [False, True])
def test_the_record_checksum_is_a_property(forced: bool, javas: JavaStores, tmp_path: Path) -> None:
    settings = {"enabledAppendPropCRC": True, "forceVerifyPropCRC": forced}
    root = tmp_path / "store"
    with javas.take("5.3.3") as java, javas.take("5.3.3") as again:
        assert java.open(root, settings)
        java.put(message("t", b"x", properties={"a": "b"}), message("t", b"without"))
        dumped = java.dump()
        for one in dumped["t", 0]["messages"]:
            assert len(one["properties"]["__CRC32#"]) == 10
        java.kill()
        assert again.open(root, settings)
        assert again.dump() == dumped


def test_long_topics_are_known_to_5_only(java: JavaStore, version: str, tmp_path: Path) -> None:
    assert java.open(tmp_path / "store")
    result = java.put(message("l" * 200, b"x"))[0]
    if version.startswith("4"):
        assert result["status"] == "MESSAGE_ILLEGAL"
    else:
        assert java.dump()["l" * 200, 0]["messages"][0]["size"] == result["size"] == 293


def test_a_second_jvm_is_refused_the_lock(
    java: JavaStore, java2: JavaStore, tmp_path: Path
) -> None:
    assert java.open(tmp_path / "store")
    with pytest.raises(JavaStoreError, match="Lock failed"):
        java2.open(tmp_path / "store")
    assert java.put(message("t", b"still mine"))[0]["status"] == "PUT_OK"


def test_an_unknown_setting_is_an_error(java: JavaStore, tmp_path: Path) -> None:
    with pytest.raises(JavaStoreError, match="no setting mapedFileSize"):
        java.open(tmp_path / "store", {"mapedFileSize": 1})
    assert java.open(tmp_path / "store"), "and costs nothing"
