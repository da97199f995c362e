"""Output shared by the verbs: tables for people, JSON for programs, progress on standard error.

Every verb imports this module, so it imports nothing heavy: rich comes with the first table or progress
bar on a terminal.
"""

import base64
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from penstock.escape import visible, visible_json

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.text import Text

    from penstock.contracts.dispatcher import Finding
    from penstock.message import StoredMessage
    from penstock.store.store import Store

Row = TypeVar("Row")

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per line."
)
restart_option = click.option(
    "--restart",
    is_flag=True,
    help="Begin with the first row, whatever an earlier run has stored; those rows are stored again.",
)
NOTHING_NEW = "all rows were stored before; --restart stores them again"
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Show no progress and no summary.")
_BODY_SHOWN = 80
_PIPE_COLUMNS = 160


class _Limit(click.IntRange):
    """A number of messages, at least 1; a greater one than any store holds means all."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return min(super().convert(value, param, ctx), sys.maxsize)


LIMIT = _Limit(1)


def out(line: str) -> None:
    """Write one line of data; terminal control characters are escaped."""
    sys.stdout.write(visible(line) + "\n")


def out_block(text: str) -> None:
    """Write lines that the program itself laid out; other control characters are escaped."""
    sys.stdout.write(visible(text.rstrip("\n"), keep_lines=True) + "\n")


def note(text: str) -> None:
    """Write one line of text to standard error; terminal control characters are escaped."""
    sys.stderr.write(visible(text) + "\n")


def note_foreign(store: "Store") -> None:
    """Write to standard error which files of the store Penstock does not understand, if they limit reading."""
    stopping = [each.text for each in store.lowlevel.not_understood if each.kind.stops_writing]
    if stopping:
        note(f"not understood, therefore neither shown nor checked: {'; '.join(stopping)}")


def as_json(value: object) -> str:
    """Return one line of JSON that is safe on a terminal and parses to the value."""
    return visible_json(json.dumps(value, ensure_ascii=False, default=str))


def out_json(**facts: object) -> None:
    """Write one line of JSON as data."""
    out(as_json(facts))


def out_finding(finding: "Finding", head: str) -> None:
    """Write a finding as two lines of text that begin with `head`. A note is one line, since it needs no action."""
    where = f" byte {finding.position}" if finding.position >= 0 else ""
    if finding.is_note:
        out(f"note on the {head}: {finding.path}{where}: {finding.text}")
        return
    out(f"{head}: {finding.path}{where}: {finding.text}")
    out(f"    what to do: {finding.what_now}")


def message_facts(message: "StoredMessage") -> dict[str, Any]:
    """Return a message as JSON fields; a body that is not UTF-8 text is returned as `body_base64`."""
    facts: dict[str, Any] = {
        "topic": message.topic,
        "queue": message.queue,
        "queue_offset": message.queue_offset,
        "log_offset": message.log_offset,
        "message_id": message.message_id,
        "store_time_ms": message.store_time_ms,
        "born_time_ms": message.born_time_ms,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": message.properties,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "size": message.size,
    }
    try:
        facts["body"] = message.body.decode()
    except UnicodeDecodeError:
        facts["body_base64"] = base64.b64encode(message.body).decode()
    return facts


def show_messages(
    messages: "Iterable[StoredMessage]", *, json_lines: bool, at_once: bool = False
) -> int:
    """Show messages as they arrive; returns how many. `at_once` flushes the output after each, even into a pipe."""
    count = 0
    for message in messages:
        count += 1
        out(as_json(message_facts(message)) if json_lines else message_line(message))
        if at_once:
            sys.stdout.flush()
    return count


def message_line(message: "StoredMessage", where: str | None = None) -> str:
    """Return a message for people: its time, where it is (or `where`), its tag, and the begin of its body."""
    shown = visible(message.body[: _BODY_SHOWN * 4].decode("utf-8", "replace"))
    shown = shown if len(shown) <= _BODY_SHOWN else shown[: _BODY_SHOWN - 1] + "…"
    where = visible(where or f"{message.topic}/{message.queue}@{message.queue_offset}")
    tag = visible(f"[{message.tag}]") if message.tag else ""
    return f"{time_text(message.store_time_ms)}  {where:<24} {tag:<12} {shown}"


def time_text(time_ms: int) -> str:
    """Return a time in UTC, to the millisecond."""
    try:
        when = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
    return when.strftime("%Y-%m-%d %H:%M:%S.") + f"{time_ms % 1000:03d}Z"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which is a regular one, in singular or plural."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size_text(size: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:  # noqa: PLR2004 - binary units
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Show a table on standard output; numbers are right-aligned, the texts of a list are shown one per line.

    No text in it is interpreted as markup, and terminal control characters are escaped.
    """
    from rich.console import Console  # noqa: PLC0415 - slow to import
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    heading = Text(visible(title)) if title else None
    made = Table(title=heading, title_justify="left", header_style="bold")
    listed = [list(row) for row in rows]
    for index, name in enumerate(columns):
        numeric = bool(listed) and all(isinstance(row[index], int | float) for row in listed)
        made.add_column(
            Text(visible(name)), justify="right" if numeric else "left", overflow="fold"
        )
    for row in listed:
        made.add_row(*map(_cell, row))
    # In a file or a pipe, lines are not folded to the width of a terminal.
    width = None if sys.stdout.isatty() else _PIPE_COLUMNS
    Console(file=sys.stdout, width=width).print(made)


