"""The verb `ingest`: loads lines, NDJSON, CSV and Parquet into a store."""

import csv
import io
import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple
from zlib import crc32

import attrs
import click

import penstock
from penstock.cli.output import Bar, chosen, note, out_json, quiet_option, settings_options
from penstock.cli.root import INTERRUPTED, examples, interrupts_wait
from penstock.errors import MessageError, MissingExtraError
from penstock.message import Message
from penstock.store.store import Store

BATCH = 2000
FORMATS = ("lines", "ndjson", "csv", "parquet")
_ENDINGS = {".ndjson": "ndjson", ".jsonl": "ndjson", ".csv": "csv", ".parquet": "parquet"}


class Row(NamedTuple):
    """One row to store: its body, its fields, and how many bytes of the source were read so far."""

    body: bytes
    fields: Mapping[str, Any]
    read_bytes: int


@attrs.frozen(kw_only=True)
class IngestPlan:
    """Which fields of a row become topic, keys, tag and queue."""

    topic: str
    topic_field: str | None
    key_fields: Sequence[str]
    tag_field: str | None
    queue_by: str | None
    queues: int

    def message(self, row: Row) -> Message:
        """Return the message for a row."""
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


def rows_of(file: BinaryIO, kind: str) -> Iterator[Row | MessageError]:
    """Yield the rows of a source; an invalid line is yielded as its error."""
    if kind == "csv":
        yield from _csv_rows(file)
    elif kind == "parquet":
        yield from _parquet_rows(file)
    else:
        done = 0
        for number, line in enumerate(file, 1):
            done += len(line)
            body = line.rstrip(b"\r\n")
            fields = {"line": body.decode("utf-8", "replace"), "number": number}
            try:
                yield Row(body, _json_fields(body, number) if kind == "ndjson" else fields, done)
            except MessageError as error:
                yield error


def _json_fields(body: bytes, number: int) -> Mapping[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"line {number} is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise MessageError(f"line {number} is not a JSON object")
    return fields


def _csv_rows(file: BinaryIO) -> Iterator[Row]:
    counted = _Counted(file)
    reader = csv.DictReader(
        io.TextIOWrapper(io.BufferedReader(counted), encoding="utf-8-sig", newline="")
    )
    for fields in reader:
        yield Row(json.dumps(fields, ensure_ascii=False).encode(), fields, counted.count)


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


def _parquet_rows(file: BinaryIO) -> Iterator[Row]:
    try:
        from pyarrow import parquet  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError("pyarrow", "arrow", "reading Parquet") from error
    source = parquet.ParquetFile(file if file.seekable() else io.BytesIO(file.read()))
    for batch in source.iter_batches(BATCH):
        for fields in batch.to_pylist():
            yield Row(json.dumps(fields, ensure_ascii=False, default=str).encode(), fields, 0)


class Loader:
    """Stores rows in batches, and counts them. Not thread-safe."""

    def __init__(self, store: Store, plan: IngestPlan, *, skip: bool) -> None:
        self._store = store
        self._plan = plan
        self._skip = skip
        self.stored = 0
        self.skipped = 0

    def load(self, rows: Iterator[Row | MessageError], bar: Bar) -> None:
        """Store all rows; rows stored before an interrupt stay stored."""
        while True:
            group, problem = self._next_group(rows)
            if group:
                self._store_group([message for message, _ in group])
                bar.set(group[-1][1], self.stored)
            if problem is not None:
                self._skip_or_raise(problem)
            elif not group:
                return

    def _next_group(
        self, rows: Iterator[Row | MessageError]
    ) -> tuple[list[tuple[Message, int]], MessageError | None]:
        """Return the next messages, and the error that ended the group early, if any."""
        group: list[tuple[Message, int]] = []
        for row in itertools.islice(rows, BATCH):
            if isinstance(row, MessageError):
                return group, row
            try:
                group.append((self._plan.message(row), row.read_bytes))
            except MessageError as error:
                return group, error
        return group, None

    def _store_group(self, messages: list[Message]) -> None:
        try:
            with interrupts_wait():
                self.stored += len(self._store.put_many(messages))
        except MessageError:
            self._store_singly(messages)

    def _store_singly(self, messages: list[Message]) -> None:
        for message in messages:
            try:
                with interrupts_wait():
                    self._store.put_many([message])
                    self.stored += 1
            except MessageError as error:
                self._skip_or_raise(error)

    def _skip_or_raise(self, error: MessageError) -> None:
        if not self._skip:
            error.add_note(
                "stopped at this row; rows before it are stored. Use --skip-bad to skip such rows"
            )
            raise error
        self.skipped += 1


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
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@quiet_option
@settings_options
def command(
    path: str,
    source: str,
    kind: str | None,
    skip_bad: bool,
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
    """
    if not plan["topic"] and not plan["topic_field"]:
        raise click.UsageError("give --topic, --topic-field or both")
    if plan["queues"] < 1:
        raise click.UsageError("--queues must be at least 1")
    kind = kind or _ENDINGS.get(Path(source).suffix, "lines")
    interrupted = False
    with _open_source(source) as file:
        total = Path(source).stat().st_size if source != "-" and kind != "parquet" else None
        with penstock.open(path, config, **chosen(settings, broker_conf)) as store:
            loader = Loader(store, IngestPlan(**plan), skip=skip_bad)
            try:
                with Bar("ingest", total, "messages", quiet=quiet) as bar:
                    loader.load(rows_of(file, kind), bar)
            except KeyboardInterrupt:
                interrupted = True
            finally:
                _print_summary(loader, path, as_json=as_json, quiet=quiet)
    return INTERRUPTED if interrupted else 0


def _open_source(source: str) -> BinaryIO:
    return sys.stdin.buffer if source == "-" else Path(source).open("rb")


def _print_summary(loader: Loader, path: str, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        out_json(path=path, stored=loader.stored, skipped=loader.skipped)
    elif not quiet:
        note(f"stored {loader.stored:,} messages in {path}, skipped {loader.skipped:,}")
