"""The verb `verify`: says what is wrong in a store, and where."""

import os

import click

import penstock
from penstock.cli.output import (
    Bar,
    json_option,
    note,
    out_finding,
    out_json,
    quiet_option,
    store_argument,
    tell_foreign,
)
from penstock.cli.root import NO, examples
from penstock.integrity.verification import Tally


@click.command(
    "verify",
    epilog=examples("penstock verify data", "penstock verify data --deep --jobs 2 --json --quiet"),
)
@store_argument
@click.option("--deep", is_flag=True, help="Compare digests, checkpoint and marks as well.")
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=None,
    metavar="N",
    help="Processes that share the segments; with --deep one for each core, else one.",
)
@json_option
@quiet_option
def command(
    path: str, deep: bool, jobs: int | None, as_json: bool, quiet: bool
) -> int:  # fmt: skip
    """Walk log, queues and index, and show what disagrees. Exit code 1 if anything does; notes do not count.

    Checks every record's lengths, CRC and place, every queue entry with its tag code, and every key and
    chain of the index, both ways. With --deep also every byte of the sealed segments against their
    digests, the checkpoint, and Penstock's own marks. Each finding says what helps. Changes nothing;
    works on a store that is being written.
    """
    count = notes = 0
    seen = Tally()
    jobs = jobs or (os.cpu_count() or 1 if deep else 1)
    with (
        penstock.open(path, read_only=True) as store,
        Bar("verify", store.stats()["log_bytes"], "records", quiet=quiet) as bar,
    ):
        tell_foreign(store)

        def told(tally: Tally) -> None:
            nonlocal seen
            seen = tally
            bar.set(tally.bytes_seen, tally.records)

        for finding in store.verify(told, deep=deep, jobs=jobs):
            count += not finding.is_note
            notes += finding.is_note
            if as_json:
                out_json(**finding._asdict())
            else:
                out_finding(finding, finding.part)
    if not quiet:
        noted = f", {notes} notes" if notes else ""
        end = "" if count else ": all agree"
        note(f"{seen.records:,} records, {count} findings{noted}{end}")
    return NO if count else 0
