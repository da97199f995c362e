"""Verbs that look at a store as a whole: topics, groups, stat, verify. They open it read-only."""

import os
from typing import Any

import click

import penstock
from penstock.cli.output import (
    Bar,
    json_option,
    note,
    out_finding,
    out_json,
    quiet_option,
    size_text,
    table,
    tell_foreign,
    time_text,
)
from penstock.cli.reading import store_argument
from penstock.cli.root import NO, examples
from penstock.integrity.verification import Tally
from penstock.store.store import Store


@click.command("topics", epilog=examples("penstock topics data", "penstock topics data --json"))
@store_argument
@json_option
def topics_command(path: str, as_json: bool) -> int:
    """List topics with their queues and message counts."""
    with penstock.open(path, read_only=True) as store:
        tell_foreign(store)
        rows = _topic_rows(store)
    if as_json:
        for row in rows:
            out_json(**row)
    else:
        table(
            "",
            ("topic", "queues", "messages"),
            [(r["topic"], r["queues"], r["messages"]) for r in rows],
        )
    return 0


def _topic_rows(store: Store) -> list[dict[str, Any]]:
    rows = []
    for topic, queues in sorted(store.topics().items()):
        bounds = [(store.min_offset(topic, q), store.max_offset(topic, q)) for q in queues]
        rows.append(
            {
                "topic": topic,
                "queues": len(queues),
                "messages": sum(high - low for low, high in bounds),
            }
        )
    return rows


@click.command("groups", epilog=examples("penstock groups data", "penstock groups data --json"))
@store_argument
@json_option
def groups_command(path: str, as_json: bool) -> int:
    """List consumer groups: how far each has read, and how many messages it lags."""
    rows = []
    with penstock.open(path, read_only=True) as store:
        tell_foreign(store)
        for (group, topic), queues in sorted(store.groups().items()):
            for queue, offset in sorted(queues.items()):
                lag = store.max_offset(topic, queue) - offset
                rows.append((group, topic, queue, offset, lag))
        remarks = store.stats()["offsets_set_aside"]
    names = ("group", "topic", "queue", "offset", "lag")
    if as_json:
        for row in rows:
            out_json(**dict(zip(names, row, strict=True)))
    else:
        table("", names, rows)
    if any(row[-1] < 0 for row in rows):
        note(
            "a lag below 0: the offset is greater than the queue's end, because messages were lost or the offsets "
            "are newer than the log; opening the store for writing sets it back"
        )
    for remark in remarks:
        note(f"not used: {remark}")
    return 0


@click.command("stat", epilog=examples("penstock stat data", "penstock stat data --json"))
@store_argument
@json_option
def stat_command(path: str, as_json: bool) -> int:
    """Say what is in a store: topics, messages, time span, sizes, and whether it was closed cleanly."""
    with penstock.open(path, read_only=True) as store:
        facts = store.stats() | _contents(store)
        facts["closed_cleanly"] = not (store.path / "abort").exists()
    if as_json:
        out_json(**facts)
        return 0
    state = "closed cleanly" if facts["closed_cleanly"] else "in use, or not closed cleanly"
    note(f"read-only: nothing is changed. {state}")
    rows = [
        *_counts(facts),
        ("first stored", time_text(facts["first_ms"]) if facts["first_ms"] else "-"),
        ("last stored", time_text(facts["last_ms"]) if facts["last_ms"] else "-"),
    ]
    for each in facts["not_understood"]:
        name = "stops writing" if each["stops_writing"] else "left alone"
        rows.append((f"not understood, {name}", each["text"]))
    table(path, ("what", "value"), rows)
    return 0


def _contents(store: Store) -> dict[str, Any]:
    """Return what the queues show; nothing is known where they are in a form that is not understood."""
    if store.stats()["queues"] is None:
        return dict.fromkeys(("messages", "topics", "first_ms", "last_ms"))
    messages = sum(row["messages"] for row in _topic_rows(store))
    return {"messages": messages, "topics": len(store.topics()), **_time_span(store)}


def _counts(facts: dict[str, Any]) -> list[tuple[str, str]]:
    if facts["queues"] is None:
        log = f"from {facts['log_min_offset']}, {facts['segments']} segments of {size_text(facts['log_bytes'])}"
        return [("messages", "not known"), ("topics, queues", "not known"), ("log", log)]
    used = facts["log_end_offset"] - facts["log_min_offset"]
    return [
        ("messages", f"{facts['messages']:,}"),
        ("topics, queues", f"{facts['topics']:,}, {facts['queues']:,}"),
        ("log", f"{size_text(used)} in {facts['segments']} segments"),
        ("log offsets", f"{facts['log_min_offset']} to {facts['log_end_offset']}"),
    ]


def _time_span(store: Store) -> dict[str, int | None]:
    """Return the first and last store time that the ends of the queues show."""
    times: list[int] = []
    for topic, queues in store.topics().items():
        for queue in queues:
            low, high = store.min_offset(topic, queue), store.max_offset(topic, queue)
            for at in {low, high - 1} if high > low else ():
                times.extend(m.store_time_ms for m in store.read(topic, queue, at, 1).messages)
    return {"first_ms": min(times, default=None), "last_ms": max(times, default=None)}


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
def verify_command(
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
