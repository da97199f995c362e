"""The verb `penstock spark compact`."""

import click

from penstock.cli.output import json_option, note, out_json, quiet_option
from penstock.cli.root import examples
from penstock_spark.cli import bar, pairs_of, session, session_options, show_summary


@click.command(
    "compact",
    epilog=examples(
        "penstock spark compact data latest orders",
        "penstock spark compact data latest2 orders --keyless drop --tombstones keep --json",
    ),
)
@click.argument("source")
@click.argument("target")
@click.argument("topic")
@click.option(
    "--keyless", type=click.Choice(["keep", "drop"]), default="keep", show_default=True,
    help="Keep or drop messages that have no key.",
)  # fmt: skip
@click.option(
    "--tombstones", type=click.Choice(["keep", "drop"]), default="drop", show_default=True,
    help="Keep or drop keys whose latest message has an empty body.",
)  # fmt: skip
@click.option("--skip-lost", is_flag=True, help="Skip messages that retention deletes during the run.")  # fmt: skip
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="An option of the sink, for example partitions=8.")  # fmt: skip
@session_options
@json_option
@quiet_option
def command(
    source: str,
    target: str,
    topic: str,
    keyless: str,
    tombstones: str,
    skip_lost: bool,
    options: tuple[str, ...],
    master: str | None,
    remote: str | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Write the latest message of each key of TOPIC in the store SOURCE into a new store TARGET.

    Messages are written in the order in which they were stored. If the command is killed, run it again to complete it; a repeated run adds nothing.
    """
    from penstock_spark.jobs import compact  # noqa: PLC0415 - pyarrow is an extra

    given = pairs_of(options, "--option", "KEY=VALUE")
    with session("compact", master, remote) as spark, bar("compact", quiet=quiet) as on_progress:
        done = compact.run(
            spark, source, target, topic, keyless=keyless, tombstones=tombstones,
            skip_lost=skip_lost, options=given, on_progress=on_progress,
        )  # fmt: skip
    if as_json:
        out_json(**done.facts())
    else:
        show_summary("Compacted", done.summary(), quiet=quiet)
    if done.lost and not as_json:
        note(
            f"retention deleted {done.lost:,} messages before they were read; the target does not have them"
        )
    return 0
