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
@click.option("--discard", is_flag=True, help="Delete the replaced files instead of keeping them.")
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
    """Rebuild the queues and index of a store from its log, in parallel, and replace the old files atomically.

    PATH is a store or a broker's directory. Its lock is held, so nothing else can write to it. The replaced
    files are moved to penstock/saved in it. If the command is killed, run it again to complete it.
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
    show_summary("Rebuilt", {**done.summary(), "bytes": size_text(done.bytes)}, quiet=quiet)
    for start, stop in done.damages:
        note(f"log offsets {start} to {stop} are not valid records; their queue entries were kept")
    for name in done.left:
        note(
            f"{name} was not rebuilt, since it needs the record bodies; penstock repair rebuilds it"
        )
    return 0
