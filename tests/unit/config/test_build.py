"""From settings to the checked configuration: keys, types and words that are refused, and in which words."""

from typing import Any

import pytest

from penstock.config.build import build_config, plugin_lists
from penstock.config.model import Config
from penstock.config.sources import Given, gather
from penstock.errors import ConfigError
from penstock.plugins.registry import load_registry

REGISTRY = load_registry()


def built(**settings: object) -> Config:
    return build_config(gather(None, {}, settings), REGISTRY)


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
