"""What a caller sees: receipts, reads, statuses, tags, keys, times, columns."""

from pathlib import Path

import pyarrow as pa
import pytest
from tests.conftest import OpenStore, append_record

import penstock
from penstock import Durability, Message, PutStatus
from penstock.errors import CorruptionError, OffsetError, ReadOnlyError, StoreClosedError
from penstock.store.store import Store
from penstock.testing import ManualWorkers, SimulatedDisk, open_store


def test_a_message_comes_back_with_everything_it_had(open_small: OpenStore) -> None:
    with open_small() as store:
        receipt = store.put(
            "orders", b"\x00\xff", queue=3, tag="created", keys=["A-17", "B 18"], flag=-5,
            properties={"colour": "blå"}, born_time_ms=123, born_host="[::1]:99",
        )  # fmt: skip
        message = store.at(receipt.log_offset)
    assert (message.topic, message.queue, message.queue_offset) == ("orders", 3, 0)
    assert (message.body, message.tag, message.keys) == (
        b"\x00\xff",
        "created",
        ("A-17", "B", "18"),
    )
    assert (message.flag, message.properties) == (-5, {"colour": "blå"})
    assert (message.born_time_ms, message.born_host) == (123, "[::1]:99")
    assert message.store_host == "127.0.0.1:10911"
    assert message.store_time_ms == receipt.store_time_ms
    assert message.message_id == receipt.message_id
    assert message.size == receipt.size


@pytest.mark.parametrize(
    ("flush", "durability"), [("sync", Durability.ON_DISK), ("async", Durability.ACCEPTED)]
)
def test_a_receipt_says_what_is_known(
    open_small: OpenStore, flush: str, durability: Durability
) -> None:
    with open_small(flush=flush) as store:
        receipt = store.put("t", b"x")
        assert (receipt.status, receipt.durability) == (PutStatus.PUT_OK, durability)
        assert receipt.is_durable == (durability is Durability.ON_DISK)
        assert not store.put("t", b"x", wait=False).is_durable
        future = store.submit("t", b"y", tag="z")
        assert future.result(10).is_durable
        assert store.stats()["flushed_offset"] >= future.result().log_offset


def test_find_takes_words_phrases_and_unique_keys(open_small: OpenStore) -> None:
    with open_small() as store:
        store.put("t", b"1", keys=["docs/two words.txt", "x"])
        store.put("t", b"2", properties={"UNIQ_KEY": "u1"})
        for key, bodies in {"docs/two words.txt": [b"1"], "words.txt": [b"1"], "x": [b"1"], "two": [],
                            "words.txt x": [b"1"], "u1": [b"2"], "": [], " ": []}.items():  # fmt: skip
            assert [m.body for m in store.find("t", key)] == bodies, key


def test_long_topics_and_ipv6_hosts_are_kept(open_small: OpenStore) -> None:
    with open_small(**{"log.store_host": "[2001:db8::1]:10911"}) as store:
        receipt = store.put("t" * 200, b"x", tag="a")
        assert len(receipt.message_id) == 56
        assert store.get(receipt.message_id).topic == "t" * 200
        table = store.to_arrow("t" * 200, columns=["message_id", "topic", "tag", "body"])
        assert table.to_pylist() == [
            {"message_id": receipt.message_id, "topic": "t" * 200, "tag": "a", "body": b"x"}
        ]


def test_every_arrow_column_is_what_the_message_says(open_small: OpenStore) -> None:
    with open_small() as store:
        for number in range(300):
            store.put("t", b"b" * number, tag="x" if number % 3 else "", keys=["k", str(number)][: number % 3],
                      properties={"p": "v"} if number % 5 else {}, flag=number, born_time_ms=number)  # fmt: skip
        table = store.to_arrow("t", start=10, columns=list(penstock_columns()))
        rows = table.to_pylist()
        assert len(rows) == 290
        for row, message in zip(rows, store.scan("t", 0, start=10), strict=True):
            assert row["body"] == message.body
            assert (row["tag"] or "") == message.tag
            assert tuple((row["keys"] or "").split()) == message.keys
            assert dict(row["properties"]) == message.all_properties
            assert row["store_time"].timestamp() * 1000 == pytest.approx(message.store_time_ms)
            for name in ("topic", "queue", "queue_offset", "log_offset", "flag", "sys_flag",
                         "reconsume_times", "prepared_offset", "message_id", "size"):  # fmt: skip
                assert row[name] == getattr(message, name), name


