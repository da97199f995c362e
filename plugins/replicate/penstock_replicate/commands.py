"""The command `replica`: makes a folder a copy that follows a master, and shows how far copies are."""

import signal
from typing import Any

import click

import penstock
from penstock.errors import StoreClosedError
from penstock_tools.cli.beside import once_let_go, timeout_option
from penstock_tools.cli.output import (
    chosen,
    json_option,
    note,
    out_json,
    own_settings_options,
    quiet_option,
    size_text,
    store_argument,
    table,
)
from penstock_tools.cli.root import NO, examples

# How often `follow` looks whether it is to end, and how far it is.
_ROUND_S = 1.0


@click.group(
    "replica",
    epilog=examples(
        "penstock replica follow copy --from 127.0.0.1:10912", "penstock replica status data --json"
    ),
)
def group() -> None:
    """Copy a store to another disk or machine while it is written, and see how far the copies are."""


@group.command(
    "status", epilog=examples("penstock replica status data", "penstock replica status data --json")
)
@store_argument
@json_option
def status(path: str, as_json: bool) -> int:
    """Show whether a store has copies or is one, and how far they are; exit code 1 if neither."""
    from penstock_tools.cli.state import replica_of  # noqa: PLC0415 - not for a help text

    with penstock.open(path, read_only=True) as store:
        facts = replica_of(store)
    if facts is None:
        note(f"{path} has no copies and is none")
        return NO
    if as_json:
        out_json(**facts)
        return 0
    found = facts["status"] or {}
    rows = [
        ("role", facts["role"]),
        ("now", found.get("text", "no process copies now")),
        ("log end", str(facts["log_end"])),
        *((name, str(facts[name])) for name in ("store", "history", "epoch")),
    ]
    if facts["master"]:
        rows.append(("master", facts["master"]))
    table("", ("", ""), rows)
    copies = found.get("copies") or []
    if copies:
        table("", ("copy", "from", "now", "lag", "seconds", "last error"), map(_row, copies))
    return 0


def _row(copy: dict[str, Any]) -> tuple[str, ...]:
    """Return one line of the table of copies."""
    lag, lag_ms = copy.get("lag_bytes"), copy.get("lag_ms")
    return (
        str(copy.get("store")),
        str(copy.get("address")),
        "connected" if copy.get("is_connected") else "gone",
        "-" if lag is None else size_text(lag),
        "-" if lag_ms is None else f"{lag_ms / 1000:.1f}",
        str(copy.get("last_error") or "-"),
    )


@group.command(
    "follow",
    epilog=examples(
        "penstock replica follow copy --from 127.0.0.1:10912",
        "penstock replica follow copy --from 127.0.0.1:10912 --set flush.use=sync --once",
        "penstock replica follow copy --from 127.0.0.1:10912 --protocol rocketmq --broker 127.0.0.1:10911",
    ),
)
@click.argument("path", type=click.Path(file_okay=False))
@click.option(
    "--from", "master", required=True, metavar="HOST:PORT", help="Where the master listens."
)
@click.option(
    "--protocol", type=click.Choice(["penstock", "rocketmq"]), default="penstock", show_default=True,
    help="What the master is: a store of Penstock, or a broker.",
)  # fmt: skip
@click.option(
    "--broker", metavar="HOST:PORT",
    help="The broker's listenPort, for its topics, groups, offsets and delays; without it, only the log is copied.",
)  # fmt: skip
@click.option(
    "--cut", is_flag=True,
    help="Cut off what this copy has and the master lacks, such as the last messages of an old master; the bytes are "
    "moved to penstock/saved.",
)  # fmt: skip
@click.option("--secret-file", metavar="FILE", help="A file with the secret of the master.")
@click.option(
    "--tls-ca",
    metavar="FILE",
    help="A PEM file with the certificate of the master, or of who signed it.",
)
@click.option("--once", is_flag=True, help="End as soon as the copy has all that the master has.")
@own_settings_options
@quiet_option
def follow(
    path: str, master: str, once: bool, settings: tuple[str, ...], quiet: bool, **given: Any
) -> int:
    """Make PATH a copy of the master's store, and let it follow until Ctrl-C, or until it is promoted.

    The folder is created when the master has accepted. The copy can be read meanwhile, and takes no messages.
    """
    from penstock_replicate import follow as begin  # noqa: PLC0415 - not for a help text

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    said = ""
    # What is given has the names of that function's arguments.
    with begin(path, master, **given, **chosen(settings, None)) as follower:
        try:
            caught_up = follower.catching_up()
            while True:
                is_level = caught_up(_ROUND_S) if once else follower.wait(_ROUND_S)
                text = follower.status()["text"]
                if not quiet and text != said:
                    said = text
                    note(f"{path}: {text}")
                if is_level:
                    return 0
        except KeyboardInterrupt:
            if not quiet:
                note(f"{path}: stopped; follow again to go on")
        except StoreClosedError:
            note(f"{path}: {follower.status()['text']}")
            return NO if once else 0
        return 0


@group.command(
    "promote",
    epilog=examples("penstock replica promote copy", "penstock replica promote copy --json"),
)
@store_argument
@own_settings_options
@timeout_option
@json_option
def promote(path: str, config: str | None, settings: tuple[str, ...], as_json: bool) -> int:
    """Make a copy a master that takes messages, after the old master is lost. `replica follow` of it ends.

    Promote the copy whose log ends last, as `penstock stat` shows it: what it lacks is lost. The old master can follow
    the new one later, with --cut if it has bytes that this copy lacks.
    """
    from penstock_tools.cli.state import replica_of  # noqa: PLC0415 - not for a help text

    with penstock.open(path, read_only=True) as store:
        facts = replica_of(store)
    if facts is None or facts["role"] != "follower":
        note(f"{path} is no copy that follows a master; nothing was changed")
        return NO
    given = chosen(settings, None)
    replica = once_let_go(path, lambda: penstock.promote(path, config, **given))
    epoch = replica.epochs[-1]
    if as_json:
        out_json(
            store=replica.store, history=replica.history, epoch=epoch.number, log_end=epoch.start
        )
    else:
        note(f"{path} is a master now: epoch {epoch.number} begins at log offset {epoch.start}")
    return 0
