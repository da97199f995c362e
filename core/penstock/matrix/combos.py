"""Every combination of installed strategies, including those of third-party plugins."""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.config.model import Config
from penstock.errors import ConfigError
from penstock.plugins.registry import Registry

KINDS = ("write", "alloc", "flush")
_IN_MEMORY = "messages that were not committed yet, a contiguous tail"
_UNSYNCED = "messages that were not synced yet, a contiguous tail"


class Combo(NamedTuple):
    """One writer, allocator and flush policy."""

    write: str
    alloc: str
    flush: str

    @property
    def label(self) -> str:
        """The name of the combination in tables and tests."""
        return " ".join(self)

    def settings(self) -> dict[str, Any]:
        """Return the settings with which `penstock.open` picks the combination."""
        return {"write": self.write, "alloc": self.alloc, "flush": self.flush}

    def toml(self, settings: Mapping[str, Any] | None = None) -> str:
        """Return the configuration to paste: the picks, and those of `settings` that apply to them."""
        picks = {"write.use": self.write, "alloc.use": self.alloc, "flush.use": self.flush}
        tables: dict[str, dict[str, Any]] = {}
        for key, value in {**picks, **(settings or {})}.items():
            table, _, name = key.rpartition(".")
            kind, _, strategy = table.partition(".")
            if not strategy or picks.get(f"{kind}.use", strategy) == strategy:
                tables.setdefault(table, {})[name] = value
        return "\n".join(
            (f"[{table}]\n" if table else "")
            # JSON strings, numbers and lists are valid TOML.
            + "".join(f"{name} = {json.dumps(v, ensure_ascii=False)}\n" for name, v in rows.items())
            for table, rows in sorted(tables.items(), key=_table_order)
        )

    def conflict(self, registry: Registry) -> str | None:
        """Return the reason why a store cannot be opened with the combination; None if it can."""
        picks: Mapping[str, Sequence[str]] = {
            **Config().for_new_store().picks(),
            "write": [self.write],
            "alloc": [self.alloc],
            "flush": [self.flush],
        }
        for kind in ("write", "alloc", "flush"):
            reason: str | None = registry.sets()[kind].get(picks[kind][0]).conflict(picks)
            if reason is not None:
                return reason
        return None


def _table_order(item: tuple[str, Any]) -> tuple[bool, int, str]:
    """Return the sort key of a table: keys without a table first, then in the order of a combination."""
    table = item[0]
    kinds = ("write", "alloc", "flush", "index")
    kind = table.partition(".")[0]
    return bool(table), kinds.index(kind) if kind in kinds else len(kinds), table


class Promise(NamedTuple):
    """The guarantee of an acknowledgement, and what a crash may lose."""

    acknowledged: str
    process_crash: str
    machine_crash: str


def promise(combo: Combo, registry: Registry) -> Promise:
    """Return what the return of a put guarantees under a combination."""
    if registry.flush_policies.get(combo.flush).appender_waits:
        return Promise("on disk", "nothing acknowledged", "nothing acknowledged")
    if registry.writers.get(combo.write).commits_at_once:
        return Promise("in the page cache", "nothing acknowledged", _UNSYNCED)
    return Promise("in the process's memory", _IN_MEMORY, _UNSYNCED)


def combinations(registry: Registry, only: Iterable[tuple[str, str]] = ()) -> list[Combo]:
    """Return every combination, including those with which no store can be opened.

    `only` has (kind, name) pairs; for each kind in it, only the given names are used.
    """
    names: dict[str, Sequence[str]] = {
        "write": registry.writers.names(),
        "alloc": registry.allocators.names(),
        "flush": registry.flush_policies.names(),
    }
    asked: dict[str, list[str]] = {}
    for kind, name in only:
        if name not in names.get(kind, ()):
            offered = ", ".join(names.get(kind, ())) or f"kinds: {', '.join(KINDS)}"
            raise ConfigError(f"there is no {kind} named {name!r}; installed: {offered}")
        asked.setdefault(kind, []).append(name)
    return [Combo(*each) for each in itertools.product(*(asked.get(k, names[k]) for k in KINDS))]
