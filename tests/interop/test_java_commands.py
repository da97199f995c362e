"""The driver's smaller commands, and what the harness says when the JVM hangs or dies."""

import os
import signal
from pathlib import Path

import pytest
from tests.interop import javastore
from tests.interop.javastore import JavaStore, JavaStoreError, message

BLANK = -875286124


def test_loading_takes_no_lock_and_starting_does(
    java: JavaStore, java2: JavaStore, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    assert java.open(root)
    java.put(message("t", b"x"))
    assert java2.load(root)
    with pytest.raises(JavaStoreError, match="Lock failed"):
        java2.start()


def test_records_are_all_that_the_log_holds(java: JavaStore, tmp_path: Path) -> None:
    assert java.open(tmp_path / "store")
    kinds = (0x0, 0x4, 0x8, 0xC)
    results = java.put(
        *[message("t", b"x" * 300, sys_flag=kinds[n % 4], queue=n % 2) for n in range(300)]
    )
    records = java.records()
    assert [r["log_offset"] for r in records if r["magic"] != BLANK] == [
        r["log_offset"] for r in results
    ]
    assert any(r["magic"] == BLANK for r in records)
    ends = [r["log_offset"] + r["size"] for r in records]
    assert [r["log_offset"] for r in records] == [0, *ends[:-1]]
    assert ends[-1] == java.state()["max_offset"]
    looked = java.look(results[1]["log_offset"], ends[-1])
    assert looked[0] is not None
    assert looked[0]["sys_flag"] == 0x4
    assert looked[1] is None


def test_filling_is_the_same_for_the_same_seed(java: JavaStore, tmp_path: Path) -> None:
    sums = []
    for name in ("a", "b"):
        assert java.open(tmp_path / name)
        sums.append(java.fill("t", 3000, queues=3, seed=7))
        # 4.9.8 also knows the empty queues of its delay levels, once it has looked at them.
        assert java.topics()["t"] == [0, 1, 2]
        assert sum(queue["max"] for queue in java.dump().values()) == 3000
        java.close()
    assert sums[0] == sums[1]
    assert sums[0]["statuses"] == {"PUT_OK": 3000}


def test_vectors(java: JavaStore, version: str) -> None:
    assert java.hashes("", "TagA", "TopicTest", "polygenelubricants", "\U0001f600") == [
        0, 2598919, -1902610879, -2147483648, 1772899,
    ]  # fmt: skip
    raw = bytes.fromhex(
        "0000005ddaa320a70cdc16830000000000000000" + "00" * 20
        + "0000018bcfe568007f0000010000c3500000018bcfe568017f00000100002a9f"
        + "00" * 12 + "000000017801540000"
    )  # fmt: skip
    one = java.decode(raw)[0]
    assert (one["topic"], one["size"], one["born_time_ms"]) == ("T", 93, 1700000000000)
    assert one["message_id"] == "7F00000100002A9F0000000000000000"
    encoded = java.encode_batch(message("t", b"b0", flag=3))
    # A client's message waits by default; 4.9.1 to 4.9.8 write no separator after the last property.
    properties = b"WAIT\x01true" + (b"\x02" if version.startswith("5") else b"")
    sizes = [(24 + len(properties)).to_bytes(4), bytes(8), b"\0\0\0\3", b"\0\0\0\2"]
    assert encoded == b"".join([*sizes, b"b0", len(properties).to_bytes(2), properties])


def test_a_second_store_in_one_jvm_is_an_error(java: JavaStore, tmp_path: Path) -> None:
    assert java.open(tmp_path / "a")
    with pytest.raises(JavaStoreError, match="has a store open"):
        java.open(tmp_path / "b")


def test_a_jvm_that_hangs_is_named_and_ended(
    java: JavaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(javastore, "ANSWER_SECONDS", 0.5)
    os.kill(java.pid, signal.SIGSTOP)
    with pytest.raises(RuntimeError, match="no answer within"):
        java.call("state")
    with pytest.raises(RuntimeError, match="ended during"):
        java.call("state")


def test_halting_is_a_crash(java: JavaStore, java2: JavaStore, tmp_path: Path) -> None:
    assert java.open(tmp_path / "store")
    java.put(message("t", b"x"))
    assert java.halt() == 137
    assert (tmp_path / "store" / "abort").exists()
    assert java2.open(tmp_path / "store")
    assert java2.dump()["t", 0]["max"] == 1
