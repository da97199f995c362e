"""The verb `stat`: shows the state and the contents of a store."""

from typing import Any

import click

import penstock
from penstock.cli.output import (
    json_option,
    note,
    out_json,
    size_text,
    store_argument,
    table,
    time_text,
    topic_rows,
)
from penstock.cli.root import examples
from penstock.cli.state import state_of
from penstock.store.store import Store


@click.command("stat", epilog=examples("penstock stat data", "penstock stat data --json"))
@store_argument
@json_option
def command(path: str, as_json: bool) -> int:
    """Show what is in a store: topics, messages, time span, sizes, and whether it was closed cleanly."""
    with penstock.open(path, read_only=True) as store:
        facts: dict[str, Any] = {**store.stats(), **_contents(store)}
        state = state_of(store)
        facts["closed_cleanly"], facts["used_by"] = state.closed_cleanly, state.used_by
    if as_json:
        out_json(**facts)
        return 0
    note(f"opened read-only, nothing is changed. State: {state.text}")
    rows = [
        *_counts(facts),
        ("first stored", time_text(facts["first_ms"]) if facts["first_ms"] else "-"),
        ("last stored", time_text(facts["last_ms"]) if facts["last_ms"] else "-"),
    ]
    for each in facts["not_understood"]:
        name = "writing is refused" if each["stops_writing"] else "ignored"
        rows.append((f"not understood, {name}", each["text"]))
    table(path, ("what", "value"), rows)
    return 0


def _contents(store: Store) -> dict[str, Any]:
    """Return message and topic counts and the time span; None for each if the queues' format is not understood."""
    if store.stats()["queues"] is None:
        return dict.fromkeys(("messages", "topics", "first_ms", "last_ms"))
    messages = sum(row["messages"] for row in topic_rows(store))
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
    """Return the earliest and latest store time of the first and last messages of all queues."""
    times: list[int] = []
    for topic, queues in store.topics().items():
        for queue in queues:
            low, high = store.min_offset(topic, queue), store.max_offset(topic, queue)
            for at in {low, high - 1} if high > low else ():
                times.extend(m.store_time_ms for m in store.read(topic, queue, at, 1).messages)
    return {"first_ms": min(times, default=None), "last_ms": max(times, default=None)}
