"""Keys in index files: few written and many stored, an `add` that is cut short, looks through maps and by reads."""

import errno
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import OpenStore

import penstock
from penstock import Message
from penstock.contracts.geometry import Geometry
from penstock.files import Files
from penstock.files.file import FOLIO_BYTES
from penstock.format.text_columns import Keys
from penstock.testing import FaultyFiles
from penstock_index.index_draft import draft_entries
from penstock_index.index_file import IndexFile, Peek

EVER = (0, 1 << 62)
# A draft of up to 20 entries.
MANY_SLOTS = Geometry(index_slots=20 * 1024, index_entries=200)
FEW_SLOTS = Geometry(index_slots=7, index_entries=200)
NOW_MS = 1_700_000_000_000


def opened(path: Path, geometry: Geometry, files: Files | None = None) -> IndexFile:
    files = files or Files()
    if not path.exists():
        made = files.create(path)
        made.resize(geometry.index_file_bytes)
        made.close()
    return IndexFile(files.open(path, writable=True), geometry)


def keys_of(start: int, stop: int) -> tuple[Keys, Any, Any]:
    """Keys whose hashes fall on three slots, each of a record of its own."""
    numbers = np.arange(start, stop)
    keys = Keys(np.arange(len(numbers)), (numbers % 3).astype(np.int32))
    return keys, numbers * 100, NOW_MS + numbers


def found(file: IndexFile, hashed: int) -> list[int]:
    return list(file.peek().candidates(hashed, *EVER))


def expected(stop: int, hashed: int) -> list[int]:
    return [100 * number for number in range(stop) if number % 3 == hashed][::-1]


@pytest.mark.parametrize("steps", [(1, 1, 1), (15, 3, 30, 2), (60,), (18, 1, 1, 1)])
def test_few_keys_and_many_have_the_same_bytes(tmp_path: Path, steps: tuple[int, ...]) -> None:
    """However they come, and whether the file was closed in between: as they do added all at once."""
    assert draft_entries(MANY_SLOTS) == 20
    total = sum(steps)
    at_once = opened(tmp_path / "once", MANY_SLOTS)
    assert at_once.add(*keys_of(0, total)) == total
    in_steps, done = opened(tmp_path / "steps", MANY_SLOTS), 0
    reopened = opened(tmp_path / "reopened", MANY_SLOTS)
    for step in steps:
        assert in_steps.add(*keys_of(done, done + step)) == step
        assert reopened.add(*keys_of(done, done + step)) == step
        done += step
        for file in (in_steps, reopened):
            assert [found(file, hashed) for hashed in range(3)] == [
                expected(done, hashed) for hashed in range(3)
            ]
        reopened.close()
        reopened = opened(tmp_path / "reopened", MANY_SLOTS)
    assert (tmp_path / "once").read_bytes() == (tmp_path / "steps").read_bytes()
    assert (tmp_path / "once").read_bytes() == (tmp_path / "reopened").read_bytes()
    assert reopened.chains_are_valid()


def test_a_file_of_few_keys_has_blocks_only_where_they_are(tmp_path: Path) -> None:
    geometry = Geometry()
    file = opened(tmp_path / "few", geometry)
    file.add(*keys_of(0, 3))
    assert (tmp_path / "few").stat().st_blocks * 512 <= 4 * 4096
    file.add(*keys_of(3, 2000))
    assert (tmp_path / "few").stat().st_blocks * 512 >= FOLIO_BYTES
    assert found(file, 1) == expected(2000, 1)


@pytest.mark.parametrize("after", range(6))
def test_keys_whose_write_failed_are_added_again_and_hide_none(tmp_path: Path, after: int) -> None:
    """A disk that is full at any of the writes: what was there is found meanwhile, and the retry leaves the right bytes."""
    files = FaultyFiles()
    file = opened(tmp_path / "faulty", MANY_SLOTS, files)
    assert file.add(*keys_of(0, 6)) == 6
    files.plan.fail("pwrite", errno.ENOSPC, after=after)
    try:
        file.add(*keys_of(6, 12))
    except OSError:
        assert file.header.index_count == 7
    assert set(found(file, 1)) >= set(expected(6, 1))
    files.plan.heal()
    if file.header.index_count == 7:
        assert file.add(*keys_of(6, 12)) == 6
    assert file.add(*keys_of(12, 40)) == 28
    plain = opened(tmp_path / "plain", MANY_SLOTS)
    plain.add(*keys_of(0, 40))
    assert (tmp_path / "faulty").read_bytes() == (tmp_path / "plain").read_bytes()


