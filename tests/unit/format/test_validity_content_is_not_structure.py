"""What a caller can write into a message is never taken for the store's own structure.

In version 0.1 the last twenty bytes of a record were guessed to be its CRC: a property whose name ended in
`__CRC32C` was answered "on disk", could never be read, stopped `to_arrow` of its queue, and was cut as a torn tail
after a kill.
"""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.conftest import SMALL, append_record

import penstock
from penstock import Message
from penstock.errors import PropertyError
from penstock.files import Files
from penstock.format.record import CRC_PROPERTY_SIZE, crc_property
from penstock.format.validity import ends_in_own_crc
from penstock.staged import Encoder, StagedFile, encoding_for
from penstock.store.store import Store
from penstock.testing.kit import copy_files

SETTINGS: dict[str, Any] = {**SMALL}
CHECKSUMS = ("crc32", "crc32+record")
# Each ends the text in what looks like a CRC property, whole or nearly.
LOOKALIKES = [
    {"__CRC32C": "1234567890"},
    {"_CRC32#": "1234567890", "a__CRC32#": "0000000000"},
    {"x": "y__CRC32#0123456789"},
    {"prefix__CRC32#": "9876543210"},
    {"__CRC32": "1234567890"},
    {"__CRD32#": "1234567890"},
    {"value": "__CRC32#"},
    {"__CRC32#": "1234567890"},
    {"__CRC32#": "1234567890", "b": "c"},
    {"z": "1", "__CRC32#": "not a number"},
    {"nul": "\0", "end": "x\0"},
    {"zeros": "\0" * 300},
]


def put(store: Store, properties: dict[str, str]) -> None:
    store.put("t", b"z", queue=0, tag="g", keys=["k"], properties=properties)


def put_many(store: Store, properties: dict[str, str]) -> None:
    store.put_many([Message("t", b"z", queue=0, tag="g", keys=("k",), properties=properties)])


def put_a_large_batch(store: Store, properties: dict[str, str]) -> None:
    store.put_many([Message("t", b"z", queue=0, tag="g", keys=("k",), properties=properties)] * 80)


def put_arrow(store: Store, properties: dict[str, str]) -> None:
    store.put_arrow(table(properties))


def put_staged(store: Store, properties: dict[str, str]) -> None:
    """Encoded for a store with either checksum: each must come as this one's records do."""
    path = store.path.parent / "staged"
    for checksum in ("crc32+record", "crc32"):
        given: Any = {"log.checksum": checksum}
        encoder = Encoder(encoding_for(store.path, environ={}, **given))
        writer = encoder.writer(Files(), path)
        writer.add(encoder.encode(table(properties)))
        writer.finish()
        with StagedFile.read(Files(), path) as staged:
            for batch in staged.batches:
                store.lowlevel.put_staged(batch)
        path.unlink()


def table(properties: dict[str, str]) -> pa.Table:
    return pa.table(
        {
            "topic": ["t"], "queue": [0], "body": [b"z"], "tag": ["g"], "keys": ["k"],
            "properties": pa.array([list(properties.items())], pa.map_(pa.string(), pa.string())),
        }
    )  # fmt: skip


WAYS: list[Callable[[Store, dict[str, str]], None]] = [
    put, put_many, put_a_large_batch, put_arrow, put_staged,
]  # fmt: skip


def opened(path: Path, **settings: Any) -> Store:
    return penstock.open(path, environ={}, **SETTINGS, **settings)


def check(store: Store, expected: Iterable[dict[str, str]]) -> None:
    wanted = [{k: v for k, v in each.items() if k != "__CRC32#"} for each in expected]
    found = list(store.scan("t"))
    assert [m.properties for m in found] == wanted
    assert [m.properties for m in store.read("t", queue=0, offset=0, limit=1000).messages] == wanted
    assert [
        dict(p) for p in store.to_arrow("t", columns=["properties"])["properties"].to_pylist()
    ] == [{"TAGS": "g", "KEYS": "k", **each} for each in wanted]
    assert "__CRC32#" not in {name for m in found for name in m.all_properties}
    assert not any(b"__CRC32#\x011234567890\2" in m.record for m in found), (
        "the caller's is not stored"
    )
    assert len(store.find("k", "t", limit=1000)) == len(wanted)
    for message in found:
        assert store.at(message.log_offset) == message
    assert list(store.verify(deep=True)) == []


