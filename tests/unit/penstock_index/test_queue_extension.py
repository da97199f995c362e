"""Extension files of consume queues, which a broker with enableConsumeQueueExt writes: read, kept, and not written."""

import errno
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import OpenStore

from penstock import Message
from penstock.errors import StorageError
from penstock.format.hashes import java_hash
from penstock.store.store import Store
from penstock.testing import FaultyFiles, InlineWorkers

COUNT = 600
FILE_BYTES = 1000
LONG_MIN = -(1 << 63)


def fill(store: Store, start: int = 0, count: int = COUNT) -> None:
    store.put_many(
        [
            Message("t", b"%d" % n, queue=n % 2, tag=f"tag{n % 5}" if n % 7 else "")
            for n in range(start, start + count)
        ]
    )


def times_of(store: Store) -> dict[int, int]:
    """Return the store time of each message, by its log offset."""
    return {m.log_offset: m.store_time_ms for queue in (0, 1) for m in store.scan("t", queue=queue)}


def extend(root: Path, store_times: dict[int, int], bitmap: bytes = b"") -> None:
    """Give each entry a unit, and put the unit's address into it: as RocketMQ's ConsumeQueueExt does."""
    for folder in sorted((root / "consumequeue/t").iterdir()):
        units: dict[int, bytearray] = {}
        at = 0
        for path in sorted(folder.iterdir()):
            entries = bytearray(path.read_bytes())
            for row in range(0, len(entries), 20):
                log_offset, size, tag_code = struct.unpack_from(">qiq", entries, row)
                if size == 0:
                    break
                time_ms = store_times[log_offset]
                unit = (
                    struct.pack(">hqqh", 20 + len(bitmap), tag_code, time_ms, len(bitmap)) + bitmap
                )
                if at % FILE_BYTES + len(unit) + 4 > FILE_BYTES:
                    struct.pack_into(">h", units[at - at % FILE_BYTES], at % FILE_BYTES, -1)
                    at += FILE_BYTES - at % FILE_BYTES
                file = units.setdefault(at - at % FILE_BYTES, bytearray(FILE_BYTES))
                file[at % FILE_BYTES : at % FILE_BYTES + len(unit)] = unit
                struct.pack_into(">q", entries, row + 12, LONG_MIN + at)
                at += len(unit)
            path.write_bytes(entries)
        target = root / "consumequeue_ext/t" / folder.name
        target.mkdir(parents=True)
        for base, data in units.items():
            (target / f"{base:020d}").write_bytes(data)


@pytest.fixture
def extended(open_small: OpenStore, tmp_path: Path) -> Path:
    """Return a cleanly closed store that has extension files."""
    with open_small() as store:
        fill(store)
        times = times_of(store)
    extend(tmp_path / "store", times)
    return tmp_path / "store"


def forget_progress(root: Path) -> None:
    """Leave the store as if another program had written it, and had been killed."""
    shutil.rmtree(root / "penstock")
    (root / "abort").touch()


