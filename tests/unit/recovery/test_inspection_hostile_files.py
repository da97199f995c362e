"""Bytes from disk are hostile until checked: bounded work, no foreign exception, the right answer or none."""

import os
import re
import struct
from pathlib import Path

import pytest
from tests.conftest import OpenStore

import penstock
from penstock import Message
from penstock.errors import CorruptionError, OffsetError, PenstockError, StrayFileError


@pytest.fixture
def made(open_small: OpenStore, tmp_path: Path) -> Path:
    with open_small() as store:
        store.put_many(
            [Message("t", b"x" * 50, keys=["same", f"k{n}"], tag="g") for n in range(100)]
        )
    return tmp_path / "store"


def index_file(path: Path) -> Path:
    return next((path / "index").iterdir())


def poke(file: Path, position: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(position)
        opened.write(data)


@pytest.mark.parametrize("field", [0, 8, 16, 24, 32, 36])
@pytest.mark.parametrize("value", [b"\xff" * 4, b"\x7f" + b"\xff" * 3, bytes(4)])
def test_a_hostile_index_header_is_survived_and_healed(
    made: Path, field: int, value: bytes, open_small: OpenStore
) -> None:
    poke(index_file(made), field, value)
    with penstock.open(made, read_only=True) as store:
        store.find("t", "same")
        list(store.verify())
    with open_small(path=made) as store:
        assert len(store.find("t", "same", limit=1000)) == 100
        assert not list(store.verify())


@pytest.mark.parametrize("entry", [
    struct.pack(">qiq", 1 << 60, 120, 0), struct.pack(">qiq", -5, 120, 0), struct.pack(">qiq", 0, 1 << 30, 0),
    struct.pack(">qiq", 3, 120, 0), struct.pack(">qiq", 0, -9, 0), struct.pack(">qiq", 0, 7, 0),
])  # fmt: skip
def test_queue_entries_that_point_nowhere_cost_only_themselves(
    made: Path, entry: bytes, open_small: OpenStore
) -> None:
    poke(made / "consumequeue" / "t" / "0" / f"{0:020d}", 20 * 10, entry)
    with penstock.open(made, read_only=True) as store:
        assert len(store.read("t", 0, 0, 100).messages) == 99
        assert sum(1 for _ in store.scan("t")) == 99
        assert any(f.part == "queue" for f in store.verify())
        if struct.unpack(">qiq", entry)[1] > 0:
            with pytest.raises(PenstockError):
                store.to_arrow("t")
        else:
            assert store.to_arrow("t").num_rows == 99, (
                "an entry without a size is one that is missing"
            )
    with open_small(path=made) as store:
        assert sum(1 for _ in store.scan("t")) == 100
        assert not list(store.verify())


@pytest.mark.parametrize("size", [0, 1, 90, -1, (1 << 31) - 1, -(1 << 31)])
def test_hostile_record_sizes_end_in_an_answer(
    made: Path, size: int, open_small: OpenStore
) -> None:
    segment = next((made / "commitlog").iterdir())
    with penstock.open(made, read_only=True) as store:
        offset = store.read("t", 0, 50).messages[0].log_offset
    poke(segment, offset, struct.pack(">i", size))
    with penstock.open(made, read_only=True) as store:
        assert len(store.read("t", 0, 0, 200).messages) == 99
        with pytest.raises((CorruptionError, OffsetError)):
            store.at(offset)
        findings = list(store.verify())
        assert any(f.part == "log" and f.position == offset for f in findings)


@pytest.mark.parametrize("name", ["progress", "clean", "holder", "geometry.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff" * 2000, b"[" * 100_000])
def test_hostile_marks_are_not_believed(
    made: Path, name: str, content: bytes, open_small: OpenStore
) -> None:
    (made / "penstock" / name).write_bytes(content)
    if name == "geometry.json":
        with pytest.raises(CorruptionError, match="geometry"):
            open_small(path=made)
        return
    with open_small(path=made) as store:
        assert sum(1 for _ in store.scan("t")) == 100
        assert not list(store.verify())


@pytest.mark.slow
def test_a_folder_in_place_of_a_mark_is_named_before_anything_changes(
    made: Path, open_small: OpenStore
) -> None:
    """Of `ranges` Python said that it is a directory, after the store had been marked as in use."""
    with open_small(path=made):
        marks = {
            path for path in (*made.iterdir(), *(made / "penstock").iterdir()) if path.is_file()
        }
    # `wake` only says how long somebody sleeps: without it followers look by themselves. Without `auto-topics` no topic grows.
    # `store-id` is of an extension, which names it itself.
    others = {
        made / "penstock" / name for name in ("geometry.json", "wake", "auto-topics", "store-id")
    }
    marks -= {made / "lock", *others}
    assert {path.name for path in marks} == {
        "abort",
        "checkpoint",
        "progress",
        "ranges",
        "holder",
    }
    swap = {made / "penstock" / "repair" / name for name in ("journal", "ready")}
    every = {*marks, made / "penstock" / "clean", *swap, made / "lock"}
    fresh = {path.with_name(path.name + ".new") for path in every if path.name != "lock"}
    for path in sorted({*every, *fresh, made / "penstock" / "geometry.json.new"}):
        is_read = path.name in ("abort", "checkpoint", "lock", "progress")
        kept = path.read_bytes() if path.is_file() else None
        path.unlink(missing_ok=True)
        path.mkdir(parents=True)
        before = {each: each.stat().st_mtime_ns for each in made.rglob("*") if each.is_file()}
        with pytest.raises(StrayFileError, match=re.escape(str(path))):
            open_small(path=made)
        with pytest.raises(StrayFileError, match=re.escape(str(path))):
            penstock.repair(made, environ={}, apply=True)
        if is_read:
            with pytest.raises(StrayFileError, match=re.escape(str(path))):
                open_small(path=made, read_only=True)
        else:
            with open_small(path=made, read_only=True) as store:
                assert sum(1 for _ in store.scan("t")) == 100
        assert before == {e: e.stat().st_mtime_ns for e in made.rglob("*") if e.is_file()}
        path.rmdir()
        if path in swap or path.with_suffix("") in swap:
            path.parent.rmdir()
        if kept is not None:
            path.write_bytes(kept)
    with open_small(path=made) as store:
        assert sum(1 for _ in store.scan("t")) == 100


@pytest.mark.parametrize("name", ["saved", "repair"])
def test_a_file_in_place_of_a_folder_of_ours_is_named(
    made: Path, name: str, open_small: OpenStore
) -> None:
    """What a recovery keeps would have nowhere to go, and a reader needs neither."""
    (made / "penstock" / name).write_text("x")
    with pytest.raises(StrayFileError, match=name):
        open_small(path=made)
    with open_small(path=made, read_only=True) as store:
        assert sum(1 for _ in store.scan("t")) == 100


@pytest.mark.parametrize("place", ["commitlog", "consumequeue/t/0", "index"])
def test_a_fifo_or_folder_in_place_of_a_file_never_hangs(
    made: Path, place: str, open_small: OpenStore
) -> None:
    name = f"{1 << 20:020d}" if place != "index" else "20991231235959999"
    os.mkfifo(made / place / name)
    if place == "commitlog":
        with pytest.raises(PenstockError, match=name):
            open_small(path=made)
        return
    with open_small(path=made) as store:
        assert sum(1 for _ in store.scan("t")) == 100
        assert any(name in sentence for sentence in store.recovery.mended)  # type: ignore[union-attr] # it was recovered