@pytest.mark.slow
@pytest.mark.parametrize("checksum", CHECKSUMS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_looks_like_a_crc_is_content(
    way: Callable[[Store, dict[str, str]], None], checksum: str, tmp_path: Path
) -> None:
    path, killed = tmp_path / "store", tmp_path / "killed"
    with opened(path, flush="sync", **{"log.checksum": checksum}) as store:
        for properties in LOOKALIKES:
            way(store, properties)
        # Staged batches wait for no flush, and readers see what is durable.
        store.flush()
        count = store.max_offset("t", 0) // len(LOOKALIKES)
        expected = [each for each in LOOKALIKES for _ in range(count)]
        check(store, expected)
        # As after a kill: nothing of the last moments is vouched for.
        copy_files(path, killed)
    with opened(killed) as store:
        assert store.recovery is not None
        assert store.recovery.cut_bytes == 0
        check(store, expected)
    with opened(path, read_only=True) as store:
        check(store, expected)


@pytest.mark.slow
@pytest.mark.parametrize("checksum", CHECKSUMS)
def test_lookalikes_at_the_log_s_end_survive_a_kill_that_lost_the_marks(
    checksum: str, tmp_path: Path
) -> None:
    """Walked from the first byte, and from any flushed offset, every record is what it was."""
    for number, properties in enumerate(LOOKALIKES):
        path, killed = tmp_path / f"{number}", tmp_path / f"{number}-killed"
        with opened(path, flush="none", **{"log.checksum": checksum}) as store:
            put(store, {"a": "b"})
            put(store, properties)
            copy_files(path, killed)
        (killed / "penstock" / "progress").unlink()
        with opened(killed) as store:
            assert [m.queue_offset for m in store.scan("t")] == [0, 1]


def test_a_record_that_must_end_in_its_crc_and_does_not_is_corruption(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path, **{"log.checksum": "crc32+record"}) as store:
        places = [store.put("t", b"body", queue=0, properties={"n": str(n)}) for n in range(3)]
    log = next((path / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    end = places[1].log_offset + places[1].size
    for name in (b"__CRC32C", b"________"):
        # The whole property is something else, and the record otherwise valid for a store without it.
        data[end - CRC_PROPERTY_SIZE : end - CRC_PROPERTY_SIZE + 8] = name
        log.write_bytes(data)
        with opened(path, read_only=True) as store:
            assert [m.queue_offset for m in store.scan("t")] == [0, 2]
            (finding,) = store.verify()
            assert (finding.part, finding.log_offset) == ("log", places[1].log_offset)


def test_a_stale_crc_of_a_broker_proves_nothing(tmp_path: Path) -> None:
    """A broker copies the property of the record that it puts again, unless a setting of its own is on."""
    path = tmp_path / "store"
    with opened(path, **{"log.checksum": "crc32"}) as store:
        # As the broker's text is: the stale property last, or with others after it.
        for text in (crc_property(4711), b"a\1b\2" + crc_property(1), crc_property(2) + b"a\1b\2"):
            append_record(store, "t", b"body", text)
        messages = list(store.scan("t"))
        assert [m.properties for m in messages] == [{}, {"a": "b"}, {"a": "b"}]
        assert list(store.verify(deep=True)) == []
    with opened(path) as store:
        assert len(list(store.scan("t"))) == 3


def test_without_the_side_folder_nothing_is_guessed(tmp_path: Path) -> None:
    """A copy without it: a record that ends in a CRC that matches, and one that only looks so, are both read."""
    path = tmp_path / "store"
    with opened(path, **{"log.checksum": "crc32+record"}) as store:
        put(store, {"a": "b"})
    with opened(path, **{"log.checksum": "crc32"}) as store:
        put(store, {"__CRC32C": "1234567890"})
    shutil.rmtree(path / "penstock")
    with opened(path, read_only=True) as store:
        first, second = store.scan("t")
        assert ends_in_own_crc(first.record)
        assert not ends_in_own_crc(second.record)
        assert list(store.verify()) == []
    with opened(path) as store:
        assert len(list(store.scan("t"))) == 2


@pytest.mark.slow
def test_a_lost_sector_of_zeros_cannot_be_told_from_a_value_of_zeros(tmp_path: Path) -> None:
    """So such a value is refused where records do not end in a CRC, and stored where they do."""
    for way in WAYS:
        path = tmp_path / f"{way.__name__}"
        with opened(path, **{"log.checksum": "crc32"}) as store:
            with pytest.raises(PropertyError, match="consecutive zero bytes"):
                way(store, {"zeros": "\0" * 600})
            assert not store.topics()
        with opened(path, **{"log.checksum": "crc32+record"}) as store:
            if way is not put_staged:
                way(store, {"zeros": "\0" * 2000})
                assert store.max_offset("t", 0) >= 1
