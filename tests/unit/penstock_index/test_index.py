"""The hash index: files of keys, drafts of them, their folder, tags in it, and the check against the log."""

import errno
import os
import struct
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from tests.conftest import OpenStore, power_cut

import penstock
from penstock import Message
from penstock.contracts import Finding, Geometry, NoOptions, Trust, find_in_index_file
from penstock.files import File, Files
from penstock.files.file import FOLIO_BYTES
from penstock.format.columns import Keys
from penstock.format.hashes import index_hash
from penstock.testing import (
    FaultyFiles,
    InlineWorkers,
    ManualClock,
    SimulatedDisk,
    WrittenLog,
    make_context,
    open_store,
)
from penstock.testing.kit import SMALL
from penstock_index.hash_index import HashIndexDispatcher, IndexFolder, Readers
from penstock_index.index_check import IndexChecker
from penstock_index.index_file import (
    Draft,
    Header,
    IndexFile,
    Peek,
    draft_entries,
    has_tag_keys,
)

EVER = (0, 1 << 62)
NOW_MS = 1_700_000_000_000
HEADER_BYTES, ENTRIES_AT = 40, 40 + 4 * SMALL.index_slots


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    return WrittenLog(tmp_path_factory.mktemp("log") / "s", 700)


@pytest.fixture(scope="module")
def short_log(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    """Return a log whose keys fill one file in part."""
    return WrittenLog(tmp_path_factory.mktemp("log") / "s", 60)


def trust(log: WrittenLog, durable: int = 0) -> Trust:
    return Trust(log=log.view, durable_offset=durable, is_clean=False, was_abnormal=False)


def filled(log: WrittenLog, root: Path) -> HashIndexDispatcher:
    made = HashIndexDispatcher(NoOptions(), make_context(root))
    made.load(trust(log))
    for batch in log.batches(made.progress):
        made.dispatch(batch)
    made.flush()
    return made


def found(index: HashIndexDispatcher, row: int) -> list[int]:
    return list(index.candidates("topic-1", f"only-{row}", *EVER))


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def test_files_of_an_unknown_writer_are_kept_as_far_as_they_go(
    log: WrittenLog, tmp_path: Path
) -> None:
    """No offset is known to be durable then; the last record that has keys is dispatched again."""
    filled(log, tmp_path).close()
    again = HashIndexDispatcher(NoOptions(), make_context(tmp_path))
    assert again.load(trust(log)) == []
    keyed = [row for row in range(700) if row % 4]
    assert again.progress == log.offsets()[keyed[-1]]
    assert log.offsets()[333] in found(again, 333)
    again.close()
    ours = HashIndexDispatcher(NoOptions(), make_context(tmp_path))
    (text,) = ours.load(attrs.evolve(trust(log), durable_offset=1))
    assert (ours.progress, text) == (1, "cut index entries after log offset 1; rebuilt")
    ours.close()


# --- keys in one file: few written and many stored, an `add` that is cut short, looks through maps and by reads

# A draft of up to 20 entries.
MANY_SLOTS = Geometry(index_slots=20 * 1024, index_entries=200)
FEW_SLOTS = Geometry(index_slots=7, index_entries=200)
GEOMETRIES = pytest.mark.parametrize(
    "geometry", [MANY_SLOTS, FEW_SLOTS], ids=["many-slots", "few-slots"]
)


def opened(path: Path, geometry: Geometry = MANY_SLOTS, files: Files | None = None) -> IndexFile:
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


def expected(stop: int, hashed: int) -> list[int]:
    return [100 * number for number in range(stop) if number % 3 == hashed][::-1]


def check_whole(file: IndexFile, stop: int) -> None:
    for hashed in range(3):
        assert list(file.peek().candidates(hashed, *EVER)) == expected(stop, hashed)


@pytest.mark.parametrize("steps", [(1, 1, 1), (15, 3, 30, 2), (60,), (18, 1, 1, 1)])
def test_few_keys_and_many_have_the_same_bytes(tmp_path: Path, steps: tuple[int, ...]) -> None:
    """However they come, and whether the file was closed in between: as they do added all at once."""
    assert draft_entries(MANY_SLOTS) == 20
    total = sum(steps)
    assert opened(tmp_path / "once").add(*keys_of(0, total)) == total
    in_steps, done = opened(tmp_path / "steps"), 0
    for step in steps:
        reopened = opened(tmp_path / "reopened")
        for file in (in_steps, reopened):
            assert file.add(*keys_of(done, done + step)) == step
            check_whole(file, done + step)
        done += step
        reopened.close()
    for name in ("steps", "reopened"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "once").read_bytes()
    assert opened(tmp_path / "reopened").chains_are_valid()


def test_a_file_of_few_keys_has_blocks_only_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "few"
    file = opened(path, Geometry())
    file.add(*keys_of(0, 3))
    assert path.stat().st_blocks * 512 <= 4 * 4096
    file.add(*keys_of(3, 2000))
    assert path.stat().st_blocks * 512 >= FOLIO_BYTES
    check_whole(file, 2000)


@pytest.mark.parametrize("after", range(6))
def test_keys_whose_write_failed_are_added_again_and_hide_none(tmp_path: Path, after: int) -> None:
    """A disk that is full at any of the writes: what was there is found meanwhile, and the retry leaves the right bytes.

    Slots that the failed write changed may name entries that no header counts.
    """
    files = FaultyFiles()
    file = opened(tmp_path / "faulty", files=files)
    assert file.add(*keys_of(0, 6)) == 6
    files.plan.fail("pwrite", errno.ENOSPC, after=after)
    try:
        file.add(*keys_of(6, 12))
    except OSError:
        assert file.header.index_count == 7
    assert set(file.peek().candidates(1, *EVER)) >= set(expected(6, 1))
    files.plan.heal()
    done = file.header.index_count - 1
    # Few keys are written, and many are stored through a map.
    for stop in (40, 60) if after % 2 else (12, 60):
        assert file.add(*keys_of(done, stop)) == stop - done
        done = stop
    assert file.chains_are_valid()
    check_whole(file, 60)
    opened(tmp_path / "plain").add(*keys_of(0, 60))
    assert (tmp_path / "faulty").read_bytes() == (tmp_path / "plain").read_bytes()


@GEOMETRIES
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
    check_whole(file, 60)


@GEOMETRIES
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


@pytest.mark.parametrize(("count", "cut", "is_mapped"), [(199, 0, True), (199, 1, False), (50, 0, False)])  # fmt: skip
def test_a_full_file_is_looked_at_through_a_map_only_if_it_is_whole(
    tmp_path: Path, count: int, cut: int, is_mapped: bool
) -> None:
    file = opened(tmp_path / "file", FEW_SLOTS)
    assert file.add(*keys_of(0, count)) == count
    file.close()
    os.truncate(tmp_path / "file", FEW_SLOTS.index_file_bytes - cut)
    files = FaultyFiles()
    peek = Peek(files.open(tmp_path / "file"), FEW_SLOTS).mapped()
    assert list(peek.candidates(1, *EVER))[-1] == 100
    files.plan.fail("pread")
    try:
        assert list(peek.candidates(1, *EVER))[-1] == 100
    except OSError:
        assert not is_mapped
    else:
        assert is_mapped, "nothing was read"


@pytest.mark.parametrize("previous", [1, 50, 199, 200, 201, 10**9, -1])
def test_a_chain_that_loops_or_leaves_the_file_ends(
    open_small: OpenStore, tmp_path: Path, previous: int
) -> None:
    """Every entry of the chain points to `previous`: itself, a newer one, or nowhere."""
    with open_small() as store:
        store.put_many(
            [Message("t", b"x" * 50, queue=0, keys=["same", f"k{n}"], tag="g") for n in range(100)]
        )
    file = next((tmp_path / "store" / "index").iterdir())
    for number in range(1, 201):
        overwrite(file, ENTRIES_AT + 20 * number + 16, struct.pack(">i", previous))
    with penstock.open(tmp_path / "store", read_only=True) as store:
        assert len(store.find("same", "t", limit=1000)) <= 100
        assert any(f.part == "index" for f in store.verify())


# --- the first keys of a file: written piece by piece, and not there after a write that failed

GEOMETRY = Geometry(index_slots=8192, index_entries=100)
PATH = Path("/index")


@pytest.fixture
def draft_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.create(PATH).resize(GEOMETRY.index_file_bytes)
    return disk


def draft_of(disk: SimulatedDisk) -> Draft:
    file: File = disk.open(PATH, writable=True)
    return Draft(file, GEOMETRY)


def hashed_keys(*hashes: int) -> tuple[Keys, np.ndarray, np.ndarray]:
    count = len(hashes)
    return Keys(np.arange(count), np.array(hashes, np.int32)), np.arange(count) * 100, np.full(count, 5000)  # fmt: skip


def in_draft(disk: SimulatedDisk, hashed: int) -> list[int]:
    return list(find_in_index_file(disk.read_whole(PATH), GEOMETRY, hashed, 0, 1 << 60))


def test_few_keys_are_drafted_and_another_draft_goes_on_from_what_the_file_has(
    draft_disk: SimulatedDisk,
) -> None:
    assert draft_entries(GEOMETRY) == 8
    assert draft_entries(Geometry(index_slots=1 << 20, index_entries=50)) == 50
    draft = draft_of(draft_disk)
    assert draft.add(1, *hashed_keys(7, 9, 7), 0) == 3
    assert [in_draft(draft_disk, hashed) for hashed in (7, 9, 8)] == [[200, 0], [100], []]
    assert draft_disk.read_whole(PATH)[:HEADER_BYTES] == draft.header
    draft_of(draft_disk).add(4, *hashed_keys(8), 0)
    assert [in_draft(draft_disk, hashed) for hashed in (7, 9, 8)] == [[200, 0], [100], [0]]


@pytest.mark.parametrize("after", [0, 1, 2])
def test_keys_whose_draft_failed_do_not_count_and_may_be_added_again(
    draft_disk: SimulatedDisk, after: int
) -> None:
    draft = draft_of(draft_disk)
    draft.add(1, *hashed_keys(7), 0)
    header = draft.header
    draft_disk.plan.fail("pwrite", errno.EIO, after=after, times=1)
    with pytest.raises(OSError, match="Input/output error"):
        draft.add(2, *hashed_keys(9), 0)
    assert (draft.header, in_draft(draft_disk, 7)) == (header, [0])
    draft.add(2, *hashed_keys(9), 0)
    assert (in_draft(draft_disk, 9), in_draft(draft_disk, 7)) == ([0], [0])


# --- the folder: names that sort by age, files of one size, a few kept open

HEADER = Header(begin_ms=5, end_ms=7, begin_offset=1, end_offset=2, slot_count=1, index_count=2)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk(clock: ManualClock) -> SimulatedDisk:
    return SimulatedDisk(clock=clock)


@pytest.fixture
def folder(disk: SimulatedDisk, clock: ManualClock) -> IndexFolder:
    return IndexFolder(make_context(Path("/store"), files=disk, clock=clock))


def test_a_new_file_is_there_whole_after_a_power_cut(
    folder: IndexFolder, disk: SimulatedDisk
) -> None:
    assert folder.names() == []
    name = folder.make(HEADER).path.name
    assert (folder.names(), folder.known_names()) == ([name], [name])
    assert len(power_cut(disk).read_whole(folder.path / name)) == SMALL.index_file_bytes
    assert folder.header(name) == HEADER


def test_what_is_no_index_file_is_named_and_a_wrong_length_removed(
    folder: IndexFolder, disk: SimulatedDisk
) -> None:
    name = folder.make(None).path.name
    disk.write_whole(folder.path / "notes", b"x")
    disk.write_whole(folder.path / ("9" * 17), b"short")
    assert [path.name for path in folder.strays()] == ["9" * 17]
    left, removed = sorted(folder.remove_strays(), key=len, reverse=True)
    assert "was not changed" in left
    assert "whose length is wrong" in removed
    assert [entry.name for entry in disk.entries(folder.path)] == [name, "notes"]


def test_few_files_stay_open_and_one_that_is_gone_is_an_error(
    folder: IndexFolder, disk: SimulatedDisk
) -> None:
    names = [folder.make(None).path.name for _ in range(4)]
    readers = Readers(disk, folder.path, SMALL, 2, mapped=False)
    before = disk.plan.counts.get("open", 0)
    for name, opens in zip([*names, *names[2:], names[1], names[3]], (1, 2, 3, 4, 4, 4, 5, 5), strict=True):  # fmt: skip
        assert readers.get(name).path.name == name
        assert disk.plan.counts["open"] - before == opens
    readers.close()
    folder.remove(names[0])
    folder.forget()
    assert folder.known_names() == names[1:]
    with pytest.raises(FileNotFoundError):
        readers.get(names[0])


# --- the check against the log: headers, chains and keys


@pytest.fixture
def path(short_log: WrittenLog, tmp_path: Path) -> Path:
    """Return the one file of an index."""
    filled(short_log, tmp_path).close()
    (made,) = (tmp_path / "index").iterdir()
    return made


def findings(log: WrittenLog, path: Path) -> list[Finding]:
    checker = HashIndexDispatcher(
        NoOptions(), make_context(path.parents[1], read_only=True)
    ).checker()
    assert isinstance(checker, IndexChecker)
    told = list(checker.start())
    for batch in log.batches():
        told += checker.batch(batch)
    return told + list(checker.finish(log.end_offset))


@pytest.mark.parametrize(
    ("position", "data", "texts"),
    [
        (16, struct.pack(">q", 9), ["begin offset is 9"]), (24, struct.pack(">q", 9), ["end offset is 9"]),
        (32, struct.pack(">i", 9), ["count of slots is 9"]), (0, struct.pack(">q", 9), ["the header's time 9"]),
        (ENTRIES_AT + 20, struct.pack(">i", 12_345), ["has hash 12345, which is not of a key of the record", "is missing from the index"]),
    ],
)  # fmt: skip
def test_a_wrong_header_or_hash_is_told_where_it_is(
    short_log: WrittenLog, path: Path, position: int, data: bytes, texts: list[str]
) -> None:
    overwrite(path, position, data)
    told = findings(short_log, path)
    found = [next(each for each in told if text in each.text) for text in texts]
    assert len(texts) > 1 or found[0].position == position


def test_a_file_of_a_wrong_length_is_told(short_log: WrittenLog, path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])
    first = findings(short_log, path)[0]
    assert (first.path, first.text) == (path, "an index file of the wrong length or type")