def _cell(value: object) -> "Text":
    from rich.text import Text  # noqa: PLC0415 - slow to import

    if isinstance(value, int):
        return Text(f"{value:,}")
    lines = value if isinstance(value, list) else [value]
    return Text("\n".join(map(visible, lines)))


class Bar:
    """A progress bar with rate and time left, on a terminal; silent otherwise."""

    def __init__(self, what: str, total: int | None, unit: str, *, quiet: bool) -> None:
        self._unit = unit
        self._progress = None if quiet else _progress()
        if self._progress is not None:
            self._task = self._progress.add_task(visible(what), total=total, rate="")

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def set(self, done: int, count: int) -> None:
        """Set the progress: `done` of the total, and the number of items processed."""
        if self._progress is not None:
            elapsed = self._progress.tasks[0].elapsed or 1e-9
            rate = f"{count:,} {self._unit}, {count / elapsed:,.0f}/s"
            total = self._progress.tasks[0].total
            # A store that is written meanwhile may have more than it had at the start.
            shown = done if total is None else min(done, total)
            self._progress.update(self._task, completed=shown, rate=rate)

    def reach(self, done: int, total: int) -> None:
        """Set the progress, where `done` is also the number of items processed, and the total."""
        self.total(total)
        self.set(done, done)

    def total(self, total: int) -> None:
        """Set the total, if it was not known at the start."""
        if self._progress is not None:
            # Nothing to do is not 0 % of it.
            self._progress.update(self._task, total=total or None)


def _progress() -> "Progress | None":
    """Return a display of progress on standard error; None if that is no terminal."""
    if not sys.stderr.isatty() and not {"FORCE_COLOR", "TTY_COMPATIBLE"} & os.environ.keys():
        return None
    from rich import progress  # noqa: PLC0415 - slow to import
    from rich.console import Console  # noqa: PLC0415 - as above

    console = Console(file=sys.stderr)
    if not console.is_terminal:
        return None
    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TextColumn("{task.fields[rate]}", markup=False),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        console=console,
        transient=True,
    )


system_option = click.option(
    "--system", is_flag=True, help="Also topics that RocketMQ keeps for itself, such as SCHEDULE_TOPIC_XXXX."
)  # fmt: skip


def hide_system(rows: list[Row], is_hidden: Callable[[Row], bool], *, shown: bool) -> list[Row]:
    """Return the rows that are not hidden, or all of them; says how many are left out."""
    kept = [row for row in rows if shown or not is_hidden(row)]
    if len(kept) < len(rows):
        left_out = counted(len(rows) - len(kept), "line")
        note(f"{left_out} of system topics left out; --system shows all")
    return kept


def topic_rows(store: "Store") -> list[dict[str, Any]]:
    """Return one row per topic, sorted by name: its name, number of queues and number of messages."""
    rows = []
    for topic, queues in sorted(store.topics(system=True).items()):
        bounds = [(store.min_offset(topic, q), store.max_offset(topic, q)) for q in queues]
        rows.append(
            {
                "topic": topic,
                "queues": len(queues),
                "messages": sum(high - low for low, high in bounds),
            }
        )
    return rows


store_argument = click.argument("path", type=click.Path(exists=True))


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--config`, `--set` and `--broker-conf` to a verb that writes."""
    return click.option(
        "--broker-conf", "broker_conf", type=click.Path(exists=True, dir_okay=False),
        help="Take file sizes and policies from this RocketMQ broker.conf.",
    )(own_settings_options(command))  # fmt: skip


def own_settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--config` and `--set` to a verb."""
    command = click.option(
        "--set", "settings", multiple=True, metavar="KEY=VALUE",
        help="A setting, for example flush.use=sync; may be given more than once.",
    )(command)  # fmt: skip
    return click.option(
        "--config", "config", type=click.Path(dir_okay=False), help="A TOML file of settings."
    )(command)


def chosen(settings: Sequence[str], broker_conf: str | None) -> dict[str, Any]:
    """Return the settings given by `--broker-conf` and `--set`; `--set` takes precedence."""
    from penstock.config.broker_conf import from_broker_conf  # noqa: PLC0415 - only where needed
    from penstock.config.sources import Sourced, parse_value  # noqa: PLC0415 - as above

    found: dict[str, Any] = {}
    if broker_conf is not None:
        with click.open_file(broker_conf, encoding="latin-1") as file:
            given = from_broker_conf(file.read())
        found.update({key: Sourced(value, "--broker-conf") for key, value in given.items()})
    for text in settings:
        key, separator, value = text.partition("=")
        if not separator:
            raise click.UsageError(f"--set takes KEY=VALUE, not {text!r}")
        found[key.strip()] = Sourced(parse_value(value.strip()), "--set")
    return found
