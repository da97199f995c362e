"""The verb plugins: what is installed, and whether a strategy keeps its contract."""

import inspect
from typing import Any

import attrs
import click

from penstock.cli.output import json_option, note, out_json, table
from penstock.cli.root import NO, examples
from penstock.contracts import Strategy
from penstock.registry import PluginInfo, PluginStatus, Registry, load_registry

_FINE = (PluginStatus.LOADED, PluginStatus.SLOW, PluginStatus.BLOCKED)


@click.group(
    "plugins",
    invoke_without_command=True,
    epilog=examples("penstock plugins", "penstock plugins --json"),
)
@json_option
@click.pass_context
def plugins_command(context: click.Context, as_json: bool) -> int | None:
    """List installed strategies with their options, and plugins that were set aside and why."""
    if context.invoked_subcommand is not None:
        return None
    registry = load_registry()
    if as_json:
        for info in registry.plugins:
            out_json(**_plugin_facts(registry, info))
    else:
        _show(registry)
    return NO if any(info.status not in _FINE for info in registry.plugins) else 0


def _strategies(registry: Registry, info: PluginInfo) -> list[dict[str, Any]]:
    sets = registry.sets()
    offered = [
        (kind, sets[kind].get(name)) for kind, name in info.offers if name in sets[kind].names()
    ]
    return [strategy_facts(kind, sets[kind].contract.__name__, cls) for kind, cls in offered]


def strategy_facts(kind: str, contract: str, cls: type[Strategy]) -> dict[str, Any]:
    """Return what there is to know of a strategy."""
    defaults = cls.Options()
    return {
        "section": kind,
        "name": cls.name,
        "contract": contract,
        "capabilities": sorted(cls.capabilities),
        "options": {
            field.name: getattr(defaults, field.name) for field in attrs.fields(cls.Options)
        },
        "about": (inspect.getdoc(cls) or "").partition("\n")[0],
    }


def _plugin_facts(registry: Registry, info: PluginInfo) -> dict[str, Any]:
    return {
        "plugin": info.entry_point,
        "distribution": info.distribution,
        "version": info.version,
        "status": info.status,
        "reason": str(info.error) if info.error else None,
        "load_ms": info.load_ms,
        "hooks": info.hooks,
        "strategies": _strategies(registry, info),
    }


def _show(registry: Registry) -> None:
    found = [(info, facts) for info in registry.plugins for facts in _strategies(registry, info)]
    for kind, strategies in registry.sets().items():
        rows = [
            (
                facts["name"],
                f"{info.distribution} {info.version}",
                "\n".join(facts["capabilities"]),
                "\n".join(f"{name}={value!r}" for name, value in facts["options"].items()),
            )
            for info, facts in sorted(found, key=lambda each: str(each[1]["name"]))
            if facts["section"] == kind
        ]
        title = f"[{kind}] {strategies.contract.__name__}"
        table(title, ("name", "distribution", "capabilities", "options"), rows)
    for info in registry.plugins:
        _remark(info)


def _remark(info: PluginInfo) -> None:
    name = info.entry_point
    if info.hooks:
        note(f"{name} listens to {', '.join(info.hooks)}")
    if info.status is PluginStatus.SLOW:
        note(f"{name} is slow: its import took {info.load_ms} ms")
    elif info.status is PluginStatus.BLOCKED:
        note(f"{name} is blocked by plugins.block")
    elif info.error is not None:
        note(f"{name} is {info.status}: {info.error}")