def test_entries_that_the_header_counts_and_the_file_lacks_are_told(path: Path) -> None:
    """Such a file has the right length when it is listed: another process cuts it before it is read."""
    count = len(Peek(Files().open(path), SMALL).entries())
    os.truncate(path, ENTRIES_AT + 20)
    file = Files().open(path)
    try:
        checker = IndexChecker(path.parent, lambda: iter([Peek(file, SMALL)]), lambda: iter([]))
        texts = [each.text for each in checker.start()]
    finally:
        file.close()
    assert f"the header counts {count} entries, but the file has 0" in texts


# --- tags in the index, as newer brokers write them: recognised, and not taken for anything else


def test_each_tag_has_the_hash_that_brokers_give_it(short_log: WrittenLog) -> None:
    (batch,) = short_log.batches()
    rows, hashes = batch.columns.properties.tag_keys()
    tagged = [row for row, message in enumerate(short_log.sent) if message.tag]
    assert rows.tolist() == tagged
    assert hashes.tolist()[0] == index_hash(f"{short_log.sent[1].topic}#T#{short_log.sent[1].tag}")


def test_one_tag_among_the_newest_entries_tells(short_log: WrittenLog, path: Path) -> None:
    peek = Peek(Files().open(path), SMALL)
    assert not has_tag_keys([peek], short_log.view)
    assert not has_tag_keys([], short_log.view)
    last = max(row for row, message in enumerate(short_log.sent) if message.tag)
    message = short_log.sent[last]
    row = peek.entries()["log_offset"].tolist().index(short_log.offsets()[last])
    hashed = index_hash(f"{message.topic}#T#{message.tag}")
    overwrite(path, peek.position_of(row + 1), hashed.to_bytes(4, "big"))
    assert has_tag_keys([Peek(Files().open(path), SMALL)], short_log.view)


