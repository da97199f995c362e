"""Plugins are found by entry points; what is wrong with one is told, and stops nothing else."""

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import InstallPlugin

import penstock
from penstock.errors import (
    ConfigError,
    DuplicateStrategyError,
    PluginLoadError,
    UnknownStrategyError,
)
from penstock.plugins.registry import load_registry
from penstock.testing import ManualWorkers

EVERY = """
    import attrs
    from penstock import FlushPolicy, hookimpl

    @attrs.frozen(kw_only=True)
    class EveryOptions:
        bytes: int = 1_000_000

    class EveryFlush(FlushPolicy):
        "Flushes whenever so many bytes wait."
        name = "{name}"
        Options = EveryOptions

        def after_append(self, end_offset):
            if end_offset - self.flusher.flushed_offset >= self.options.bytes:
                self.flusher.flush()

    @hookimpl
    def penstock_register_flush():
        return [EveryFlush]
"""


def test_the_flush_policy_of_the_docs_works(install_plugin: InstallPlugin, tmp_path: Path) -> None:
    install_plugin("penstock-every", EVERY.format(name="every"))
    options: dict[str, Any] = {"flush.every.bytes": 1000}
    with penstock.open(tmp_path / "s", flush="every", **options) as store:
        store.put("t", b"x" * 100, queue=0)
        assert store.stats()["flushed_offset"] == 0
        receipt = store.put("t", b"x" * 2000, queue=0)
        assert store.stats()["flushed_offset"] == receipt.log_offset + receipt.size


def test_a_taken_name_is_an_error_naming_both_for_who_picks_it(
    install_plugin: InstallPlugin, tmp_path: Path
) -> None:
    install_plugin("penstock-mine", EVERY.format(name="sync"))
    both = r"(?s)builtin-flush.*penstock_mine|penstock_mine.*builtin-flush"
    registry = load_registry()
    assert "sync" not in registry.flush_policies.names()
    with pytest.raises(DuplicateStrategyError, match=both):
        penstock.open(tmp_path / "s", environ={}, flush="sync")
    penstock.open(tmp_path / "s", environ={}, flush="async").close()
    option: dict[str, Any] = {"flush.sync.timeout_ms": 5000}
    with pytest.raises(DuplicateStrategyError, match=both) as caught:
        penstock.open(tmp_path / "s", environ={}, **option)
    assert caught.value.__notes__ == ["flush.sync.timeout_ms is set (call)"]
    statuses = {info.entry_point: info.status for info in registry.plugins}
    assert "duplicate" in (statuses["penstock_mine"], statuses["builtin-flush"])
    blocked: dict[str, Any] = {"plugins.block": ["penstock_mine"]}
    penstock.open(tmp_path / "s", environ={}, flush="sync", **blocked).close()


