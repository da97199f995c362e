"""QueueExtension files of consume queues: their bytes, reading through them, and when they are durable."""

import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import OpenStore

from penstock import Message
from penstock.errors import ConfigError
from penstock.files import File, Files
from penstock.format.arrays import Int64s
from penstock.format.java_hash import java_hash
from penstock.store.store import Store
from penstock.testing import ManualWorkers
from penstock.testing.kit import copy_store
from penstock_index.consume_queue import ConsumeQueueDispatcher
from penstock_index.queue_extension import QueueExtension
from penstock_index.queue_files import OpenFiles
from penstock_index.queue_units import ADDRESS_MAX, OFFSET_MAX, UNIT, make_units, offsets_of

COUNT = 600
FILE_BYTES = 1000
UNITS_A_FILE = (FILE_BYTES - 4) // 20
EXTENDED = {"index.consume-queue.extended": True, "index.consume-queue.extension_bytes": FILE_BYTES}
PLAIN = {"index.consume-queue.extended": False, "index.consume-queue.extension_bytes": FILE_BYTES}
LONG_MIN = -(1 << 63)


def fill(store: Store, start: int = 0, count: int = COUNT) -> None:
    store.put_many(
        [
            Message("t", b"%d" % n, queue=n % 2, tag=f"tag{n % 5}" if n % 7 else "")
            for n in range(start, start + count)
        ]
    )
    store.topics()


def index_of(store: Store) -> ConsumeQueueDispatcher:
    assert store._engine is not None
    found = store._engine.dispatchers[0]
    assert isinstance(found, ConsumeQueueDispatcher)
    return found


def raw_entries(root: Path, queue: int = 0) -> list[tuple[int, int, int]]:
    """Return the present entries of a queue as they stand in its files."""
    data = b"".join(
        p.read_bytes() for p in sorted((root / "consumequeue/t" / str(queue)).iterdir())
    )
    return [e for e in struct.iter_unpack(">qiq", data) if e[1] > 0]


def expected_files(units: list[tuple[int, int]]) -> dict[str, bytes]:
    """Lay units out one by one, as the specification says."""
    files: dict[int, bytearray] = {}
    at = 0
    for tag_code, time_ms in units:
        base = at - at % FILE_BYTES
        if FILE_BYTES - at % FILE_BYTES - 4 < 20:
            struct.pack_into(">h", files[base], at % FILE_BYTES, -1)
            at = base = base + FILE_BYTES
        file = files.setdefault(base, bytearray(FILE_BYTES))
        struct.pack_into(">hqqh", file, at - base, 20, tag_code, time_ms, 0)
        at += 20
    return {f"{base:020d}": bytes(data) for base, data in files.items()}


