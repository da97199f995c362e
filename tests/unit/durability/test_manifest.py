"""The manifest of a clean close: believed only where it is whole and of these very files, and never over them."""

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from tests.conftest import SMALL

import penstock
from penstock.durability.side_folder import (
    decode_manifest,
    encode_manifest,
    manifest_path,
    read_manifest,
    summaries_for,
    write_manifest,
)
from penstock.errors import StorageError
from penstock.files import Files
from penstock.store.store import Store
from penstock.testing import FaultyFiles
from penstock.testing.kit import copy_store
from penstock_index.queue_catalog import ClosedQueue, decode_summary, encode_summary

NOTED: dict[str, Any] = {**SMALL, "index.consume-queue.summary_from": 1}


DIGEST = "ab" * 32


Key = tuple[str, int]


Ends = dict[Key, tuple[int, int, list[bytes]]]


def opened(root: Path, files: Files | None = None, **settings: Any) -> Store:
    return penstock.open(root, files=files, environ={}, **{**NOTED, **settings})


def fill(store: Store, count: int, first: int = 0) -> None:
    """Put messages into twelve queues of three topics."""
    for number in range(first, first + count):
        store.put(f"topic-{number % 3}", b"%d" % number, queue=number % 4)


def ends_of(store: Store) -> Ends:
    return {
        (topic, queue): (
            store.min_offset(topic, queue), store.max_offset(topic, queue),
            [message.body for message in store.scan(topic, queue=queue)],
        )
        for topic, queues in store.topics().items() for queue in queues
    }  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a store that was closed cleanly, with a manifest."""
    with opened(tmp_path / "store") as store:
        fill(store, 700)
    assert manifest_path(tmp_path / "store").exists()
    return tmp_path / "store"


def queues_of(root: Path) -> dict[Key, ClosedQueue]:
    found = read_manifest(Files(), root)
    assert found is not None
    said = decode_summary(found[1]["consume-queue"], SMALL["geometry.queue_entries"], 1 << 62)
    assert said is not None
    return said


def forge(root: Path, queues: dict[Key, ClosedQueue]) -> None:
    """Write a manifest as a clean close would, with the right sum and digest, that says something else."""
    digest = json.loads((root / "penstock" / "clean").read_text())["digest"]
    summary = encode_summary(SMALL["geometry.queue_entries"], queues.items())
    write_manifest(Files(), root, digest, {"consume-queue": summary})


def plain_ends(root: Path, tmp_path: Path) -> Ends:
    """Return what the files say, looked at without a manifest."""
    copy = tmp_path / "looked-at"
    shutil.rmtree(copy, ignore_errors=True)
    copy_store(root, copy)
    manifest_path(copy).unlink(missing_ok=True)
    with penstock.open(copy, read_only=True, environ={}) as store:
        return ends_of(store)


def clean_ends(root: Path, files: Files | None = None) -> Ends:
    """Open a store that is known to be clean; returns what it says of its queues."""
    with opened(root, files) as store:
        assert store.recovery is not None
        assert store.recovery.state == "clean"
        return ends_of(store)


# --- the file


def test_no_flipped_bit_is_believed() -> None:
    data = encode_manifest(DIGEST, {"one": b"abc", "two": bytes(40)})
    assert decode_manifest(data) == (DIGEST, {"one": b"abc", "two": bytes(40)})
    assert decode_manifest(encode_manifest(DIGEST, {"empty": b""})) == (DIGEST, {"empty": b""})
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        assert decode_manifest(bytes(changed)) is None, bit


def test_no_torn_or_longer_one_is_believed() -> None:
    data = encode_manifest(DIGEST, {"one": b"abc", "two": bytes(40)})
    assert all(decode_manifest(data[:size]) is None for size in range(len(data)))
    # What stands where blocks were never written.
    torn = [data[:size] + bytes(len(data) - size) for size in range(len(data) - 4)]
    assert all(decode_manifest(each) is None for each in torn)
    assert decode_manifest(data + b"\0") is None


def test_a_part_that_reaches_past_the_end_is_not_believed() -> None:
    whole = bytearray(encode_manifest(DIGEST, {"one": b"abc"}))
    for size in (4, 1 << 63, (1 << 64) - 1):
        changed = whole[:-4]
        changed[44 + 24 : 44 + 32] = size.to_bytes(8, "big")
        sum_ = crc32c(bytes(changed))
        assert decode_manifest(bytes(changed) + sum_.to_bytes(4, "big")) is None


def test_it_is_left_out_where_there_is_no_room_and_a_failed_sync_of_it_leaves_the_store_unclean(
    tmp_path: Path,
) -> None:
    """Nothing needs it, so a full disk is no reason to leave the store unclean."""
    for name, call, number in (("a", "pwrite", errno.ENOSPC), ("b", "sync", errno.EIO)):
        root, files = tmp_path / name, FaultyFiles()
        store = opened(root, files)
        fill(store, 30)
        files.plan.fail(call, number, path="manifest")
        if number == errno.ENOSPC:
            store.close()
            assert len(clean_ends(root)) == 12
        else:
            with pytest.raises(StorageError):
                store.close()
            assert (root / "abort").exists()
            with opened(root) as again:
                assert sum(len(bodies) for _, _, bodies in ends_of(again).values()) == 30


# --- a store with one


@pytest.mark.slow
def test_one_of_an_earlier_close_is_not_believed(root: Path) -> None:
    stale = manifest_path(root).read_bytes()
    with opened(root) as store:
        fill(store, 60, 700)
        expected = ends_of(store)
    manifest_path(root).write_bytes(stale)
    with penstock.open(root, read_only=True, environ={}) as store:
        found = [finding.text for finding in store.verify(deep=True)]
    assert ["does not belong to the clean-close file" in text for text in found] == [True]
    with opened(root) as store:
        assert ends_of(store) == expected


def test_one_of_an_earlier_close_is_not_given_to_anybody(root: Path) -> None:
    digest = json.loads((root / "penstock" / "clean").read_text())["digest"]
    assert list(summaries_for(Files(), root, digest)) == ["consume-queue"]
    assert summaries_for(Files(), root, DIGEST) == {}


@pytest.mark.slow
@pytest.mark.parametrize("change", ["shorter", "more", "records"])
def test_a_forged_one_is_held_against_the_files(change: str, root: Path, tmp_path: Path) -> None:
    """Its sum and its digest are right, as nobody but a forger would have them."""
    expected, said = plain_ends(root, tmp_path), queues_of(root)
    key = ("topic-1", 1)
    low, high, last = said[key][1:]
    found = expected[key][2]
    with penstock.open(root, read_only=True, environ={}) as reader:
        # The last entry that a shorter queue would have, so that only the one after it tells.
        before = reader.read(*key, high - 3, 1).messages[0]
    assert before.body == found[-3]
    forged = {
        "shorter": (low, high - 2, before.log_offset), "more": (low, high + 3, last),
        "records": (low + 1, high, last),
    }[change]  # fmt: skip
    forge(root, {**said, key: said[key]._replace(
        min_offset=forged[0], max_offset=forged[1], last=forged[2])})  # fmt: skip
    with penstock.open(root, read_only=True, environ={}) as reader:
        (finding,) = reader.verify(deep=True)
    assert finding.path == manifest_path(root)
    assert "topic-1/1" in finding.text
    with opened(root) as store:
        assert ends_of(store) == expected
        receipt = store.put(*key[:1], b"next", queue=1)
        assert receipt.queue_offset == expected[key][1]
    with opened(root) as store:
        assert not list(store.verify())


@pytest.mark.slow
def test_one_that_cannot_be_understood_is_named_passed_over_and_taken_away_by_a_repair(
    root: Path, tmp_path: Path
) -> None:
    expected, path = plain_ends(root, tmp_path), manifest_path(root)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with penstock.open(root, read_only=True, environ={}) as reader:
        assert [finding.path for finding in reader.verify(deep=True)] == [path]
    assert clean_ends(root) == expected
    path.write_bytes(data)
    assert [step.path for step in penstock.repair(root, apply=True, environ={}).steps] == [path]
    assert not path.exists()
