"""Where settings come from, and which source has precedence."""

from pathlib import Path

import pytest

from penstock.config.build import build_config
from penstock.config.model import Config
from penstock.config.sources import Sourced, gather, parse_value
from penstock.errors import ConfigError
from penstock.plugins.registry import load_registry

REGISTRY = load_registry()


def built(
    path: Path | None = None, environ: dict[str, str] | None = None, **settings: object
) -> Config:
    return build_config(gather(path, environ or {}, settings), REGISTRY)


def test_a_later_source_has_precedence_and_each_origin_is_known(tmp_path: Path) -> None:
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


def test_what_is_no_value_of_toml_is_text() -> None:
    assert [parse_value(t) for t in ("3", "true", "[1, 2]", "a b", "'a b'", "[" * 5000)] == [
        3, True, [1, 2], "a b", "a b", "[" * 5000,
    ]  # fmt: skip


def test_an_override_of_none_leaves_the_other_sources_alone() -> None:
    environ = {"PENSTOCK_FLUSH__USE": "sync"}
    assert gather(None, environ, {"flush.use": None, "flush": None}) == {
        "flush.use": ("sync", "environment variable PENSTOCK_FLUSH__USE")
    }


def test_a_table_that_is_nested_without_end_is_refused() -> None:
    deep: dict[str, object] = {"use": "sync"}
    for _ in range(20):
        deep = {"x": deep}
    with pytest.raises(ConfigError, match="nested too deeply"):
        gather(None, {}, {"flush": deep})


@pytest.mark.parametrize(
    "text", ["[flush", "flush = 3", '[flsh]\nuse = "x"', "[flush.sync]\ntimeout_ms = true"]
)
def test_bad_files_are_refused_naming_the_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"penstock\.toml"):
        built(file)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no configuration file .*none\.toml"):
        gather(tmp_path / "none.toml", {}, {})


def test_an_override_of_the_command_line_names_its_option() -> None:
    with pytest.raises(ConfigError, match=r"no setting flush.us \(--set\); did you mean flush.use"):
        build_config(gather(None, {}, {"flush.us": Sourced("sync", "--set")}), REGISTRY)
    given = {"flush": Sourced("sync", "--set"), "log.busy_ms": Sourced(7, "--broker-conf")}
    found = build_config(gather(None, {}, given), REGISTRY)
    origins = {key: origin for key, _, origin in found.items()}
    assert (origins["flush.use"], origins["log.busy_ms"]) == ("--set", "--broker-conf")


def test_a_configuration_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        built(tmp_path)
