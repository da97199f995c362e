"""The verb `ingest`: loads lines, NDJSON, CSV and Parquet into a store."""

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple
from zlib import crc32

import attrs
import click

import penstock
from penstock.cli.output import (
    NOTHING_NEW,
    Bar,
    chosen,
    counted,
    note,
    out_json,
    quiet_option,
    restart_option,
    settings_options,
)
from penstock.cli.root import INTERRUPTED, examples, interrupts_wait
from penstock.errors import MessageError, MissingExtraError
from penstock.exchange.formats import STANDARD
from penstock.exchange.loading import Loader, LoadOptions, LoadRow
from penstock.exchange.rows import Put
from penstock.exchange.text_files import json_object
from penstock.message import Message

_PARQUET_ROWS = 2000
FORMATS = ("lines", "ndjson", "csv", "parquet")
_ENDINGS = {".ndjson": "ndjson", ".jsonl": "ndjson", ".csv": "csv", ".parquet": "parquet"}


class Row(NamedTuple):
    """One row to store: its body, its fields, where it is, and how far that is in the source, in bytes or in rows."""

    body: bytes
    fields: Mapping[str, Any] | MessageError
    where: str
    done: int


@attrs.frozen(kw_only=True)
class IngestPlan:
    """Which fields of a row become topic, keys, tag and queue."""

    topic: str
    topic_field: str | None
    key_fields: Sequence[str]
    tag_field: str | None
    queue_by: str | None
    queues: int

    def load_row(self, number: int, row: Row) -> LoadRow:
        """Return a row with the message for it, or with the error."""
        try:
            put, error = Put(self._message(row), None), None
        except MessageError as refused:
            put, error = None, refused
        return LoadRow(number, row.where, put, error, row.body, "", row.done)

    def _message(self, row: Row) -> Message:
        if isinstance(row.fields, MessageError):
            raise row.fields
        topic = self.topic
        if self.topic_field is not None:
            topic += field_text(row.fields, self.topic_field)
        keys = [
            text for name in self.key_fields if (text := field_text(row.fields, name)).strip(" ")
        ]
        tag = field_text(row.fields, self.tag_field) if self.tag_field else ""
        queue = 0
        if self.queue_by is not None:
            queue = crc32(field_text(row.fields, self.queue_by).encode()) % self.queues
        return Message(topic, row.body, queue=queue, tag=tag, keys=keys)


def field_text(fields: Mapping[str, Any], name: str) -> str:
    """Return a field as text, empty for null; `field:suffix` returns the file name extension of a path."""
    plain, _, part = name.partition(":")
    if plain not in fields:
        raise MessageError(
            f"the row has no field {plain!r}; its fields are: {', '.join(map(str, fields))}"
        )
    value = fields[plain]
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
    if part == "suffix":
        return PurePosixPath(text.strip('"')).suffix.removeprefix(".")
    if part:
        raise MessageError(f"field {name!r}: the only part that can be selected is ':suffix'")
    return text


def rows_of(
    file: BinaryIO, kind: str, on_total: Callable[[int], None] = lambda _: None
) -> Iterator[Row]:
    """Yield the rows of a source; an invalid line has its error in place of the fields.

    `on_total` is called with the number of rows, if the source states it; `Row.done` counts rows then, else bytes.
    """
    if kind == "csv":
        yield from _csv_rows(file)
    elif kind == "parquet":
        yield from _parquet_rows(file, on_total)
    else:
        done = 0
        for number, line in enumerate(file, 1):
            done += len(line)
            body = line.rstrip(b"\r\n")
            fields = _json_fields(body) if kind == "ndjson" else _line_fields(body, number)
            yield Row(body, fields, f"line {number}", done)


def _line_fields(body: bytes, number: int) -> Mapping[str, Any]:
    return {"line": body.decode("utf-8", "replace"), "number": number}


def _json_fields(body: bytes) -> Mapping[str, Any] | MessageError:
    try:
        return json_object(body)
    except MessageError as error:
        return error


def _csv_rows(file: BinaryIO) -> Iterator[Row]:
    counted = _Counted(file)
    reader = csv.DictReader(
        io.TextIOWrapper(io.BufferedReader(counted), encoding="utf-8-sig", newline="")
    )
    for fields in reader:
        body = json.dumps(fields, ensure_ascii=False).encode()
        yield Row(body, fields, f"line {reader.line_num}", counted.count)


