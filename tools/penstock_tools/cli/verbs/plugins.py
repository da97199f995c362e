"""The verb `plugins`: lists what is installed, and checks whether a strategy meets its contract."""

import difflib
import inspect
import logging
from typing import Any

import attrs
import click

from penstock.contracts import Strategy
from penstock.errors import MissingExtraError
from penstock.plugins.loading import PluginInfo, PluginStatus
from penstock.plugins.registry import Registry, load_registry
from penstock_tools.cli.output import Bar, json_option, note, out, out_json, table
from penstock_tools.cli.root import NO, blocked_plugins, examples

_FINE = (PluginStatus.LOADED, PluginStatus.SLOW, PluginStatus.BLOCKED)


@click.group(
    "plugins",
    invoke_without_command=True,
    epilog=examples("penstock plugins", "penstock plugins --json"),
)
@json_option
@click.pass_context
def command(context: click.Context, as_json: bool) -> int | None:
    """List installed strategies with their options, and plugins that were not loaded, with the reason."""
    if context.invoked_subcommand is not None:
        return None
    registry = load_registry(blocked_plugins())
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
    """Return the facts about a strategy: section, name, contract, capabilities, option defaults, summary."""
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
    """Print a table of strategies for each kind, then remarks on plugins."""
    found = [(info, facts) for info in registry.plugins for facts in _strategies(registry, info)]
    for kind, strategies in registry.sets().items():
        rows = [
            (
                facts["name"],
                f"{info.distribution} {info.version}",
                facts["capabilities"],
                [f"{name}={value!r}" for name, value in facts["options"].items()],
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
        note(f"{name} implements the hooks {', '.join(info.hooks)}")
    if info.status is PluginStatus.SLOW:
        note(f"{name} is slow: its import took {info.load_ms} ms")
    elif info.status is PluginStatus.BLOCKED:
        note(f"{name} is blocked by plugins.block")
    elif info.error is not None:
        note(f"{name} is {info.status}: {info.error}")


@command.command(
    "check",
    epilog=examples(
        "penstock plugins check flush.none --step test_a_request_is_met_soon",
        "penstock plugins check age --step crash_exploration --points 5 --json",
    ),
)
@click.argument("name")
@click.option("--step", default=None, help="Run only the step with this name.")
@click.option(
    "--points",
    type=click.IntRange(1),
    default=40,
    show_default=True,
    help="How many crash points the exploration tries.",
)
@json_option
def check_command(name: str, step: str | None, points: int, as_json: bool) -> int:
    """Run the contract suite on strategy NAME (flush.every, or just every if no other section has that name).

    Afterwards a store that uses the strategy is killed at many system calls, and must recover each time. Everything
    runs in a temporary folder; your own stores are not touched.
    """
    registry = load_registry(blocked_plugins())
    kind, name = _find(registry, name)
    checking = _load_checker()
    # The log messages of a store that is repeatedly killed and recovered are expected.
    logging.getLogger("penstock").setLevel(logging.CRITICAL)
    with Bar(f"{kind}.{name}", None, "steps", quiet=as_json) as bar:
        done: list[object] = []

        def on_progress(one: object) -> None:
            done.append(one)
            bar.set(len(done), len(done))

        verdict = checking.check(
            registry, kind, name, only=step, points=points, on_progress=on_progress
        )
    if not verdict.steps:
        raise click.UsageError(f"there is no step {step!r}; run without --step to see all steps")
    if as_json:
        out_json(
            section=kind, name=name, contract=verdict.contract, plugin=verdict.plugin,
            distribution=verdict.distribution, version=verdict.version, passed=not verdict.failed,
            sentence=verdict.sentence, steps=[attrs.asdict(each) for each in verdict.steps],
        )  # fmt: skip
    else:
        for each in verdict.steps:
            out(f"{'FAILED' if each.failure else 'passed'}  {each.name}: {each.about}")
        note(verdict.sentence)
        if verdict.failed:
            note(
                f"to repeat the first failure: penstock plugins check {kind}.{name} --step '{verdict.failed[0].name}'"
            )
    return NO if verdict.failed else 0


def _load_checker() -> Any:
    try:
        from penstock.testing import check  # noqa: PLC0415 - pytest is an extra
    except ModuleNotFoundError as error:
        raise MissingExtraError(str(error.name), "testing", "penstock plugins check") from error
    return check


def _find(registry: Registry, name: str) -> tuple[str, str]:
    """Return kind and name of a strategy; raises `UsageError` if it is unknown or ambiguous."""
    section, dot, short = name.rpartition(".")
    found = [
        kind
        for kind, strategies in registry.sets().items()
        if short in strategies.names() and (not dot or kind == section)
    ]
    if len(found) == 1:
        return found[0], short
    if found:
        names = " or ".join(f"{kind}.{short}" for kind in found)
        raise click.UsageError(f"{name} is offered in multiple sections: use {names}")
    offered = [
        f"{kind}.{each}"
        for kind, strategies in registry.sets().items()
        for each in strategies.names()
    ]
    near = difflib.get_close_matches(name, [*offered, *(o.partition(".")[2] for o in offered)], 1)
    hint = f"; did you mean {near[0]}?" if near else f"; installed: {', '.join(offered)}"
    raise click.UsageError(f"no strategy named {name}{hint}")
