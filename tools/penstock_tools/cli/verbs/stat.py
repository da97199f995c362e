"""The verb `stat`: shows the state and the contents of a store."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import penstock
from penstock_tools.cli import store_files
from penstock_tools.cli.output import (
    Bar,
    counted,
    json_option,
    note,
    out_json,
    size_text,
    store_argument,
    table,
    time_text,
    topic_rows,
)
from penstock_tools.cli.root import examples
from penstock_tools.cli.state import replica_of, state_of

if TYPE_CHECKING:
    from penstock.contracts.base import Geometry
    from penstock.store.store import Store


@click.command("stat", epilog=examples("penstock stat data", "penstock stat data --space --json"))
@store_argument
@click.option(
    "--space",
    is_flag=True,
    help="Also show what takes the space: log, queues, index, other files, and each topic. Reads all queue entries.",
)
@json_option
def command(path: str, space: bool, as_json: bool) -> int:
    """Show what is in a store: topics, messages, time span, sizes, and whether it was closed cleanly."""
    with penstock.open(path, read_only=True) as store:
        facts: dict[str, Any] = {**store.stats(), **_contents(store)}
        lines = store.lowlevel.summary()
        facts["extensions"] = {each.key: each.value for each in lines}
        if space:
            facts["space"] = _space(store, facts, quiet=as_json)
        state = state_of(store)
        facts["closed_cleanly"], facts["used_by"] = state.closed_cleanly, state.used_by
        facts["replica"] = replica_of(store)
    if as_json:
        out_json(**facts)
        return 0
    note(f"opened read-only, nothing is changed. State: {state.text}")
    rows = [
        *_counts(facts),
        ("first stored", time_text(facts["first_ms"]) if facts["first_ms"] else "-"),
        ("last stored", time_text(facts["last_ms"]) if facts["last_ms"] else "-"),
    ]
    rows += [(each.what, each.text) for each in lines]
    if facts["replica"]:
        status = facts["replica"]["status"] or {"text": "no process copies now"}
        rows.append((facts["replica"]["role"], status.get("text", "-")))
    for each in facts["not_understood"]:
        name = "writing is refused" if each["stops_writing"] else "ignored"
        rows.append((f"not understood, {name}", each["text"]))
    table(path, ("what", "value"), rows)
    if space:
        _show_space(facts["space"])
    return 0


def _contents(store: "Store") -> dict[str, Any]:
    """Return message and topic counts and the time span; None for each if the queues' format is not understood."""
    if store.stats()["queues"] is None:
        return dict.fromkeys(("messages", "topics", "first_ms", "last_ms"))
    messages = sum(row["messages"] for row in topic_rows(store))
    return {"messages": messages, "topics": len(store.topics(system=True)), **_time_span(store)}


def _counts(facts: dict[str, Any]) -> list[tuple[str, str]]:
    if facts["queues"] is None:
        segments = counted(facts["segments"], "segment")
        log = f"from {facts['log_min_offset']}, {segments} of {size_text(facts['log_bytes'])}"
        return [("messages", "not known"), ("topics, queues", "not known"), ("log", log)]
    used = facts["log_end_offset"] - facts["log_min_offset"]
    return [
        ("messages", f"{facts['messages']:,}"),
        ("topics, queues", f"{facts['topics']:,}, {facts['queues']:,}"),
        ("log", f"{size_text(used)} in {counted(facts['segments'], 'segment')}"),
        ("log offsets", f"{facts['log_min_offset']} to {facts['log_end_offset']}"),
    ]


def _time_span(store: "Store") -> dict[str, int | None]:
    """Return the earliest and latest store time of the first and last messages of all queues."""
    times: list[int] = []
    for topic, queues in store.topics(system=True).items():
        for queue in queues:
            low, high = store.min_offset(topic, queue), store.max_offset(topic, queue)
            for at in {low, high - 1} if high > low else ():
                times.extend(m.store_time_ms for m in store.read(topic, queue, at, 1).messages)
    return {"first_ms": min(times, default=None), "last_ms": max(times, default=None)}


def _space(store: "Store", facts: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    """Return the bytes that each kind of files and each topic takes; None where the queues are not understood."""
    from penstock.store.open import make_opener  # noqa: PLC0415 - only where needed

    geometry = make_opener(store.path, None, None, None, None, None, {}).geometry()
    parts = [
        each._asdict() | {"used": _used(store.path, facts, each, geometry)}
        for each in store_files.parts(store.path)
    ]
    if facts["queues"] is None:
        return {"parts": parts, "topics": None}
    queue_bytes = store_files.queue_bytes(store.path)
    with Bar("topics", facts["queues"], "queues", quiet=quiet) as bar:
        topics = [
            {
                "topic": each.topic,
                "messages": each.messages,
                "log_bytes": each.size,
                "queue_bytes": queue_bytes.get(each.topic, 0),
            }
            for each in store.space(0, lambda done: bar.set(done, done))
        ]
    return {"parts": parts, "topics": topics}


def _used(
    root: Path, facts: dict[str, Any], part: store_files.SpaceUsed, geometry: "Geometry"
) -> int | None:
    """Return how many bytes of a kind of files hold something; None if that is not known."""
    if part.part == "log" and facts["log_end_offset"] is not None:
        used: int = facts["log_end_offset"] - facts["log_min_offset"]
        return used
    if part.part == "queues" and facts["messages"] is not None:
        return int(facts["messages"] * geometry.queue_file_bytes // geometry.queue_entries)
    if part.part == "index":
        return store_files.index_used(root, geometry.index_slots)
    return None if part.part in ("log", "queues") else part.size


def _show_space(space: dict[str, Any]) -> None:
    rows = [
        (
            each["part"], each["files"], size_text(each["allocated"]),
            "not known" if each["used"] is None else size_text(each["used"]), size_text(each["size"]),
        )
        for each in space["parts"]
    ]  # fmt: skip
    table("Space by kind of file", ("part", "files", "allocated", "used", "file sizes"), rows)
    if space["topics"] is None:
        return
    total = sum(each["log_bytes"] for each in space["topics"]) or 1
    topics = [
        (
            each["topic"], each["messages"], size_text(each["log_bytes"]),
            f"{each['log_bytes'] / total:.1%}", size_text(each["queue_bytes"]),
        )
        for each in space["topics"]
    ]  # fmt: skip
    table("Space by topic", ("topic", "messages", "in the log", "share", "queue files"), topics)
