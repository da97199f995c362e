"""The sections of the configuration, and what a store makes of their defaults."""

from pathlib import Path

import attrs
import pytest

import penstock
from penstock.config.build import build_config
from penstock.config.model import SECTIONS, Config
from penstock.config.sources import gather
from penstock.errors import ConfigError
from penstock.plugins.registry import load_registry

REGISTRY = load_registry()


def built(**settings: object) -> Config:
    return build_config(gather(None, {}, settings), REGISTRY)


def test_every_setting_has_a_value_and_an_origin() -> None:
    items = {key: (value, origin) for key, value, origin in built(flush="sync").items()}
    assert {f"{n}.{f.name}" for n, cls in SECTIONS.items() for f in attrs.fields(cls)} <= set(items)
    assert items["flush.use"] == ("sync", "call")
    assert items["flush.sync.timeout_ms"][1] == "default"


def test_the_configured_strategies_are_listed_by_section() -> None:
    picks = built(flush="sync", retention=["age", "size"]).picks()
    assert picks == {
        "write": ["mmap"], "alloc": [built().alloc.use], "flush": ["sync"],
        "index": ["consume-queue", "hash-index"], "retention": ["age", "size"],
        "replicate": [], "extensions": ["messaging"],
    }  # fmt: skip


def test_options_of_a_strategy_are_its_defaults_where_none_are_given() -> None:
    sync = REGISTRY.flush_policies.get("sync")
    given = built(**{"flush.sync.timeout_ms": 7})
    assert given.options_for("flush", sync).timeout_ms == 7
    without = attrs.evolve(given, options={})
    assert without.options_for("flush", sync) == sync.Options()


@pytest.mark.parametrize("mode", [-1, 0o1000, 0o777])
def test_a_mode_that_files_cannot_have_is_refused(mode: int) -> None:
    with pytest.raises(ConfigError, match="files"):
        built(**{"files.mode": mode})


def test_a_new_store_is_small_and_remembers_its_sizes(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "s", environ={}) as store:
        store.put("t", b"x", keys=["k"])
    used = sum(p.stat().st_blocks * 512 for p in (tmp_path / "s").rglob("*") if p.is_file())
    assert used < 150 << 20
    with penstock.open(tmp_path / "s", environ={}, profile="rocketmq") as store:
        assert store.recovery is not None
        assert store.recovery.state == "clean"
