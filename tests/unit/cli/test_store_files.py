"""What the files of a store take, beside what the system's own tools say."""

import os
import subprocess
from pathlib import Path

import pytest

import penstock
from penstock.cli.store_files import file_sizes, index_used, parts, queue_bytes

SIZES = {"segment_bytes": 65536, "queue_entries": 100, "index_slots": 1000, "index_entries": 4000}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with penstock.open(tmp_path / "s", environ={}, geometry=SIZES) as made:
        for number in range(300):
            made.put(("a", "b")[number % 3 == 0], bytes(500), keys=[str(number)])
        made.commit_offset("g", "a", offset=1)
    (tmp_path / "s" / "penstock" / "saved").mkdir()
    (tmp_path / "s" / "penstock" / "saved" / "x").write_bytes(bytes(10_000))
    (tmp_path / "s" / "mine.txt").write_text("not a part of a store")
    return tmp_path / "s"


def test_the_parts_add_up_to_what_du_says(store: Path) -> None:
    found = {part.part: part for part in parts(store)}
    assert set(found) == {
        "log", "queues", "index", "offsets and broker settings", "Penstock's own files", "saved by repairs", "other",
    }  # fmt: skip
    folders = sum(
        path.stat().st_blocks * 512 for path in [store, *store.rglob("*")] if path.is_dir()
    )
    said = subprocess.run(
        ["du", "-s", "-B1", str(store)], capture_output=True, text=True, check=True
    )
    assert sum(part.allocated for part in found.values()) + folders == int(said.stdout.split()[0])
    assert found["log"].size == 65536 * found["log"].files
    assert found["saved by repairs"].size == 10_000
    assert [part.allocated for part in parts(store)] == sorted(
        (p.allocated for p in found.values()), reverse=True
    )


def test_queues_are_counted_by_topic_and_files_by_size(store: Path) -> None:
    found = queue_bytes(store)
    assert set(found) == {"a", "b"}
    assert sum(found.values()) == next(
        part.allocated for part in parts(store) if part.part == "queues"
    )
    assert file_sizes(store, "consumequeue") == [(2000, 3)]
    assert file_sizes(store, "index") == [(40 + 4 * 1000 + 20 * 4000, 1)]
    assert file_sizes(store, "none") == []


def test_the_index_uses_header_slots_and_entries(store: Path) -> None:
    # The first entry of an index file is never used, and counts.
    assert index_used(store, 1000) == 40 + 4 * 1000 + 20 * 301
    (path,) = (store / "index").iterdir()
    (store / "index" / "1").write_bytes(b"short")
    assert index_used(store, 1000) == 40 + 4 * 1000 + 20 * 301
    with path.open("r+b") as file:
        file.write(b"\x7f" * 40)
    assert index_used(store, 1000) == path.stat().st_size, "never more than there is"


def test_a_file_that_goes_meanwhile_is_left_out(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def walk(path: Path) -> list[tuple[str, list[str], list[str]]]:
        return [(str(path), [], ["gone", "mine.txt"])]

    monkeypatch.setattr(os, "walk", walk)
    (found,) = parts(store)
    assert (found.part, found.files) == ("other", 1)
