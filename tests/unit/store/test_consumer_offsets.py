"""Committed offsets: what is refused, what a bad file costs, and a tail that was lost."""

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import OpenStore

import penstock
from penstock import Message
from penstock.errors import (
    CommitError,
    CorruptionError,
    MessageError,
    PenstockError,
    QueueError,
    StorageError,
    TopicError,
)
from penstock.files import Files
from penstock.store import consumer_offsets
from penstock.store.consumer_offsets import ConsumerOffsets, Table
from penstock.testing.kit import copy_files


def table_of(root: Path) -> Path:
    return root / "config" / "consumerOffset.json"


def offsets_of(store: penstock.Store) -> list[tuple[str, str, int, int]]:
    return [each[:4] for each in store.groups()]


@pytest.fixture
def filled(open_small: OpenStore, tmp_path: Path) -> Path:
    """A store with ten messages in queue 0 and five in queue 1 of `orders`, group `g` at 3."""
    with open_small() as store:
        store.put_many([Message("orders", b"%d" % n, queue=0) for n in range(10)])
        store.put_many([Message("orders", b"%d" % n, queue=1) for n in range(5)])
        store.commit_offset("g", "orders", 0, offset=3)
    return tmp_path / "store"


# --- what is refused

REFUSED: dict[str, tuple[type[PenstockError], tuple[Any, Any, Any, Any]]] = {
    "queue of text": (QueueError, ("g", "orders", "0x", 1)),
    "queue of digits": (QueueError, ("g", "orders", "0", 1)),
    "queue bool": (QueueError, ("g", "orders", False, 1)),
    "queue unknown": (CommitError, ("g", "orders", 7, 0)),
    "topic unknown": (CommitError, ("g", "other", 0, 0)),
    "topic out of its folder": (TopicError, ("g", "../config", 0, 1)),
    "group empty": (MessageError, ("", "orders", 0, 1)),
    "group with @": (MessageError, ("a@b", "orders", 0, 1)),
    "group control": (MessageError, ("a\nb", "orders", 0, 1)),
    "group endless": (MessageError, ("a" * 256, "orders", 0, 1)),
    "group no text": (MessageError, (b"g", "orders", 0, 1)),
    "offset negative": (CommitError, ("g", "orders", 0, -1)),
    "offset beyond the end": (CommitError, ("g", "orders", 0, 11)),
    "offset beyond a long": (CommitError, ("g", "orders", 0, 2**80)),
    "offset nan": (CommitError, ("g", "orders", 0, float("nan"))),
    "offset whole float": (CommitError, ("g", "orders", 0, 1.0)),
    "offset numpy bool": (CommitError, ("g", "orders", 0, np.bool_(True))),
    "offset text": (CommitError, ("g", "orders", 0, "1")),
}


def test_an_offset_that_cannot_be_is_refused_and_the_file_stays(
    filled: Path, open_small: OpenStore
) -> None:
    """`commit_offset("g", "orders", "0x", offset=1)` was accepted, and made the offsets of every group
    unreadable, those of the `.bak` with the next commit."""
    with open_small() as store:
        before = table_of(filled).read_bytes()
        for case, (kind, (group, topic, queue, offset)) in REFUSED.items():
            with pytest.raises(kind):
                store.commit_offset(group, topic, queue, offset=offset)
            assert table_of(filled).read_bytes() == before, case
    with open_small() as store:
        assert offsets_of(store) == [("g", "orders", 0, 3)]


def test_offsets_move_together_and_only_from_the_expected_one(open_small: OpenStore) -> None:
    with open_small() as store:
        for queue in (0, 1):
            for number in range(5):
                store.put("t", b"%d" % number, queue=queue)
        store.commit_offset("g", "t", 1, offset=4)
        moves = {("g", "t", 0): (None, 3), ("g", "t", 1): (2, 5), ("h", "t", 0): (None, 0)}
        assert store.lowlevel.move_offsets(moves) == {("g", "t", 1)}
        assert offsets_of(store) == [("g", "t", 0, 3), ("g", "t", 1, 4), ("h", "t", 0, 0)]
        assert store.lowlevel.move_offsets({("g", "t", 0): (3, 1)}) == set()
        assert store.committed_offset("g", "t", 0) == 1
        with pytest.raises(CommitError, match="ends at 5"):
            store.lowlevel.move_offsets({("h", "t", 0): (0, 2), ("g", "t", 1): (4, 6)})
        assert store.committed_offset("h", "t", 0) == 0


