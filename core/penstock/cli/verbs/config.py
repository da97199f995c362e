"""The verb `config`: shows the whole configuration, or writes a file of it."""

from typing import Any

import click

from penstock.cli.output import chosen, json_option, out, out_json, own_settings_options, table
from penstock.cli.root import examples
from penstock.config.broker_conf import to_broker_conf
from penstock.config.model import Config
from penstock.store.open import make_opener

# What `--broker-conf` without a file stands for.
_PRINT = ""


class _OptionalFile(click.Path):
    """A file that exists, or none named at all."""

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
    help="With a FILE: a RocketMQ broker.conf to take sizes and policies from. Without, after PATH: "
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
    """Show the whole configuration as it would be used, strategies' options included.

    With PATH that of the store there, else that of a new store. Nothing is changed.
    """
    if broker_conf == _PRINT and path is None:
        raise click.UsageError(
            "--broker-conf without a file prints what a broker needs to open a store: name the store first, "
            "as in: penstock config data --broker-conf"
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
