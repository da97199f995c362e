"""Staged batches: marks that count, and nothing of a damaged file in a log; that their bytes are those of other ways in, `test_batches.py` says."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import SMALL
from tests.property.test_batches import Row, table_of

import penstock
from penstock.errors import CorruptionError, StorageError
from penstock.files import Files
from penstock.format.hashes import java_hash
from penstock.staged import (
    MARK_MAX,
    MARK_MIN,
    Encoder,
    StagedFile,
    encoding_for,
    key_hashes,
)
from penstock.write import staged_file

SIZES: dict[str, Any] = {**SMALL}


def staged(root: Path, count: int, checksum: str = "crc32", **more: Any) -> StagedFile:
    rows = [
        Row(body=b"%d:" % n + b"x" * (n * 37 % 900), queue=n % 3, keys=f"k{n}", properties=[("n", "1")])
        for n in range(count)
    ]  # fmt: skip
    encoder = Encoder(encoding_for(root, environ={}, **{**SIZES, "log.checksum": checksum, **more}))
    writer = encoder.writer(Files(), root.parent / "staged")
    for start in range(0, count, 20):
        writer.add(encoder.encode(table_of(rows[start : start + 20])), start)
    writer.finish()
    return StagedFile.read(Files(), root.parent / "staged")


@pytest.mark.slow
@pytest.mark.parametrize("checksum", ["crc32", "crc32+record"])
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_marks_tell_how_many_are_there(tmp_path: Path, checksum: str, flush: str) -> None:
    root = tmp_path / "store"
    settings_: dict[str, Any] = {**SIZES, "log.checksum": checksum, "flush": flush}
    with penstock.open(root, environ={}, **settings_) as store:
        store.put("other", b"before", queue=0)
        begin = store.flush()
        file = staged(root, 200, checksum)
        assert store.lowlevel.count_marked(begin, MARK_MIN, file.rows) == 0
        done, end = 0, 0
        for batch in file.batches[:-1]:
            end = store.lowlevel.put_staged(batch.behind(0), first_mark=MARK_MIN + done)
            done += len(batch)
        store.lowlevel.put_staged(file.batches[-1].behind(5), first_mark=MARK_MIN + done + 5)
        # One that is not at its place is damage, not an end.
        with pytest.raises(StorageError, match="is in its place"):
            store.lowlevel.count_marked(begin, MARK_MIN, file.rows)
        assert store.lowlevel.count_marked(begin, MARK_MIN, done) == done
        assert store.lowlevel.count_marked(end, MARK_MIN + done + 5, 100) == 15
        for wrong in (-1, 1 << 60):
            with pytest.raises(StorageError, match="cannot be counted"):
                store.lowlevel.count_marked(wrong, MARK_MIN, 1)
    with penstock.open(root, environ={}, **settings_) as store:
        assert not list(store.verify(deep=True))
        assert store.lowlevel.count_marked(begin, MARK_MIN, done) == done
        found = [m for m in store.scan("t") if int(m.body.split(b":")[0]) < done]
        assert [m.prepared_offset - MARK_MIN for m in found] == list(range(done))
        assert [int(m.body.split(b":")[0]) for m in found] == list(range(done))
        assert store.find("k77", "t")[0].prepared_offset == MARK_MIN + 77
        assert found[0].properties["n"] == "1"


def test_marks_are_told_from_log_offsets(tmp_path: Path) -> None:
    file = staged(tmp_path / "store", 20)
    with penstock.open(tmp_path / "store", environ={}, **SIZES) as store:
        for wrong in (1, MARK_MIN - 1, MARK_MAX + (1 << 40)):
            with pytest.raises(ValueError, match="all marks must be"):
                store.lowlevel.put_staged(file.batches[0], first_mark=wrong)
        assert store.lowlevel.put_staged(file.batches[0], first_mark=MARK_MAX) > 0


@pytest.mark.slow
@pytest.mark.parametrize("checksum", ["crc32", "crc32+record"])
def test_no_damaged_file_is_taken(tmp_path: Path, checksum: str) -> None:
    staged(tmp_path / "store", 12, checksum)
    data = (tmp_path / "staged").read_bytes()
    bad = tmp_path / "bad"
    for size in range(len(data)):
        bad.write_bytes(data[:size])
        with pytest.raises(CorruptionError):
            StagedFile.read(Files(), bad)
    chance = random.Random(5)
    for at in range(0, len(data), 3):
        flipped = bytearray(data)
        flipped[at] ^= 1 << chance.randrange(8)
        bad.write_bytes(flipped)
        with pytest.raises(CorruptionError):
            StagedFile.read(Files(), bad)
    bad.write_bytes(data + b"\0")
    with pytest.raises(CorruptionError):
        StagedFile.read(Files(), bad)


@pytest.mark.slow
def test_sound_checksums_do_not_make_a_record_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever forges a file can forge its checksums; no byte of it makes a reader fail otherwise, or pass."""
    staged(tmp_path / "store", 12)
    data = (tmp_path / "staged").read_bytes()
    monkeypatch.setattr(staged_file, "crc32c", lambda *_: 0)
    bad = tmp_path / "bad"
    chance = random.Random(6)
    taken = 0
    for _ in range(3000):
        forged = bytearray(data)
        for crc_at in (40, data.index(b"SBAT") + 20, len(data) - 4):
            forged[crc_at : crc_at + 4] = bytes(4)
        for _ in range(chance.randint(1, 3)):
            forged[chance.randrange(48, len(data))] = chance.randrange(256)
        bad.write_bytes(forged)
        try:
            file = StagedFile.read(Files(), bad)
        except CorruptionError:
            continue
        taken += 1
        for batch in file.batches:
            assert int(batch.sizes.sum()) == len(batch.data)
            assert {cursor[0] for cursor in batch.cursors} == {"t"}
    # Bodies and keys may be anything.
    assert taken > 100


@pytest.mark.slow
@given(keys=st.lists(st.one_of(st.none(), st.text(max_size=20)), max_size=30))
def test_keys_are_hashed_as_java_does(keys: list[str | None]) -> None:
    column = pa.array([*keys, "x"], pa.string())
    for part in (column, column.slice(1)):
        expected = [java_hash(key or "") for key in part.to_pylist()]
        assert key_hashes(part).tolist() == expected
    assert key_hashes(pa.array([], pa.string())).dtype == np.int64
