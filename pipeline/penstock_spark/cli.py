"""The verbs of `penstock spark`, loaded one by one, and the session they run in.

An active session is used, also under `spark-submit`. Otherwise a session is created, and stopped at the end: on a
cluster with `--master`, over Spark Connect with `--remote`, else a local one.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from penstock.cli import root
from penstock.cli.lazy_group import LazyGroup
from penstock.cli.output import Bar, table
from penstock.errors import ConfigError, MissingExtraError
from penstock_spark.java import local_session, set_python

# By name: the modules there import this one.
group = LazyGroup(
    "spark",
    package="penstock_spark.verbs",
    help="Jobs over whole stores, run by Spark: here, on a cluster, or over Spark Connect.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def verb_names() -> list[str]:
    """Return the names of all jobs."""
    return group.module_names()


def main(verb: str) -> int:
    """Run one job as a separate program, as `spark-submit` starts it."""
    command = group.get_command(click.Context(group), verb)
    code = root.run(sys.argv[1:], command, f"penstock spark {verb}")
    sys.stdout.flush()
    return code


def session_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--master` and `--remote` to a verb."""
    command = click.option(
        "--remote", metavar="URL", help="Run over Spark Connect, for example sc://host:15002."
    )(command)
    return click.option(
        "--master", metavar="URL", help="Spark's master, for example local[2] or spark://host:7077; by default all cores of this machine."
    )(command)  # fmt: skip


@contextmanager
def session(verb: str, master: str | None, remote: str | None) -> Iterator[Any]:
    """Yield the active session, or a new one that is stopped afterwards."""
    if master and remote:
        raise ConfigError("--master and --remote cannot be used together")
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError("pyspark", "spark", f"penstock spark {verb}") from error
    active = SparkSession.getActiveSession()
    spark = active or _made(SparkSession.builder, f"penstock {verb}", master, remote)
    try:
        yield spark
    finally:
        if active is None:
            spark.stop()


def _made(builder: Any, name: str, master: str | None, remote: str | None) -> Any:
    set_python()
    if remote is not None:
        return builder.remote(remote).getOrCreate()
    if master is not None and not master.startswith("local"):
        return builder.master(master).appName(name).getOrCreate()
    # spark-submit has a JVM running, and knows the master; so does who has set SPARK_REMOTE.
    if master is None and {"PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"} & os.environ.keys():
        return builder.appName(name).getOrCreate()
    cores = (master or "local[*]").removeprefix("local").strip("[]") or "1"
    return local_session(name, cores)


@contextmanager
def bar(what: str, *, quiet: bool, unit: str = "tasks") -> Iterator[Callable[[int, int], None]]:
    """Yield a callback that shows the completed tasks as a progress bar on standard error."""
    with Bar(what, None, unit, quiet=quiet) as shown:

        def on_progress(done: int, total: int) -> None:
            shown.total(total)
            shown.set(done, done)

        yield on_progress


def pairs_of(texts: Sequence[str], option: str, form: str) -> dict[str, str]:
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


def show_summary(title: str, facts: Mapping[str, object], *, quiet: bool) -> None:
    """Show a job's figures as a table."""
    if not quiet:
        rows = [
            (name.replace("_", " "), _text(value))
            for name, value in facts.items()
            if value not in (None, [], ())
        ]
        table(title, ("what", "value"), rows)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
