"""Import: the rows of a source stored as messages, each once, also if that is interrupted and run again.

Both `import` and `ingest` use the loader; they differ only in how a row becomes a message. Rows are stored in their
order, in batches. After some batches, the store is flushed and the position is noted (see `progress`). A second load of
the same source with the same options continues after the rows that are stored, if the source still begins with the same
rows. After a source was stored whole, only rows that were appended are stored. The same source means the same path.
"""

import hashlib
import itertools
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple
from zlib import crc32

import attrs

from penstock.errors import ConfigError, ImportFileError, MessageError, PenstockError
from penstock.escape import get_logger
from penstock.format import arguments
from penstock.message import Message, StoredMessage
from penstock.store.batches import with_queues
from penstock.store.store import Store
from penstock_tools.exchange.progress import Reached, SourceNote, stored_from
from penstock_tools.exchange.rows import (
    ASSIGNED_ANEW,
    ColumnError,
    Put,
    batches_of,
    is_stored_as,
    put_of,
)
from penstock_tools.exchange.text_files import (
    CSV,
    LINES,
    NDJSON,
    STANDARD,
    ColumnNames,
    FileFormat,
    FileRow,
    csv_rows,
    joined_keys,
    kind_of,
    line_rows,
    ndjson_rows,
    plain,
    plain_text,
    row_bytes_max,
)

logger = get_logger(__name__)

# After this many rows or bytes, the position is noted, which needs a flush.
_NOTE_ROWS, _NOTE_BYTES = 50_000, 32 << 20


class LoadRow(NamedTuple):
    """A row of a source, and the message for it; or the error.

    Attributes:
        number: its number; increasing, but some may be missing.
        where: the row in words, for example "line 17".
        put: the message; None if there is an error.
        error: why there is no message.
        body: the body, or what else of the row is large; for the digest.
        facts: everything else of the row that must not change; for the digest.
    """

    number: int
    where: str
    put: Put | None
    error: MessageError | None = None
    body: bytes = b""
    facts: str = ""


@attrs.frozen(kw_only=True)
class Hooks:
    """The callbacks of an import.

    Attributes:
        on_progress: called with the bytes of the file read so far, and the rows processed.
        on_skip: called for each row that is skipped, with where it is and why.
        guard: entered for each batch that is stored, counted and reported; it can delay an interrupt until then.
    """

    on_progress: Callable[[int, int], None] = lambda _done, _rows: None
    on_skip: Callable[[str, MessageError], None] = lambda _where, _error: None
    guard: Callable[[], AbstractContextManager[None]] = nullcontext


@attrs.frozen(kw_only=True)
class WholeRows:
    """Makes whole rows messages: the body is the line, or the row as JSON; its fields give topic, keys, tag, queue.

    Attributes:
        topic: the topic; with `topic_field`, a prefix of it.
        topic_field: the field that names the topic.
        key_fields: fields whose value, or each value in a list, is a key.
        tag_field: the field that is the tag; `FIELD:suffix` is the file name extension of a path.
        queue_by: the field whose hash picks one of `queues` queues; without it, the queues take turns.
    """

    topic: str = ""
    topic_field: str | None = None
    key_fields: Sequence[str] = ()
    tag_field: str | None = None
    queue_by: str | None = None
    queues: int = 4

    def message(self, fields: Mapping[str, Any], body: bytes) -> Message:
        """Return the message of a row; raises `ColumnError` for a field that is missing or has no text."""
        topic = self.topic + (_text(fields, self.topic_field) if self.topic_field else "")
        # A key with spaces is several, which `find` finds as a phrase.
        given = [key for name in self.key_fields for key in _keys(fields, name)]
        keys = [word for key in given for word in key.split(" ") if word]
        tag = _text(fields, self.tag_field) if self.tag_field else ""
        queue = None
        if self.queue_by:
            # A JSON text may have half of a surrogate pair.
            named = _text(fields, self.queue_by).encode("utf-8", "surrogatepass")
            queue = crc32(named) % self.queues
        return Message(topic, body, queue=queue, tag=tag, keys=keys)


