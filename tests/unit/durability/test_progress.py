"""Marks that are read while another process, or another thread, writes them."""

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.integrity.test_segment_digests import seal_all

from penstock.contracts.findings import Finding
from penstock.durability.progress import Progress, State
from penstock.durability.side_folder import visible_offset
from penstock.files import File, Files
from penstock.integrity.segment_digests import Digest, Digests
from penstock.store.store import Store
from penstock.testing import ManualWorkers, open_store
from penstock.testing.kit import messages

SEGMENT = 64 * 1024


class TornFile(File):
    """A file whose first reads show it half written."""

    def __init__(self, file: File, files: "TornFiles") -> None:
        super().__init__(file.path, file.detach())
        self._files = files

    def pread(self, size: int, position: int) -> bytes:
        data = super().pread(size, position)
        return self._files.tear(data) if self._files.is_due(self.path) else data


class TornFiles(Files):
    """Files of which those with `name` are caught half written by the next `times` reads."""

    def __init__(self, name: str, tear: Callable[[bytes], bytes], times: int = 1) -> None:
        super().__init__()
        self.name, self.tear, self.times = name, tear, times

    def is_due(self, path: Path) -> bool:
        if self.name in path.parts and self.times > 0:
            self.times -= 1
            return True
        return False

    def open(self, path: Path, *, writable: bool = False) -> File:
        return TornFile(super().open(path, writable=writable), self)


def both_slots(data: bytes) -> bytes:
    """The reader was held up between two pages while the writer wrote both slots."""
    return data[:300] + b"\xee" * 40 + data[340:800] + b"\xee" * 40 + data[840:]


def one_slot(data: bytes) -> bytes:
    younger = 0 if data[8:16] > data[520:528] else 512
    return data[: younger + 64] + b"\xee" * 8 + data[younger + 72 :]


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def nothing(_data: bytes) -> bytes:
    return b""


def live(path: Path) -> tuple[Store, ManualWorkers]:
    """A store that is being written, some of its segments sealed."""
    workers = ManualWorkers()
    store = open_store(path, spawn=workers, retention=[])
    for first in range(0, 800, 100):
        store.put_many(messages(100, first=first))
    store.flush()
    workers.run("penstock-follow")
    workers.run("penstock-mark")
    seal_all(workers)
    return store, workers


def found(path: Path, files: Files | None = None, **how: Any) -> list[Finding]:
    with open_store(path, files=files, read_only=True) as store:
        return list(store.verify(deep=True, **how))


@pytest.mark.parametrize("tear", [both_slots, one_slot])
def test_progress_that_was_caught_half_written_is_read_again(
    tear: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    """Nothing was known then: a reader took the store for another program's, and an older slot for the newest."""
    store, _ = live(tmp_path / "s")
    right = visible_offset(Files(), tmp_path / "s")
    assert right
    assert visible_offset(TornFiles("progress", tear), tmp_path / "s") == right
    assert visible_offset(TornFiles("progress", tear, times=2), tmp_path / "s") == right
    store.close()


def test_progress_that_stays_torn_is_not_waited_for(tmp_path: Path) -> None:
    store, _ = live(tmp_path / "s")
    store.close()
    files = TornFiles("progress", both_slots, times=1000)
    assert Progress(files, tmp_path / "s").read() == State()
    assert files.times > 900


@pytest.mark.parametrize("tear", [half, nothing])
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_digest_of_a_living_store_that_is_being_written_is_no_finding(
    tear: Callable[[bytes], bytes], jobs: int, tmp_path: Path
) -> None:
    store, _ = live(tmp_path / "s")
    assert found(tmp_path / "s", jobs=jobs) == []
    for times in (1, 2, 3):
        assert found(tmp_path / "s", TornFiles("digests", tear, times=times)) == []
    store.close()
    assert "cannot be understood" in found(tmp_path / "s", TornFiles("digests", tear, 1000))[0].text


def test_a_damaged_digest_of_a_living_store_is_found(tmp_path: Path) -> None:
    store, _ = live(tmp_path / "s")
    path = tmp_path / "s" / "penstock" / "digests" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)
    assert [f.text for f in found(tmp_path / "s")] == ["the digest of its segment cannot be understood"]  # fmt: skip
    assert [f.part for f in store.verify(deep=True)] == ["marks"]
    store.close()


def test_a_digest_appears_whole_under_its_name(tmp_path: Path) -> None:
    """It was written in place: a verification in the same process met it empty, once in 3,273 tests."""
    seen: list[bytes] = []

    class Watching(Files):
        def create(self, path: Path) -> File:
            self.look()
            file = super().create(path)
            self.look()
            return file

        def rename(self, source: Path, target: Path) -> None:
            self.look()
            super().rename(source, target)
            self.look()

        def sync_folder(self, path: Path) -> None:
            self.look()
            super().sync_folder(path)

        def look(self) -> None:
            folder = tmp_path / "penstock" / "digests"
            seen.extend(path.read_bytes() for path in folder.glob("*"))

    digests = Digests(Watching(), tmp_path)
    digest = Digest(base_offset=0, size=SEGMENT, mtime_ns=1, whole=2, blocks=((3, 4),))
    for _ in range(2):
        digests.write(digest)
    assert seen
    assert set(seen) == {digest.encode()}
    assert [path.name for path in (tmp_path / "penstock").iterdir()] == ["digests"]


