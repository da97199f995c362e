"""An export appears whole or not at all, and its memory does not grow with the store."""

import errno
import io
import json
import tracemalloc
from pathlib import Path

import pytest
from tests.conftest import OpenStore

from penstock.errors import BusyError, ConfigError
from penstock.exchange import exporting
from penstock.exchange.exporting import batches_of, export_messages, export_stream
from penstock.exchange.rows import MessageRow
from penstock.exchange.selection import Selection
from penstock.files import Files
from penstock.store.store import Store


@pytest.fixture
def store(open_small: OpenStore) -> Store:
    store = open_small()
    for number in range(50):
        store.put("ab"[number % 2], b"%d" % number)
    return store


def test_the_report_says_what_is_in_the_file(store: Store, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with store:
        report = export_messages(
            store, tmp_path / "m.ndjson", Selection(topics=["a"]), on_progress=lambda *at: seen.append(at)
        )  # fmt: skip
    assert (report.messages, report.topics, report.format) == (25, {"a": 25}, "ndjson")
    assert report.bytes == (tmp_path / "m.ndjson").stat().st_size
    assert (report.unreadable, report.deleted) == (0, 0)
    assert seen[0] == (0, 25)
    assert seen[-1] == (25, 25)
    rows = [json.loads(line) for line in (tmp_path / "m.ndjson").read_text().splitlines()]
    assert [row["body"] for row in rows] == [str(n) for n in range(0, 50, 2)]


def test_a_file_is_replaced_only_if_asked(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("mine")
    with store:
        with pytest.raises(ConfigError, match="exists"):
            export_messages(store, path)
        assert path.read_text() == "mine"
        export_messages(store, path, overwrite=True)
        with pytest.raises(ConfigError, match="not a folder"):
            export_messages(store, tmp_path / "none" / "m.csv")
    assert path.read_text().count("\n") == 51


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
@pytest.mark.parametrize("name", ["m.ndjson", "m.csv.gz", "m.parquet", "m.arrow"])
def test_an_export_that_fails_leaves_nothing(
    store: Store, tmp_path: Path, name: str, error: BaseException
) -> None:
    def fail(done: int, _total: int) -> None:
        if done:
            raise error

    path = tmp_path / name
    path.write_text("before")
    with store:
        with pytest.raises(type(error)):
            export_messages(store, path, overwrite=True, on_progress=fail)
        assert path.read_text() == "before"
        assert not (tmp_path / f"{name}.part").exists()
        export_messages(store, path, overwrite=True)
    assert path.stat().st_size > 500


def test_two_exports_to_one_file_do_not_mix(store: Store, tmp_path: Path) -> None:
    lock = Files().lock_one(tmp_path / "m.ndjson.part")
    assert lock is not None
    with store:
        with pytest.raises(BusyError, match="another export"):
            export_messages(store, tmp_path / "m.ndjson")
        lock.release()
        # What a killed export left is overwritten.
        (tmp_path / "m.ndjson.part").write_text("x" * 100_000)
        export_messages(store, tmp_path / "m.ndjson")
    assert "x" not in (tmp_path / "m.ndjson").read_text()


@pytest.mark.parametrize("kind", ["ndjson", "csv", "parquet", "arrow"])
def test_a_stream_needs_no_seeking_and_stays_open(store: Store, kind: str) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def tell(self) -> int:
            raise OSError(errno.ESPIPE, "a pipe")

    pipe = Pipe()
    with store:
        report = export_stream(store, pipe, kind=kind)
    assert not pipe.closed
    assert report.bytes == len(pipe.getvalue()) > 500


def test_corrupt_messages_are_counted(store: Store, tmp_path: Path, open_small: OpenStore) -> None:
    with store:
        at = store.read("a", 0, 3, 1).messages[0]
    path = next((tmp_path / "store" / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    data[at.log_offset + at.size - 30] ^= 1
    path.write_bytes(data)
    with open_small(read_only=True) as found:
        report = export_messages(found, tmp_path / "m.ndjson")
    assert (report.messages, report.unreadable) == (49, 1)


def test_a_batch_is_bounded_by_rows_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    row = MessageRow("t", 0, 0, 0, "", 0, "", 0, "", "", "", {}, None, 0, 0, 0, 0, 100, b"")
    monkeypatch.setattr(exporting, "_ROWS", 4)
    assert [len(batch) for batch in batches_of([row] * 10)] == [4, 4, 2]
    monkeypatch.setattr(exporting, "_BYTES", 250)
    assert [len(batch) for batch in batches_of([row] * 7)] == [3, 3, 1]
    assert list(batches_of([])) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["m.ndjson", "m.csv", "m.arrow"])
def test_the_memory_does_not_grow_with_the_store(open_small: OpenStore, tmp_path: Path, name: str) -> None:  # fmt: skip
    peaks = []
    with open_small(**{"geometry.segment_bytes": 1 << 20}) as store:
        for _ in range(2):
            # 10 MB more each time: more than a batch may have.
            for number in range(200):
                store.put("t", bytes([number]) * 50_000)
            tracemalloc.start()
            export_messages(store, tmp_path / name, overwrite=True)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] < peaks[0] * 1.3 + 1e6
    assert peaks[1] < 60e6