def expected_addresses(count: int) -> list[int]:
    return [LONG_MIN + n // UNITS_A_FILE * FILE_BYTES + n % UNITS_A_FILE * 20 for n in range(count)]


def extension_files(root: Path) -> dict[str, dict[str, bytes]]:
    return {
        folder.name: {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        for folder in sorted((root / "consumequeue_ext/t").iterdir())
    }


def tree(root: Path) -> dict[str, bytes]:
    """Return the bytes of all queue and extension files."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for name in ("consumequeue", "consumequeue_ext")
        for path in sorted((root / name).rglob("*"))
        if path.is_file()
    }


def check(store: Store) -> None:
    """Tag codes are the real hashes, filters find what they should, and the checker agrees."""
    assert not list(store.verify())
    check_tags(store)


def check_tags(store: Store) -> None:
    for queue in (0, 1):
        messages = list(store.scan("t", queue))
        low, high = store.min_offset("t", queue), store.max_offset("t", queue)
        found = store._queue_index.entries("t", queue, low, high)
        assert found.tag_codes.tolist() == [java_hash(m.tag) if m.tag else 0 for m in messages]
        by_tag = store.read("t", queue, low, COUNT * 2, "tag3").messages
        assert [m.body for m in by_tag] == [m.body for m in messages if m.tag == "tag3"]


def crash(store: Store, target: Path) -> Path:
    store.topics()
    return copy_store(store.path, target)


def make_extended(open_small: OpenStore) -> None:
    """Write the store with extension files, and close it cleanly."""
    with open_small(**EXTENDED) as store:
        fill(store)


def make_crashed(open_small: OpenStore, target: Path) -> Path:
    """The same, synced and marked half way, and never closed."""
    with open_small(**EXTENDED) as store:
        fill(store, 0, COUNT // 2)
        store.flush()
        assert store._engine is not None
        store._engine.checkpoints.write()
        fill(store, COUNT // 2, COUNT - COUNT // 2)
        return crash(store, target)


@pytest.fixture
def extended(open_small: OpenStore, tmp_path: Path) -> Path:
    make_extended(open_small)
    return tmp_path / "store"


@pytest.fixture
def crashed(open_small: OpenStore, tmp_path: Path) -> Path:
    return make_crashed(open_small, tmp_path / "crashed")


def forget_progress(path: Path) -> None:
    """Leave the store as if another program had written it."""
    shutil.rmtree(path / "penstock")


# --- the bytes


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 7, 48, 49, 50, 300])
def test_units_roll_and_addresses_follow_them(
    open_small: OpenStore, tmp_path: Path, batch: int
) -> None:
    with open_small(**EXTENDED) as store:
        for start in range(0, 300, batch):
            fill(store, start, min(batch, 300 - start))
        messages = {queue: list(store.scan("t", queue)) for queue in (0, 1)}
        check(store)
    root = tmp_path / "store"
    for queue, its in messages.items():
        assert raw_entries(root, queue) == [
            (m.log_offset, m.size, address)
            for m, address in zip(its, expected_addresses(len(its)), strict=True)
        ]
        units = [(java_hash(m.tag) if m.tag else 0, m.store_time_ms) for m in its]
        assert extension_files(root)[str(queue)] == expected_files(units)


def test_without_the_option_there_is_no_extension(open_small: OpenStore, tmp_path: Path) -> None:
    with open_small() as store:
        fill(store)
    assert not (tmp_path / "store/consumequeue_ext").exists()


def test_a_file_that_holds_no_unit_is_refused(open_small: OpenStore) -> None:
    with pytest.raises(ConfigError, match="extension_bytes"):
        open_small(**{**EXTENDED, "index.consume-queue.extension_bytes": 23})


def test_a_file_of_the_least_size_holds_one_unit(open_small: OpenStore, tmp_path: Path) -> None:
    with open_small(**{**EXTENDED, "index.consume-queue.extension_bytes": 24}) as store:
        fill(store, 0, 20)
        check(store)
    files = extension_files(tmp_path / "store")["0"]
    assert [int(name) for name in files] == [24 * n for n in range(10)]
    assert {data[20:22] for data in list(files.values())[:-1]} == {b"\xff\xff"}


# --- reading


@pytest.mark.slow
@pytest.mark.parametrize("settings", [EXTENDED, PLAIN, {}])
@pytest.mark.parametrize("read_only", [True, False])
def test_addresses_are_resolved_whatever_the_options(
    extended: Path, open_small: OpenStore, settings: dict[str, Any], read_only: bool
) -> None:
    """Without the option, files of a size that nobody named are read too."""
    before = tree(extended)
    with open_small(path=extended, read_only=read_only, **settings) as store:
        check(store)
    assert tree(extended) == before


@pytest.mark.slow
def test_a_reader_follows_a_writer(open_small: OpenStore, tmp_path: Path) -> None:
    with open_small(**EXTENDED) as store, open_small(read_only=True) as reader:
        for start in range(0, 400, 40):
            fill(store, start, 40)
            check_tags(reader)


def test_the_checker_looks_into_the_units(extended: Path, open_small: OpenStore) -> None:
    file = sorted((extended / "consumequeue_ext/t/1").iterdir())[1]
    data = bytearray(file.read_bytes())
    struct.pack_into(">q", data, 3 * 20 + 2, 4711)
    file.write_bytes(data)
    with open_small(path=extended, read_only=True) as store:
        findings = list(store.verify())
    assert len(findings) == 1
    assert (
        f"queue t/1 offset {UNITS_A_FILE + 3}: the entry has another tag code" in findings[0].text
    )


# --- handing over again


@pytest.mark.slow
def test_the_option_may_be_switched_on_and_off(open_small: OpenStore, tmp_path: Path) -> None:
    root = tmp_path / "store"
    for turn, settings in enumerate((PLAIN, EXTENDED, PLAIN, EXTENDED)):
        with open_small(**settings) as store:
            fill(store, turn * 100, 100)
            check(store)
    kinds = [code <= ADDRESS_MAX for _, _, code in raw_entries(root)]
    assert kinds == [False] * 50 + [True] * 50 + [False] * 50 + [True] * 50
    before = tree(root)
    for settings in (PLAIN, EXTENDED):
        forget_progress(root)
        with open_small(**settings) as store:
            check(store)
        assert tree(root) == before
    addresses = [code for _, _, code in raw_entries(root) if code <= ADDRESS_MAX]
    assert addresses == expected_addresses(100)


@pytest.mark.slow
def test_another_size_makes_all_units_again(extended: Path, open_small: OpenStore) -> None:
    before = tree(extended)
    for file_bytes, is_as_before in ((2000, False), (FILE_BYTES, True)):
        settings = {**EXTENDED, "index.consume-queue.extension_bytes": file_bytes}
        with open_small(path=extended, **settings) as store:
            check(store)
        assert (tree(extended) == before) == is_as_before
        sizes = {len(data) for data in extension_files(extended)["0"].values()}
        assert sizes == {file_bytes}


# --- cutting and trimming


def test_truncating_cuts_behind_the_last_unit(open_small: OpenStore, tmp_path: Path) -> None:
    # Or the tail follower makes what was cut again, before it is looked at.
    with open_small(spawn=ManualWorkers(), **EXTENDED) as store:
        fill(store)
        index = index_of(store)
        kept = list(store.scan("t", 0))[:60]
        index.truncate(kept[-1].log_offset + kept[-1].size)
        assert index.max_offset("t", 0) == 60
        units = [(java_hash(m.tag) if m.tag else 0, m.store_time_ms) for m in kept]
        files = extension_files(tmp_path / "store")["0"]
        assert files == expected_files(units)
        index.truncate(0)
        assert extension_files(tmp_path / "store") == {"0": {}, "1": {}}
        store._engine.follower.catch_up()  # type: ignore[union-attr]  # it is open for writing
        check(store)


def test_trimming_removes_files_no_entry_needs(open_small: OpenStore, tmp_path: Path) -> None:
    with open_small(**EXTENDED) as store:
        fill(store)
        index, messages = index_of(store), list(store.scan("t", 0))
        last = len(messages) // UNITS_A_FILE * FILE_BYTES
        for ordinal, first in ((0, 0), (48, 0), (49, 1), (97, 1), (98, 2), (299, 6)):
            index.trim(messages[ordinal].log_offset)
            bases = [int(name) for name in extension_files(tmp_path / "store")["0"]]
            assert bases == list(range(first * FILE_BYTES, last + 1, FILE_BYTES)), ordinal
        index.trim(1 << 50)
        bases = [int(name) for name in extension_files(tmp_path / "store")["0"]]
        assert bases == [last], "never the last"


# --- durability


class CountingFiles(Files):
    """Remembers what is written and not synced."""

    def __init__(self) -> None:
        self.unsynced: set[Path] = set()
        self.written: set[Path] = set()
        self.synced: set[Path] = set()

    def open(self, path: Path, *, writable: bool = False) -> File:
        plain = super().open(path, writable=writable)
        return CountedFile(path, plain.detach(), self)


class CountedFile(File):
    def __init__(self, path: Path, descriptor: int, files: CountingFiles) -> None:
        super().__init__(path, descriptor)
        self._files = files

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        super().pwrite(data, position)
        self._files.unsynced.add(self.path)
        self._files.written.add(self.path)

    def sync(self) -> None:
        super().sync()
        self._files.unsynced.discard(self.path)
        self._files.synced.add(self.path)


def in_extension(paths: set[Path]) -> list[Path]:
    return [path for path in paths if "consumequeue_ext" in path.parts]


def test_flush_syncs_the_units_before_it_claims_them(open_small: OpenStore) -> None:
    files = CountingFiles()
    with open_small(files=files, **EXTENDED) as store:
        fill(store)
        index = index_of(store)
        index.flush()
        assert not in_extension(files.unsynced)
        fill(store, COUNT, 10)
        assert len(in_extension(files.unsynced)) == 2
        assert index.flush() == index.progress
        assert not in_extension(files.unsynced)


@pytest.mark.parametrize("settings", [EXTENDED, PLAIN])
def test_units_behind_what_was_durable_are_written_again(
    crashed: Path, open_small: OpenStore, settings: dict[str, Any]
) -> None:
    """After a failed sync the page cache may show what the disk never got."""
    before = tree(crashed)
    files = CountingFiles()
    with open_small(path=crashed, files=files, **settings) as store:
        check(store)
    assert tree(crashed) == before
    doubtful = range(COUNT // 4 // UNITS_A_FILE, -(-COUNT // 2 // UNITS_A_FILE))
    folder = crashed / "consumequeue_ext/t/0"
    assert {folder / f"{n * FILE_BYTES:020d}" for n in doubtful} <= files.written


@pytest.mark.parametrize("settings", [EXTENDED, PLAIN])
def test_what_another_program_wrote_is_synced(
    crashed: Path, open_small: OpenStore, settings: dict[str, Any]
) -> None:
    forget_progress(crashed)
    files = CountingFiles()
    with open_small(path=crashed, files=files, **settings):
        pass
    assert set((crashed / "consumequeue_ext").glob("t/*/*")) <= files.synced


# --- the files by themselves


@pytest.fixture
def extension(tmp_path: Path) -> QueueExtension:
    pool = OpenFiles(Files(), 4)
    return QueueExtension(Files(), pool, tmp_path / "ext/t/0", FILE_BYTES, adopts=False)


def codes_of(*values: int) -> Int64s:
    return np.array(values, np.int64)


def test_an_offset_beyond_all_addresses_gets_none(
    extension: QueueExtension, tmp_path: Path
) -> None:
    start = OFFSET_MAX - 45
    codes, end = extension.put(start, codes_of(1, 2, 3), codes_of(7, 8, 9), tmp_path)
    assert codes.tolist() == [LONG_MIN + start, LONG_MIN + start + 20, 3]
    assert end == start + 40
    assert extension.units(codes)[0].tolist() == [True, True, False]


def test_units_come_back_in_the_order_asked_for(extension: QueueExtension, tmp_path: Path) -> None:
    count = 500
    tags, times = np.arange(count) - 250, np.arange(count) * 1000
    codes, _ = extension.put(0, tags, times, tmp_path)
    order = np.random.default_rng(5).permutation(count)
    found, units = extension.units(codes[order])
    assert found.all()
    assert units.tolist() == make_units(tags, times)[order].tolist()
    mixed = np.concatenate([codes[:5], codes_of(0, 5, -5, ADDRESS_MAX + 1), codes[5:9] + 1])
    extension.resolve(mixed)
    assert mixed[:9].tolist() == [*tags[:5].tolist(), 0, 5, -5, ADDRESS_MAX + 1]
    assert mixed[9:].tolist() == (codes[5:9] + 1).tolist()


def test_random_bytes_and_addresses_do_no_harm(tmp_path: Path) -> None:
    chance = np.random.default_rng(11)
    folder = tmp_path / "ext"
    folder.mkdir()
    for base in range(0, 3 * FILE_BYTES, FILE_BYTES):
        (folder / f"{base:020d}").write_bytes(chance.bytes(FILE_BYTES))
    extension = QueueExtension(Files(), OpenFiles(Files(), 2), folder, FILE_BYTES, adopts=False)
    assert not extension.scan()
    near = chance.integers(LONG_MIN, LONG_MIN + 4 * FILE_BYTES, 20_000)
    far = chance.integers(LONG_MIN, 1 << 62, 2_000)
    for codes in (near, far, codes_of(LONG_MIN, ADDRESS_MAX, LONG_MIN + OFFSET_MAX)):
        found, units = extension.units(codes)
        assert units.dtype == UNIT
        offsets = offsets_of(codes[found])
        assert (offsets % FILE_BYTES + units["size"][found] + 4 <= FILE_BYTES).all()
        extension.write_again(codes)
