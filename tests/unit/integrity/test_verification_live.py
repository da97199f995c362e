"""Verification beside a writer: whatever comes, goes or is half written meanwhile is no finding."""

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.unit.integrity.live import found, live, seal_all

from penstock.files import Entry, File, Files
from penstock.integrity.verification import Scope, Verification
from penstock.store.store import Store
from penstock.testing import ManualWorkers, open_store
from penstock.testing.kit import messages

SEGMENT = 64 * 1024


@pytest.mark.slow
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


@pytest.mark.slow
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
            plain = Verification.scope

            def earlier(look: Verification, *, deep: bool) -> Scope:
                scope = plain(look, deep=deep)
                write()
                return scope

            monkeypatch.setattr(Verification, "scope", earlier)
        assert list(scope_taken) == []
        opened[0].close()
        with open_store(tmp_path / "s", read_only=True) as again:
            assert list(again.verify(deep=True)) == []


@pytest.mark.slow
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
                    store.commit_offset("g", "topic-0", 0, offset=first // 200)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(4):
                assert list(store.verify(deep=True)) == []
                with open_store(path, read_only=True) as reader:
                    assert reader.committed_offset("nobody", "topic-0", 0) is None
                    assert list(reader.verify(deep=True)) == []
        finally:
            is_over.set()
            writer.join()


@pytest.mark.parametrize("is_read_only", [True, False])
@pytest.mark.parametrize("count", [0, 20, 2000])
def test_a_topic_that_is_deleted_during_a_verification_is_no_finding(
    count: int, is_read_only: bool, tmp_path: Path
) -> None:
    """Its records had no entries, or those of the topic's next messages had no records that were read."""
    store, workers = live(tmp_path / "s")
    deleted: list[str] = []

    def make_again(_tally: Any) -> None:
        if not deleted:
            deleted.append("topic-0")
            store.delete_topic("topic-0")
            store.put_many(m for m in messages(count) if m.topic == "topic-0")
            store.flush()
            workers.run("penstock-follow")

    with store, open_store(tmp_path / "s", read_only=True) as reader:
        looking = reader if is_read_only else store
        assert list(looking.verify(make_again)) == []
        assert deleted == ["topic-0"]
        with (tmp_path / "s/consumequeue/topic-1/1" / f"{0:020d}").open("r+b") as file:
            file.write(bytes(20))
        deleted.clear()
        if count:
            assert list(looking.verify(make_again)), "what is wrong in another topic"


@pytest.mark.slow
@pytest.mark.parametrize("nth", range(5))
def test_keys_that_retention_takes_after_their_records_were_read_are_no_finding(
    nth: int, tmp_path: Path
) -> None:
    """The reader had the first segments open, and the keys of their records were missing from the index."""
    store, _ = live(tmp_path / "s")
    listings: list[int] = []

    class Late(Files):
        def entries(self, folder: Path) -> list[Entry]:
            if folder.name == "index":
                # Each look at the index lists its files once.
                listings.append(
                    store.discard_before(log_offset=2 * SEGMENT) if len(listings) == nth else 0
                )
            return super().entries(folder)

    assert found(tmp_path / "s", Late()) == []
    assert sum(listings) == 2
    store.close()


@pytest.mark.slow
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
