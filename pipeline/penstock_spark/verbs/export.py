"""The verb `penstock spark export`."""

import click

from penstock.cli.output import json_option, note, out_json, quiet_option, size_text, table
from penstock.cli.root import examples
from penstock_spark.cli import bar, pairs_of, session, session_options, show_summary


@click.command(
    "export",
    epilog=examples(
        "penstock spark export data --to archive",
        "penstock spark export data --to archive --topic orders --json --quiet",
    ),
)
@click.argument("paths", nargs=-1, required=True)
@click.option("--to", "target", required=True, metavar="FOLDER", help="The folder for the Parquet files.")  # fmt: skip
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be given several times.")  # fmt: skip
@click.option(
    "--name", "names", multiple=True, metavar="STORE=NAME",
    help="The store's name in file names; by default its folder's name.",
)  # fmt: skip
@session_options
@json_option
@quiet_option
def command(
    paths: tuple[str, ...],
    target: str,
    topics: tuple[str, ...],
    names: tuple[str, ...],
    master: str | None,
    remote: str | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Export messages to Parquet, by topic and date, each once.

    PATHS are stores, globs of them, or datasets. Messages that are in the folder already are not exported again, so
    the command may be run every hour, and again after it was killed.
    """
    from penstock_spark.jobs import export  # noqa: PLC0415 - pyarrow is an extra

    given = pairs_of(names, "--name", "STORE=NAME")
    with session("export", master, remote) as spark, bar("export", quiet=quiet) as on_progress:
        done = export.run(spark, paths, target, topics=topics, names=given, on_progress=on_progress)
    if as_json:
        out_json(**done.facts())
        return 0
    rows = [
        (topic, each["messages"], each["files"], size_text(each["bytes"]))
        for topic, each in done.topics.items()
    ]
    if rows:
        table("Exported", ("topic", "messages", "files", "size"), rows)
    show_summary("In all", {**done.summary(), "bytes": size_text(done.bytes)}, quiet=quiet)
    if done.lost:
        note(
            f"retention deleted {done.lost:,} messages before they were exported; the policy archive prevents this"
        )
    return 0
