"""What kind of folder it is, and which sizes it was made with; a mark that lies is no size."""

import json
from pathlib import Path

import attrs
import pytest

from penstock.config.profiles import BROKER, EMBEDDED, FIRST, JAVA
from penstock.contracts.geometry import ROCKETMQ, Geometry
from penstock.errors import (
    ConfigError,
    CorruptionError,
    GeometryError,
    NotAStoreError,
    StrayFileError,
)
from penstock.recovery import store_layout
from penstock.recovery.store_layout import check_layout, find_geometry, is_store, own_profile
from penstock.testing import SimulatedDisk
from penstock.testing.kit import SMALL

ROOT = Path("/store")
NOTHING_ASKED: dict[str, int | None] = dict.fromkeys(attrs.asdict(SMALL))
NOTED = ROOT / "penstock" / "geometry.json"


@pytest.fixture
def disk() -> SimulatedDisk:
    made = SimulatedDisk()
    made.make_folder_durably(ROOT)
    return made


def put(disk: SimulatedDisk, name: str, size: int) -> None:
    path = ROOT / name
    disk.make_folder_durably(path.parent)
    disk.write_whole(path, bytes(size))


def test_an_empty_folder_is_no_store_yet_and_a_strange_one_never(disk: SimulatedDisk) -> None:
    assert not is_store(disk, ROOT / "none")
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
    disk: SimulatedDisk,
) -> None:
    put(disk, "index", 1)
    with pytest.raises(StrayFileError, match="it must be a folder"):
        check_layout(disk, ROOT, writes=False)
    disk.remove(ROOT / "index")
    disk.make_folder_durably(ROOT / "checkpoint")
    with pytest.raises(StrayFileError, match="it must be a regular file"):
        check_layout(disk, ROOT, writes=False)


def test_only_a_writer_minds_what_it_would_write(disk: SimulatedDisk) -> None:
    disk.make_folder_durably(ROOT / "penstock" / "clean.new")
    check_layout(disk, ROOT, writes=False)
    with pytest.raises(StrayFileError, match=r"clean\.new"):
        check_layout(disk, ROOT, writes=True)


def test_sizes_and_profile_are_those_noted(disk: SimulatedDisk) -> None:
    disk.make_folder_durably(NOTED.parent)
    store_layout.write_geometry(disk, ROOT, SMALL, JAVA)
    assert find_geometry(disk, ROOT, NOTHING_ASKED, ROCKETMQ) == SMALL
    assert own_profile(disk, ROOT) == JAVA
    with pytest.raises(GeometryError, match="queue_entries is 7"):
        find_geometry(disk, ROOT, {**NOTHING_ASKED, "queue_entries": 7}, ROCKETMQ)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"segment_bytes": 1}', "[" * 9999])
def test_a_note_that_cannot_be_understood_is_corruption(disk: SimulatedDisk, text: str) -> None:
    disk.make_folder_durably(NOTED.parent)
    disk.write_whole(NOTED, text.encode())
    with pytest.raises(CorruptionError, match="remove it: sizes are then derived from the files"):
        find_geometry(disk, ROOT, NOTHING_ASKED, ROCKETMQ)


def test_a_note_is_read_only_if_it_is_small(disk: SimulatedDisk) -> None:
    disk.make_folder_durably(NOTED.parent)
    store_layout.write_geometry(disk, ROOT, SMALL, JAVA)
    note, limit = disk.read_whole(NOTED), 1 << 16
    disk.write_whole(NOTED, note.ljust(limit))
    assert own_profile(disk, ROOT) == JAVA
    assert find_geometry(disk, ROOT, NOTHING_ASKED, ROCKETMQ) == SMALL
    disk.write_whole(NOTED, note.ljust(limit + 1))
    with pytest.raises(CorruptionError, match="65537 bytes, the limit is 65536"):
        own_profile(disk, ROOT)
    with pytest.raises(CorruptionError, match="65537 bytes, the limit is 65536"):
        find_geometry(disk, ROOT, NOTHING_ASKED, ROCKETMQ)


def test_a_note_that_files_contradict_is_corruption(disk: SimulatedDisk) -> None:
    disk.make_folder_durably(NOTED.parent)
    store_layout.write_geometry(disk, ROOT, SMALL, EMBEDDED)
    put(disk, "commitlog/00000000000000000000", 2 * SMALL.segment_bytes)
    with pytest.raises(CorruptionError, match="the size of the existing segments"):
        find_geometry(disk, ROOT, NOTHING_ASKED, ROCKETMQ)


def test_of_a_directory_without_a_note_the_files_tell_the_sizes(disk: SimulatedDisk) -> None:
    put(disk, "commitlog/00000000000000000000", 8192)
    put(disk, "consumequeue/t/0/00000000000000000000", 200)
    put(disk, "index/20240101000000000", Geometry(index_slots=10, index_entries=40).index_file_bytes)  # fmt: skip
    found = find_geometry(disk, ROOT, NOTHING_ASKED, ROCKETMQ)
    assert (found.segment_bytes, found.queue_entries, found.index_slots, found.index_entries) == (
        8192,
        10,
        10,
        40,
    )


def test_whose_defaults_hold_depends_on_who_made_it(disk: SimulatedDisk) -> None:
    assert own_profile(disk, ROOT) is None
    assert store_layout.find_profile(disk, ROOT, None) == EMBEDDED
    disk.make_folder_durably(ROOT / "commitlog")
    assert own_profile(disk, ROOT) == BROKER
    assert not store_layout.was_made_here(disk, ROOT)
    assert store_layout.find_profile(disk, ROOT, "rocketmq") == JAVA
    disk.make_folder_durably(NOTED.parent)
    disk.write_whole(NOTED, json.dumps(attrs.asdict(SMALL)).encode())
    assert own_profile(disk, ROOT) == FIRST
    assert store_layout.was_made_here(disk, ROOT)
    put(disk, "abort.bak", 0)
    assert not store_layout.was_made_here(disk, ROOT)


@pytest.mark.parametrize(
    ("slots", "entries", "size", "found"),
    [
        (None, None, 40 + 84 * 5, (5, 20)), (None, None, 40 + 84 * 5 + 4, None), (None, None, 40, None),
        (3, None, 40 + 12 + 40, (3, 2)), (3, None, 40 + 12 + 20, None), (0, None, 40 + 40, None),
        (3, None, 40 + 12 + 41, None), (None, 2, 40 + 12 + 40, (3, 2)), (None, 2, 40 + 40, None),
        (3, 7, 40 + 12 + 40, (3, 2)), (-1, None, 40 + 40 - 4, None),
    ],
)  # fmt: skip
def test_the_sizes_of_an_index_file_follow_from_its_length_and_one_of_them(
    slots: int | None, entries: int | None, size: int, found: tuple[int, int] | None
) -> None:
    asked = {"index_slots": slots, "index_entries": entries}
    if found is None:
        with pytest.raises(ConfigError, match=f"their length of {size} bytes"):
            store_layout._index_sizes(ROOT, size, asked)
        return
    sizes = store_layout._index_sizes(ROOT, size, asked)
    assert (sizes["index_slots"], sizes["index_entries"]) == found
