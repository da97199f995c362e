"""The verb `penstock spark replay`."""

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.output import json_option, note, out_json, quiet_option
from penstock.cli.root import examples
from penstock_spark.cli import bar, pairs_of, session, session_options, show_summary
from penstock_spark.option_parser import size_of

if TYPE_CHECKING:
    from penstock_spark.jobs.replay import ReplayReport


@click.command(
    "replay",
    epilog=examples(
        "penstock spark replay data copy --only orders --tag paid",
        "penstock spark replay data again --where 'partition = 0' --key 'tags' --rows-per-second 100000 --json",
    ),
)
@click.argument("source")
@click.argument("target")
@click.option("--only", "topics", multiple=True, metavar="TOPIC", help="Only this topic; may be given several times.")  # fmt: skip
@click.option("--tag", "tags", multiple=True, help="Only this tag; may be given several times.")
@click.option(
    "--where",
    metavar="SQL",
    help="Only rows for which this expression over the source's columns is true.",
)
@click.option("--to-topic", metavar="TOPIC", help="The topic for all messages; without it, each keeps its own.")  # fmt: skip
@click.option("--key", metavar="SQL", help="An expression that gives the key.")
@click.option("--to-tag", metavar="SQL", help="An expression that gives the tag.")
@click.option("--partition", metavar="SQL", help="An expression that gives the queue number.")
@click.option("--rows-per-second", type=click.FloatRange(0), default=0.0, help="Maximum number of rows read per second, before the filter.")  # fmt: skip
@click.option(
    "--bytes-per-second",
    metavar="SIZE",
    help="Maximum number of bytes read per second, for example 10m.",
)
@click.option("--batch-rows", type=click.IntRange(0), default=0, help="Rows per batch; by default 500,000, or with a rate those of five seconds.")  # fmt: skip
@click.option("--app", metavar="NAME", help="The name under which another run continues this one.")
@click.option("--skip-lost", is_flag=True, help="Skip messages that retention deletes during the run.")  # fmt: skip
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="An option of the sink, for example partitions=8.")  # fmt: skip
@session_options
@json_option
@quiet_option
def command(
    source: str,
    target: str,
    topics: tuple[str, ...],
    tags: tuple[str, ...],
    where: str | None,
    to_topic: str | None,
    key: str | None,
    to_tag: str | None,
    partition: str | None,
    rows_per_second: float,
    bytes_per_second: str | None,
    batch_rows: int,
    app: str | None,
    skip_lost: bool,
    options: tuple[str, ...],
    master: str | None,
    remote: str | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Write the messages of SOURCE into the store TARGET: filtered, re-keyed, at a bounded rate, each once.

    SOURCE is a store, a glob of stores, a dataset, or a folder or file of Parquet with a column `value`, as
    the verb export writes them. If the command is killed, run it again to continue; a repeated run adds nothing.
    """
    from penstock_spark.jobs import replay  # noqa: PLC0415 - pyarrow is an extra
    from penstock_spark.jobs.transforms import Transform  # noqa: PLC0415 - as above

    change = Transform(
        topics=topics, tags=tags, where=where, topic=to_topic, key=key, tag=to_tag,
        partition=partition,
    )  # fmt: skip
    pace = replay.Pace(
        rows_per_second=rows_per_second, batch_rows=batch_rows,
        bytes_per_second=size_of("--bytes-per-second", bytes_per_second) if bytes_per_second else 0,
    )  # fmt: skip
    given = pairs_of(options, "--option", "KEY=VALUE")
    more: dict[str, Any] = {"app": app, "skip_lost": skip_lost, "options": given}
    shown = bar("replay", quiet=quiet, unit="batches")
    with session("replay", master, remote) as spark, shown as on_progress:
        done = replay.run(
            spark, source, target, change=change, pace=pace, on_progress=on_progress, **more
        )
    return _shown(done, as_json=as_json, quiet=quiet)


def _shown(done: "ReplayReport", *, as_json: bool, quiet: bool) -> int:
    if as_json:
        out_json(**done.facts())
        return 0
    show_summary("Replayed", done.summary(), quiet=quiet)
    if done.lost:
        note(
            f"retention deleted {done.lost:,} messages before they were read; the target does not have them"
        )
    return 0
