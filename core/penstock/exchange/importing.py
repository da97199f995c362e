"""Import: the rows of a file as messages in a store, each once, also if the import is interrupted and run again.

`loading` stores the rows and notes how far it came.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from zlib import crc32

import attrs

from penstock.errors import ConfigError, MessageError
from penstock.exchange.formats import LINES, kind_of
from penstock.exchange.loading import Guard, Loader, LoadOptions, LoadRow, OnSkip
from penstock.exchange.rows import ASSIGNED_ANEW, ColumnError, Put, put_of
from penstock.exchange.source_file import SourceFile
from penstock.exchange.text_files import ColumnNames, FileRow, joined_keys, plain, row_bytes_max
from penstock.message import Message
from penstock.store.store import Store

OnProgress = Callable[[int, int], None]


@attrs.frozen(kw_only=True)
class Hooks:
    """The callbacks of an import.

    Attributes:
        on_progress: called with the bytes of the file read so far, and the rows processed.
        on_skip: called for each row that is skipped, with where it is and why.
        guard: entered for each batch that is stored, counted and reported; it can delay an interrupt until both are done.
    """

    on_progress: OnProgress = lambda _done, _rows: None
    on_skip: OnSkip = lambda _where, _error: None
    guard: Guard = nullcontext


@attrs.frozen(kw_only=True)
class WholeRows:
    """Makes whole rows messages: the body is the line, or the row as JSON; topic, keys, tag and queue come from its fields.

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
        queue = (
            crc32(_text(fields, self.queue_by).encode()) % self.queues if self.queue_by else None
        )
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
        kind: the format, one of `formats.FORMATS`; by the file's name if None. Whole rows may also be `formats.LINES`, which
            is then meant by any other name.
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
    is_whole = asked.whole is not None
    names = None if is_whole else ColumnNames(asked.columns, ignores_unknown=asked.ignore_unknown)
    kind = kind_of(path, asked.kind, LINES if is_whole else None)
    source = SourceFile(file, path, kind, names)
    called = hooks or Hooks()
    loader = Loader(store, file, path, LoadOptions(
        identity=asked.identity(), skip_bad=asked.skip_bad, restart=asked.restart, first=asked.from_row,
        on_batch=lambda row: called.on_progress(source.position, row.number),
        on_skip=called.on_skip, guard=called.guard,
    ))  # fmt: skip
    limit = row_bytes_max(store.lowlevel.body_bytes_max)

    def rows() -> Iterator[LoadRow]:
        for row in source.rows(asked.from_row - 1, limit):
            yield _load_row(row, asked)

    loader.load(rows)
    return ImportSummary(
        path=path, format=source.kind.format, stored=loader.reached.stored - loader.before.stored,
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
