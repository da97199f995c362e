"""Settings: where they come from, which source has precedence, what is refused and in which words, and the checked configuration."""

from pathlib import Path
from typing import Any

import pytest

from penstock.config.model import Config
from penstock.config.sources import Given, Sourced, build_config, gather, parse_value, plugin_lists
from penstock.errors import ConfigError
from penstock.plugins.registry import load_registry

REGISTRY = load_registry()


def built(*sources: Path | dict[str, str], **settings: Any) -> Config:
    """Return what a file, variables of the environment and settings of a call make, each if it is given."""
    path = next((each for each in sources if isinstance(each, Path)), None)
    environ = next((each for each in sources if isinstance(each, dict)), {})
    return build_config(gather(path, environ, settings), REGISTRY)


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
    values = (found.flush.use, found.index.follow_interval_ms, found.log.checksum)
    assert values == ("sync", 4, "crc32+record")
    assert found.options["flush", "sync"].timeout_ms == 7
    origins = {key: origin for key, _, origin in found.items()}
    assert origins["flush.use"] == str(file)
    assert (
        origins["index.follow_interval_ms"]
        == "environment variable PENSTOCK_INDEX__FOLLOW_INTERVAL_MS"
    )
    assert (origins["log.checksum"], origins["write.use"]) == ("call", "default")


def test_names_with_hyphens_are_written_with_underscores_in_the_environment() -> None:
    environ = {"PENSTOCK_INDEX__CONSUME_QUEUE__OPEN_FILES_MAX": "9", "PENSTOCK_INDEX__USE": '["consume-queue"]'}  # fmt: skip
    found = built(environ)
    assert found.options["index", "consume-queue"].open_files_max == 9
    assert found.index.use == ["consume-queue"]


def test_the_profile_comes_from_the_environment_as_well() -> None:
    """It was ignored, since it has no section; a new store then got the sizes of another profile for good."""
    assert built({"PENSTOCK_PROFILE": "rocketmq"}).profile == "rocketmq"
    with pytest.raises(ConfigError, match=r"profile is 'x' .environment variable PENSTOCK_PROFILE"):
        built({"PENSTOCK_PROFILE": "x"})


@pytest.mark.parametrize(
    ("name", "near"),
    [("FLUSH_USE", "flush.use"), ("FLUSH", "flush.use"), ("LOG_BUSY_MS", "log.busy_ms")],
)
def test_a_setting_with_an_underscore_too_few_is_an_error(name: str, near: str) -> None:
    with pytest.raises(ConfigError, match=rf"variable PENSTOCK_{name}\); did you mean {near}"):
        built({f"PENSTOCK_{name}": "sync"})
    # Other variables are no settings, such as those of tests, and of a service in Kubernetes.
    others = ("HOME", "SEED", "NIGHT", "SANITIZE", "REQUIRE_SPARK", "SERVICE_HOST", "PORT_80_TCP")
    assert gather(None, {f"PENSTOCK_{other}": "1" for other in others}, {}) == {}


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


def test_a_file_that_is_missing_or_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no configuration file .*none\.toml"):
        gather(tmp_path / "none.toml", {}, {})
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        built(tmp_path)


def test_an_override_of_the_command_line_names_its_option() -> None:
    with pytest.raises(ConfigError, match=r"no setting flush.us \(--set\); did you mean flush.use"):
        build_config(gather(None, {}, {"flush.us": Sourced("sync", "--set")}), REGISTRY)
    given = {"flush": Sourced("sync", "--set"), "log.busy_ms": Sourced(7, "--broker-conf")}
    found = build_config(gather(None, {}, given), REGISTRY)
    origins = {key: origin for key, _, origin in found.items()}
    assert (origins["flush.use"], origins["log.busy_ms"]) == ("--set", "--broker-conf")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"flush.us": "sync"}, "no setting flush.us (call); did you mean flush.use?"),
        ({"flush.sync.timeout": 3}, "did you mean flush.sync.timeout_ms?"),
        ({"zzz": 1}, "no setting zzz (call); sections: geometry, log,"),
        ({"flush.sync.timeout_ms": "soon"}, "flush.sync.timeout_ms is 'soon' (call); it must be of type int"),
        ({"flush.sync.timeout_ms": True}, "must be of type int"),
        ({"log.checksum": "md5"}, "log.checksum is 'md5'; it must be one of: crc32, crc32+record"),
        ({"profile": "broker"}, "profile is 'broker' (call); it must be one of: embedded, rocketmq"),
        ({"index.use": [1, 2]}, "index.use is [1, 2] (call)"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_by_its_name(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        built(**settings)
    assert words in str(refused.value)


def test_a_table_of_a_strategy_that_is_not_used_is_checked_too() -> None:
    assert built(flush="async").flush.use == "async"
    with pytest.raises(ConfigError, match="timeout_ms"):
        built(**{"flush.use": "async", "flush.sync.timeout_ms": "soon"})


def test_a_name_alone_is_a_list_of_one_and_no_name_is_none() -> None:
    assert built(**{"index.use": "consume-queue"}).index.use == ["consume-queue"]
    assert built(**{"retention.use": ""}).retention.use == []


def test_a_whole_number_does_for_a_float_and_stays_none_for_none() -> None:
    assert built(**{"scrub.mib_per_s": 4}).scrub.mib_per_s == 4.0
    given: Given = {"geometry.segment_bytes": (None, "call")}
    assert build_config(given, REGISTRY).geometry.segment_bytes is None


def test_the_plugins_section_is_read_before_any_plugin_is_known() -> None:
    found = plugin_lists(gather(None, {}, {"plugins.block": ["a"], "zzz.unknown": 1}))
    assert (found.block, found.require) == (["a"], [])


@pytest.mark.parametrize("mode", [-1, 0o1000, 0o777])
def test_a_mode_that_files_cannot_have_is_refused(mode: int) -> None:
    with pytest.raises(ConfigError, match="files"):
        built(**{"files.mode": mode})
