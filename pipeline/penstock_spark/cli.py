"""The commands of `penstock spark`, and the session they run in.

A command parses options, calls the function `run` of the job's module, and prints tables or JSON. Those modules import
this one, and are imported by name when a job is run, so that the help works without pyarrow.

An active session is used, also under `spark-submit`. Otherwise a session is created, and stopped at the end: on a
cluster with `--master`, over Spark Connect with `--remote`, else a local one.
"""

import functools
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import click

from penstock.errors import ConfigError, MissingExtraError
from penstock_spark.java import local_session, set_python
from penstock_tools.cli import root
from penstock_tools.cli.lazy_group import LazyGroup
from penstock_tools.cli.output import (
    Bar,
    chosen,
    json_option,
    note,
    out_finding,
    out_json,
    quiet_option,
    settings_options,
    size_text,
    table,
)
from penstock_tools.cli.root import NO, examples
from penstock_tools.cli.verbosity import with_verbose

# Rows of each table of `stats`.
_SHOWN = 20


class _Jobs(LazyGroup):
    """The commands of this module."""

    def module_names(self) -> list[str]:
        """Return the names of all jobs, sorted."""
        return sorted(self.commands)

    def load(self, name: str) -> click.Command:
        """Return the command of a job."""
        return with_verbose(self.commands[name])