def test_after_a_failed_write_many_keys_hide_none(tmp_path: Path) -> None:
    """The slots that failed write may name entries that no header counts: they are put right before keys are stored."""
    files = FaultyFiles()
    file = opened(tmp_path / "faulty", MANY_SLOTS, files)
    file.add(*keys_of(0, 6))
    files.plan.fail("pwrite", errno.ENOSPC, after=2)
    with pytest.raises(OSError, match="space"):
        file.add(*keys_of(6, 12))
    files.plan.heal()
    assert file.add(*keys_of(6, 60)) == 54
    assert file.chains_are_valid()
    assert [found(file, hashed) for hashed in range(3)] == [expected(60, h) for h in range(3)]


@pytest.mark.parametrize("geometry", [MANY_SLOTS, FEW_SLOTS], ids=["many-slots", "few-slots"])
def test_no_room_for_blocks_adds_nothing(tmp_path: Path, geometry: Geometry) -> None:
    files = FaultyFiles()
    file = opened(tmp_path / "full", geometry, files)
    files.plan.fail("allocate", errno.ENOSPC)
    with pytest.raises(OSError, match="space"):
        file.add(*keys_of(0, 60))
    assert file.is_empty
    assert not any((tmp_path / "full").read_bytes())
    files.plan.heal()
    assert file.add(*keys_of(0, 60)) == 60
    assert found(file, 2) == expected(60, 2)


@pytest.mark.parametrize("geometry", [MANY_SLOTS, FEW_SLOTS], ids=["many-slots", "few-slots"])
def test_maps_and_plain_reads_find_the_same(tmp_path: Path, geometry: Geometry) -> None:
    file = opened(tmp_path / "file", geometry)
    file.add(*keys_of(0, 150))
    mapped, read = file.peek(), Peek(Files().open(tmp_path / "file"), geometry)
    assert mapped is file.peek()
    for hashed in range(4):
        for bounds in (EVER, (NOW_MS + 30_000, NOW_MS + 60_000), (5, 6), (NOW_MS, NOW_MS)):
            assert list(mapped.candidates(hashed, *bounds)) == list(
                read.candidates(hashed, *bounds)
            )
    file.add(*keys_of(150, 151))
    assert list(mapped.candidates(150 % 3, *EVER)) == expected(151, 0), "a look that is older"


def test_a_full_file_is_looked_at_through_a_map_only_if_it_is_whole(tmp_path: Path) -> None:
    for name in ("full", "short", "part"):
        file = opened(tmp_path / name, FEW_SLOTS)
        assert file.add(*keys_of(0, 199 if name != "part" else 50)) in (199, 50)
        file.close()
    with (tmp_path / "short").open("r+b") as short:
        short.truncate(FEW_SLOTS.index_file_bytes - 1)
    peeks = {
        name: Peek(Files().open(tmp_path / name), FEW_SLOTS).mapped()
        for name in ("full", "short", "part")
    }
    assert {name: peek._memory is not None for name, peek in peeks.items()} == {
        "full": True, "short": False, "part": False,
    }  # fmt: skip
    for peek in peeks.values():
        assert list(peek.candidates(1, *EVER))[-1] == 100


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


@pytest.mark.parametrize("previous", [1, 50, 199, 200, 201, 10**9, -1])
def test_a_chain_that_loops_or_leaves_the_file_ends(made: Path, previous: int) -> None:
    """Every entry of the chain points to `previous`: itself, a newer one, or nowhere."""
    file = index_file(made)
    for number in range(1, 201):
        poke(file, 40 + 4 * 100 + 20 * number + 16, struct.pack(">i", previous))
    with penstock.open(made, read_only=True) as store:
        assert len(store.find("t", "same", limit=1000)) <= 100
        assert any(f.part == "index" for f in store.verify())