def tree(root: Path) -> dict[str, bytes]:
    """Return the bytes of all queue and extension files."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for name in ("consumequeue", "consumequeue_ext")
        for path in sorted((root / name).rglob("*"))
        if path.is_file()
    }


def check(store: Store) -> None:
    """Filters find what they should, and the checker agrees."""
    assert not list(store.verify())
    check_filters(store)


def check_filters(store: Store) -> None:
    for queue in (0, 1):
        messages = list(store.scan("t", queue=queue))
        for tag in ("tag3", "none"):
            found = store.read("t", queue, store.min_offset("t", queue), COUNT * 2, tag).messages
            assert [m.body for m in found] == [m.body for m in messages if m.tag == tag]


@pytest.mark.parametrize("bitmap", [b"", b"bits" * 2])
@pytest.mark.parametrize("is_foreign", [False, True])
def test_units_are_read_and_no_byte_of_them_is_changed(
    open_small: OpenStore, tmp_path: Path, bitmap: bytes, *, is_foreign: bool
) -> None:
    """Also where every record is dispatched again, because another program wrote the store."""
    with open_small() as store:
        fill(store)
        times = times_of(store)
    root = tmp_path / "store"
    extend(root, times, bitmap)
    before = tree(root)
    if is_foreign:
        forget_progress(root)
    for read_only in (True, False):
        with open_small(read_only=read_only) as store:
            check(store)
        assert tree(root) == before


def test_what_is_put_behind_units_has_its_tag_code_in_the_entry(
    extended: Path, open_small: OpenStore
) -> None:
    units = {path for path in tree(extended) if "_ext" in path}
    with open_small(read_only=True) as reader, open_small() as store:
        fill(store, COUNT, 200)
        check(store)
        check_filters(reader)
        last = list(store.scan("t", queue=0))[-1]
    data = sorted((extended / "consumequeue/t/0").iterdir())[-1].read_bytes()
    entry = struct.pack(">qiq", last.log_offset, last.size, java_hash(last.tag or ""))
    assert entry in data
    assert {path for path in tree(extended) if "_ext" in path} == units
    with open_small() as store:
        check(store)


def test_a_store_without_extension_files_gets_none(open_small: OpenStore, tmp_path: Path) -> None:
    with open_small() as store:
        fill(store)
    assert not (tmp_path / "store/consumequeue_ext").exists()


def test_the_checker_looks_into_the_units(extended: Path, open_small: OpenStore) -> None:
    file = sorted((extended / "consumequeue_ext/t/1").iterdir())[1]
    data = bytearray(file.read_bytes())
    struct.pack_into(">q", data, 3 * 20 + 2, 4711)
    file.write_bytes(data)
    with open_small(read_only=True) as store:
        (finding,) = store.verify()
    assert "queue t/1 offset 52: the entry has another tag code" in finding.text


def test_files_go_when_no_entry_has_the_address_of_a_unit_in_them(
    open_small: OpenStore, tmp_path: Path
) -> None:
    with open_small() as store:
        fill(store, count=1000)
        times = times_of(store)
    root = tmp_path / "store"
    extend(root, times)
    with open_small() as store:
        store.discard_before(log_offset=store.stats()["log_end_offset"])
        first = store.min_offset("t", 0)
        assert first > 49, "the goal of this test"
        names = sorted(path.name for path in (root / "consumequeue_ext/t/0").iterdir())
        assert names[0] == f"{first // 49 * FILE_BYTES:020d}"
        check(store)
        store.delete_topic("t")
        assert not (root / "consumequeue_ext/t/0").exists()


# --- damage: units are derived data, so no message is missed


def unit_file(root: Path, queue: int, number: int) -> Path:
    return sorted((root / f"consumequeue_ext/t/{queue}").iterdir())[number]


def overwrite(data: bytes) -> Callable[[Path], object]:
    whole = (data * (FILE_BYTES // len(data) + 1))[:FILE_BYTES]
    return lambda root: unit_file(root, 0, 1).write_bytes(whole)


def torn_unit(root: Path) -> None:
    """As a power cut leaves it that came after some of its pages were written: the tag code is cut, too."""
    file = unit_file(root, 0, 1)
    file.write_bytes(file.read_bytes()[: 20 * 20 + 4].ljust(FILE_BYTES, b"\0"))


def stray_names(root: Path) -> None:
    for name in ("x", "7", f"{FILE_BYTES // 2:020d}", "9" * 20):
        (root / "consumequeue_ext/t/0" / name).write_bytes(bytes(FILE_BYTES))


def wild_addresses(root: Path) -> None:
    file = sorted((root / "consumequeue/t/0").iterdir())[0]
    data = bytearray(file.read_bytes())
    wild = (-(1 << 31) - 1, LONG_MIN + (1 << 62), LONG_MIN + 7, LONG_MIN + FILE_BYTES - 3)
    for row, address in enumerate(wild):
        struct.pack_into(">q", data, (20 + row) * 20 + 12, address)
    file.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "lose-all": lambda root: shutil.rmtree(root / "consumequeue_ext"),
    "lose-one": lambda root: unit_file(root, 0, 2).unlink(),
    "shorten": lambda root: os.truncate(unit_file(root, 1, 1), 333),
    "shorten-all": lambda root: [path.write_bytes(path.read_bytes()[:333]) for path in root.glob("consumequeue_ext/t/*/*")],
    "zeros": overwrite(b"\0"), "ones": overwrite(b"\xff"), "torn-unit": torn_unit,
    "units-too-large": overwrite(struct.pack(">hqqh", 0x7FFF, 5, 5, 0x7FFF - 20)),
    "addresses-in-units": overwrite(struct.pack(">hqqh", 20, LONG_MIN, 5, 0)),
    "stray-names": stray_names, "wild-addresses": wild_addresses,
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_with_damaged_units_no_message_is_missed(
    extended: Path, open_small: OpenStore, damage: str
) -> None:
    DAMAGES[damage](extended)
    before = tree(extended)
    with open_small(read_only=True) as store:
        check_filters(store)
    assert tree(extended) == before
    with open_small() as store:
        check_filters(store)
        fill(store, COUNT, 100)
        check_filters(store)


@pytest.mark.parametrize("is_foreign", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
def test_an_opening_after_a_kill_writes_entries_without_a_unit_again(
    extended: Path, open_small: OpenStore, damage: str, *, is_foreign: bool
) -> None:
    DAMAGES[damage](extended)
    if is_foreign:
        forget_progress(extended)
    else:
        (extended / "abort").touch()
    with open_small() as store:
        assert store.recovery is not None
        assert store.recovery.state == ("foreign" if is_foreign else "abnormal")
        check(store)
        fill(store, COUNT, 100)
        check(store)


def test_units_of_a_program_that_was_killed_are_synced(
    extended: Path, open_small: OpenStore
) -> None:
    """They may be in the page cache only, and from now on their addresses count as durable."""
    forget_progress(extended)
    files = FaultyFiles()
    files.plan.fail("sync", errno.EIO, path="consumequeue_ext")
    with pytest.raises(StorageError), open_small(files=files, spawn=InlineWorkers()):
        pass
