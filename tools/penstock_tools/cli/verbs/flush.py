"""The verb `flush`: makes all messages put so far durable, also those of another process that has the store open."""

import click

from penstock_tools.cli.beside import open_to_change, timeout_option
from penstock_tools.cli.output import chosen, json_option, note, out_json, own_settings_options
from penstock_tools.cli.root import examples


@click.command(
    "flush", epilog=examples("penstock flush data", "penstock flush data --timeout 5s --json")
)
@click.argument("path", type=click.Path(exists=True))
@own_settings_options
@timeout_option
@json_option
def command(path: str, settings: tuple[str, ...], config: str | None, as_json: bool) -> int:
    """Make all messages put so far durable.

    A process that has the store open for writing is asked to do it. Otherwise the store is opened, which repairs what a
    crash left, and closed.
    """
    with open_to_change(path, config, chosen(settings, None)) as store:
        end = store.flush()
    if as_json:
        out_json(durable_offset=end)
    else:
        note(f"every message before log offset {end} is on disk")
    return 0
