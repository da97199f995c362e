"""Import: the rows of a file as messages in a store, each once, also if the import is interrupted and run again.

Rows are stored in their order, in batches. After some batches, the store is flushed and the position is noted (see
`progress`). A second import of the same file with the same options continues after the rows that are stored; one that
is complete stores nothing. The same file means the same content: its name does not matter.
"""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO, NamedTuple

import attrs

from penstock.errors import ConfigError, ImportFileError, MessageError, StorageError
from penstock.exchange.formats import kind_of
from penstock.exchange.progress import Reached, Resumed, SourceNote, stored_from
from penstock.exchange.rows import ASSIGNED_ANEW, Put, is_stored_as, put_of
from penstock.exchange.source_file import SourceFile
from penstock.exchange.text_files import ColumnNames, FileRow, row_bytes_max
from penstock.message import StoredMessage
from penstock.store.store import Store

# At most this many rows, or this many bytes of bodies and one more, are put together.
_ROWS, _BYTES = 2000, 4 << 20
# After this many rows or bytes, the position is noted, which needs a flush.
_NOTE_ROWS, _NOTE_BYTES = 50_000, 32 << 20

OnProgress = Callable[[int, int], None]
OnSkip = Callable[[str, MessageError], None]
Guard = Callable[[], AbstractContextManager[None]]


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
        again: store all rows, even if this file was imported before.
    """

    kind: str | None = None
    topic: str | None = None
    columns: Mapping[str, str] = attrs.Factory(dict)
    ignore_unknown: bool = False
    skip_bad: bool = False
    from_row: int = 1
    again: bool = False

    def identity(self, content: bytes) -> bytes:
        """Return what distinguishes this import of a file with this digest from others."""
        facts = [content.hex(), self.topic, sorted(self.columns.items()), self.ignore_unknown, self.from_row]  # fmt: skip
        return json.dumps(["import", *facts]).encode()


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
    """Store the rows of an open file; like `import_file`, but an import from a pipe cannot be continued."""
    asked = options or ImportOptions()
    if asked.from_row < 1:
        raise ConfigError(f"from_row is {asked.from_row}; the first row is 1")
    names = ColumnNames(asked.columns, ignores_unknown=asked.ignore_unknown)
    source = SourceFile(file, path, kind_of(path, asked.kind), names)
    importing = _Import(store, source, asked, hooks or Hooks())
    importing.run()
    return importing.report()


class _Row(NamedTuple):
    """A row of the file, and the message for it; or the error."""

    number: int
    where: str
    put: Put | None
    error: MessageError | None


class _Import:
    """One import. Not thread-safe."""

    def __init__(
        self,
        store: Store,
        source: SourceFile,
        options: ImportOptions,
        hooks: Hooks,
    ) -> None:
        self._store = store
        self._source = source
        self._options = options
        self._hooks = hooks
        self._note: SourceNote | None = None
        self._reached = Reached()
        self._before = 0
        self._topics: Counter[str] = Counter()
        self._unnoted_rows = self._unnoted_bytes = 0

    def run(self) -> None:
        """Store all rows that are not stored yet."""
        # The store refuses here, before the file is read, if it cannot be written.
        start = self._store.flush()
        rows = self._remaining(start)
        if rows is None:
            return
        try:
            for group in _groups(rows):
                with self._hooks.guard():
                    self._store_group(group)
                    self._hooks.on_progress(self._source.position, self._reached.rows)
                if self._unnoted_rows >= _NOTE_ROWS or self._unnoted_bytes >= _NOTE_BYTES:
                    self._write_note()
        except ImportFileError:
            self._write_note()
            raise
        except (StorageError, OSError) as error:
            if self._note is not None:
                error.add_note(
                    f"{self._reached.rows} rows of {self._source.path} are processed; run the same command again to continue"
                )
            raise
        self._write_note(is_complete=True)

    def _remaining(self, log_end: int) -> Iterator[_Row] | None:
        """Return the rows that are not stored; None if the whole file is."""
        self._reached = Reached(
            rows=self._options.from_row - 1, log_offset=log_end, source=self._source.path
        )
        if not self._source.file.seekable():
            return self._rows(self._reached.rows)
        identity = self._options.identity(self._source.digest())
        self._note = SourceNote(self._store.path, identity, self._store.files)
        found = self._note.read()
        if found is not None and self._options.again:
            if not found.is_complete:
                raise ConfigError(
                    f"an earlier import of {self._source.path} was interrupted: continue it first, without --again"
                )
            found = None
        if found is None:
            self._note.write(self._reached)
            return self._rows(self._reached.rows)
        self._reached, self._before = found, found.stored
        if found.is_complete:
            return None
        resumed = Resumed(
            self._rows(found.rows), stored_from(self._store, found.log_offset), _is_same, _is_bad
        )
        if resumed.last is not None:
            self._count(resumed.last.number, resumed.count, resumed.bad)
        self._before = self._reached.stored
        self._write_note()
        return resumed.rest()

    def _rows(self, skip: int) -> Iterator[_Row]:
        for row in self._source.rows(skip, row_bytes_max(self._store.body_bytes_max)):
            yield self._message(row)

    def _message(self, row: FileRow) -> _Row:
        if row.fields is None:
            return _Row(row.number, row.where, None, row.error)
        try:
            put = put_of(row.fields, self._options.topic)
        except MessageError as error:
            return _Row(row.number, row.where, None, error)
        return _Row(row.number, row.where, put, None)

    def _store_group(self, group: list[_Row]) -> None:
        """Store rows; those of one kind that follow each other are appended together."""
        for kind, rows in itertools.groupby(group, _kind):
            run = list(rows)
            if kind == _BAD:
                for row in run:
                    self._refuse(row, row.error or MessageError("the row is not valid"))
            else:
                self._append(run, is_plain=kind == _PLAIN)

    def _append(self, run: list[_Row], *, is_plain: bool) -> None:
        puts = [row.put for row in run if row.put is not None]
        try:
            if is_plain:
                self._store.put_many([put.message for put in puts])
            else:
                self._store.put_copies([(put.message, put.text or b"") for put in puts])
        except MessageError as error:
            if len(run) == 1:
                self._refuse(run[0], error)
                return
            # Nothing of them is stored. One by one, it shows which row it is.
            for row in run:
                self._append([row], is_plain=is_plain)
            return
        self._count(run[-1].number, len(run), 0)
        self._topics.update([put.message.topic for put in puts])
        self._unnoted_rows += len(run)
        self._unnoted_bytes += sum(len(put.message.body) for put in puts)

    def _refuse(self, row: _Row, error: MessageError) -> None:
        """Skip a row that cannot be stored, or raise why."""
        if self._options.skip_bad:
            self._hooks.on_skip(row.where, error)
            self._count(row.number, 0, 1)
            return
        raise ImportFileError(
            self._source.path, row.where,
            f"{error}. The rows before it are stored, this one and those after it are not: correct it and continue with "
            f"--from-row {row.number}, or run the same command with --skip-bad",
        ) from error  # fmt: skip

    def _count(self, number: int, stored: int, skipped: int) -> None:
        reached = self._reached
        self._reached = attrs.evolve(
            reached, rows=number, stored=reached.stored + stored, skipped=reached.skipped + skipped
        )

    def _write_note(self, *, is_complete: bool = False) -> None:
        """Make everything durable, then note it."""
        log_offset = self._store.flush()
        self._reached = attrs.evolve(self._reached, log_offset=log_offset, is_complete=is_complete)
        self._unnoted_rows = self._unnoted_bytes = 0
        if self._note is not None:
            self._note.write(self._reached)

    def report(self) -> ImportSummary:
        """Return the result."""
        reached = self._reached
        return ImportSummary(
            path=self._source.path, format=self._source.kind.format, stored=reached.stored - self._before,
            stored_before=self._before, skipped=reached.skipped, rows=reached.rows,
            topics=dict(sorted(self._topics.items())),
        )  # fmt: skip


_BAD, _PLAIN, _RECORD = range(3)


def _kind(row: _Row) -> int:
    if row.put is None:
        return _BAD
    return _PLAIN if row.put.text is None else _RECORD


def _is_bad(row: _Row) -> bool:
    return row.put is None


def _is_same(row: _Row, message: StoredMessage) -> bool:
    return row.put is not None and is_stored_as(row.put, message)


def _groups(rows: Iterable[_Row]) -> Iterator[list[_Row]]:
    """Yield rows in groups of bounded size; a group ends with the row that makes it too large."""
    group: list[_Row] = []
    size = 0
    for row in rows:
        group.append(row)
        size += 0 if row.put is None else len(row.put.message.body)
        if len(group) >= _ROWS or size >= _BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
