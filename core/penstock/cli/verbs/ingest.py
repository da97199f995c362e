"""The verb `ingest`: loads lines, NDJSON, CSV and Parquet into a store."""

import csv
import io
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple
from zlib import crc32

import attrs
import click

import penstock
from penstock.cli.ingest_progress import IngestProgress, Row, Rows
from penstock.cli.output import Bar, chosen, note, out_json, quiet_option, settings_options
from penstock.cli.root import INTERRUPTED, examples, interrupts_wait
from penstock.errors import MessageError, MissingExtraError, PenstockError
from penstock.escape import get_logger
from penstock.message import Message

if TYPE_CHECKING:
    from penstock.store.store import Store

logger = get_logger(__name__)

BATCH = 2000
# After so many batches it is noted how far the source is stored: that costs a sync.
_NOTED_AFTER = 50
FORMATS = ("lines", "ndjson", "csv", "parquet")
_ENDINGS = {".ndjson": "ndjson", ".jsonl": "ndjson", ".csv": "csv", ".parquet": "parquet"}


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


def rows_of(file: BinaryIO, kind: str, on_total: Callable[[int], None] = lambda _: None) -> Rows:
    """Yield the rows of a source; an invalid line is yielded as its error.

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


def _parquet_rows(file: BinaryIO, on_total: Callable[[int], None]) -> Iterator[Row]:
    try:
        from pyarrow import parquet  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError("pyarrow", "arrow", "reading Parquet") from error
    source = parquet.ParquetFile(file if file.seekable() else io.BytesIO(file.read()))
    on_total(source.metadata.num_rows)
    done = 0
    for batch in source.iter_batches(BATCH):
        for fields in batch.to_pylist():
            done += 1
            yield Row(json.dumps(fields, ensure_ascii=False, default=str).encode(), fields, done)


class _Refused(NamedTuple):
    """A row that becomes no message, and why."""

    error: MessageError
    row: Row


class Loader:
    """Stores rows in batches, and counts them. Not thread-safe."""

    def __init__(
        self, store: "Store", plan: IngestPlan, progress: IngestProgress | None, *, skip: bool
    ) -> None:
        self._store = store
        self._plan = plan
        self._progress = progress
        self._skip = skip
        self.stored = 0
        self.skipped = 0
        self.resumed_at = 0

    def load(self, rows: Rows, bar: Bar, *, restart: bool) -> None:
        """Store all rows that no earlier run has stored; rows stored before an interrupt stay stored."""
        progress = self._progress
        if progress is None:
            self._store_all(rows, bar)
            return
        rows = progress.begin(rows, self._message_or_none, restart=restart)
        self.resumed_at = progress.position.rows
        try:
            self._store_all(rows, bar)
        except BaseException:
            # What is not noted now, on a full disk for example, is found in the log by the next run.
            with suppress(PenstockError, OSError):
                progress.write(is_exact=True)
            raise
        progress.end()

    def _store_all(self, rows: Rows, bar: Bar) -> None:
        for number in itertools.count(1):
            group, problem = self._next_group(rows)
            if group:
                self._store_group(group)
                bar.set(group[-1][1].done, self.stored)
            if problem is not None:
                self._skip_or_raise(problem)
                self._advance(problem)
            elif not group:
                return
            if number % _NOTED_AFTER == 0 and self._progress is not None:
                self._progress.write(is_exact=False)

    def _message_or_none(self, row: Row) -> Message | None:
        """Return the message for a row; None for one that the store refuses."""
        try:
            message = self._plan.message(row)
            self._store.check(message)
        except MessageError:
            return None
        return message

    def _next_group(
        self, rows: Rows
    ) -> tuple[list[tuple[Message, Row]], "MessageError | _Refused | None"]:
        """Return the next messages, and the row or error that ended the group early, if any."""
        group: list[tuple[Message, Row]] = []
        for row in itertools.islice(rows, BATCH):
            if isinstance(row, MessageError):
                return group, row
            try:
                group.append((self._plan.message(row), row))
            except MessageError as error:
                return group, _Refused(error, row)
        return group, None

    def _store_group(self, group: list[tuple[Message, Row]]) -> None:
        try:
            with interrupts_wait():
                self.stored += len(self._store.put_many([message for message, _ in group]))
                for _, row in group:
                    self._advance(row)
        except MessageError:
            self._store_singly(group)

    def _store_singly(self, group: list[tuple[Message, Row]]) -> None:
        for message, row in group:
            try:
                with interrupts_wait():
                    self._store.put_many([message])
                    self.stored += 1
                    self._advance(row)
            except MessageError as error:
                self._skip_or_raise(error)
                self._advance(row)

    def _advance(self, row: "Row | MessageError | _Refused") -> None:
        if self._progress is not None:
            self._progress.position.advance(row.row if isinstance(row, _Refused) else row)

    def _skip_or_raise(self, problem: "MessageError | _Refused") -> None:
        error = problem.error if isinstance(problem, _Refused) else problem
        if not self._skip:
            error.add_note(
                "stopped at this row; rows before it are stored. Use --skip-bad to skip such rows"
            )
            raise error
        logger.info("a row is skipped: %s", error)
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
@click.option(
    "--restart",
    is_flag=True,
    help="Begin with the first row, even if an earlier run was interrupted; the rows it stored are stored again.",
)
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
    Standard input always begins anew.
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
            progress = None
            if source != "-":
                progress = IngestProgress(store, Path(source), {"format": kind, **plan})
            loader = Loader(store, IngestPlan(**plan), progress, skip=skip_bad)
            try:
                with Bar("ingest", total, "messages", quiet=quiet) as bar:
                    loader.load(rows_of(file, kind, bar.total), bar, restart=restart)
            except KeyboardInterrupt:
                interrupted = True
            finally:
                _print_summary(loader, path, as_json=as_json, quiet=quiet)
    return INTERRUPTED if interrupted else 0


def _open_source(source: str) -> BinaryIO:
    return sys.stdin.buffer if source == "-" else Path(source).open("rb")


def _print_summary(loader: Loader, path: str, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        out_json(
            path=path,
            stored=loader.stored,
            skipped=loader.skipped,
            resumed_at=loader.resumed_at,
        )
    elif not quiet:
        before = (
            f", after the {loader.resumed_at:,} rows of an earlier run" if loader.resumed_at else ""
        )
        note(f"stored {loader.stored:,} messages in {path}{before}, skipped {loader.skipped:,}")
