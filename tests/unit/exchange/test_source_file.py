"""A file to import: its position, and files that are not what their name says."""

import gzip
import io
from pathlib import Path

import pytest

from penstock.errors import ConfigError, ImportFileError
from penstock.exchange.formats import kind_of
from penstock.exchange.source_file import SourceFile
from penstock.exchange.text_files import ColumnNames

LINE = b'{"topic": "t", "body": "b"}\n'


def source(path: Path) -> SourceFile:
    return SourceFile(path.open("rb"), str(path), kind_of(str(path)), ColumnNames())


def test_the_position_moves(tmp_path: Path) -> None:
    (tmp_path / "a.ndjson.gz").write_bytes(gzip.compress(LINE * 10))
    made = source(tmp_path / "a.ndjson.gz")
    with made.file:
        assert made.position == 0
        assert len(list(made.rows(4, 1000))) == 6
        assert made.position > 0


@pytest.mark.parametrize(
    "data",
    [b"", LINE, gzip.compress(LINE * 1000)[:-20], gzip.compress(LINE)[:-8] + bytes(8)],
    ids=["empty", "plain", "truncated", "wrong sum"],
)
def test_a_file_that_is_not_gzip_or_truncated_is_an_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.csv.gz").write_bytes(data)
    made = source(tmp_path / "a.csv.gz")
    with made.file, pytest.raises(ImportFileError, match=r"a\.csv\.gz"):
        list(made.rows(0, 1000))


def test_parquet_is_not_read_from_a_pipe() -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    made = SourceFile(Pipe(), "-", kind_of("-", "parquet"), ColumnNames())
    assert made.position == 0
    with pytest.raises(ConfigError, match="write it to a file first"):
        list(made.rows(0, 1000))
