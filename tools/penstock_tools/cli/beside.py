"""Opens a store to change it; if another process has it open for writing, that process is asked to do it."""

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

import penstock
from penstock.errors import FollowerError, StorageError, StoreLockedError
from penstock.files import Files
from penstock.format.names import SIDE_FOLDER
from penstock_tools.cli.output import note
from penstock_tools.cli.times import DurationParam

if TYPE_CHECKING:
    from penstock.store.store import Store

T = TypeVar("T")
_META = "penstock.timeout_ms"
_PAUSE_S = 0.05


def _keep(context: click.Context, _parameter: click.Parameter, value: int) -> None:
    context.meta[_META] = value


timeout_option = click.option(
    "--timeout", type=DurationParam(), default="60s", show_default=True, expose_value=False, callback=_keep,
    help="How long to wait for another process that has the store open for writing, and is asked to do this.",
)  # fmt: skip


def open_to_change(
    path: str, config: str | None, settings: Mapping[str, Any], *, changes: bool = True
) -> "Store":
    """Return a store open for writing, or an object that asks the process that has it; for verbs with `timeout_option`.

    Unless it `changes` the store, return it open for reading.
    """
    from penstock.store.asking import StoreToChange  # noqa: PLC0415 - not for a help text

    writing = None
    try:
        writing = penstock.open(path, config, read_only=not changes, **settings)
        if not changes:
            return writing
        is_new = writing.recovery is not None and writing.recovery.state == "new"
        if is_new and not click.get_current_context().params.get("as_json"):
            note(f"{path} is a new store")
    except StoreLockedError as error:
        # A broker answers no requests.
        if Files().lock_owner(Path(path, "lock")) is not None:
            raise
        # Each writer writes this file anew.
        try:
            owner = Path(path, SIDE_FOLDER, "holder").stat().st_uid
        except FileNotFoundError:
            # It is opening the store for the first time.
            raise error from None
        if owner != os.geteuid():
            error.add_note(
                "run the command as the user of that process, and that process is asked to do it"
            )
            raise
        if config is not None or settings:
            error.add_note("without --config, --set and --broker-conf, that process is asked to do it, by its own "
                "settings")  # fmt: skip
            raise
    limit_ms = click.get_current_context().meta[_META]
    return cast("Store", StoreToChange(Path(path).absolute(), writing, limit_ms))


def once_let_go(path: str, job: Callable[[], T]) -> T:
    """Return what a job returns that needs the store's lock; a process that follows with the store is asked to end."""
    from penstock.store.asking import StoreToChange  # noqa: PLC0415 - not for a help text

    limit_ms = click.get_current_context().meta[_META]
    end_s = time.monotonic() + limit_ms / 1000
    while True:
        try:
            return job()
        except StoreLockedError:
            if time.monotonic() >= end_s:
                raise
        # The store can be opened as a follower only: the process has ended by itself.
        with suppress(FollowerError), StoreToChange(Path(path).absolute(), None, limit_ms) as other:
            other.let_go()
        time.sleep(_PAUSE_S)


@contextmanager
def alone(store: "Store", what: str) -> Iterator[None]:
    """Raise `StorageError` if another process does the same to the store; none begins it within the block."""
    digest = hashlib.blake2b(what.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    files, path = Files(), store.path / SIDE_FOLDER / "loads" / f"{digest}.lock"
    files.make_folder_durably(path.parent)
    while (lock := files.lock_one(path)) is not None and not lock.has_name(path):
        # Its last owner has just removed it.
        lock.release()
    if lock is None:
        raise StorageError(f"{what} is under way in another process; nothing was done. Wait for its end")  # fmt: skip
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            files.remove(path)
        lock.release()
