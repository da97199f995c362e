"""The first changes of an opening: marks before anything else; each dispatcher is told where the log was cut."""

import os
import shutil
import struct
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.conftest import power_cut
from tests.unit.recovery.losses import poke

import penstock
from penstock.contracts import Context, Dispatcher, Trust
from penstock.contracts.dispatcher import DispatchBatch
from penstock.errors import PluginError, StorageError
from penstock.recovery import restore
from penstock.store.store import Store
from penstock.testing import FaultyFiles, ManualWorkers, SimulatedDisk, WrittenLog, open_store
from penstock.testing.kit import SMALL, copy_store, make_context
from penstock_index.consume_queue import ConsumeQueueDispatcher
from penstock_index.hash_index import HashIndexDispatcher

Call = tuple[str, int]


class Diary(Dispatcher):
    """A third party's dispatcher: keeps the offsets of records in a text file, and what it was called with."""

    name: ClassVar[str] = "diary"
    capabilities: ClassVar[frozenset[str]] = frozenset({"own-files"})
    calls: ClassVar[list[Call]] = []
    trusts: ClassVar[list[Trust]] = []
    fails: ClassVar[Exception | None] = None
    lowers: ClassVar[bool] = True
    advances: ClassVar[bool] = True

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(options, context)
        self._path = context.root / "diary.txt"
        self._offsets: list[int] = []
        self._progress = 0

    @property
    def progress(self) -> int:
        return self._progress

    def load(self, trust: Trust) -> list[str]:
        # As 0.1 allowed: it believes its own file, and looks neither at the log's end nor at the marks.
        self.calls.append(("load", trust.log.end_offset))
        self.trusts.append(trust)
        if self._path.exists():
            self._progress, *self._offsets = map(int, self._path.read_text().split())
        return []

    def dispatch(self, batch: DispatchBatch) -> None:
        self.calls.append(("dispatch", batch.start_offset))
        self._offsets += [o for o in batch.log_offsets.tolist() if o >= self._progress]
        if self.advances:
            self._progress = max(self._progress, batch.end_offset)

    def flush(self) -> int:
        self._path.write_text(" ".join(map(str, [self._progress, *self._offsets])))
        return self._progress

    def truncate(self, log_offset: int) -> None:
        self.calls.append(("truncate", log_offset))
        if self.fails is not None:
            raise self.fails
        if self.lowers:
            self._offsets = [offset for offset in self._offsets if offset < log_offset]
            self._progress = min(self._progress, log_offset)

    def trim(self, log_offset: int) -> None:
        self._offsets = [offset for offset in self._offsets if offset >= log_offset]

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Let the class forget what an earlier test made of it."""
    Diary.calls, Diary.trusts = [], []
    Diary.fails, Diary.lowers, Diary.advances = None, True, True


def opened(path: Path, **given: Any) -> Store:
    chosen: dict[str, Any] = {
        "index": ["consume-queue", "hash-index", "diary"], "spawn": ManualWorkers(),
        "write": "mmap", "alloc": "on-demand", **given,
    }  # fmt: skip
    return open_store(path, strategies=[Diary], **chosen)


def _end_of(path: Path) -> int:
    with penstock.open(path, read_only=True, environ={}) as store:
        return int(store.stats()["log_end_offset"])


def killed(path: Path, target: Path, tail: bytes) -> int:
    """Make a store whose writer died, with these bytes behind the log's last record; returns its end."""
    with opened(path) as store:
        for number in range(100):
            store.put("t", b"%d" % number * 50, queue=0, keys=[f"k{number}"])
        store.flush()
        store.topics()
        end = int(store.stats()["log_end_offset"])
        copy_store(path, target)
    Diary.calls.clear()
    assert end < SMALL.segment_bytes
    poke(target / "commitlog" / f"{0:020d}", end, tail)
    return end


TORN = b"\x00\x00\x02\x00\xda\xa3\x20\xa7" + b"torn" * 20


def test_a_torn_tail_is_told_after_loading_and_before_any_batch(tmp_path: Path) -> None:
    end = killed(tmp_path / "s", tmp_path / "k", TORN)
    with opened(tmp_path / "k") as store:
        assert store.recovery is not None
        assert store.recovery.cut_bytes > 0
        assert Diary.calls[:2] == [("load", end), ("truncate", end)]
        assert [call for call, _ in Diary.calls[2:]].count("truncate") == 0
        assert not list(store.verify())
        first = store.put("t", b"other", queue=0, keys=["other"])
        assert first.log_offset == end
        assert store.find("other", "t")
    assert Diary.calls[-1][0] == "dispatch"


