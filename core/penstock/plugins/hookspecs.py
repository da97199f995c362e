"""Hooks a plugin may implement.

Registration hooks return strategy classes and run once, when the plugins are loaded.
Event hooks run at segment frequency, never once a record; one that raises is logged with its
plugin's name and switched off, and the store goes on.
"""

from collections.abc import Iterable

import pluggy

from penstock.contracts import (
    Allocator,
    Dispatcher,
    FlushPolicy,
    RetentionPolicy,
    SegmentWriter,
)

PROJECT = "penstock"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def penstock_register_writer() -> Iterable[type[SegmentWriter]]:
    """Return the segment writers this plugin offers."""
    raise NotImplementedError


@hookspec
def penstock_register_allocator() -> Iterable[type[Allocator]]:
    """Return the allocators this plugin offers."""
    raise NotImplementedError


@hookspec
def penstock_register_flush() -> Iterable[type[FlushPolicy]]:
    """Return the flush policies this plugin offers."""
    raise NotImplementedError


@hookspec
def penstock_register_dispatcher() -> Iterable[type[Dispatcher]]:
    """Return the dispatchers this plugin offers."""
    raise NotImplementedError


@hookspec
def penstock_register_retention() -> Iterable[type[RetentionPolicy]]:
    """Return the retention policies this plugin offers."""
    raise NotImplementedError


@hookspec
def penstock_register_commands() -> Iterable[object]:
    """Return click commands to add to the `penstock` command."""
    raise NotImplementedError


@hookspec
def penstock_store_opened(root: str, report: object) -> None:
    """A store was opened for writing; `report` is the `RecoveryReport` of what was mended."""


@hookspec
def penstock_segment_sealed(path: str, base_offset: int, size: int) -> None:
    """A segment became full and takes no more records; it may not be durable yet."""


@hookspec
def penstock_segment_expired(
    path: str, base_offset: int, size: int, reason: str, config: object
) -> None:
    """A segment is about to go; its file is still whole and can be read, or copied to an archive.

    `config` is the store's `penstock.config.model.Config`. A plugin that raises keeps it, and all later ones, in the store: it is logged and asked again
    in the next round. It may be asked again for a segment after a restart.
    """


@hookspec
def penstock_segment_deleted(path: str, base_offset: int, reason: str) -> None:
    """Retention took a segment away."""


@hookspec
def penstock_store_failed(root: str, reason: str) -> None:
    """A sync or write failed, and the store takes no more writes."""


@hookspec
def penstock_damage_found(path: str, position: int, log_offset: int, text: str) -> None:
    """Scrubbing found that a sealed segment is not what it was; reading and writing go on."""
