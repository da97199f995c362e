"""Hooks a plugin may implement.

Registration hooks return strategy classes and run once, when the plugins are loaded.
Event hooks run at segment frequency, never once a record. If one raises, the exception is logged with the
plugin's name and the hook is disabled; the store continues.

The contracts are imported for types only: they are slow to import.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from penstock.contracts import (
        Allocator,
        Dispatcher,
        Extension,
        FlushPolicy,
        Replicator,
        RetentionPolicy,
        SegmentWriter,
    )

PROJECT = "penstock"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def penstock_register_writer() -> "Iterable[type[SegmentWriter]]":
    """Return the segment writers this plugin offers."""
    raise NotImplementedError


@hookspec
def penstock_register_allocator() -> "Iterable[type[Allocator]]":
    """Return the allocators this plugin offers."""
    raise NotImplementedError


@hookspec
def penstock_register_flush() -> "Iterable[type[FlushPolicy]]":
    """Return the flush policies this plugin offers."""
    raise NotImplementedError


@hookspec
def penstock_register_dispatcher() -> "Iterable[type[Dispatcher]]":
    """Return the dispatchers this plugin offers."""
    raise NotImplementedError


@hookspec
def penstock_register_retention() -> "Iterable[type[RetentionPolicy]]":
    """Return the retention policies this plugin offers."""
    raise NotImplementedError


@hookspec
def penstock_register_extension() -> "Iterable[type[Extension]]":
    """Return the extensions this plugin offers."""
    raise NotImplementedError


@hookspec
def penstock_register_replicator() -> "Iterable[type[Replicator]]":
    """Return the replicators this plugin offers."""
    raise NotImplementedError


@hookspec
def penstock_register_commands() -> Iterable[object]:
    """Return click commands to add to the `penstock` command."""
    raise NotImplementedError


@hookspec
def penstock_store_opened(root: str, report: object) -> None:
    """A store was opened for writing; `report` is the `RecoveryReport` with what was repaired."""


@hookspec
def penstock_segment_sealed(path: str, base_offset: int, size: int) -> None:
    """A segment became full and takes no more records; it may not be durable yet."""


@hookspec
def penstock_segment_expired(
    path: str, base_offset: int, size: int, reason: str, config: object
) -> None:
    """A segment is about to be deleted; its file is still complete and can be read, or copied to an archive.

    `config` is the store's `penstock.config.model.Config`. If a plugin raises, the segment and all later ones stay in
    the store; the exception is logged, and the hook is called again in the next retention run. After a restart, the
    hook may be called again for the same segment.
    """


@hookspec
def penstock_segment_deleted(path: str, base_offset: int, reason: str) -> None:
    """Retention has deleted a segment."""


@hookspec
def penstock_store_failed(root: str, reason: str) -> None:
    """A sync or write failed, and the store takes no more writes."""


@hookspec
def penstock_damage_found(path: str, position: int, log_offset: int, text: str) -> None:
    """Scrubbing found that a sealed segment has changed since it was sealed; reads and writes continue."""
