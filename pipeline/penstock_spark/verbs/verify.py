"""The verb `penstock spark verify`."""

import click

from penstock.cli.output import (
    chosen,
    json_option,
    out_finding,
    out_json,
    quiet_option,
    settings_options,
    size_text,
)
from penstock.cli.root import NO, examples
from penstock_spark.cli import bar, session, session_options, show_summary
from penstock_spark.jobs.report import rate


@click.command(
    "verify",
    epilog=examples(
        "penstock spark verify data",
        "penstock spark verify 'dat*' --deep --findings-to findings --json --quiet",
    ),
)
@click.argument("paths", nargs=-1, required=True)
@click.option("--deep", is_flag=True, help="Also compare digests, checkpoint and progress files.")
@click.option("--findings-to", metavar="FOLDER", help="A new folder for the findings as Parquet.")
@session_options
@settings_options
@json_option
@quiet_option
def command(
    paths: tuple[str, ...],
    deep: bool,
    findings_to: str | None,
    master: str | None,
    remote: str | None,
    settings: tuple[str, ...],
    config: str | None,
    broker_conf: str | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Check log, queues and index of stores, every segment in parallel. The exit code is 1 if there is a finding that is not a note.

    PATHS are stores, globs of them, or datasets. The findings are those of `penstock verify`; nothing is changed.
    """
    from penstock_spark.jobs import verify  # noqa: PLC0415 - pyarrow is an extra

    given = chosen(settings, broker_conf)
    with session("verify", master, remote) as spark, bar("verify", quiet=quiet) as on_progress:
        report = verify.run(
            spark,
            paths,
            deep=deep,
            findings_to=findings_to,
            config=config,
            settings=given,
            on_progress=on_progress,
        )
    if as_json:
        for row in report.rows():
            out_json(kind="finding", **row)
        out_json(kind="summary", **report.summary())
    else:
        for _, finding in report.findings:
            out_finding(finding, finding.part)
        facts = report.summary()
        facts["bytes"] = size_text(report.bytes)
        facts["rate"] = f"{size_text(rate(report.bytes, report.seconds))}/s"
        show_summary("Verified", facts, quiet=quiet)
    return NO if report.wrong else 0