# --- bad entries in a file


BAD_ENTRIES: dict[str, str] = {
    "queue": '"orders@x":{"0x":1}',
    "negative queue": '"orders@x":{-1:1}',
    "far queue": '"orders@x":{70000:1}',
    "queue twice": '"orders@x":{"00":1}',
    "other digits": '"orders@x":{"\u0663":1}',
    "half": '"orders@x":{"0":1.5}',
    "nan": '"orders@x":{"0":NaN}',
    "negative": '"orders@x":{"0":-1}',
    "bool": '"orders@x":{"0":true}',
    "text": '"orders@x":{"0":"3"}',
    "2**80": '"orders@x":{"0":1' + "0" * 24 + "}",
    "5000 digits": '"orders@x":{"0":' + "9" * 5000 + "}",
    "no table": '"orders@x":"c"',
    "no group": '"orders":{"0":1}',
    "empty group": '"orders@":{"0":1}',
    "empty topic": '"@x":{"0":1}',
    "way out": '"../../etc@x":{"0":1}',
    "control": '"a\\u001bb@x":{"0":1}',
    "surrogate": '"\\ud800@x":{"0":1}',
    "deep": '"orders@x":{"0":' + "[" * 90 + "]" * 90 + "}",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", BAD_ENTRIES)
def test_a_bad_entry_is_set_aside_and_the_other_groups_keep_theirs(
    kind: str, filled: Path, open_small: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    """One entry that was no number took the offsets of all groups away."""
    path = table_of(filled)
    text = (
        '{"dataVersion":{"counter":2},"offsetTable":{"orders@g":{0:4,1:5},'
        + BAD_ENTRIES[kind]
        + "}}"
    )
    path.write_text(text)
    with penstock.open(filled, read_only=True) as reader:
        assert [each[2:4] for each in reader.groups() if each.group == "g"] == [(0, 4), (1, 5)]
        assert "x" not in {each.group for each in reader.groups()}
        assert reader.committed_offset("g", "orders", 1) == 5
        remarks = reader.stats()["offsets_set_aside"]
    assert len(remarks) == 1
    assert "entry" in remarks[0]
    assert len(remarks[0]) < 1000
    assert [r.levelno for r in caplog.records if "set aside" in r.getMessage()] == [logging.WARNING]
    with open_small() as store:
        store.commit_offset("g", "orders", 0, offset=6)
        store.commit_offset("g", "orders", 0, offset=7)
    kept = json.loads(path.read_bytes())
    table = kept["offsetTable"]
    assert kept["dataVersion"] == {"counter": 2}
    assert table.pop("orders@g") == {"0": 7, "1": 5}
    wanted = json.loads("{" + BAD_ENTRIES[kind].replace("{-1:", '{"-1":').replace("{70000:", '{"70000":') + "}",
                        parse_int=lambda digits: int(digits) if len(digits) < 1000 else digits)  # fmt: skip
    assert repr(table) == repr(wanted), "what is set aside stays in the file"
    spare = ConsumerOffsets(Files(), filled, read_only=True)
    path.unlink()
    assert spare.get("g", "orders", 0) == 6, "and so it is in the spare"


def test_a_file_that_cannot_be_parsed_does_not_replace_the_spare(
    filled: Path, open_small: OpenStore
) -> None:
    """The commit after it copied the broken file over the `.bak`, which was the only one left."""
    path = table_of(filled)
    with open_small() as store:
        store.commit_offset("g", "orders", 0, offset=8)
    path.write_bytes(b"{broken")
    with open_small() as store:
        assert store.committed_offset("g", "orders", 0) == 3, "as the spare says"
        assert (
            "offsets in use were read from consumerOffset.json.bak"
            in store.stats()["offsets_set_aside"][0]
        )
        store.commit_offset("h", "orders", 1, offset=1)
        assert store.stats()["offsets_set_aside"] == []
    assert path.with_name(path.name + ".unreadable").read_bytes() == b"{broken"
    path.unlink()
    with penstock.open(filled, read_only=True) as reader:
        assert reader.groups() == [("g", "orders", 0, 3, reader.max_offset("orders", 0) - 3)], (
            "the .bak is read then"
        )
    path.with_name(path.name + ".bak").unlink()
    with penstock.open(filled, read_only=True) as reader:
        assert reader.committed_offset("g", "orders", 0) is None


@pytest.mark.parametrize("raw", [b"", b"[]", b"\xff", b'{"offsetTable":[]}'])
def test_what_is_no_table_at_all_is_corruption_and_keeps_nothing_but_the_offsets(
    raw: bytes, filled: Path, open_small: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    table_of(filled).write_bytes(raw)
    with open_small() as store:
        assert store.put("orders", b"x", queue=0).queue_offset == 10
        assert "corrupt" in store.stats()["offsets_set_aside"][0]
        with pytest.raises(CorruptionError):
            store.groups()
    assert "are not compared with the ends of the queues" in caplog.text


def test_progress_of_broadcast_consumers_of_a_broker_is_no_groups(
    filled: Path, open_small: OpenStore
) -> None:
    """It counted as that of a group `broadcast`, with which it was deleted for all."""
    entry = '"orders@CGB@broadcast":{"0":4}'
    table_of(filled).write_text('{"offsetTable":{"orders@g":{"0":3},' + entry + "}}")
    with open_small() as store:
        assert offsets_of(store) == [("g", "orders", 0, 3)]
        store.delete_group("broadcast")
        store.commit_offset("g", "orders", 0, offset=5)
        assert store.stats()["offsets_set_aside"] == []
    assert json.loads(table_of(filled).read_text())["offsetTable"]["orders@CGB@broadcast"] == {
        "0": 4
    }


def test_a_table_of_rocketmqs_form_is_used_and_a_change_leaves_the_rest() -> None:
    before = Table.parse(b'{"offsetTable":{"t@g":{0:7,1:8},"a@b@g":{"2":9}},"dataVersion":3}')
    assert (before.used, before.aside) == ({"t@g": {0: 7, 1: 8}, "a@b@g": {2: 9}}, [])
    raw, after = before.with_offsets({("t@g", 1): 5, ("u@g", 0): 6}).written()
    assert after.used == {"t@g": {0: 7, 1: 5}, "a@b@g": {2: 9}, "u@g": {0: 6}}
    assert before.used["t@g"] == {0: 7, 1: 8}
    assert json.loads(raw)["dataVersion"] == 3
    with pytest.raises(ValueError, match="offsetTable is not a JSON object"):
        Table.parse(b'{"offsetTable":[]}')


def test_a_table_that_would_not_be_read_back_is_not_written(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file over the limit of what is read was written, and refused from then on."""
    limit = 20_000
    monkeypatch.setattr(consumer_offsets, "FILE_BYTES_MAX", limit)
    path = table_of(filled)
    # An entry that is set aside stays in the file.
    aside = "c" * (limit - 200)
    path.write_text('{"offsetTable":{"orders@g":{"0":3},"orders@x":"' + aside + '"}}')
    offsets = ConsumerOffsets(Files(), filled, read_only=False)
    with pytest.raises(StorageError, match=f"the limit is {limit}.*commit again"):
        for number in range(9):
            offsets.put(f"group-{number}" * 8, "orders", 0, 5)
    assert path.stat().st_size <= limit
    kept = ConsumerOffsets(Files(), filled, read_only=True).groups()
    assert offsets.groups() == kept
    assert kept["g", "orders"] == {0: 3}


# --- an offset beyond the end of its queue


def lose_tail(root: Path, path: Path, keep: int) -> None:
    """Copy a store as a power cut may leave it: the log ends after `keep` messages, the offsets are newer."""
    copy_files(root, path)
    with penstock.open(path, read_only=True) as reader:
        end = next(m.log_offset for m in reader.scan("orders", queue=0, start=keep))
    (path / "abort").touch()
    shutil.rmtree(path / "penstock")
    (path / "penstock").mkdir()
    shutil.copy(root / "penstock" / "geometry.json", path / "penstock" / "geometry.json")
    segment = path / "commitlog" / f"{0:020d}"
    size = segment.stat().st_size
    os.truncate(segment, end)
    os.truncate(segment, size)
    (path / "checkpoint").unlink()


def test_a_group_misses_no_message_after_a_lost_tail(
    open_small: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten messages were lost with the machine, the group's offset was not: of the next twenty it missed ten."""
    with open_small() as store:
        store.put_many([Message("orders", b"%d" % n, queue=0) for n in range(30)])
        store.commit_offset("g", "orders", 0, offset=30)
        store.commit_offset("slow", "orders", 0, offset=12)
    lose_tail(tmp_path / "store", tmp_path / "lost", keep=20)
    with penstock.open(tmp_path / "lost", read_only=True) as reader:
        assert reader.committed_offset("g", "orders", 0) == 30, "a reader changes no offset"
    with open_small(path=tmp_path / "lost") as store:
        assert store.recovery is not None
        wanted = (
            "offset 30 of group g in queue orders/0 was greater than the queue's end; it was set back to 20, so that the "
            "group misses no new message"
        )
        assert wanted in store.recovery.mended
        assert [r.levelno for r in caplog.records if wanted in r.getMessage()] == [logging.WARNING]
        assert ("slow", "orders", 0, 12) in offsets_of(store)
        kept = ConsumerOffsets(Files(), tmp_path / "lost", read_only=True)
        assert kept.get("g", "orders", 0) == store.committed_offset("g", "orders", 0) == 20
    with open_small(path=tmp_path / "lost") as store:
        assert store.recovery is not None
        assert not store.recovery.mended


def test_an_offset_in_a_queue_that_is_not_there_waits_for_its_first_message(
    open_small: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic that a broker deleted, or one that was never used here: nothing is missed until something is
    put, and the offset may be right where this store does not see."""
    with open_small() as store:
        store.put("orders", b"x", queue=0)
        store.commit_offset("g", "orders", 0, offset=1)
    path = table_of(tmp_path / "store")
    text = '{"offsetTable":{"orders@g":{0:1},"gone@g":{0:5,3:2},"gone@h":{0:7,1:0},"%RETRY%g@g":{0:4}}}'
    path.write_text(text)
    for _ in range(2):
        with open_small() as store:
            assert store.recovery is not None
            assert not store.recovery.mended
            store.put("orders", b"y", queue=0)
        assert path.read_text() == text, "nothing was put there"
    caplog.clear()
    with open_small() as store:
        store.put("gone", b"first", queue=0)
        assert offsets_of(store) == [
            ("g", "gone", 0, 0), ("g", "gone", 3, 2), ("g", "orders", 0, 1), ("h", "gone", 0, 0),
            ("h", "gone", 1, 0),
        ]  # fmt: skip
        store.put_many([Message("gone", b"second", queue=3), Message("gone", b"third", queue=3)])
        assert store.committed_offset("g", "gone", 3) == 0
        store.commit_offset("g", "gone", 3, offset=1)
        store.put("gone", b"fourth", queue=3)
        assert store.committed_offset("g", "gone", 3) == 1
    said = [r.getMessage() for r in caplog.records if "set back to 0" in r.getMessage()]
    assert len(said) == 3
    assert all(r.levelno == logging.WARNING for r in caplog.records)
