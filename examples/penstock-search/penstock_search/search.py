"""The command `penstock search`."""

import json
import sqlite3
from pathlib import Path

import click

import penstock
from penstock_search.index import NoIndexError, search


@click.command("search")
@click.argument("path", type=click.Path(exists=True, file_okay=False))
@click.argument("query")
@click.option("--topic", help="Only this topic.")
@click.option(
    "--limit", default=20, show_default=True, help="Maximum number of results, the newest first."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def search_command(path: str, query: str, topic: str | None, limit: int, as_json: bool) -> int:
    """Find messages in PATH by the words of their bodies.

    QUERY has SQLite's syntax: words, "a phrase", pears AND NOT apples, pear*, tag:red.
    The store must have been written with full-text in index.use.
    """
    try:
        hits = search(Path(path), query, topic, limit)
    except NoIndexError as error:
        raise click.ClickException(
            f"{error}: open it for writing once with index.use = "
            '["consume-queue", "hash-index", "full-text"], which creates one'
        ) from error
    except sqlite3.OperationalError as error:
        raise click.UsageError(f"the query {query!r} cannot be parsed: {error}") from error
    shown = 0
    with penstock.open(path, read_only=True) as store:
        for hit in hits:
            try:
                message = store.at(hit.log_offset)
            except penstock.PenstockError:
                continue  # retention deleted it meanwhile
            shown += 1
            if as_json:
                click.echo(json.dumps({
                    "topic": message.topic, "queue": message.queue, "queue_offset": message.queue_offset,
                    "log_offset": hit.log_offset, "message_id": message.message_id, "snippet": hit.snippet,
                }, ensure_ascii=False))  # fmt: skip
            else:
                where = f"{message.topic}/{message.queue}@{message.queue_offset}"
                click.echo(f"{where:<24} {hit.snippet}")
    return 0 if shown else 1
