"""The verb `put`: puts one message."""

import sys

import click

from penstock.format.names import QUEUE_MAX
from penstock_tools.cli.beside import open_to_change, timeout_option
from penstock_tools.cli.completion import topics
from penstock_tools.cli.output import chosen, json_option, out, out_json, settings_options
from penstock_tools.cli.root import examples
from penstock_tools.cli.times import DurationParam, TimeParam


@click.command(
    "put",
    epilog=examples(
        "penstock put data orders 'a new order' --tag created --key A-17",
        "echo 'pay order 17' | penstock put data reminders - --delay 90s --json",
    ),
)
@click.argument("path", type=click.Path())
@click.argument("topic", shell_complete=topics)
@click.argument("body")
@click.option(
    "--queue",
    type=click.IntRange(0, QUEUE_MAX),
    help="The queue of the topic; by default the next in turn, or that of --partition-key.",
)
@click.option(
    "--partition-key", help="Pick the queue by this text: messages with one key share a queue."
)
@click.option(
    "--delay-level",
    type=click.IntRange(1, 18),
    help="Deliver the message later: 1 for a second to 18 for two hours, see docs/delays.md.",
)
@click.option(
    "--delay",
    "delay_ms",
    type=DurationParam(),
    help="Deliver the message after this time: 500ms, 90s, 1h30min, 2d.",
)
@click.option(
    "--deliver-at",
    type=TimeParam(up=True, ahead=True),
    help="Deliver the message at this time, for example '2026-12-01 09:00Z', without a zone in UTC; or in 1h.",
)
@click.option("--tag", default="", help="The tag to filter by, one word.")
@click.option(
    "--key",
    "keys",
    multiple=True,
    help="A key to find the message by; may be given more than once.",
)
@click.option(
    "--property",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="An additional property; may be given more than once.",
)
@settings_options
@timeout_option
@json_option
def command(
    path: str,
    topic: str,
    body: str,
    queue: int | None,
    partition_key: str | None,
    delay_level: int | None,
    delay_ms: int | None,
    deliver_at: int | None,
    tag: str,
    keys: tuple[str, ...],
    pairs: tuple[str, ...],
    settings: tuple[str, ...],
    config: str | None,
    broker_conf: str | None,
    as_json: bool,
) -> int:
    """Put one message with BODY into TOPIC; a body of - is read from standard input."""
    # The bytes of the argument, also where they are not UTF-8.
    raw = sys.stdin.buffer.read() if body == "-" else body.encode("utf-8", "surrogateescape")
    properties = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise click.UsageError(f"--property takes NAME=VALUE, not {pair!r}")
        properties[name] = value
    if queue is not None and partition_key is not None:
        raise click.UsageError("give --queue or --partition-key, not both")
    with open_to_change(path, config, chosen(settings, broker_conf)) as store:
        receipt = store.put(
            topic, raw, deliver_at=None if deliver_at is None else deliver_at / 1000, queue=queue,
            partition_key=partition_key, delay_level=delay_level or 0,
            delay=(delay_ms or 0) / 1000, tag=tag, keys=keys, properties=properties,
        )  # fmt: skip
        store.flush()
    if as_json:
        out_json(status=receipt.status, message_id=receipt.message_id, log_offset=receipt.log_offset,
              queue=receipt.queue, queue_offset=receipt.queue_offset, size=receipt.size,
              store_time_ms=receipt.store_time_ms)  # fmt: skip
    else:
        out(receipt.message_id)
    return 0