def _text(fields: Mapping[str, Any], name: str) -> str:
    """Return a field as text, empty for null."""
    found = _texts(fields, name)
    if len(found) != 1:
        raise ColumnError(name, f"is a list of {len(found)} values, and must be one")
    return found[0]


def _keys(fields: Mapping[str, Any], name: str) -> list[str]:
    found = [text for text in _texts(fields, name) if text.strip(" ")]
    if len(found) > 1:
        joined_keys(found, name)
    return found


def _texts(fields: Mapping[str, Any], name: str) -> list[str]:
    """Return a field's value, or the values of its list, as texts."""
    plain_name, _, part = name.partition(":")
    if plain_name not in fields:
        raise ColumnError(plain_name, f"is not there; the row has: {', '.join(map(str, fields))}")
    value = fields[plain_name]
    texts = [_text_of(plain_name, each) for each in (value if isinstance(value, list) else [value])]
    if part == "suffix":
        return [PurePosixPath(text).suffix.removeprefix(".") for text in texts]
    if part:
        raise ColumnError(name, "is not known: the only part that can be selected is ':suffix'")
    return texts


def _text_of(name: str, value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    try:
        return plain(value)
    except (TypeError, ValueError) as error:
        raise ColumnError(name, f"cannot be a key, tag, topic or queue: {error}") from error


@attrs.frozen(kw_only=True)
class ImportOptions:
    """How the rows of a file become messages.

    Attributes:
        whole: store whole rows, of a file that knows nothing of messages; None if its columns are fields of messages.
        kind: the format, one of `formats.FORMATS`; by the file's name if None. Whole rows may also be `formats.LINES`,
            which is then meant by any other name.
        topic: replaces the topic of every row.
        columns: names of the file's columns by the fields that they mean, for example `{"body": "text"}`.
        ignore_unknown: leave out columns that are not fields of a message; they are refused otherwise.
        skip_bad: skip rows that cannot be stored; the import ends at the first one otherwise.
        from_row: number of the first row to store, as errors give it: for NDJSON the line, else the row after a header.
        restart: begin with the first row, whatever earlier imports of this file have stored.
    """

    whole: WholeRows | None = None
    kind: str | None = None
    topic: str | None = None
    columns: Mapping[str, str] = attrs.Factory(dict)
    ignore_unknown: bool = False
    skip_bad: bool = False
    from_row: int = 1
    restart: bool = False

    def identity(self) -> object:
        """Return what distinguishes this import from others of the same file."""
        if self.whole is not None:
            return ["ingest", self.kind, attrs.asdict(self.whole)]
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
        resumed_at: rows that earlier calls had processed.
        topics: messages stored by this call, by topic.
        assigned_anew: the fields that the store has assigned anew.
    """

    path: str
    format: str
    stored: int
    stored_before: int
    skipped: int
    rows: int
    resumed_at: int
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
        path: a file that `export_messages` wrote, or any with such columns; `topic` and `body` are required.
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
    """Store the rows of an open file; like `import_file`, but an import from a pipe or `-` cannot be continued."""
    asked = options or ImportOptions()
    arguments.whole("import_stream", "from_row", asked.from_row, 1)
    is_whole = asked.whole is not None
    names = None if is_whole else ColumnNames(asked.columns, ignores_unknown=asked.ignore_unknown)
    kind = kind_of(path, asked.kind, LINES if is_whole else None)
    loader = Loader(store, file, path, asked, hooks or Hooks())
    limit = row_bytes_max(store.lowlevel.body_bytes_max)

    def rows() -> Iterator[LoadRow]:
        skip = asked.from_row - 1
        for row in file_rows(file, path, kind, names, skip=skip, line_bytes_max=limit):
            yield _load_row(row, asked)

    loader.load(rows)
    return ImportSummary(
        path=path, format=kind.format, stored=loader.reached.stored - loader.before.stored,
        stored_before=loader.before.stored, skipped=loader.reached.skipped, rows=loader.reached.rows,
        resumed_at=loader.before.rows, topics=dict(sorted(loader.topics.items())),
    )  # fmt: skip


def _load_row(row: FileRow, options: ImportOptions) -> LoadRow:
    if row.fields is None:
        return LoadRow(row.number, row.where, None, row.error, row.whole, str(row.error))
    if options.whole is not None:
        try:
            whole = Put(options.whole.message(row.fields, row.whole), None)
        except MessageError as error:
            return LoadRow(row.number, row.where, None, error, row.whole)
        return LoadRow(row.number, row.where, whole, None, row.whole)
    body = row.fields.get("body") or b""
    facts = repr({name: value for name, value in row.fields.items() if name != "body"})
    try:
        put = put_of(row.fields, options.topic)
    except MessageError as error:
        return LoadRow(row.number, row.where, None, error, body, facts)
    return LoadRow(row.number, row.where, put, None, body, facts)


_TEXT = {NDJSON: ndjson_rows, CSV: csv_rows, LINES: line_rows}


def file_rows(
    file: BinaryIO,
    path: str,
    kind: FileFormat,
    names: ColumnNames | None,
    *,
    skip: int,
    line_bytes_max: int,
) -> Iterator[FileRow]:
    """Yield the rows of an open file after the first `skip`; raises `ImportFileError` if the file is not valid.

    `path` names the file in errors; `names` tell what the names of its columns mean, None reads the rows whole.
    """
    read = _TEXT.get(kind.format)
    if read is not None:
        plain = plain_text(file, path, is_gzip=kind.is_gzip)
        try:
            yield from read(plain, path, names, skip=skip, line_bytes_max=line_bytes_max)
        except (EOFError, OSError, zlib.error) as error:
            # What `gzip` raises has no number.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise ImportFileError(
                path, "", f"it is not a gzip file, or it is truncated or corrupt: {error}"
            ) from error
        return
    # pyarrow is an extra; this raises `MissingExtraError` if it is not installed.
    arrow_files = import_module("penstock_tools.exchange.arrow_files")
    if kind.format != "parquet":
        yield from arrow_files.arrow_rows(file, path, names, skip=skip)
    elif file.seekable():
        yield from arrow_files.parquet_rows(file, path, names, skip=skip)
    else:
        raise ConfigError("Parquet cannot be read from a pipe: write it to a file first")


class Loader:
    """Stores the rows of one source, once. Not thread-safe.

    Args:
        store: the store, open for writing.
        file: the source; a load from a pipe, or from standard input, is not noted and cannot be continued.
        path: its name; `-` for standard input.
        options: what distinguishes this load from others of its source, and what to do with rows that cannot be stored.
        hooks: called during the work.

    Attributes:
        before: how far earlier loads of this source came.
        reached: how far it is loaded now.
        topics: messages stored by this load, by topic.
    """

    def __init__(
        self, store: Store, file: BinaryIO, path: str, options: ImportOptions, hooks: Hooks
    ) -> None:
        self._store = store
        self._options = options
        self._hooks = hooks
        self._file = file
        self._path = path
        self._note: SourceNote | None = None
        if path != STANDARD and file.seekable():
            facts = json.dumps([str(Path(path).resolve()), options.identity()], sort_keys=True)
            self._note = SourceNote(store.path, facts.encode(), store.lowlevel.files)
        self._start = Reached(rows=options.from_row - 1, source=path)
        self.before = self.reached = self._start
        self.topics: Counter[str] = Counter()
        self._digest = hashlib.blake2b(digest_size=16)
        self._unnoted_rows = self._unnoted_bytes = 0
        self._is_storing = False

    @property
    def is_noted(self) -> bool:
        """Whether a second load of the same source continues this one."""
        return self._note is not None

    def load(self, rows_of: Callable[[], Iterator[LoadRow]]) -> None:
        """Store all rows that are not stored yet.

        Args:
            rows_of: returns the rows from the first one to store on, as the file has them from where it is.
        """
        # The store refuses here, before the source is read, if it cannot be written.
        self._store.flush()
        rows = self._remaining(rows_of)
        try:
            self._store_all(rows)
        except BaseException as error:
            self._stop(error)
            raise
        self._end()

    def _remaining(self, rows_of: Callable[[], Iterator[LoadRow]]) -> Iterator[LoadRow]:
        """Return the rows that are not stored, and note where in the log they will be."""
        found = None
        if self._note is not None and not self._options.restart:
            found = self._note.read()
        begin = self._file.tell() if found is not None else 0
        rows = rows_of()
        if found is not None:
            if self._begins_with(rows, found):
                self.reached = found
                if not found.is_exact:
                    rows = self._after_stored(rows, found.log_offset)
                logger.info("%d rows of %s are processed already", self.reached.rows, self._path)
            elif found.is_complete:
                logger.warning(
                    "%s has changed in the rows that an earlier run stored: it counts as another source, and is stored "
                    "from its first row", self._path,
                )  # fmt: skip
                self._digest = hashlib.blake2b(digest_size=16)
                self._file.seek(begin)
                rows = rows_of()
            else:
                raise ImportFileError(
                    self._path, "",
                    f"it has changed: its first {found.rows} rows were processed by an earlier run, which was "
                    "interrupted, and they are not the same now. Nothing was stored. --restart begins with the first "
                    "row",
                )  # fmt: skip
        self.before = self.reached
        self._write_note()
        return rows

    def _begins_with(self, rows: Iterator[LoadRow], found: Reached) -> bool:
        """Read the rows of a note, and return whether they are the same."""
        number = self._start.rows
        while number < found.rows and (row := next(rows, None)) is not None:
            self._add_to_digest(row)
            number = row.number
        return number == found.rows and self._digest.hexdigest() == found.digest

    def _after_stored(self, rows: Iterator[LoadRow], log_offset: int) -> Iterator[LoadRow]:
        """Count the rows that are stored already, and return the others.

        Rows are stored in their order, so the stored ones are the first, and the log has them in the same order. A
        row that cannot be stored counts as processed if a later one is stored.
        """
        waiting: list[LoadRow] = []
        row = None
        for message in stored_from(self._store, log_offset):
            if row is None:
                row = self._next_row(rows, message, waiting)
            if row is None:
                break
            if _is_same(row, message):
                for bad in waiting[:-1]:
                    self._count([bad], is_stored=False)
                self._count([row], is_stored=True)
                waiting.clear()
                row = None
        return itertools.chain(waiting, rows)

    def _next_row(
        self, rows: Iterator[LoadRow], message: StoredMessage, waiting: list[LoadRow]
    ) -> LoadRow | None:
        """Return the next row that can be stored; it and the bad ones before it are added to `waiting`.

        That a row can be stored is not asked if this is its message: another process may have to answer.
        """
        for row in rows:
            waiting.append(row)
            if _is_same(row, message) or not self._is_bad(row):
                return row
        return None

    def _is_bad(self, row: LoadRow) -> bool:
        """Return whether the store refuses a row."""
        if row.put is None:
            return True
        try:
            self._store.lowlevel.check(*row.put)
        except MessageError:
            return True
        return False

    def _store_all(self, rows: Iterator[LoadRow]) -> None:
        for group in batches_of(rows, lambda row: len(row.body)):
            with self._hooks.guard():
                self._is_storing = True
                self._store_group(group)
                self._is_storing = False
                self._hooks.on_progress(self._position(), group[-1].number)
            if self._unnoted_rows >= _NOTE_ROWS or self._unnoted_bytes >= _NOTE_BYTES:
                self._write_note()

    def _position(self) -> int:
        """Return the number of bytes read so far, approximately."""
        return self._file.tell() if self._file.seekable() else 0

    def _store_group(self, group: list[LoadRow]) -> None:
        """Store rows; those of one kind that follow each other are appended together."""
        for kind, rows in itertools.groupby(group, _kind):
            run = list(rows)
            if kind == _BAD:
                for row in run:
                    self._refuse(row, row.error or MessageError("the row is not valid"))
            else:
                self._append(run, is_plain=kind == _PLAIN)

    def _append(self, run: list[LoadRow], *, is_plain: bool) -> None:
        puts = [row.put for row in run if row.put is not None]
        try:
            if is_plain:
                messages = [put.message for put in puts]
                places = [(message.topic, message.queue) for message in messages]
                with_queues(
                    self._store.lowlevel.add_queue, places, lambda: self._store.put_many(messages)
                )
            else:
                self._store.lowlevel.put_copies([(put.message, put.text or b"") for put in puts])
        except MessageError as error:
            if len(run) == 1:
                self._refuse(run[0], error)
                return
            # Nothing of them is stored. One by one, it shows which row it is.
            for row in run:
                self._append([row], is_plain=is_plain)
            return
        self._count(run, is_stored=True)
        self.topics.update([put.message.topic for put in puts])

    def _refuse(self, row: LoadRow, error: MessageError) -> None:
        """Skip a row that cannot be stored, or raise why."""
        if self._options.skip_bad:
            logger.info("a row is skipped: %s: %s", row.where, error)
            self._hooks.on_skip(row.where, error)
            self._count([row], is_stored=False)
            return
        # All rows before it are counted, and nothing of it is stored.
        self._is_storing = False
        goes_on = (
            "run the same command again" if self.is_noted else "give the rows from this one on"
        )
        raise ImportFileError(
            self._path, row.where,
            f"{error}. The rows before it are stored, this one and those after it are not: correct it and {goes_on}, "
            "or skip such rows with --skip-bad",
        ) from error  # fmt: skip

    def _count(self, rows: Sequence[LoadRow], *, is_stored: bool) -> None:
        for row in rows:
            self._add_to_digest(row)
        reached, count = self.reached, len(rows)
        self.reached = attrs.evolve(
            reached, rows=rows[-1].number, stored=reached.stored + count * is_stored,
            skipped=reached.skipped + count * (not is_stored),
        )  # fmt: skip
        self._unnoted_rows += count
        self._unnoted_bytes += sum(len(row.body) for row in rows)

    def _add_to_digest(self, row: LoadRow) -> None:
        facts = row.facts.encode("utf-8", "surrogatepass")
        self._digest.update(b"%d,%d:%b%b" % (len(facts), len(row.body), facts, row.body))

    def _stop(self, error: BaseException) -> None:
        """Note how far the load came, if that is known; what is not noted is found in the log by the next one."""
        if self._note is None:
            return
        if not self._is_storing:
            with suppress(PenstockError, OSError):
                self._write_note(is_exact=True)
        if isinstance(error, PenstockError | OSError) and not isinstance(error, ImportFileError):
            error.add_note(
                f"{self.reached.rows} rows of {self._path} are processed; run the same command again to continue"
            )

    def _end(self) -> None:
        """Note that the source is stored whole."""
        self._write_note(is_exact=True, is_complete=True)

    def _write_note(self, *, is_exact: bool = False, is_complete: bool = False) -> None:
        """Make everything durable, then note it."""
        self.reached = attrs.evolve(
            self.reached, log_offset=self._store.flush(), digest=self._digest.hexdigest(), source=self._path,
            is_exact=is_exact, is_complete=is_complete,
        )  # fmt: skip
        self._unnoted_rows = self._unnoted_bytes = 0
        if self._note is not None:
            self._note.write(self.reached)
            logger.debug("%d rows of %s are stored durably", self.reached.rows, self._path)


_BAD, _PLAIN, _RECORD = range(3)


def _kind(row: LoadRow) -> int:
    if row.put is None:
        return _BAD
    return _PLAIN if row.put.text is None else _RECORD


def _is_same(row: LoadRow, message: StoredMessage) -> bool:
    return row.put is not None and is_stored_as(row.put, message)
