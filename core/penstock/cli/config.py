"""The verb config."""

import os
from pathlib import Path

import click

from penstock import config as configuration
from penstock.cli.output import chosen, json_option, out_json, settings_options, table
from penstock.cli.root import examples
from penstock.registry import load_registry


@click.command(
    "config",
    epilog=examples("penstock config", "penstock config --set flush.use=sync --show-origin --json"),
)
@click.option("--show-origin", is_flag=True, help="Show where each value comes from.")
@settings_options
@json_option
def config_command(
    show_origin: bool,
    settings: tuple[str, ...],
    config: str | None,
    broker_conf: str | None,
    as_json: bool,
) -> int:
    """Show the whole configuration as it would be used, strategies' options included."""
    given = configuration.gather(
        Path(config) if config else None, os.environ, chosen(settings, broker_conf)
    )
    plugins = configuration.plugin_lists(given)
    built = configuration.build(given, load_registry(plugins.block, plugins.require))
    rows = list(built.items())
    if as_json:
        for key, value, origin in rows:
            out_json(key=key, value=value, **({"origin": origin} if show_origin else {}))
        return 0
    if show_origin:
        table("", ("setting", "value", "origin"), [(k, repr(v), o) for k, v, o in rows])
    else:
        table("", ("setting", "value"), [(k, repr(v)) for k, v, _ in rows])
    return 0
