"""Looking before opening: what kind of folder it is, its sizes, whom to believe; and that nothing is changed by it."""

import json
import re
from pathlib import Path

import attrs
import pytest
from tests.conftest import OpenStore

import penstock
from penstock import Message
from penstock.config.model import BROKER, EMBEDDED, JAVA
from penstock.contracts.base import ROCKETMQ
from penstock.errors import (
    ConfigError,
    CorruptionError,
    GeometryError,
    NotAStoreError,
    StrayFileError,
)
from penstock.recovery import store_layout
from penstock.recovery.store_layout import check_layout, find_geometry, is_store, own_profile
from penstock.store.store import Store
from penstock.testing import SimulatedDisk
from penstock.testing.kit import SMALL

ROOT = Path("/store")


# --- bytes from disk are hostile until checked


@pytest.fixture
def made(open_small: OpenStore, tmp_path: Path) -> Path:
    with open_small() as store:
        store.put_many([Message("t", b"%d" % n, queue=0, keys=["k"], tag="g") for n in range(9)])
    return tmp_path / "store"


def count_in(store: Store) -> int:
    return sum(1 for _ in store.scan("t"))


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
        assert count_in(store) == 9
        assert not list(store.verify())


# Files of a store at its root, and in its side folder.
MARKS = ("abort", "checkpoint", "lock")
OURS = ("progress", "ranges", "holder", "clean", "repair/journal", "repair/ready")


@pytest.mark.slow
def test_a_folder_in_place_of_a_mark_is_named_before_anything_changes(
    made: Path, open_small: OpenStore
) -> None:
    """Of `ranges` Python said that it is a directory, after the store had been marked as in use."""
    marks = [*(made / name for name in MARKS), *(made / "penstock" / name for name in OURS)]
    fresh = [path.with_name(path.name + ".new") for path in marks if path.name != "lock"]
    for path in (*marks, *fresh, made / "penstock" / "geometry.json.new"):
        kept = path.read_bytes() if path.is_file() else None
        path.unlink(missing_ok=True)
        path.mkdir(parents=True)
        before = {each: each.stat().st_mtime_ns for each in made.rglob("*") if each.is_file()}
        with pytest.raises(StrayFileError, match=re.escape(str(path))):
            open_small(path=made)
        with pytest.raises(StrayFileError, match=re.escape(str(path))):
            penstock.repair(made, environ={}, apply=True)
        if path.name in ("abort", "checkpoint", "lock", "progress"):
            with pytest.raises(StrayFileError, match=re.escape(str(path))):
                open_small(path=made, read_only=True)
        else:
            with open_small(path=made, read_only=True) as store:
                assert count_in(store) == 9
        assert before == {e: e.stat().st_mtime_ns for e in made.rglob("*") if e.is_file()}
        path.rmdir()
        if path.parent.name == "repair":
            path.parent.rmdir()
        if kept is not None:
            path.write_bytes(kept)
    with open_small(path=made) as store:
        assert count_in(store) == 9


@pytest.mark.parametrize("name", ["saved", "repair"])
def test_a_file_in_place_of_a_folder_of_ours_is_named(
    made: Path, name: str, open_small: OpenStore
) -> None:
    """What a recovery keeps would have nowhere to go, and a reader needs neither."""
    (made / "penstock" / name).write_text("x")
    with pytest.raises(StrayFileError, match=name):
        open_small(path=made)
    with open_small(path=made, read_only=True) as store:
        assert count_in(store) == 9


# --- which sizes it was made with


NOTHING_ASKED: dict[str, int | None] = dict.fromkeys(attrs.asdict(SMALL))


NOTED = Path("/store/penstock") / "geometry.json"


@pytest.fixture
def folder() -> SimulatedDisk:
    made = SimulatedDisk()
    made.make_folder_durably(NOTED.parent)
    return made


def put(disk: SimulatedDisk, name: str, size: int) -> None:
    path = ROOT / name
    disk.make_folder_durably(path.parent)
    disk.write_whole(path, bytes(size))


def test_an_empty_folder_is_no_store_yet_and_a_strange_one_never() -> None:
    disk = SimulatedDisk()
    assert not is_store(disk, ROOT)
    disk.make_folder_durably(ROOT)
    assert not is_store(disk, ROOT)
    put(disk, "lock.new", 0)
    assert not is_store(disk, ROOT), "a first opening that was cut short"
    put(disk, "photos", 1)
    with pytest.raises(NotAStoreError, match="photos"):
        is_store(disk, ROOT)
    disk.make_folder_durably(ROOT / "commitlog")
    assert is_store(disk, ROOT)
    with pytest.raises(NotAStoreError, match="not a folder"):
        is_store(disk, ROOT / "photos")


def test_a_file_where_a_folder_must_stand_is_refused_and_the_other_way_round(
    folder: SimulatedDisk,
) -> None:
    put(folder, "index", 1)
    with pytest.raises(StrayFileError, match="it must be a folder"):
        check_layout(folder, ROOT, writes=False)
    folder.remove(ROOT / "index")
    folder.make_folder_durably(ROOT / "checkpoint")
    with pytest.raises(StrayFileError, match="it must be a regular file"):
        check_layout(folder, ROOT, writes=False)


def test_only_a_writer_minds_what_it_would_write(folder: SimulatedDisk) -> None:
    folder.make_folder_durably(ROOT / "penstock" / "clean.new")
    check_layout(folder, ROOT, writes=False)
    with pytest.raises(StrayFileError, match=r"clean\.new"):
        check_layout(folder, ROOT, writes=True)


