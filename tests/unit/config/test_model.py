"""Where settings come from, and which beats which."""

from pathlib import Path

import pytest

import penstock
from penstock.config import model
from penstock.errors import ConfigError
from penstock.plugins.registry import load_registry

REGISTRY = load_registry()


def built(
    path: Path | None = None, environ: dict[str, str] | None = None, **settings: object
) -> model.Config:
    return model.build(model.gather(path, environ or {}, settings), REGISTRY)


def test_later_beats_earlier_and_origins_are_told(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(
        '[flush]\nuse = "sync"\n[flush.sync]\ntimeout_ms = 7\n[index]\nfollow_interval_ms = 3\n'
    )
    found = built(
        file,
        {"PENSTOCK_INDEX__FOLLOW_INTERVAL_MS": "4", "PENSTOCK_HOME": "x"},
        **{"log.checksum": "crc32+record"},
    )
    assert (found.flush.use, found.index.follow_interval_ms, found.log.checksum) == (
        "sync",
        4,
        "crc32+record",
    )
    assert found.options["flush", "sync"].timeout_ms == 7
    origins = {key: origin for key, _, origin in found.items()}
    assert origins["flush.use"] == str(file)
    assert (
        origins["index.follow_interval_ms"]
        == "environment variable PENSTOCK_INDEX__FOLLOW_INTERVAL_MS"
    )
    assert (origins["log.checksum"], origins["write.use"]) == ("call", "default")


def test_names_with_hyphens_are_written_with_underscores_in_the_environment() -> None:
    found = built(
        None,
        {
            "PENSTOCK_INDEX__CONSUME_QUEUE__OPEN_FILES_MAX": "9",
            "PENSTOCK_INDEX__USE": '["consume-queue"]',
        },
    )
    assert found.options["index", "consume-queue"].open_files_max == 9
    assert found.index.use == ["consume-queue"]


def test_shortcuts_and_nested_settings_are_the_same() -> None:
    assert built(flush="sync").flush.use == built(flush={"use": "sync"}).flush.use == "sync"
    assert built(retention=[]).retention.use == []


@pytest.mark.parametrize(
    "text", ["[flush", "flush = 3", '[flsh]\nuse = "x"', "[flush.sync]\ntimeout_ms = true"]
)
def test_bad_files_are_refused_naming_the_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"penstock\.toml"):
        built(file)
    with pytest.raises(ConfigError, match="no configuration file"):
        built(tmp_path / "none.toml")


def test_a_new_store_is_small_and_remembers_its_sizes(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "s", environ={}) as store:
        store.put("t", b"x", keys=["k"])
    used = sum(p.stat().st_blocks * 512 for p in (tmp_path / "s").rglob("*") if p.is_file())
    assert used < 150 << 20
    with penstock.open(tmp_path / "s", environ={}, profile="rocketmq") as store:
        assert store.recovery is not None
        assert store.recovery.state == "clean"
