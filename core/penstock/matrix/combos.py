"""Every combination of installed strategies; a third party's are in it as soon as they are installed."""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.config.model import FEEDS, Config
from penstock.errors import ConfigError
from penstock.plugins.registry import Registry

KINDS = ("write", "alloc", "flush", "feed")
_IN_MEMORY = "what was not committed yet, a contiguous tail"
_UNSYNCED = "what was not synced yet, a contiguous tail"


class Combo(NamedTuple):
    """One writer, allocator, flush policy and dispatch feed."""

    write: str
    alloc: str
    flush: str
    feed: str

    @property
    def label(self) -> str:
        """What it is called in tables and tests."""
        return " ".join(self)

    def settings(self) -> dict[str, Any]:
        """Return how `penstock.open` picks them."""
        return {
            "write": self.write,
            "alloc": self.alloc,
            "flush": self.flush,
            "index.feed": self.feed,
        }

    def toml(self, settings: Mapping[str, Any] | None = None) -> str:
        """Return the configuration to paste: the picks, and those of `settings` that mean something with them."""
        picks = {"write.use": self.write, "alloc.use": self.alloc, "flush.use": self.flush}
        tables: dict[str, dict[str, Any]] = {}
        for key, value in {**picks, "index.feed": self.feed, **(settings or {})}.items():
            table, _, name = key.rpartition(".")
            kind, _, strategy = table.partition(".")
            if not strategy or picks.get(f"{kind}.use", strategy) == strategy:
                tables.setdefault(table, {})[name] = value
        return "\n".join(
            (f"[{table}]\n" if table else "")
            # JSON's texts, numbers and lists are TOML's.
            + "".join(f"{name} = {json.dumps(v, ensure_ascii=False)}\n" for name, v in rows.items())
            for table, rows in sorted(tables.items(), key=_table_order)
        )

    def conflict(self, registry: Registry) -> str | None:
        """Return why it makes no sense, as the kernel says at open."""
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
    """Order tables as the parts of a combination come, keys without a table first, strategies after their kind."""
    table = item[0]
    kinds = ("write", "alloc", "flush", "index")
    kind = table.partition(".")[0]
    return bool(table), kinds.index(kind) if kind in kinds else len(kinds), table


class Promise(NamedTuple):
    """What an acknowledgement means, and what crashes may take."""

    acknowledged: str
    process_crash: str
    machine_crash: str


def promise(combo: Combo, registry: Registry) -> Promise:
    """Return what a put's answer is worth under a combination."""
    if registry.flush_policies.get(combo.flush).appender_waits:
        return Promise("on disk", "nothing acknowledged", "nothing acknowledged")
    if registry.writers.get(combo.write).commits_at_once:
        return Promise("in the page cache", "nothing acknowledged", _UNSYNCED)
    return Promise("in the process's memory", _IN_MEMORY, _UNSYNCED)


def combinations(registry: Registry, only: Iterable[tuple[str, str]] = ()) -> list[Combo]:
    """Return every combination, those that make no sense included.

    `only` has (kind, name) pairs; a kind that is named keeps only the names that are given for it.
    """
    names: dict[str, Sequence[str]] = {
        "write": registry.writers.names(),
        "alloc": registry.allocators.names(),
        "flush": registry.flush_policies.names(),
        "feed": FEEDS,
    }
    asked: dict[str, list[str]] = {}
    for kind, name in only:
        if name not in names.get(kind, ()):
            offered = ", ".join(names.get(kind, ())) or f"kinds: {', '.join(KINDS)}"
            raise ConfigError(f"there is no {kind} called {name!r}; {offered}")
        asked.setdefault(kind, []).append(name)
    return [Combo(*each) for each in itertools.product(*(asked.get(k, names[k]) for k in KINDS))]