def test_entries_of_records_that_an_opening_without_the_index_cut_off_hide_no_later_key() -> None:
    """After a power cut the index was ahead of the log, which went on without it: keys put then were never found."""
    clock = ManualClock()
    disk = SimulatedDisk(clock=clock)

    def opened(**settings: Any) -> penstock.Store:
        return open_store(Path("/s"), files=disk, clock=clock, spawn=InlineWorkers(), extensions=[], **settings)  # fmt: skip

    store = opened(flush="none")
    store.put("t", b"kept", queue=0, keys=["kept"])
    store.flush()
    store.put_many([Message("t", b"lost" * 9, queue=0, keys=[f"lost{n}"]) for n in range(99)])
    assert store.find("lost98", "t")
    ahead = {each.path: disk.read_whole(each.path) for each in disk.entries(Path("/s/index"))}
    disk = power_cut(disk)
    for path, data in ahead.items():
        disk.write_whole(path, data)
    with opened(**{"index.use": ["consume-queue"]}) as store:
        assert len(list(store.scan("t"))) == 1
        store.put_many([Message("t", b"new", queue=0, keys=[f"new{n}"]) for n in range(60)])
    with opened() as store:
        assert [len(store.find(key, "t")) for key in ("kept", "new0", "new59")] == [1, 1, 1]
        assert [finding for finding in store.verify() if not finding.is_note] == []
