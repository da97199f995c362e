"""A file to import: its format, its identity, and its rows."""

import zlib
from collections.abc import Iterator
from importlib import import_module
from typing import BinaryIO

import attrs

from penstock.errors import ConfigError, ImportFileError
from penstock.exchange.formats import CSV, LINES, NDJSON, FileFormat, plain_text
from penstock.exchange.text_files import ColumnNames, FileRow, csv_rows, line_rows, ndjson_rows

_TEXT = {NDJSON: ndjson_rows, CSV: csv_rows, LINES: line_rows}


@attrs.define
class SourceFile:
    """An open file to import. Not thread-safe.

    Attributes:
        file: the file.
        path: its name for errors.
        kind: its format.
        names: what the names of its columns mean; None to read the rows whole.
    """

    file: BinaryIO
    path: str
    kind: FileFormat
    names: ColumnNames | None

    @property
    def position(self) -> int:
        """The number of bytes read so far, approximately."""
        return self.file.tell() if self.file.seekable() else 0

    def rows(self, skip: int, line_bytes_max: int) -> Iterator[FileRow]:
        """Yield the rows after the first `skip`; raises `ImportFileError` if the file is not valid."""
        read = _TEXT.get(self.kind.format)
        if read is None:
            yield from self._columnar(skip)
            return
        file = plain_text(self.file, self.path, is_gzip=self.kind.is_gzip)
        try:
            yield from read(file, self.path, self.names, skip=skip, line_bytes_max=line_bytes_max)
        except (EOFError, OSError, zlib.error) as error:
            # What `gzip` raises has no number.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise ImportFileError(
                self.path, "", f"it is not a gzip file, or it is truncated or corrupt: {error}"
            ) from error

    def _columnar(self, skip: int) -> Iterator[FileRow]:
        # pyarrow is an extra; this raises `MissingExtraError` if it is not installed.
        arrow_files = import_module("penstock.exchange.arrow_files")
        if self.kind.format != "parquet":
            yield from arrow_files.arrow_rows(self.file, self.path, self.names, skip=skip)
        elif self.file.seekable():
            yield from arrow_files.parquet_rows(self.file, self.path, self.names, skip=skip)
        else:
            raise ConfigError("Parquet cannot be read from a pipe: write it to a file first")
