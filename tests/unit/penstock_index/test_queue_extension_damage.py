"""QueueExtension files of consume queues that are lost or damaged: they are made again from the log, and no message is missed."""

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import OpenStore
from tests.unit.penstock_index.test_queue_extension import (
    COUNT,
    EXTENDED,
    FILE_BYTES,
    LONG_MIN,
    PLAIN,
    check,
    fill,
    forget_progress,
    make_crashed,
    make_extended,
    raw_entries,
    tree,
)

from penstock.format.java_hash import java_hash
from penstock_index.queue_units import ADDRESS_MAX


@pytest.fixture
def extended(open_small: OpenStore, tmp_path: Path) -> Path:
    make_extended(open_small)
    return tmp_path / "store"


@pytest.fixture
def crashed(open_small: OpenStore, tmp_path: Path) -> Path:
    return make_crashed(open_small, tmp_path / "crashed")


def lose_all(root: Path) -> None:
    shutil.rmtree(root / "consumequeue_ext")


def lose_first(root: Path) -> None:
    sorted((root / "consumequeue_ext/t/0").iterdir())[0].unlink()


def lose_middle(root: Path) -> None:
    sorted((root / "consumequeue_ext/t/0").iterdir())[2].unlink()


def lose_last(root: Path) -> None:
    sorted((root / "consumequeue_ext/t/0").iterdir())[-1].unlink()


def shorten(root: Path) -> None:
    os.truncate(sorted((root / "consumequeue_ext/t/1").iterdir())[1], 333)


def shorten_all(root: Path) -> None:
    for path in (root / "consumequeue_ext").glob("t/*/*"):
        os.truncate(path, 50)


def make_longer(root: Path) -> None:
    os.truncate(sorted((root / "consumequeue_ext/t/1").iterdir())[-1], 5000)


def zero_some(root: Path) -> None:
    overwrite(root, bytes(100))


def garbage(root: Path) -> None:
    overwrite(root, b"\xa5\x5a\x7f" * 50)


def negative_sizes(root: Path) -> None:
    overwrite(root, b"\xff\xff" * 100)


def huge_sizes(root: Path) -> None:
    overwrite(root, struct.pack(">hqqh", 32767, 1, 1, 32747) * 5)


def long_bitmap(root: Path) -> None:
    overwrite(root, struct.pack(">hqqh", 20, 1, 1, 99) * 5)


def address_in_unit(root: Path) -> None:
    overwrite(root, struct.pack(">hqqh", 20, LONG_MIN, 1, 0) * 5)


def overwrite(root: Path, data: bytes) -> None:
    file = sorted((root / "consumequeue_ext/t/0").iterdir())[1]
    whole = bytearray(file.read_bytes())
    whole[200 : 200 + len(data)] = data
    file.write_bytes(whole)


def stray_names(root: Path) -> None:
    folder = root / "consumequeue_ext/t/0"
    for name in ("9" * 20, f"{7:020d}", "5", "x" * 20, "9" * 200):
        (folder / name).write_bytes(bytes(FILE_BYTES))
    (folder / f"{40 * FILE_BYTES:020d}").symlink_to(folder / f"{0:020d}")
    (folder / f"{50 * FILE_BYTES:020d}").mkdir()


def lose_queue(root: Path) -> None:
    shutil.rmtree(root / "consumequeue/t/0")