def test_sizes_and_profile_are_those_noted(folder: SimulatedDisk) -> None:
    store_layout.write_geometry(folder, ROOT, SMALL, JAVA)
    assert find_geometry(folder, ROOT, NOTHING_ASKED, ROCKETMQ) == SMALL
    assert own_profile(folder, ROOT) == JAVA
    with pytest.raises(GeometryError, match="queue_entries is 7"):
        find_geometry(folder, ROOT, {**NOTHING_ASKED, "queue_entries": 7}, ROCKETMQ)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"segment_bytes": 1}', "[" * 9999])
def test_a_note_that_cannot_be_understood_is_corruption(folder: SimulatedDisk, text: str) -> None:
    folder.write_whole(NOTED, text.encode())
    with pytest.raises(CorruptionError, match="remove it: sizes are then derived from the files"):
        find_geometry(folder, ROOT, NOTHING_ASKED, ROCKETMQ)


def test_a_note_is_read_only_if_it_is_small(folder: SimulatedDisk) -> None:
    store_layout.write_geometry(folder, ROOT, SMALL, JAVA)
    note, limit = folder.read_whole(NOTED), 1 << 16
    folder.write_whole(NOTED, note.ljust(limit))
    assert own_profile(folder, ROOT) == JAVA
    assert find_geometry(folder, ROOT, NOTHING_ASKED, ROCKETMQ) == SMALL
    folder.write_whole(NOTED, note.ljust(limit + 1))
    with pytest.raises(CorruptionError, match="65537 bytes, the limit is 65536"):
        own_profile(folder, ROOT)
    with pytest.raises(CorruptionError, match="65537 bytes, the limit is 65536"):
        find_geometry(folder, ROOT, NOTHING_ASKED, ROCKETMQ)


def test_a_note_that_files_contradict_is_corruption(folder: SimulatedDisk) -> None:
    store_layout.write_geometry(folder, ROOT, SMALL, EMBEDDED)
    put(folder, "commitlog/00000000000000000000", 2 * SMALL.segment_bytes)
    with pytest.raises(CorruptionError, match="the size of the existing segments"):
        find_geometry(folder, ROOT, NOTHING_ASKED, ROCKETMQ)


@pytest.mark.parametrize("is_noted", [False, True])
def test_a_file_with_bytes_appended_does_not_tell_the_size_of_segments(is_noted: bool) -> None:
    """No store could be opened then, not even to be read."""
    disk = SimulatedDisk()
    put(disk, "commitlog/00000000000000000000", SMALL.segment_bytes + 1)
    if is_noted:
        disk.make_folder_durably(NOTED.parent)
        store_layout.write_geometry(disk, ROOT, SMALL, EMBEDDED)
    else:
        put(disk, f"commitlog/{SMALL.segment_bytes:020d}", SMALL.segment_bytes)
    sizes = find_geometry(disk, ROOT, NOTHING_ASKED, ROCKETMQ)
    assert sizes.segment_bytes == SMALL.segment_bytes


def test_whose_defaults_hold_depends_on_who_made_it() -> None:
    disk = SimulatedDisk()
    assert own_profile(disk, ROOT) is None
    assert store_layout.find_profile(disk, ROOT, None) == EMBEDDED
    disk.make_folder_durably(ROOT / "commitlog")
    assert own_profile(disk, ROOT) == BROKER
    assert not store_layout.was_made_here(disk, ROOT)
    assert store_layout.find_profile(disk, ROOT, "rocketmq") == JAVA
    disk.make_folder_durably(NOTED.parent)
    disk.write_whole(NOTED, json.dumps({**attrs.asdict(SMALL), "profile": "rocketmq"}).encode())
    assert own_profile(disk, ROOT) == JAVA
    assert store_layout.was_made_here(disk, ROOT)


@pytest.mark.parametrize(
    ("slots", "entries", "size", "found"),
    [
        (None, None, 40 + 84 * 5, (5, 20)), (None, None, 40 + 84 * 5 + 4, None), (None, None, 40, None),
        (3, None, 40 + 12 + 40, (3, 2)), (3, None, 40 + 12 + 20, None), (0, None, 40 + 40, None),
        (3, None, 40 + 12 + 41, None), (None, 2, 40 + 12 + 40, (3, 2)), (None, 2, 40 + 40, None),
        (-1, None, 40 + 40 - 4, None),
    ],
)  # fmt: skip
def test_of_a_directory_without_a_note_the_files_tell_the_sizes(
    slots: int | None, entries: int | None, size: int, found: tuple[int, int] | None
) -> None:
    """Those of an index file follow from its length and one of them."""
    disk = SimulatedDisk()
    put(disk, "commitlog/00000000000000000000", 8192)
    put(disk, "consumequeue/t/0/00000000000000000000", 200)
    put(disk, "index/20240101000000000", size)
    asked = {**NOTHING_ASKED, "index_slots": slots, "index_entries": entries}
    if found is None:
        with pytest.raises(ConfigError, match=f"their length of {size} bytes"):
            find_geometry(disk, ROOT, asked, ROCKETMQ)
        return
    sizes = find_geometry(disk, ROOT, asked, ROCKETMQ)
    assert (sizes.segment_bytes, sizes.queue_entries) == (8192, 10)
    assert (sizes.index_slots, sizes.index_entries) == found
