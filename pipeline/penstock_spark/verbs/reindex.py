"""The verb `penstock spark reindex`."""

import click

from penstock.cli.output import (
    chosen,
    json_option,
    note,
    out_json,
    quiet_option,
    settings_options,
    size_text,
)
from penstock.cli.root import examples
from penstock_spark.cli import bar, session, session_options, show_summary


@click.command(
    "reindex",
    epilog=examples(
        "penstock spark reindex data", "penstock spark reindex data --discard --json --quiet"
    ),
)
@click.argument("path")
@click.option("--discard", is_flag=True, help="Remove what is replaced, instead of keeping it.")
@session_options
@settings_options
@json_option
@quiet_option
def command(
    path: str,
    discard: bool,
    master: str | None,
    remote: str | None,
    settings: tuple[str, ...],
    config: str | None,
    broker_conf: str | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Make queues and index of a store anew from its log, in parallel, and swap them in whole.

    PATH is a store or a broker's directory that nobody writes to meanwhile: its lock is held. What is
    replaced is kept in penstock/saved within it. Killed at any point, running it again finishes.
    """
    from penstock_spark.jobs import reindex  # noqa: PLC0415 - pyarrow is an extra

    given = chosen(settings, broker_conf)
    with session("reindex", master, remote) as spark, bar("reindex", quiet=quiet) as on_progress:
        done = reindex.run(
            spark, path, keep=not discard, config=config, settings=given, on_progress=on_progress
        )
    if as_json:
        out_json(**done.summary())
        return 0
    show_summary("Made anew", {**done.summary(), "bytes": size_text(done.bytes)}, quiet=quiet)
    for start, stop in done.damages:
        note(f"log offsets {start} to {stop} are no sound records; their queue entries are kept")
    for name in done.left:
        note(f"{name} was left alone: it needs the records themselves; penstock repair makes it")
    return 0