def lose_queues(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")


def hole_in_queue(root: Path) -> None:
    file = sorted((root / "consumequeue/t/0").iterdir())[0]
    whole = bytearray(file.read_bytes())
    whole[50 * 20 : 60 * 20] = bytes(200)
    file.write_bytes(whole)


def unused_units(root: Path) -> None:
    """Units behind the last address, as Java leaves them when records are dispatched to it again."""
    file = sorted((root / "consumequeue_ext/t/0").iterdir())[-1]
    whole = bytearray(file.read_bytes())
    whole[-200:] = struct.pack(">hqqh", 20, 1, 2, 0) * 10
    file.write_bytes(whole)


def addresses(root: Path, *given: int) -> None:
    file = sorted((root / "consumequeue/t/0").iterdir())[0]
    whole = bytearray(file.read_bytes())
    for row, address in enumerate(given):
        struct.pack_into(">q", whole, (20 + row) * 20 + 12, address)
    file.write_bytes(whole)


def wild_addresses(root: Path) -> None:
    addresses(root, ADDRESS_MAX, LONG_MIN + (1 << 62), LONG_MIN + 7, LONG_MIN + FILE_BYTES - 3)


DAMAGES = [
    lose_all, lose_first, lose_middle, lose_last, shorten, shorten_all, make_longer, zero_some, garbage,
    negative_sizes, huge_sizes, long_bitmap, address_in_unit, stray_names, lose_queue, lose_queues,
    hole_in_queue, unused_units, wild_addresses,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("is_foreign", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_mended_from_the_log(
    crashed: Path, open_small: OpenStore, damage: Callable[[Path], None], is_foreign: bool
) -> None:
    """After it all files are as they were before."""
    before = tree(crashed)
    damage(crashed)
    if is_foreign:
        forget_progress(crashed)
    with open_small(path=crashed, **EXTENDED) as store:
        check(store)
        assert {k: v for k, v in tree(crashed).items() if k in before} == before
        fill(store, COUNT, 100)
        check(store)
    with open_small(path=crashed, read_only=True) as store:
        check(store)


@pytest.mark.slow
@pytest.mark.parametrize("is_foreign", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_mended_without_the_option_too(
    crashed: Path, open_small: OpenStore, damage: Callable[[Path], None], is_foreign: bool
) -> None:
    damage(crashed)
    if is_foreign:
        forget_progress(crashed)
    with open_small(path=crashed, **PLAIN) as store:
        check(store)
        fill(store, COUNT, 100)
        check(store)
    forget_progress(crashed)
    with open_small(path=crashed, **EXTENDED) as store:
        check(store)
        fill(store, COUNT + 100, 100)
        check(store)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_reader_of_damaged_files_misses_nothing(
    extended: Path, open_small: OpenStore, damage: Callable[[Path], None]
) -> None:
    """Invalid units are skipped: all messages are read, and no file is changed."""
    damage(extended)
    before = tree(extended)
    with open_small(path=extended, read_only=True) as store:
        # Sound bytes under a wrong address cannot be told from right ones; those are the checker's.
        damaged = {f.position // 20 for f in store.verify() if "another tag code" in f.text}
        for queue in (0, 1):
            asked = [m for m in store.scan("t", queue) if m.tag == "tag3"]
            found = store.read("t", queue, 0, COUNT, "tag3").messages
            missed = {m.queue_offset for m in asked} - {m.queue_offset for m in found}
            assert missed <= damaged
    assert tree(extended) == before


def test_a_clean_store_that_lost_its_units_gives_no_address_twice(
    extended: Path, open_small: OpenStore
) -> None:
    """The clean mark may not vouch for these files: an old address must not lead to a new unit."""
    lose_last(extended)
    with open_small(path=extended, **EXTENDED) as store:
        fill(store, COUNT, 100)
        by_tag = store.read("t", 0, 0, COUNT * 2, "tag3").messages
        assert [m.body for m in by_tag] == [m.body for m in store.scan("t", 0) if m.tag == "tag3"]
    codes = [code for _, _, code in raw_entries(extended)]
    assert len(set(codes)) == len(codes)


@pytest.mark.slow
def test_a_bitmap_of_javas_stays(crashed: Path, open_small: OpenStore) -> None:
    """Units with the bitmap of an SQL filter are longer; they are read, kept and written behind."""
    folder = crashed / "consumequeue_ext/t/0"
    entries = raw_entries(crashed)[:10]
    with open_small(path=crashed, read_only=True) as store:
        messages = list(store.scan("t", 0))[:10]
    units = b"".join(
        struct.pack(
            ">hqqh8s", 28, java_hash(m.tag) if m.tag else 0, m.store_time_ms, 8, b"bits" * 2
        )
        for m in messages
    )
    for path in folder.iterdir():
        path.unlink()
    (folder / f"{0:020d}").write_bytes(units.ljust(FILE_BYTES, b"\0"))
    file = sorted((crashed / "consumequeue/t/0").iterdir())[0]
    whole = bytearray(file.read_bytes())
    for row in range(10):
        struct.pack_into(">q", whole, row * 20 + 12, LONG_MIN + row * 28)
    file.write_bytes(whole)
    with open_small(path=crashed, **EXTENDED) as store:
        check(store)
    assert raw_entries(crashed)[:10] == [
        (offset, size, LONG_MIN + row * 28) for row, (offset, size, _) in enumerate(entries)
    ]
    first = sorted(folder.iterdir())[0].read_bytes()
    assert first[:280] == units
    assert first[280:282] == b"\x00\x14"