class _Counted(io.RawIOBase):
    """Counts the bytes read from a source."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self.count += len(data)
        return len(data)


def _parquet_rows(file: BinaryIO, on_total: Callable[[int], None]) -> Iterator[Row]:
    try:
        from pyarrow import parquet  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError("pyarrow", "arrow", "reading Parquet") from error
    source = parquet.ParquetFile(file if file.seekable() else io.BytesIO(file.read()))
    on_total(source.metadata.num_rows)
    done = 0
    for batch in source.iter_batches(_PARQUET_ROWS):
        for fields in batch.to_pylist():
            done += 1
            body = json.dumps(fields, ensure_ascii=False, default=str).encode()
            yield Row(body, fields, f"row {done}", done)


@click.command(
    "ingest",
    epilog=examples(
        "penstock ingest data events.ndjson --topic events --key-field id --tag-field kind",
        "cat access.log | penstock ingest data - --topic access --queues 4 --queue-by line",
    ),
)
@click.argument("path", type=click.Path())
@click.argument("source", type=click.Path())
@click.option("--topic", default="", help="The topic; with --topic-field, a prefix of the topic.")
@click.option("--topic-field", default=None, help="The field that names the topic.")
@click.option(
    "--key-field",
    "key_fields",
    multiple=True,
    help="A field to use as a message key; may be given more than once.",
)
@click.option(
    "--tag-field",
    default=None,
    help="The field to use as the tag; FIELD:suffix is the file name extension of a path.",
)
@click.option("--queue-by", default=None, help="The field whose hash picks the queue.")
@click.option("--queues", default=4, show_default=True, help="Number of queues for --queue-by.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(FORMATS),
    default=None,
    help="The source's format; by default from the file name extension.",
)
@click.option("--skip-bad", is_flag=True, help="Skip rows that cannot be stored.")
@restart_option
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@quiet_option
@settings_options
def command(
    path: str,
    source: str,
    kind: str | None,
    skip_bad: bool,
    restart: bool,
    as_json: bool,
    quiet: bool,
    settings: tuple[str, ...],
    config: str | None,
    broker_conf: str | None,
    **plan: Any,
) -> int:
    """Put every row of SOURCE (a file, or - for standard input) into the store at PATH.

    The body of a message is the unchanged line; for CSV and Parquet it is the row as JSON. Ctrl-C stops
    cleanly; rows stored before it stay stored.

    If a file was not stored to its end, because of Ctrl-C, a full disk or a crash, the same command goes on
    where it stopped, and stores no row twice. It is an error if the rows before that have changed since.
    After a file was stored whole, only rows that were appended to it are stored. Standard input is always loaded from its first row.
    """
    if not plan["topic"] and not plan["topic_field"]:
        raise click.UsageError("give --topic, --topic-field or both")
    if plan["queues"] < 1:
        raise click.UsageError("--queues must be at least 1")
    kind = kind or _ENDINGS.get(Path(source).suffix, "lines")
    interrupted = False
    with (
        _open_source(source) as file,
        penstock.open(path, config, **chosen(settings, broker_conf)) as store,
    ):
        total = Path(source).stat().st_size if source != STANDARD and kind != "parquet" else None
        bar = Bar("ingest", total, "messages", quiet=quiet)

        def on_batch(row: LoadRow) -> None:
            bar.set(row.done, loader.reached.stored - loader.before.stored)

        loader = Loader(store, file, source, LoadOptions(
            identity=["ingest", kind, plan], skip_bad=skip_bad, restart=restart,
            on_batch=on_batch, guard=interrupts_wait,
        ))  # fmt: skip
        try:
            with bar:
                loader.load(_load_rows(file, kind, IngestPlan(**plan), bar))
        except KeyboardInterrupt:
            interrupted = True
        finally:
            _print_summary(loader, path, as_json=as_json, quiet=quiet)
    return INTERRUPTED if interrupted else 0


def _open_source(source: str) -> BinaryIO:
    return sys.stdin.buffer if source == STANDARD else Path(source).open("rb")


def _load_rows(
    file: BinaryIO, kind: str, plan: IngestPlan, bar: Bar
) -> Callable[[], Iterator[LoadRow]]:
    def rows() -> Iterator[LoadRow]:
        for number, row in enumerate(rows_of(file, kind, bar.total), 1):
            yield plan.load_row(number, row)

    return rows


def _print_summary(loader: Loader, path: str, *, as_json: bool, quiet: bool) -> None:
    before, reached = loader.before, loader.reached
    stored, skipped = reached.stored - before.stored, reached.skipped - before.skipped
    if as_json:
        out_json(path=path, stored=stored, skipped=skipped, resumed_at=before.rows)
    elif not quiet:
        after = f", after {counted(before.rows, 'row')} of an earlier run" if before.rows else ""
        note(f"stored {counted(stored, 'message')} in {path}{after}, skipped {skipped:,}")
        if before.rows and not stored + skipped:
            note(NOTHING_NEW)
