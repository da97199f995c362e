"""The command `penstock replica`: which role a store has, follows a master, and makes a follower a master."""

import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from penstock.cli.output import (
    Bar,
    chosen,
    json_option,
    note,
    out,
    out_json,
    own_settings_options,
    quiet_option,
    store_argument,
)
from penstock.cli.root import NO, examples
from penstock.escape import visible
from penstock.files import Files

if TYPE_CHECKING:
    from penstock_replicate.following.follower import LogFollower
    from penstock_replicate.following.options import ProtocolChoice
    from penstock_replicate.roles.status_file import ReplicaStatus

_LOOK_S = 0.5
_MIB = 20
_file = click.Path(exists=True, dir_okay=False)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@click.group(
    "replica",
    epilog=examples("penstock replica status data", "penstock replica status data --json"),
)
def command() -> None:
    """Keep a second copy of a store: follow a master, see how far a copy is, and make it the master."""


# --- status


@command.command("status", epilog=examples("penstock replica status data", "penstock replica status data --json"))  # fmt: skip
@store_argument
@json_option
def status(path: str, as_json: bool) -> int:
    """Show whether a store is a master or follows one, how far its copies are, and what failed last.

    Works from any process; exit code 1 if the store was never replicated.
    """
    import attrs  # noqa: PLC0415 - not for a help text

    from penstock.durability.replica_file import ReplicaFile  # noqa: PLC0415 - not for a help text
    from penstock_replicate.roles.status_file import StatusFile  # noqa: PLC0415 - not for a help text
    from penstock_replicate.roles.wording import copy_text, status_line  # noqa: PLC0415 - not for a help text

    files, root = Files(), Path(path)
    replica, found = ReplicaFile(files, root).read(), StatusFile(files, root).read()
    if replica is None and found is None:
        note(f"{root} is not replicated: it follows no master, and has had no copy")
        return NO
    lock = root / "lock"
    is_open = files.exists(lock) and files.is_locked(lock)
    is_live = is_open and found is not None and found.is_fresh(_now_ms())
    if as_json:
        facts = {} if replica is None else attrs.asdict(replica)
        out_json(**facts | (attrs.asdict(found) if found is not None else {}), is_live=is_live)
        return 0
    if replica is not None:
        whose = f" of {replica.master}" if replica.master else ""
        out(f"{replica.role}{whose}, epoch {replica.epoch}, history {replica.history}")
    if found is not None:
        age = "" if is_live else "not running now; as it was when it ran last: "
        out(age + status_line(found, _now_ms(), has_list=True))
        for copy in found.copies:
            out(f"    {copy_text(copy)}")
    return 0


# --- follow


@command.command("follow", epilog=examples("penstock replica follow --help"))
@click.argument("path", type=click.Path(file_okay=False))
@click.option("--from", "master", required=True, metavar="HOST:PORT", help="Where the master listens for copies; of a RocketMQ broker its haListenPort.")  # fmt: skip
@click.option("--protocol", type=click.Choice(("auto", "penstock", "rocketmq")), default="auto", show_default=True, help="What the master speaks.")  # fmt: skip
@click.option("--secret-file", default=None, type=_file, help="The file with the secret that both sides prove.")  # fmt: skip
@click.option("--tls-ca", default=None, type=_file, help="The certificate that signed the master's; turns TLS on.")  # fmt: skip
@click.option("--tls-cert", default=None, type=_file, help="This side's certificate, if the master wants one.")  # fmt: skip
@click.option("--tls-key", default=None, type=_file, help="The key of --tls-cert.")
@click.option("--from-last-file", is_flag=True, help="An empty store begins with the master's last file, not its first.")  # fmt: skip
@click.option("--remoting", metavar="HOST:PORT", help="A RocketMQ master's remoting port, for offsets, topics and groups.")  # fmt: skip
@click.option("--cut", is_flag=True, help="Cut off, and save, what only this store has.")
@click.option("--full-copy", is_flag=True, help="If the log cannot be continued, rename the folder and copy anew.")  # fmt: skip
@click.option("--once", is_flag=True, help="Exit when all that the master has is here.")
@own_settings_options
@json_option
@quiet_option
def follow_(
    path: str, master: str, protocol: "ProtocolChoice", secret_file: str | None, tls_ca: str | None, tls_cert: str | None, tls_key: str | None,
    from_last_file: bool, remoting: str | None, cut: bool, full_copy: bool, once: bool, settings: tuple[str, ...],
    config: str | None, as_json: bool, quiet: bool,
) -> int:  # fmt: skip
    """Let the store at PATH follow a master, until it is stopped or promoted; makes the store if there is none.

    Shows the progress of the copy, then one line that is renewed. While it runs, the store is read as always, with read_only=True.
    """
    from penstock_replicate.following.follow import follow  # noqa: PLC0415 - not for a help text

    signal.signal(signal.SIGTERM, _interrupt)
    follower = follow(
        path, master, protocol=protocol, secret_file=secret_file or "", tls_ca=tls_ca or "", tls_cert=tls_cert or "", tls_key=tls_key or "",
        from_last_file=from_last_file, remoting=remoting, cut=cut, full_copy=full_copy, config=config,
        **chosen(settings, None),
    )  # fmt: skip
    with follower:
        _show_copying(follower, quiet=quiet or as_json)
        if not once:
            _show_following(follower, quiet=quiet, as_json=as_json)
    _show_line(follower.status(), as_json=as_json, quiet=quiet)
    return 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _show_copying(follower: "LogFollower", *, quiet: bool) -> None:
    """Show a progress bar until all that the master has is here."""
    found, begin = follower.status(), 0
    with Bar(f"copying {found.peer}", None, "MiB", quiet=quiet) as bar:
        shown_error: str | None = None
        while not follower.wait_caught_up(_LOOK_S) and not follower.is_over:
            found = follower.status()
            begin = begin or found.end_offset
            if found.last_error != shown_error and not quiet:
                shown_error = found.last_error
                note(f"{found.peer}: {found.last_error}")
            if found.master_offset:
                bar.total(found.master_offset - begin)
                bar.set(found.end_offset - begin, found.received_bytes >> _MIB)