def test_a_digest_that_could_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    class Full(Files):
        def rename(self, source: Path, target: Path) -> None:
            raise OSError(errno.ENOSPC, "full")

    digest = Digest(base_offset=0, size=SEGMENT, mtime_ns=1, whole=2, blocks=((3, 4),))
    with pytest.raises(OSError, match="full"):
        Digests(Full(), tmp_path).write(digest)
    assert list((tmp_path / "penstock" / "digests").iterdir()) == []
    assert [path.name for path in (tmp_path / "penstock").iterdir()] == ["digests"]


def test_segments_that_come_and_go_during_a_verification_are_no_finding(tmp_path: Path) -> None:
    """The digest of a segment that the reader did not know yet was one "of no segment there is"."""
    store, workers = live(tmp_path / "s")
    with open_store(tmp_path / "s", read_only=True) as reader:
        looking = reader.verify(deep=True)
        for first in range(800, 1600, 100):
            store.put_many(messages(100, first=first))
        store.flush()
        workers.run("penstock-follow")
        seal_all(workers)
        store.discard_before(log_offset=2 * SEGMENT)
        # A process that dies, or is slow, between the segment's end and its digest's.
        digest = tmp_path / "s" / "penstock" / "digests" / f"{2 * SEGMENT:020d}"
        (digest.parent / f"{0:020d}").write_bytes(digest.read_bytes())
        assert [f for f in looking if f.part in ("marks", "digest")] == []
    store.close()


@pytest.mark.parametrize("when", ["before the walk", "in the walk", "at its end"])
def test_a_writer_that_comes_during_a_verification_is_no_finding(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store was closed when the look began: whatever a writer did then was held against it."""
    live(tmp_path / "s")[0].close()
    with open_store(tmp_path / "s", read_only=True) as reader:
        opened: list[Store] = []

        def write() -> None:
            if not opened:
                opened.append(open_store(tmp_path / "s", retention=[], spawn=ManualWorkers()))
                opened[0].put_many(messages(300, first=800))
                opened[0].flush()

        def told(tally: Any) -> None:
            if when == "in the walk" or tally.bytes_seen == tally.bytes_total:
                write()

        scope_taken = reader.verify(told, deep=True)
        if when == "before the walk":
            scope = reader._verification.scope(deep=True)
            # As it was when the look began.
            monkeypatch.setattr(reader._verification, "scope", lambda deep: scope)
            write()
        assert list(scope_taken) == []
        opened[0].close()
        with open_store(tmp_path / "s", read_only=True) as again:
            assert list(again.verify(deep=True)) == []


def test_verifications_beside_a_busy_writer_find_nothing(tmp_path: Path) -> None:
    """Bounded by rounds, in the writing process and beside it: puts, flushes, marks and seals never stop."""
    path = tmp_path / "s"
    settings: dict[str, Any] = {
        "index.flush_interval_ms": 1, "flush.async.interval_ms": 1,
        "retention": ["size"], "retention.size.bytes_max": 16 * SEGMENT,
    }  # fmt: skip
    with open_store(path, **settings) as store:
        store.put_many(messages(100))
        is_over = threading.Event()

        def write() -> None:
            first = 100
            while not is_over.is_set():
                store.put_many(messages(100, first=first))
                first += 100
                store.flush()
                if first % 1000 == 0:
                    store.retain()
                    store.commit_offset("g", "topic-0", offset=first // 200)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(4):
                assert list(store.verify(deep=True)) == []
                with open_store(path, read_only=True) as reader:
                    assert reader.committed_offset("nobody", "topic-0") is None
                    assert list(reader.verify(deep=True)) == []
        finally:
            is_over.set()
            writer.join()


def test_what_is_replaced_whole_is_read_whole(tmp_path: Path) -> None:
    """Offsets, geometry, holder and clean mark change their names' owner, never their bytes."""
    store, _ = live(tmp_path / "s")
    store.commit_offset("g", "topic-0", offset=1)
    held = [
        tmp_path / "s" / name
        for name in ("config/consumerOffset.json", "penstock/geometry.json", "penstock/holder")
    ]
    open_files = [path.open("rb") for path in held]
    numbers = [os.fstat(file.fileno()).st_ino for file in open_files]
    before = [path.read_bytes() for path in held]
    store.commit_offset("g", "topic-0", offset=2)
    store.close()
    store = open_store(tmp_path / "s", retention=[])
    assert [file.read() for file in open_files] == before
    assert held[0].stat().st_ino != numbers[0]
    assert json.loads(held[0].read_text())["offsetTable"] == {"topic-0@g": {"0": 2}}
    store.close()
    for file in open_files:
        file.close()


def test_records_that_come_between_two_looks_at_the_tail_are_no_corruption(tmp_path: Path) -> None:
    """The walk met the log's end, the writer put two records there, and the search for valid records after
    the end found the second one: the first was told as corruption."""
    store, workers = live(tmp_path / "s")
    waiting = [10]

    class Late(Files):
        def open(self, path: Path, *, writable: bool = False) -> File:
            return LateFile(super().open(path, writable=writable))

    class LateFile(File):
        def __init__(self, file: File) -> None:
            super().__init__(file.path, file.detach())

        def data_end(self) -> int:
            # Asked where the search for valid records begins.
            while waiting and "commitlog" in self.path.parts:
                store.put_many(messages(waiting.pop(), first=800))
                store.flush()
                workers.run("penstock-follow")
            return super().data_end()

    assert found(tmp_path / "s", Late()) == []
    assert not waiting
    store.close()