def test_a_dispatcher_that_knows_of_more_than_the_log_has_is_told(tmp_path: Path) -> None:
    """The log's tail was lost in a power cut, and its own file was not."""
    end = killed(tmp_path / "s", tmp_path / "k", b"")
    (tmp_path / "k" / "diary.txt").write_text(f"{end + 500} 0 {end} {end + 200}")
    with opened(tmp_path / "k") as store:
        assert Diary.calls[:2] == [("load", end), ("truncate", end)]
        store.put("t", b"other", queue=0)
        store.topics()
    assert (tmp_path / "k" / "diary.txt").read_text() == f"{_end_of(tmp_path / 'k')} 0 {end}"


def test_a_repair_that_cut_the_log_is_told_at_the_next_opening(tmp_path: Path) -> None:
    """A dispatcher without a checker is not rebuilt by it, and its files were made for a longer log."""
    path, end = tmp_path / "s", killed(tmp_path / "s", tmp_path / "k", b"")
    with opened(path, read_only=True) as store:
        last = list(store.scan("t"))[-1]
    Diary.calls.clear()
    Diary.trusts.clear()
    poke(path / "commitlog" / f"{0:020d}", last.log_offset + 5, b"damage")
    report = penstock.repair(path, apply=True, cut=True)
    cut = _end_of(path)
    assert report.applied
    assert cut == last.log_offset < end
    with opened(path) as store:
        assert Diary.calls[:2] == [("load", cut), ("truncate", cut)]
        assert not Diary.trusts[0].is_clean, "not all of its files may be believed"
        assert Diary.trusts[0].durable_offset == cut
        assert store.put("t", b"other", queue=0).log_offset == cut
        store.topics()
    kept = list(map(int, (path / "diary.txt").read_text().split()))[1:]
    with opened(path, read_only=True) as store:
        assert kept == [m.log_offset for m in store.scan("t")]


def test_a_dispatcher_that_cannot_cut_keeps_the_store_from_being_opened(tmp_path: Path) -> None:
    """Named with what was not affected; without it the store opens, and with it once it is mended."""
    end = killed(tmp_path / "s", tmp_path / "k", TORN)
    Diary.fails = OSError(5, "Input/output error")
    shutil.copytree(tmp_path / "k", tmp_path / "without")
    with pytest.raises(
        StorageError, match="dispatcher diary could not truncate its files"
    ) as raised:
        opened(tmp_path / "k")
    assert "the log is not affected" in str(raised.value)
    opened(tmp_path / "without", index=["consume-queue", "hash-index"]).close()
    Diary.fails = None
    with opened(tmp_path / "k") as store:
        assert store.stats()["log_end_offset"] == end
        assert not list(store.verify())


def test_a_dispatcher_that_does_not_cut_breaks_its_contract(tmp_path: Path) -> None:
    end = killed(tmp_path / "s", tmp_path / "k", b"")
    (tmp_path / "k" / "diary.txt").write_text(f"{end + 500} 0")
    Diary.lowers = False
    with pytest.raises(
        PluginError, match=f"reports progress {end + 500} after truncate\\({end}\\)"
    ):
        opened(tmp_path / "k")


def test_a_dispatcher_that_does_not_advance_breaks_its_contract(tmp_path: Path) -> None:
    """The log is not called corrupt."""
    killed(tmp_path / "s", tmp_path / "k", b"")
    Diary.advances = False
    with pytest.raises(PluginError, match="dispatcher diary reports progress 0 after a batch"):
        opened(tmp_path / "k")
    Diary.advances = True
    with pytest.raises(StorageError, match="diary lags the log"), opened(tmp_path / "k") as store:
        assert not list(store.verify())
        Diary.advances = False
        store.put("t", b"more", queue=0)
        store.topics()
        assert "reports progress" in store.stats()["dispatchers"]["diary"]["error"]


# --- a dispatcher that was not there when the log lost its end


WITHOUT = ["consume-queue", "hash-index"]


def lost(tmp_path: Path) -> tuple[Path, int, int]:
    """Make a store that lost its end in a power cut, and the diary did not; return it, the diary's mark and the end."""
    with opened(tmp_path / "s") as store:
        for number in range(5):
            store.put("t", b"%d" % number, queue=0)
    mark, target = _end_of(tmp_path / "s"), tmp_path / "k"
    end = killed(tmp_path / "s", target, b"")
    kept = [m.log_offset for m in scanned(target)]
    write_diary(target, [end + 500, *kept, end])
    return target, mark, end


def scanned(path: Path) -> list[Any]:
    with penstock.open(path, read_only=True, environ={}) as store:
        return list(store.scan("t"))


def write_diary(path: Path, numbers: list[int]) -> None:
    (path / "diary.txt").write_text(" ".join(map(str, numbers)))


def read_diary(path: Path) -> list[int]:
    return list(map(int, (path / "diary.txt").read_text().split()))


