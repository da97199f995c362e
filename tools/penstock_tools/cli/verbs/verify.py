"""The verb `verify`: checks a store and reports each inconsistency with its position."""

import os

import click

import penstock
from penstock.integrity.verification import Tally
from penstock_tools.cli.output import (
    Bar,
    counted,
    json_option,
    note,
    note_foreign,
    out_finding,
    out_json,
    quiet_option,
    store_argument,
)
from penstock_tools.cli.root import NO, examples


@click.command(
    "verify",
    epilog=examples("penstock verify data", "penstock verify data --deep --jobs 2 --json --quiet"),
)
@store_argument
@click.option(
    "--deep", is_flag=True, help="Also check segment digests, the checkpoint and the progress file."
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=None,
    metavar="N",
    help="Number of processes that share the segments; by default one per core with --deep, otherwise one.",
)
@json_option
@quiet_option
def command(
    path: str, deep: bool, jobs: int | None, as_json: bool, quiet: bool
) -> int:  # fmt: skip
    """Check log, queues and index against each other. Exit code 1 if anything disagrees; notes do not count.

    Checks the lengths, CRC and log offset of every record, every queue entry with its tag code, and every key and
    chain of the index, in both directions. With --deep also checks every byte of the sealed segments against their
    digests, the checkpoint, and Penstock's own progress and clean-close files. Each finding says what to do.
    Changes nothing; works on a store that is being written.
    """
    count = notes = 0
    seen = Tally()
    jobs = jobs or (os.cpu_count() or 1 if deep else 1)
    with (
        penstock.open(path, read_only=True) as store,
        Bar("verify", None, "records", quiet=quiet) as bar,
    ):
        note_foreign(store)

        def on_progress(tally: Tally) -> None:
            nonlocal seen
            seen = tally
            bar.total(tally.bytes_total)
            bar.set(tally.bytes_seen, tally.records)

        for finding in store.verify(on_progress, deep=deep, jobs=jobs):
            count += not finding.is_note
            notes += finding.is_note
            if as_json:
                out_json(**finding._asdict())
            else:
                out_finding(finding, finding.part)
    if not quiet:
        noted = f", {counted(notes, 'note')}" if notes else ""
        end = "" if count else ": everything agrees"
        note(f"{counted(seen.records, 'record')}, {counted(count, 'finding')}{noted}{end}")
    return NO if count else 0