BROKEN = {
    "no import: broken": ("import no_such_module", "no_such_module"),
    "unknown hook: misspelt": ("from penstock import hookimpl\n@hookimpl\ndef penstock_register_flsh(): return []", "penstock_register_flsh"),
    "no class: incompatible": ("from penstock import hookimpl\n@hookimpl\ndef penstock_register_flush(): return [7]", "not a class"),
    "abstract: incompatible": (
        ("from penstock import RetentionPolicy, hookimpl\nclass F(RetentionPolicy):\n    name = 'f'\n"
         "@hookimpl\ndef penstock_register_retention(): return [F]"), "does not implement vote",
    ),
    "bad name: incompatible": (
        ("from penstock import FlushPolicy, hookimpl\nclass F(FlushPolicy):\n    name = 'Bad Name'\n"
         "@hookimpl\ndef penstock_register_flush(): return [F]"), "kebab-case",
    ),
    "long name: incompatible": (
        ("from penstock import Dispatcher, hookimpl\nclass F(Dispatcher):\n    name = 'f' * 25\n"
         "    dispatch = flush = load = truncate = trim = progress = close = None\n"
         "@hookimpl\ndef penstock_register_dispatcher(): return [F]"), "over 24 characters",
    ),
    "newer contract: incompatible": (
        ("from penstock import FlushPolicy, hookimpl\nclass F(FlushPolicy):\n    name = 'f'\n    needs_contract = 99\n"
         "@hookimpl\ndef penstock_register_flush(): return [F]"), "contract version 99",
    ),
    "capabilities: incompatible": (
        ("from penstock import FlushPolicy, hookimpl\nclass F(FlushPolicy):\n    name = 'f'\n    capabilities = None\n"
         "@hookimpl\ndef penstock_register_flush(): return [F]"), "not a set",
    ),
    "skips at import: broken": ("import pytest\npytest.skip('no', allow_module_level=True)", "Skipped: no"),
    "raises: broken": ("from penstock import hookimpl\n@hookimpl\ndef penstock_register_flush(): return 1 / 0", "ZeroDivisionError"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_is_set_aside_by_name(
    case: str, install_plugin: InstallPlugin, tmp_path: Path
) -> None:
    source, text = BROKEN[case]
    install_plugin("penstock-broken", source)
    registry = load_registry()
    info = next(i for i in registry.plugins if i.entry_point == "penstock_broken")
    assert text in str(info.error)
    assert info.status == case.split(": ")[1]
    assert "penstock-broken" in str(info.error)
    penstock.open(tmp_path / "s", environ={}).close()
    with pytest.raises(UnknownStrategyError) as caught:
        penstock.open(tmp_path / "s", environ={}, flush="wanted")
    assert any("penstock_broken" in note for note in caught.value.__notes__)
    with pytest.raises(PluginLoadError, match="penstock-broken"):
        load_registry(require=["penstock_broken"])


# What a class of options has in its body, and what is said of it.
BAD_OPTIONS = {
    "x: int": "missing 1 required",
    "x: Decimal | None = None": "name 'Decimal' is not defined",
    "x: int = attrs.field(default=1, validator=lambda *_: {}['no'])": "KeyError: 'no'",
    "x: int = attrs.Factory(lambda: 1 / 0)": "ZeroDivisionError",
    "x: Literal['a', 'b'] = 'a'": "TypeError",
    "x: dict[str, int] = {}": "TypeError",
    "x: tuple[str, ...] | None = None": "TypeError",
    "x: Optional[list[str]] = None": "TypeError",
    "x = attrs.field(default=1)": "KeyError: 'x'",
}
WITH_OPTIONS = """
from __future__ import annotations
from typing import TYPE_CHECKING, Literal, Optional
import attrs
from penstock import FlushPolicy, hookimpl
if TYPE_CHECKING:
    from decimal import Decimal

@attrs.frozen(auto_attribs={auto})
class MyOptions:
    {body}

class MyFlush(FlushPolicy):
    name = "mine"
    Options = MyOptions

@hookimpl
def penstock_register_flush():
    return [MyFlush]
"""


@pytest.mark.parametrize("body", BAD_OPTIONS)
def test_options_that_settings_cannot_fill_stop_only_their_plugin(
    body: str, install_plugin: InstallPlugin, tmp_path: Path
) -> None:
    """One installed, unused plugin with such options stopped every store, and `penstock plugins`."""
    install_plugin("penstock-mine", WITH_OPTIONS.format(body=body, auto=body.startswith("x:")))
    penstock.open(tmp_path / "s", environ={}).close()
    info = next(i for i in load_registry().plugins if i.entry_point == "penstock_mine")
    assert info.status == "incompatible"
    assert "MyFlush.Options" in str(info.error)
    assert BAD_OPTIONS[body] in str(info.error)
    with pytest.raises(UnknownStrategyError) as caught:
        penstock.open(tmp_path / "s", environ={}, flush="mine")
    assert any("penstock-mine" in note for note in caught.value.__notes__)


def test_a_validator_may_raise_anything(install_plugin: InstallPlugin, tmp_path: Path) -> None:
    body = "x: int = attrs.field(default=1, validator=lambda _, __, value: {1: 1}[value])"
    install_plugin("penstock-mine", WITH_OPTIONS.format(body=body, auto=True))
    given: dict[str, Any] = {"flush.mine.x": 2}
    with pytest.raises(ConfigError, match=r"^flush\.mine: 2$"):
        penstock.open(tmp_path / "s", environ={}, **given)


def test_of_two_installations_of_one_name_the_first_on_the_path_counts(
    install_plugin: InstallPlugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin("penstock-mine", EVERY.format(name="mine"))
    hidden = tmp_path / "hidden" / "penstock_mine-0.9.dist-info"
    hidden.mkdir(parents=True)
    (hidden / "METADATA").write_text("Metadata-Version: 2.1\nName: penstock-mine\nVersion: 0.9\n")
    (hidden / "entry_points.txt").write_text("[penstock]\nold = not_there_any_more\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(hidden.parent)])
    found = {info.entry_point: info for info in load_registry().plugins}
    assert found["penstock_mine"].version == "1.0"
    assert "old" not in found


def test_a_distribution_that_says_no_name_is_loaded_all_the_same(
    install_plugin: InstallPlugin, tmp_path: Path
) -> None:
    install_plugin("penstock-mine", EVERY.format(name="mine"))
    (tmp_path / "site" / "penstock_mine-1.0.dist-info" / "METADATA").write_text(
        "Summary: no more\n"
    )
    found = {info.entry_point: info for info in load_registry().plugins}
    assert (found["penstock_mine"].distribution, found["penstock_mine"].version) == ("?", "?")
    assert "mine" in load_registry().flush_policies.names()


def test_a_slow_plugin_is_loaded_and_named(
    install_plugin: InstallPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.plugins.loading.SLOW_MS", -1)
    install_plugin("penstock-slow", EVERY.format(name="every"))
    info = next(i for i in load_registry().plugins if i.entry_point == "penstock_slow")
    assert info.status == "slow"
    assert info.offers == [("flush", "every")]


def test_a_required_plugin_that_is_not_there_is_fatal() -> None:
    with pytest.raises(PluginLoadError, match="not installed"):
        load_registry(require=["archive"])


def test_events_reach_plugins_and_one_that_raises_is_switched_off(
    install_plugin: InstallPlugin, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install_plugin(
        "penstock-listener",
        f"""
        from penstock import hookimpl
        @hookimpl
        def penstock_store_opened(root, report):
            with open({str(tmp_path / "told")!r}, "a") as file:
                file.write(report.state + " ")
        @hookimpl
        def penstock_segment_sealed(path):
            raise RuntimeError("listener is ill")
    """,
    )
    sizes: dict[str, Any] = {"geometry.segment_bytes": 65536}
    workers = ManualWorkers()
    with penstock.open(tmp_path / "s", environ={}, spawn=workers, **sizes) as store:
        for _ in range(300):
            store.put("t", b"x" * 1000, queue=0)
        store.topics()
        workers.run("penstock-follow")
        assert store.max_offset("t", 0) == 300
    penstock.open(tmp_path / "s", environ={}).close()
    assert (tmp_path / "told").read_text().split() == ["new", "clean"]
    assert caplog.text.count("not called again") == 1
