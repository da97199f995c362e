"""Importing a file: how it is read, its rows as messages, each once, and a row that cannot be stored is named."""

import gzip
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore
from tests.lanes import at_night

from penstock.errors import ArgumentError, ConfigError, ImportFileError, StorageError
from penstock.testing.kit import InlineWorkers
from penstock_tools.exchange import importing
from penstock_tools.exchange.importing import (
    Hooks,
    ImportOptions,
    file_rows,
    import_file,
    import_stream,
)
from penstock_tools.exchange.text_files import ColumnNames, kind_of


def lines_in(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(body: str, **more: Any) -> dict[str, Any]:
    return {"topic": "t", "body": body, **more}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return lines_in(tmp_path / "m.ndjson", *[row(str(n)) for n in range(30)])


def bodies(store: Any, topic: str = "t") -> list[str]:
    return [m.body.decode() for m in store.scan(topic)]


def test_a_file_is_imported_once(open_small: OpenStore, source: Path) -> None:
    with open_small() as store:
        report = import_file(store, source)
        assert (report.stored, report.stored_before, report.rows) == (30, 0, 30)
        assert report.topics == {"t": 30}
        again = import_file(store, source)
        assert (again.stored, again.stored_before) == (0, 30)
        # With another topic, it is another import.
        assert import_file(store, source, ImportOptions(topic="u")).stored == 30
        assert import_file(store, source, ImportOptions(restart=True)).stored == 30
        lines_in(source, *[row(str(n)) for n in range(33)])
        grown = import_file(store, source)
        assert (grown.stored, grown.stored_before) == (3, 30)
        # With other rows, it is another file.
        lines_in(source, *[row(str(n)) for n in range(7, 9)])
        assert import_file(store, source).stored == 2
        wanted = [*range(30), *range(33), 7, 8]
        assert bodies(store) == [str(n) for n in wanted]
        assert bodies(store, "u") == [str(n) for n in range(30)]


@pytest.mark.slow
def test_a_bad_row_is_named_and_those_before_it_are_stored(
    open_small: OpenStore, tmp_path: Path
) -> None:
    rows = [row("0"), row("1"), row("2", queue=-1), row("3"), {"body": "4"}, row("5" * 20_000_000), row("6", tag="\x02")]  # fmt: skip
    source = lines_in(tmp_path / "m.ndjson", *rows)
    with open_small(**{"geometry.segment_bytes": 1 << 20, "log.body_bytes_max": 1 << 22}) as store:
        with pytest.raises(ImportFileError) as raised:
            import_file(store, source)
        error = raised.value
        assert (error.path, error.where) == (str(source), "line 3")
        assert "queue -1 is refused" in str(error)
        assert "correct it and run the same command again" in str(error)
        assert bodies(store) == ["0", "1"]
        skipped: list[str] = []
        hooks = Hooks(on_skip=lambda where, error: skipped.append(f"{where}: {error}"))
        report = import_file(store, source, ImportOptions(skip_bad=True), hooks)
        assert (report.stored, report.stored_before, report.skipped) == (1, 2, 4)
        assert [text.partition(":")[0] for text in skipped] == ["line 3", "line 5", "line 6", "line 7"]  # fmt: skip
        assert bodies(store) == ["0", "1", "3"]


def test_a_corrected_file_continues_at_its_row(open_small: OpenStore, tmp_path: Path) -> None:
    with open_small() as store:
        with pytest.raises(ImportFileError):
            import_file(store, lines_in(tmp_path / "m.ndjson", row("0"), row("1", flag="x"), row("2")))  # fmt: skip
        with pytest.raises(ImportFileError, match="it has changed: its first 1 rows"):
            import_file(store, lines_in(tmp_path / "m.ndjson", row("9"), row("1"), row("2")))
        corrected = lines_in(tmp_path / "m.ndjson", row("0"), row("1"), row("2"))
        report = import_file(store, corrected)
        assert (report.stored, report.stored_before, report.rows) == (2, 1, 3)
        assert bodies(store) == ["0", "1", "2"]
        report = import_file(store, corrected, ImportOptions(from_row=3))
        assert (report.stored, report.rows) == (1, 3)
        # The note of a larger one was corrupt for the next import.
        for number in (0, 1 << 63, (1 << 63) + 1):
            with pytest.raises(ArgumentError, match="from_row"):
                import_file(store, corrected, ImportOptions(from_row=number))
        for _ in range(2):
            import_file(store, corrected, ImportOptions(from_row=(1 << 63) - 1))


def test_a_pipe_is_imported_without_a_note(open_small: OpenStore, source: Path) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    with open_small() as store:
        for _ in range(2):
            import_stream(store, Pipe(source.read_bytes()), "-", ImportOptions(kind="ndjson"))
        assert len(bodies(store)) == 60
        assert not (store.path / "penstock" / "loads").exists()


@pytest.mark.slow
def test_a_log_that_was_cut_below_the_note_is_an_error(
    open_small: OpenStore, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_done: int, _rows: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock_tools.exchange.rows._ROWS", 4)
    with open_small(**{"geometry.segment_bytes": 4096}) as store:
        # As after a kill: the last note was written before the first row.
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(importing.Loader, "_stop", lambda *_: None)
            import_file(store, source, None, Hooks(on_progress=stop))
        for _ in range(40):
            store.put("x", bytes(300), queue=0)
        store.flush()
        assert store.discard_before(log_offset=9000)
        with pytest.raises(StorageError, match="not known which rows are stored"):
            import_file(store, source)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["m.ndjson", at_night("m.csv")])
def test_the_memory_is_bounded_whatever_the_size_of_the_file(
    open_small: OpenStore, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    with path.open("w") as file:
        file.write("topic,body\n" * (name == "m.csv"))
        for number in range(1500):
            body = str(number) * (50_000 // len(str(number)))
            file.write(f"t,{body}\n" if name == "m.csv" else json.dumps(row(body)) + "\n")
    with open_small(**{"geometry.segment_bytes": 1 << 22, "spawn": InlineWorkers()}) as store:
        tracemalloc.start()
        try:
            assert import_file(store, path).stored == 1500
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    print(f"{peak:,} bytes at most, of a file of {path.stat().st_size:,}")
    assert peak < 20e6 < path.stat().st_size / 1.8


LINE = b'{"topic": "t", "body": "b"}\n'


class Pipe(io.BytesIO):
    def seekable(self) -> bool:
        return False


def test_progress_says_how_much_of_the_file_was_read_and_nothing_of_a_pipe(
    open_small: OpenStore, tmp_path: Path
) -> None:
    source, said = tmp_path / "a.ndjson.gz", list[tuple[int, int]]()
    source.write_bytes(gzip.compress(LINE * 10))
    hooks = Hooks(on_progress=lambda done, rows: said.append((done, rows)))
    with open_small() as store:
        import_file(store, source, None, hooks)
        import_stream(store, Pipe(LINE), "-", ImportOptions(kind="ndjson"), hooks)
    assert said == [(source.stat().st_size, 10), (0, 1)]


@pytest.mark.parametrize(
    "data",
    [b"", LINE, gzip.compress(LINE * 1000)[:-20], gzip.compress(LINE)[:-8] + bytes(8)],
    ids=["empty", "plain", "truncated", "wrong sum"],
)
def test_a_file_that_is_not_gzip_or_truncated_is_an_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(data)
    kind = kind_of(str(path))
    with path.open("rb") as file, pytest.raises(ImportFileError, match=r"a\.csv\.gz"):
        list(file_rows(file, str(path), kind, ColumnNames(), skip=0, line_bytes_max=1000))


def test_parquet_is_not_read_from_a_pipe() -> None:
    kind = kind_of("-", "parquet")
    with pytest.raises(ConfigError, match="write it to a file first"):
        list(file_rows(Pipe(), "-", kind, ColumnNames(), skip=0, line_bytes_max=1000))