group = _Jobs(
    "spark",
    help="Jobs over whole stores, run by Spark: here, on a cluster, or over Spark Connect.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(verb: str) -> int:
    """Run one job as a separate program, as `spark-submit` starts it."""
    command = group.get_command(click.Context(group), verb)
    code = root.run(sys.argv[1:], command, f"penstock spark {verb}")
    sys.stdout.flush()
    return code


def _module_of(job: str) -> Any:
    return importlib.import_module(f"penstock_spark.jobs.{job}")


class _Run(NamedTuple):
    """The options that every job has."""

    master: str | None
    remote: str | None
    as_json: bool
    quiet: bool

    def job(self, name: str, unit: str = "tasks", **given: Any) -> Any:
        """Run a job in the active session, or in a new one that is stopped afterwards; return its report.

        Completed tasks are shown as a progress bar on standard error.
        """
        run = _module_of(name).run
        if self.master and self.remote:
            raise ConfigError("--master and --remote cannot be used together")
        try:
            from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise MissingExtraError("pyspark", "spark", f"penstock spark {name}") from error
        active = SparkSession.getActiveSession()
        spark = active or self._new_session(SparkSession.builder, f"penstock {name}")
        try:
            with Bar(name, None, unit, quiet=self.quiet) as bar:
                return run(spark, on_progress=bar.reach, **given)
        finally:
            if active is None:
                spark.stop()

    def _new_session(self, builder: Any, name: str) -> Any:
        set_python()
        master = self.master
        if self.remote is not None:
            return builder.remote(self.remote).getOrCreate()
        if master is not None and not master.startswith("local"):
            return builder.master(master).appName(name).getOrCreate()
        # spark-submit has a JVM running, and knows the master; so does who has set SPARK_REMOTE.
        if master is None and {"PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"} & os.environ.keys():
            return builder.appName(name).getOrCreate()
        cores = (master or "local[*]").removeprefix("local").strip("[]") or "1"
        return local_session(name, cores)

    def show(self, title: str, facts: Mapping[str, object]) -> None:
        """Show a job's figures as a table."""
        if not self.quiet:
            rows = [
                (name.replace("_", " "), _text(value))
                for name, value in facts.items()
                if value not in (None, [], ())
            ]
            table(title, ("what", "value"), rows)


def _runs(*, settings: bool = False) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Add the options that every job has to a command, which gets them as a `_Run`.

    With `settings` it gets the settings of `--set` and `--broker-conf` as one mapping, too. The other options have the
    names that the job's function `run` gives them.
    """

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(command)
        def with_run(
            master: str | None, remote: str | None, as_json: bool, quiet: bool, **given: Any
        ) -> int:
            if settings:
                given["settings"] = chosen(given["settings"], given.pop("broker_conf"))
            return command(_Run(master, remote, as_json, quiet), **given)

        found: Callable[..., int] = json_option(quiet_option(with_run))
        found = settings_options(found) if settings else found
        found = click.option("--remote", metavar="URL",
            help="Run over Spark Connect, for example sc://host:15002.")(found)  # fmt: skip
        return click.option(
            "--master", metavar="URL",
            help="Spark's master, for example local[2] or spark://host:7077; by default all cores of this machine."
        )(found)  # fmt: skip

    return decorate


def _pairs_of(texts: tuple[str, ...], option: str, form: str) -> dict[str, str]:
    """Return the pairs that were given for an option, as a dict."""
    pairs = {}
    for text in texts:
        name, separator, value = (
            text.rpartition("=") if form == "STORE=NAME" else text.partition("=")
        )
        if not separator:
            raise click.UsageError(f"{option} takes {form}, not {text!r}")
        pairs[name] = value
    return pairs


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


# --- the jobs

_TOPICS = click.option("--topic", "topics", multiple=True,
    help="Only this topic; may be given several times.")  # fmt: skip
_SKIP_LOST = click.option("--skip-lost", is_flag=True,
    help="Skip messages that retention deletes during the run.")  # fmt: skip
_SINK_OPTIONS = click.option("--option", "options", multiple=True, metavar="KEY=VALUE",
    help="An option of the sink, for example partitions=8.")  # fmt: skip


@group.command(
    "verify",
    epilog=examples(
        "penstock spark verify data",
        "penstock spark verify 'dat*' --deep --json --quiet",
    ),
)
@click.argument("paths", nargs=-1, required=True)
@click.option("--deep", is_flag=True, help="Also compare digests, checkpoint and progress files.")
@_runs(settings=True)
def verify_command(run: _Run, **given: Any) -> int:
    """Check log, queues and index of stores, every segment in parallel. Exit code 1 if a finding is not a note.

    PATHS are stores, globs of them, or datasets. The findings are those of `penstock verify`; nothing is changed.
    """
    report = run.job("verify", **given)
    if run.as_json:
        for row in report.rows():
            out_json(kind="finding", **row)
        out_json(kind="summary", **report.summary())
    else:
        for _, finding in report.findings:
            out_finding(finding, finding.part)
        facts = report.summary()
        rate = f"{size_text(report.bytes / report.seconds)}/s"
        run.show("Verified", {**facts, "bytes": size_text(report.bytes), "rate": rate})
    return NO if report.wrong else 0


@group.command(
    "stats",
    epilog=examples(
        "penstock spark stats data", "penstock spark stats data --plots pictures --top 5 --json"
    ),
)
@click.argument("paths", nargs=-1, required=True)
@_TOPICS
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="How many keys.")
@click.option("--plots", metavar="FOLDER", help="A new folder for plots; needs matplotlib.")
@_runs()
def stats_command(run: _Run, **given: Any) -> int:
    """Count and measure messages by topic, tag, key and hour.

    PATHS are stores, globs of them, or datasets. Sizes are those of bodies; times are in UTC.
    """
    done = run.job("stats", **given)
    if run.as_json:
        for kind in ("topics", "tags", "keys", "hours"):
            for row in getattr(done, kind):
                out_json(kind=kind.removesuffix("s"), **row)
        out_json(kind="summary", **done.summary(), plots=done.plots)
        return 0
    for title, rows in (
        ("Topics", done.topics), ("Tags", done.tags), ("Keys", done.keys),
        ("Hours, the newest", done.hours[-_SHOWN:]),
    ):  # fmt: skip
        _show(title, rows)
    run.show("In all", {**done.summary(), "bytes": size_text(done.total["bytes"])})
    for path in done.plots:
        note(path)
    return 0


def _show(title: str, rows: list[dict[str, Any]]) -> None:
    shown = [
        (
            row["name"], row["messages"], size_text(row["bytes"]), f"{row['per_second']:,.2f}/s",
            row["min"], row["mean"], row["p50"], row["p99"], row["max"],
        )
        for row in rows[:_SHOWN]
    ]  # fmt: skip
    more = f", {_SHOWN} of {len(rows)}" if len(rows) > _SHOWN else ""
    names = ("name", "messages", "bytes", "rate", "min", "mean", "p50", "p99", "max")
    if shown:
        table(title + more, names, shown)


@group.command(
    "reindex",
    epilog=examples(
        "penstock spark reindex data", "penstock spark reindex data --discard --json --quiet"
    ),
)
@click.argument("path")
@click.option("--discard", is_flag=True, help="Delete the replaced files instead of keeping them.")
@_runs(settings=True)
def reindex_command(run: _Run, discard: bool, **given: Any) -> int:
    """Rebuild the queues and index of a store from its log, in parallel, and replace the old files atomically.

    PATH is a store or a broker's directory. Its lock is held, so nothing else can write to it. The replaced
    files are moved to penstock/saved in it. If the command is killed, run it again to complete it.
    """
    done = run.job("reindex", keep=not discard, **given)
    if run.as_json:
        out_json(**done.summary())
        return 0
    run.show("Rebuilt", {**done.summary(), "bytes": size_text(done.bytes)})
    for start, stop in done.damages:
        note(f"log offsets {start} to {stop} are not valid records; their queue entries were kept")
    for name in done.left:
        note(
            f"{name} was not rebuilt, since it needs the record bodies; penstock repair rebuilds it"
        )
    return 0


@group.command(
    "export",
    epilog=examples(
        "penstock spark export data --to archive",
        "penstock spark export data --to archive --topic orders --json --quiet",
    ),
)
@click.argument("paths", nargs=-1, required=True)
@click.option("--to", "target", required=True, metavar="FOLDER", help="The folder for the Parquet files.")  # fmt: skip
@_TOPICS
@click.option(
    "--name", "names", multiple=True, metavar="STORE=NAME",
    help="The store's name in file names; by default its folder's name.",
)  # fmt: skip
@_runs()
def export_command(run: _Run, names: tuple[str, ...], **given: Any) -> int:
    """Export messages to Parquet, by topic and date, each once.

    PATHS are stores, globs of them, or datasets. Messages that are in the folder already are not exported again, so
    the command may be run every hour, and again after it was killed.
    """
    pairs = _pairs_of(names, "--name", "STORE=NAME")
    done = run.job("export", names=pairs, **given)
    if run.as_json:
        out_json(**done.facts())
        return 0
    rows = [
        (topic, each["messages"], each["files"], size_text(each["bytes"]))
        for topic, each in done.topics.items()
    ]
    if rows:
        table("Exported", ("topic", "messages", "files", "size"), rows)
    run.show("In all", {**done.summary(), "bytes": size_text(done.bytes)})
    if done.lost:
        note(
            f"retention deleted {done.lost:,} messages before they were exported; the policy archive prevents this"
        )
    return 0


@group.command(
    "replay",
    epilog=examples(
        "penstock spark replay data copy --only orders --tag paid",
        "penstock spark replay data again --where 'partition = 0' --key 'tags' --rows-per-second 100000 --json",
    ),
)
@click.argument("source")
@click.argument("target")
@click.option("--only", "topics", multiple=True, metavar="TOPIC",
    help="Only this topic; may be given several times.")  # fmt: skip
@click.option("--tag", "tags", multiple=True, help="Only this tag; may be given several times.")
@click.option(
    "--where",
    metavar="SQL",
    help="Only rows for which this expression over the source's columns is true.",
)
@click.option("--to-topic", "topic", metavar="TOPIC",
    help="The topic for all messages; without it, each keeps its own.")  # fmt: skip
@click.option("--key", metavar="SQL", help="An expression that gives the key.")
@click.option("--to-tag", "tag", metavar="SQL", help="An expression that gives the tag.")
@click.option("--partition", metavar="SQL", help="An expression that gives the queue number.")
@click.option("--rows-per-second", type=click.FloatRange(0), default=0.0,
    help="Maximum number of rows read per second, before the filter.")  # fmt: skip
@click.option("--app", metavar="NAME", help="The name under which another run continues this one.")
@_SKIP_LOST
@_SINK_OPTIONS
@_runs()
def replay_command(run: _Run, options: tuple[str, ...], **given: Any) -> int:
    """Write the messages of SOURCE into the store TARGET: filtered, re-keyed, at a bounded rate, each once.

    SOURCE is a store, a glob of stores, a dataset, or a folder or file of Parquet with a column `value`, as
    the verb export writes them. If the command is killed, run it again to continue; a repeated run adds nothing.
    """
    replay = _module_of("replay")
    change, pace = (_made_of(cls, given) for cls in (replay.Transform, replay.Pace))
    pairs = _pairs_of(options, "--option", "KEY=VALUE")
    done = run.job("replay", "batches", change=change, pace=pace, options=pairs, **given)
    return _show_written(run, "Replayed", done)


def _made_of(cls: type, given: dict[str, Any]) -> Any:
    """Return an object of an attrs class; its fields are taken out of the options that were given."""
    import attrs  # noqa: PLC0415 - not for a help text

    return cls(**{f.name: given.pop(f.name) for f in attrs.fields(cls) if f.name in given})


@group.command(
    "compact",
    epilog=examples(
        "penstock spark compact data latest orders",
        "penstock spark compact data latest2 orders --option partitions=8 --json",
    ),
)
@click.argument("source")
@click.argument("target")
@click.argument("topic")
@_SKIP_LOST
@_SINK_OPTIONS
@_runs()
def compact_command(run: _Run, options: tuple[str, ...], **given: Any) -> int:
    """Write the latest message of each key of TOPIC in the store SOURCE into a new store TARGET.

    Messages without a key are kept; a latest message with an empty body deletes its key. Messages are written in the
    order in which they were stored. A killed command is completed by running it again, which adds nothing twice.
    """
    pairs = _pairs_of(options, "--option", "KEY=VALUE")
    done = run.job("compact", options=pairs, **given)
    return _show_written(run, "Compacted", done)


def _show_written(run: _Run, title: str, done: Any) -> int:
    if run.as_json:
        out_json(**done.facts())
        return 0
    run.show(title, done.summary())
    if done.lost:
        note(
            f"retention deleted {done.lost:,} messages before they were read; the target does not have them"
        )
    return 0