def _show_following(follower: "LogFollower", *, quiet: bool, as_json: bool) -> None:
    """Show a line that is renewed on a terminal, and is a new one elsewhere if more than numbers have changed."""
    from penstock_replicate.roles.wording import status_line  # noqa: PLC0415 - not for a help text

    shown: tuple[object, ...] = ()
    is_terminal = sys.stderr.isatty() and not as_json
    while not follower.is_over:
        found = follower.status()
        facts = found.state, found.last_error, found.kind
        if is_terminal and not quiet:
            sys.stderr.write(f"\r\x1b[K{visible(status_line(found, found.time_ms))}")
            sys.stderr.flush()
        elif facts != shown:
            _show_line(found, as_json=as_json, quiet=quiet)
        shown = facts
        follower.wait_over(_LOOK_S if is_terminal else 0.1)
    if is_terminal and not quiet:
        sys.stderr.write("\n")


def _show_line(found: "ReplicaStatus", *, as_json: bool, quiet: bool) -> None:
    import attrs  # noqa: PLC0415 - not for a help text

    from penstock_replicate.roles.wording import status_line  # noqa: PLC0415 - not for a help text

    if as_json:
        out_json(**attrs.asdict(found))
        sys.stdout.flush()
    elif not quiet:
        note(status_line(found, found.time_ms))


# --- promote


@command.command("promote", epilog=examples("penstock replica promote --help"))
@store_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0.1), default=30.0, show_default=True, help="Seconds to wait for the process that follows.")  # fmt: skip
@json_option
def promote_(path: str, yes: bool, timeout_s: float, as_json: bool) -> int:
    """Make the follower at PATH a master. Says before what may be lost, and asks.

    If a process follows, it is told to: it promotes the store, and ends. Then the store is opened for writing as any other.
    """
    from penstock_replicate.roles.promotion import look_ahead, promote_closed, promote_followed  # noqa: PLC0415 - not for a help text  # fmt: skip

    files, root = Files(), Path(path).absolute()
    ahead = look_ahead(files, root, _now_ms())
    for line in ahead.lines():
        note(line)
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("this is no terminal to ask on: give --yes to promote")
        click.confirm("Make it the master?", abort=True, err=True)
    if ahead.is_followed:
        done = promote_followed(files, root, timeout_s, time_ms=_now_ms)
    else:
        done = promote_closed(root)
    if as_json:
        out_json(
            epoch=done.epoch, start_offset=done.start_offset, missing_bytes=ahead.missing_bytes, contact_age_ms=ahead.contact_age_ms,
        )  # fmt: skip
    else:
        out(
            f"{root} is a master now, in epoch {done.epoch} from log offset {done.start_offset:,} on"
        )
        note("open it for writing; let the former master follow it before it takes messages again")
    return 0
