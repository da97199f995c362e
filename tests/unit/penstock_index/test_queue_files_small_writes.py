"""Queue and index files are written in small pieces: a large one comes into the page cache as a large folio."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DispatcherFailedError
from penstock.files.file import PIECE_BYTES, File
from penstock.message import Message
from penstock.testing import FaultyFiles, ManualClock, ManualWorkers
from penstock.testing.kit import open_store

SIZES: dict[str, Any] = {
    "geometry.segment_bytes": 4 << 20, "geometry.queue_entries": 50_000,
    "geometry.index_slots": 20_000, "geometry.index_entries": 50_000,
}  # fmt: skip


@pytest.mark.slow
def test_queue_and_index_files_are_never_written_in_large_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large the batch, in a store that is written, and in one whose queues and index are made anew."""
    pieces: list[tuple[str, int, int]] = []
    pwrite = File.pwrite

    def noted(self: File, data: bytes, position: int) -> None:
        pieces.append((self.path.relative_to(tmp_path / "s").parts[0], position, len(data)))
        pwrite(self, data, position)

    monkeypatch.setattr(File, "pwrite", noted)
    settings = {**SIZES, "retention": [], "index.use": ["consume-queue", "hash-index"]}  # fmt: skip
    messages = [
        Message("t", b"%d" % n, queue=0, keys=[f"k{n}"], properties={"p": "v"})
        for n in range(30_000)
    ]
    with open_store(tmp_path / "s", **settings) as store:
        store.put_many(messages)
        store.flush()
        assert len(store.find("k29999", "t")) == 1
    for anew in (False, True):
        if anew:
            shutil.rmtree(tmp_path / "s" / "consumequeue")
            shutil.rmtree(tmp_path / "s" / "index")
            pieces.clear()
            with open_store(tmp_path / "s", **settings) as store:
                assert len(store.find("k29999", "t")) == 1
                assert not list(store.verify())
        for folder in ("consumequeue", "index"):
            found = [(at, size) for name, at, size in pieces if name == folder]
            if folder == "consumequeue":
                # The index is stored into through its map, but for the first keys of a file.
                assert sum(size for _, size in found) >= 30_000 * 20, "all of it was seen"
            assert all(at % PIECE_BYTES + size <= PIECE_BYTES for at, size in found)


def test_a_piece_that_fails_leaves_what_counts(tmp_path: Path) -> None:
    """A disk that fails between two pieces of one batch: the queue goes on from the log when it can."""
    files, clock = FaultyFiles(), ManualClock()
    with open_store(
        tmp_path / "s", files=files, clock=clock, spawn=ManualWorkers(), **SIZES
    ) as store:
        files.plan.fail("pwrite", path="consumequeue", after=3)
        store.put_many([Message("t", b"%d" % n, queue=0) for n in range(5000)])
        with pytest.raises(DispatcherFailedError, match="consume-queue"):
            store.max_offset("t", 0)
        files.plan.heal()
        clock.now_ms += 60_000  # it is tried again after a pause
        assert [m.body for m in store.scan("t")] == [b"%d" % n for n in range(5000)]
        assert not list(store.verify())