def penstock_columns() -> tuple[str, ...]:
    from penstock.format.arrow_schema import COLUMNS  # noqa: PLC0415 - as the kernel does

    return tuple(COLUMNS)


def test_an_empty_range_is_an_empty_table(open_small: OpenStore) -> None:
    with open_small() as store:
        store.put("t", b"x")
        assert store.to_arrow("t", start=1).num_rows == 0
        assert store.to_arrow("none").num_rows == 0
        assert store.put_many([]) == []
        empty = pa.table({"topic": pa.array([], pa.string()), "body": pa.array([], pa.binary())})
        assert store.put_arrow(empty).num_rows == 0


@pytest.mark.slow
def test_reading_changes_no_byte(open_small: OpenStore, tmp_path: Path) -> None:
    with open_small() as store:
        store.put_many([Message("t", b"x" * 100, keys=[str(n)]) for n in range(2000)])
        store.commit_offset("g", "t", offset=7)
    root = tmp_path / "store"

    def picture() -> dict[str, tuple[bytes, int]]:
        return {
            str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in root.rglob("*") if p.is_file()
        }

    before = picture()
    with penstock.open(root, read_only=True) as store:
        assert sum(1 for _ in store.scan("t")) == 2000
        assert store.find("t", "77")
        assert store.committed_offset("g", "t") == 7
        store.to_arrow("t")
        store.stats()
        assert not list(store.verify())
    assert picture() == before


def test_consumer_offsets_survive_and_bare_keys_are_read(
    open_small: OpenStore, tmp_path: Path
) -> None:
    with open_small() as store:
        store.put_many([Message("t", b"x", queue=number % 3) for number in range(130)])
        assert store.committed_offset("g", "t") is None
        store.commit_offset("g", "t", 2, offset=41)
        store.commit_offset("g", "t", 2, offset=42)
    path = tmp_path / "store" / "config" / "consumerOffset.json"
    path.write_text(
        '{\n\t"dataVersion":{"counter":2},"offsetTable":{"a:1@g":{0:250,1:7},"t@g":{2:9}}}'
    )
    with open_small() as store:
        assert store.committed_offset("g", "t", 2) == 9
        assert store.groups()["g", "a:1"] == {0: 250, 1: 7}
        store.commit_offset("g", "t", 0, offset=1)
        path.write_text("{broken")
    with penstock.open(tmp_path / "store", read_only=True) as store:
        assert store.committed_offset("g", "t", 2) == 9, "the .bak is read then"
    path.with_name("consumerOffset.json.bak").unlink()
    with penstock.open(tmp_path / "store", read_only=True) as store, pytest.raises(CorruptionError):
        store.committed_offset("g", "t")


def test_transactions_have_no_queue_entry_until_they_commit(open_small: OpenStore) -> None:
    with open_small() as store:
        for bits, offset in ((0x4, 0), (0xC, 0), (0x8, 0), (0, 1), (0x4, 0), (0, 2)):
            done = append_record(store, "t", b"x", b"KEYS\x01k\x02", sys_flag=bits)
            assert done.queue_offset == offset
        assert store.max_offset("t") == 3
        assert [m.sys_flag for m in store.scan("t")] == [8, 0, 0]
        assert len(store.find("t", "k")) == 5
        assert not list(store.verify())
    with open_small() as store:
        assert store.put("t", b"").queue_offset == 3


def test_an_address_behind_the_last_possible_record_is_no_damage(open_small: OpenStore) -> None:
    with open_small() as store:
        store.put("t", b"x" * 60_000)
        store.put("t", b"x" * 60_000)
        for back in range(1, 8):
            with pytest.raises(OffsetError):
                store.at(65_536 - back)


def test_a_store_is_closed_by_its_block_and_once_more_without_harm() -> None:
    disk = SimulatedDisk()
    with open_store(Path("/s"), files=disk, spawn=ManualWorkers(), retention=[]) as store:
        assert isinstance(store, Store)
        store.put("t", b"x")
    store.close()
    with pytest.raises(StoreClosedError):
        store.put("t", b"x")
    reader = open_store(Path("/s"), files=disk, read_only=True)
    with pytest.raises(ReadOnlyError):
        reader.put("t", b"x")
    reader.close()
