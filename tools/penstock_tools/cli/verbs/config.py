"""The verb `config`: shows the whole configuration, or prints it as broker.conf lines."""

from typing import Any

import click

from penstock.config.broker_conf import to_broker_conf
from penstock.config.model import Config
from penstock.contracts.base import QUEUE_ENTRY_SIZE
from penstock.dispatch.rebuild import open_log
from penstock.durability.written_ranges import known_ranges
from penstock.recovery.store_layout import is_store
from penstock.store.open import Opener, make_opener
from penstock_tools.cli.output import (
    chosen,
    json_option,
    note,
    out,
    out_json,
    own_settings_options,
    table,
)
from penstock_tools.cli.root import examples
from penstock_tools.cli.store_files import file_sizes

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

    With PATH, shows the configuration of the store there, beside the sizes and checksums that its own files have;
    otherwise that of a new store. Changes nothing.
    """
    if broker_conf == _PRINT and path is None:
        raise click.UsageError(
            "--broker-conf without a file prints the lines that a broker needs to open a store, and no store "
            "was given: put its path first, for example: penstock config data --broker-conf"
        )
    given = chosen(settings, broker_conf or None)
    opener = make_opener(path or "", config, None, None, None, None, given)
    if path is None:
        _show(opener.asked.for_new_store(), {}, show_origin=show_origin, as_json=as_json)
    elif broker_conf == _PRINT:
        for line in to_broker_conf(opener.geometry(), opener.root).splitlines():
            out(line)
    else:
        if not is_store(opener.files, opener.root):
            note(f"there is no store at {path}: these are the settings of a new one")
        effective = opener.asked.for_store(opener.profile, opener.geometry())
        _show(effective, _found_in(opener), show_origin=show_origin, as_json=as_json)
    return 0


def _found_in(opener: Opener) -> dict[str, str]:
    """Return what the files of the store say of settings that shape them; empty if there is no store yet."""
    root, geometry = opener.root, opener.geometry()
    if not is_store(opener.files, root):
        return {}
    index = _sizes_text(file_sizes(root, "index"), " bytes")
    found = {
        "profile": opener.profile.name,
        "geometry.segment_bytes": _sizes_text(file_sizes(root, "commitlog")),
        "geometry.queue_entries": _sizes_text(
            [(size // QUEUE_ENTRY_SIZE, n) for size, n in file_sizes(root, "consumequeue")],
            f" of {QUEUE_ENTRY_SIZE} bytes",
        ),
        "geometry.index_slots": index and f"{geometry.index_slots}, in files of {index}",
        "geometry.index_entries": index and f"{geometry.index_entries}, in files of {index}",
        "log.checksum": _checksums(opener),
    }
    return {key: text or "no file yet" for key, text in found.items()}


def _sizes_text(sizes: list[tuple[int, int]], unit: str = "") -> str:
    """Return sizes and numbers of files as text, empty if there is no file."""
    return ", ".join(
        f"{size}{unit} ({count} file{'s' if count > 1 else ''})" for size, count in sizes
    )


def _checksums(opener: Opener) -> str:
    """Return which records end in a CRC of their own, as far as that is recorded."""
    log = open_log(opener.files, opener.root, opener.geometry())
    try:
        coverage = known_ranges(opener.files, opener.root, log).coverage
        spans = log.spans()
        if not spans:
            return ""
        if coverage.has_all(spans[0][0], spans[-1][1]):
            return "crc32+record in all of the log"
        parts = [coverage.has_all(start, stop) for start, stop in spans]
        return "crc32+record in a part of the log" if any(parts) else "crc32"
    finally:
        log.close()


def _show(config: Config, found: dict[str, str], *, show_origin: bool, as_json: bool) -> None:
    """Show the settings; `found` is what the store's own files say of some of them."""
    rows = list(config.items())
    if as_json:
        for key, value, origin in rows:
            more = {"origin": origin} if show_origin else {}
            more |= {"in_store": found[key]} if key in found else {}
            out_json(key=key, value=value, **more)
        return
    columns = ["setting", "value"] + ["in the store"] * bool(found) + ["origin"] * show_origin
    shown = []
    for key, value, origin in rows:
        in_store = [found.get(key, "")] * bool(found)
        shown.append((key, repr(value), *in_store, *[origin] * show_origin))
    table("", columns, shown)
