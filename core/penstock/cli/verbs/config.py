"""The verb `config`: shows the whole configuration, or prints it as broker.conf lines."""

from typing import Any

import click

from penstock.cli.output import chosen, json_option, out, out_json, own_settings_options, table
from penstock.cli.root import examples
from penstock.config.broker_conf import to_broker_conf
from penstock.config.model import Config
from penstock.store.open import make_opener

# The value of `--broker-conf` without a file.
_PRINT = ""


class _OptionalFile(click.Path):
    """A file that exists, or the value of the option without a file."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == _PRINT else super().convert(value, param, ctx)


@click.command(
    "config",
    epilog=examples(
        "penstock config data --broker-conf",
        "penstock config --set flush.use=sync --show-origin --json",
    ),
)
@click.argument("path", required=False, type=click.Path(file_okay=False))
@click.option("--show-origin", is_flag=True, help="Show where each value comes from.")
@click.option(
    "--broker-conf", "broker_conf", is_flag=False, flag_value=_PRINT,
    type=_OptionalFile(exists=True, dir_okay=False), metavar="[FILE]",
    help="With FILE: take file sizes and policies from this RocketMQ broker.conf. Without FILE, after PATH: "
    "print the lines that a broker needs to open the store.",
)  # fmt: skip
@own_settings_options
@json_option
def command(
    path: str | None,
    show_origin: bool,
    settings: tuple[str, ...],
    config: str | None,
    broker_conf: str | None,
    as_json: bool,
) -> int:
    """Show the whole configuration as it would be used, including the options of all strategies.

    With PATH, shows the configuration of the store there, otherwise that of a new store. Changes nothing.
    """
    if broker_conf == _PRINT and path is None:
        raise click.UsageError(
            "--broker-conf without a file prints the lines that a broker needs to open a store, and no store "
            "was given: put its path first, for example: penstock config data --broker-conf"
        )
    given = chosen(settings, broker_conf or None)
    opener = make_opener(path or "", config, None, None, None, None, given)
    if path is None:
        _show(opener.asked.for_new_store(), show_origin=show_origin, as_json=as_json)
    elif broker_conf == _PRINT:
        for line in to_broker_conf(opener.geometry(), opener.root).splitlines():
            out(line)
    else:
        effective = opener.asked.for_store(opener.profile, opener.geometry())
        _show(effective, show_origin=show_origin, as_json=as_json)
    return 0


def _show(config: Config, *, show_origin: bool, as_json: bool) -> None:
    rows = list(config.items())
    if as_json:
        for key, value, origin in rows:
            out_json(key=key, value=value, **({"origin": origin} if show_origin else {}))
    elif show_origin:
        table("", ("setting", "value", "origin"), [(k, repr(v), o) for k, v, o in rows])
    else:
        table("", ("setting", "value"), [(k, repr(v)) for k, v, _ in rows])