def put_others(path: Path, count: int = 5) -> None:
    """Write with the diary left out."""
    with opened(path, index=WITHOUT) as store:
        for number in range(count):
            store.put("t", b"other %d" % number * 20, queue=0)


def check_told(path: Path, cut: int) -> None:
    """Open with the diary again: it is cut, and has every record."""
    Diary.calls.clear()
    opened(path).close()
    messages = scanned(path)
    assert Diary.calls[1] == ("truncate", cut)
    assert read_diary(path) == [_end_of(path), *(m.log_offset for m in messages)]


@pytest.mark.parametrize("times", [1, 2])
def test_a_dispatcher_left_out_when_the_log_lost_its_end_is_told_later(
    tmp_path: Path, times: int
) -> None:
    """Other records are at the offsets that it knows."""
    path, mark, _ = lost(tmp_path)
    for _ in range(times):
        put_others(path)
    check_told(path, mark)


def test_a_dispatcher_left_out_of_a_repair_that_cut_the_log_is_told_later(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for number in range(5):
            store.put("t", b"%d" % number, queue=0)
    put_others(tmp_path, 0)
    cut = scanned(tmp_path)[-2].log_offset
    poke(tmp_path / "commitlog" / f"{0:020d}", cut + 5, b"damage")
    assert penstock.repair(tmp_path, apply=True, cut=True).applied
    put_others(tmp_path)
    check_told(tmp_path, cut)


def test_a_dispatcher_left_out_of_a_repair_is_told_also_if_another_program_opens_next(
    tmp_path: Path,
) -> None:
    path, end = tmp_path / "s", killed(tmp_path / "s", tmp_path / "k", b"")
    cut = scanned(path)[-1].log_offset
    poke(path / "commitlog" / f"{0:020d}", cut + 5, b"damage")
    assert penstock.repair(path, apply=True, cut=True).applied
    side = shutil.copytree(path / "penstock", tmp_path / "side")
    put_others(path)
    assert cut < end < _end_of(path)
    # A broker has no side folder.
    shutil.rmtree(path / "penstock")
    shutil.copytree(side, path / "penstock")
    os.utime(path / "lock", ns=(1, 1))
    check_told(path, cut)


def test_a_dispatcher_is_told_if_another_program_opened_the_store_that_lost_its_end(
    tmp_path: Path,
) -> None:
    path, _, end = lost(tmp_path)
    side = shutil.copytree(path / "penstock", tmp_path / "side")
    put_others(path)
    # A broker has no side folder.
    shutil.rmtree(path / "penstock")
    shutil.copytree(side, path / "penstock")
    os.utime(path / "lock", ns=(1, 1))
    check_told(path, end)


def test_a_dispatcher_left_out_goes_on_where_it_was_if_nothing_was_lost(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put("t", b"one", queue=0, keys=["k"])
    mark = _end_of(tmp_path)
    put_others(tmp_path)
    Diary.calls.clear()
    with opened(tmp_path) as store:
        end = store.stats()["log_end_offset"]
        assert Diary.calls[:3] == [("load", end), ("truncate", mark), ("dispatch", mark)]


def test_a_dispatcher_left_out_while_retention_ran_goes_on_at_the_first_record(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as store:
        store.put("t", b"one", queue=0)
    with opened(tmp_path, index=WITHOUT) as store:
        store.put_many([penstock.Message("t", bytes(2000), queue=0) for _ in range(99)])
        store.discard_before(log_offset=store.stats()["log_end_offset"])
        first = store.stats()["log_min_offset"]
        assert first > 0
    opened(tmp_path).close()
    diary = read_diary(tmp_path)
    assert [number for number in diary if number >= first] == [
        _end_of(tmp_path), *(m.log_offset for m in scanned(tmp_path))
    ]  # fmt: skip


def test_a_dispatcher_reaches_the_end_of_a_log_without_records(tmp_path: Path) -> None:
    """It does not begin at 0: retention has deleted what was there."""
    first = 4 * SMALL.segment_bytes
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{first:020d}").write_bytes(bytes(SMALL.segment_bytes))
    with opened(tmp_path) as store:
        assert Diary.calls == [("load", first), ("dispatch", 0)]
        assert store.put("t", b"one", queue=0).log_offset == first
    assert read_diary(tmp_path) == [_end_of(tmp_path), first]


def test_an_index_that_another_program_wrote_is_kept_when_it_is_first_used(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for number in range(9):
            store.put("t", b"one", queue=0, keys=[f"k{number}"])
    last = scanned(tmp_path)[-1].log_offset
    shutil.rmtree(tmp_path / "penstock")
    opened(tmp_path, index=["consume-queue"]).close()
    with opened(tmp_path, index=WITHOUT) as store:
        assert store.recovery is not None
        assert store.recovery.dispatched_from == last
        assert not store.recovery.mended


# --- the built-in ones


def filled(cls: type[Dispatcher], path: Path, log: WrittenLog) -> Dispatcher:
    made = cls(cls.Options(), make_context(path))
    made.load(Trust(log=log.view, durable_offset=0, is_clean=True, was_abnormal=False))
    for batch in log.batches():
        made.dispatch(batch)
    return made


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    return WrittenLog(tmp_path_factory.mktemp("log") / "log")


def files_of(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("row", [1, 199, 600, 1200, 1206, 1499])
def test_queue_files_are_those_of_a_log_that_was_never_longer(
    row: int, log: WrittenLog, tmp_path: Path
) -> None:
    """Byte by byte: nothing of an entry at or after the cut is left, and no file of such entries only."""
    cut = log.offsets()[row]
    long = filled(ConsumeQueueDispatcher, tmp_path / "long", log)
    assert isinstance(long, ConsumeQueueDispatcher)
    long.truncate(cut)
    assert long.progress == cut
    assert long.flush() == cut
    short = ConsumeQueueDispatcher(
        ConsumeQueueDispatcher.Options(), make_context(tmp_path / "short")
    )
    for batch in log.batches(0, cut):
        short.dispatch(batch)
    for topic, queue in short.queues():
        assert long.max_offset(topic, queue) == short.max_offset(topic, queue)
        parts = "consumequeue", topic, str(queue)
        left = files_of(tmp_path.joinpath("long", *parts))
        assert left == files_of(tmp_path.joinpath("short", *parts))
    long.close()
    short.close()


def index_entries(path: Path) -> list[list[tuple[int, int]]]:
    """Return hash and log offset of the entries of each index file."""
    found = []
    for file in sorted((path / "index").iterdir()):
        data, count = file.read_bytes(), SMALL.index_slots * 4
        rows = [data[at : at + 20] for at in range(40 + count, len(data), 20)]
        said = int.from_bytes(data[36:40], "big")
        found.append([struct.unpack_from(">iq", row) for row in rows[1:said]])
    return found


@pytest.mark.parametrize("row", [1, 130, 600, 1499])
def test_index_files_are_those_of_a_log_that_was_never_longer(
    row: int, log: WrittenLog, tmp_path: Path
) -> None:
    """As many files, each full but the last, with the same entries; and what comes goes on in the last one."""
    cut = log.offsets()[row]
    long = filled(HashIndexDispatcher, tmp_path / "long", log)
    long.truncate(cut)
    assert long.flush() == long.progress == cut
    short = HashIndexDispatcher(HashIndexDispatcher.Options(), make_context(tmp_path / "short"))
    for batch in log.batches(0, cut):
        short.dispatch(batch)
    for batch in log.batches(cut):
        long.dispatch(batch)
        short.dispatch(batch)
    for dispatcher in (long, short):
        dispatcher.flush()
        dispatcher.close()
    entries = index_entries(tmp_path / "long")
    assert len(entries) > 2
    assert entries == index_entries(tmp_path / "short")


def test_what_is_kept_of_an_index_file_is_durable_after_the_next_flush(
    log: WrittenLog, tmp_path: Path
) -> None:
    """The newest file had entries that were not synced yet, and was closed though nothing of it was to be cut."""
    files, synced = FaultyFiles(), set[str]()
    files.plan.watch = lambda call, path: synced.add(path.name) if call == "sync" else None
    index = HashIndexDispatcher(
        HashIndexDispatcher.Options(), make_context(tmp_path / "s", files=files)
    )
    for batch in log.batches():
        index.dispatch(batch)
    newest = sorted((tmp_path / "s" / "index").iterdir())[-1].name
    synced.clear()
    index.truncate(log.end_offset)
    index.flush()
    assert newest in synced
    index.close()


# --- marks and names


ROOT = Path("/a/store")


def test_a_folder_that_may_not_be_opened_stops_nothing() -> None:
    class Forbidden(SimulatedDisk):
        def sync_folder(self, path: Path) -> None:
            if path == Path("/"):
                raise PermissionError
            super().sync_folder(path)

    disk = Forbidden()
    disk.make_folder(ROOT)
    restore.sync_names_up(disk, ROOT)


def test_many_folders_are_synced_together_or_one_by_one_where_that_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for fails in (False, True):
        disk = SimulatedDisk()
        for number in range(restore.MANY_FOLDERS):
            disk.make_folder(ROOT / "x" / str(number))
        restore.sync_names_up(disk, ROOT)
        if fails:
            disk.plan.fail("sync_volume")
        before = disk.plan.counts.get("sync_folder", 0)
        restore.sync_names_below(disk, ROOT)
        assert (disk.plan.counts["sync_folder"] > before) is fails
        assert power_cut(disk).is_folder(ROOT / "x" / "0")
    assert "could not be synced as a whole" in caplog.text
