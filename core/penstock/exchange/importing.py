"""Import: the rows of a file as messages in a store, each once, also if the import is interrupted and run again.

`loading` stores the rows and notes how far it came.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

import attrs

from penstock.errors import ConfigError, MessageError
from penstock.exchange.formats import kind_of
from penstock.exchange.loading import Guard, Loader, LoadOptions, LoadRow, OnSkip
from penstock.exchange.rows import ASSIGNED_ANEW, put_of
from penstock.exchange.source_file import SourceFile
from penstock.exchange.text_files import ColumnNames, FileRow, row_bytes_max
from penstock.store.store import Store

OnProgress = Callable[[int, int], None]


@attrs.frozen(kw_only=True)
class Hooks:
    """What is called during an import.

    Attributes:
        on_progress: called with the bytes of the file read so far, and the rows processed.
        on_skip: called for each row that is skipped, with where it is and why.
        guard: entered for each batch that is stored, counted and reported; it can delay an interrupt until both are done.
    """

    on_progress: OnProgress = lambda _done, _rows: None
    on_skip: OnSkip = lambda _where, _error: None
    guard: Guard = nullcontext


@attrs.frozen(kw_only=True)
class ImportOptions:
    """How the rows of a file become messages.

    Attributes:
        kind: the format, one of `formats.FORMATS`; by the file's name if None.
        topic: replaces the topic of every row.
        columns: names of the file's columns by the fields that they mean, for example `{"body": "text"}`.
        ignore_unknown: leave out columns that are not fields of a message; they are refused otherwise.
        skip_bad: skip rows that cannot be stored; the import ends at the first one otherwise.
        from_row: number of the first row to store, as errors give it: for NDJSON the line, else the row after a header.
        restart: begin with the first row, whatever earlier imports of this file have stored.
    """

    kind: str | None = None
    topic: str | None = None
    columns: Mapping[str, str] = attrs.Factory(dict)
    ignore_unknown: bool = False
    skip_bad: bool = False
    from_row: int = 1
    restart: bool = False

    def identity(self) -> object:
        """Return what distinguishes this import from others of the same file."""
        return [
            "import",
            self.kind,
            self.topic,
            sorted(self.columns.items()),
            self.ignore_unknown,
            self.from_row,
        ]


@attrs.frozen(kw_only=True)
class ImportSummary:
    """The result of an import.

    Attributes:
        path: the file; `-` for standard input.
        format: its format.
        stored: messages stored by this call.
        stored_before: messages that earlier, interrupted calls had stored.
        skipped: rows that were skipped because they cannot be stored.
        rows: rows of the file that were processed, in all calls.
        topics: messages stored by this call, by topic.
        assigned_anew: the fields that the store has assigned anew.
    """

    path: str
    format: str
    stored: int
    stored_before: int
    skipped: int
    rows: int
    topics: dict[str, int]
    assigned_anew: tuple[str, ...] = ASSIGNED_ANEW


def import_file(
    store: Store,
    path: str | Path,
    options: ImportOptions | None = None,
    hooks: Hooks | None = None,
) -> ImportSummary:
    """Store the rows of a file as messages; continues an import of the same file that was interrupted.

    The memory used does not depend on the number of rows. Raises `ImportFileError` for a file that is not valid, or at
    a row that cannot be stored, after all rows before it were stored; and the errors of `put_many` if the store cannot
    take the messages. Call it again with the same options to continue.

    Args:
        store: the store, open for writing.
        path: a file that `export_messages` wrote, or any with columns of the same names; `topic` and `body` are required.
        options: how the rows become messages.
        hooks: called during the work.
    """
    with Path(path).open("rb") as file:
        return import_stream(store, file, str(path), options, hooks)


def import_stream(
    store: Store,
    file: BinaryIO,
    path: str = "-",
    options: ImportOptions | None = None,
    hooks: Hooks | None = None,
) -> ImportSummary:
    """Store the rows of an open file; like `import_file`, but an import from a pipe, or from `-`, cannot be continued."""
    asked = options or ImportOptions()
    if asked.from_row < 1:
        raise ConfigError(f"from_row is {asked.from_row}; the first row is 1")
    names = ColumnNames(asked.columns, ignores_unknown=asked.ignore_unknown)
    source = SourceFile(file, path, kind_of(path, asked.kind), names)
    called = hooks or Hooks()
    loader = Loader(store, file, path, LoadOptions(
        identity=asked.identity(), skip_bad=asked.skip_bad, restart=asked.restart, first=asked.from_row,
        on_batch=lambda row: called.on_progress(source.position, row.number),
        on_skip=called.on_skip, guard=called.guard,
    ))  # fmt: skip
    limit = row_bytes_max(store.body_bytes_max)

    def rows() -> Iterator[LoadRow]:
        for row in source.rows(asked.from_row - 1, limit):
            yield _load_row(row, asked.topic)

    loader.load(rows)
    return ImportSummary(
        path=path, format=source.kind.format, stored=loader.reached.stored - loader.before.stored,
        stored_before=loader.before.stored, skipped=loader.reached.skipped, rows=loader.reached.rows,
        topics=dict(sorted(loader.topics.items())),
    )  # fmt: skip


def _load_row(row: FileRow, topic: str | None) -> LoadRow:
    if row.fields is None:
        return LoadRow(row.number, row.where, None, row.error, facts=str(row.error))
    body = row.fields.get("body") or b""
    facts = repr({name: value for name, value in row.fields.items() if name != "body"})
    try:
        put = put_of(row.fields, topic)
    except MessageError as error:
        return LoadRow(row.number, row.where, None, error, body, facts)
    return LoadRow(row.number, row.where, put, None, body, facts)
