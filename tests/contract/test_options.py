"""The options of the built-in strategies: their defaults, and the least and the greatest value of each."""

from typing import Any

import attrs
import pytest

from penstock.config.model import SECTIONS
from penstock.plugins.registry import load_registry

# A year, the maximum of a time.
YEAR_MS = 365 * 24 * 3_600_000
PAGES, COUNT = 1 << 30, 1 << 31
# By kind and name: of each option the default, and the limits of those that have any.
OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "write transient-pool": {
        "buffers": (5, 1, 65_536),
        "lock_memory": (True,),
        "interval_ms": (200, 1, YEAR_MS),
        "least_pages": (4, 0, PAGES),
        "thorough_interval_ms": (200, 0, YEAR_MS),
        "fast_fail": (False,),
    },
    "alloc preallocate": {
        "prefault": (True,),
        "lock_memory": (False,),
        "timeout_ms": (5000, 1, YEAR_MS),
    },
    "alloc recycle": {"spares": (4, 1, 65_536), "timeout_ms": (5000, 1, YEAR_MS)},
    "flush async": {
        "interval_ms": (500, 1, YEAR_MS),
        "least_pages": (0, 0, PAGES),
        "thorough_interval_ms": (10_000, 0, YEAR_MS),
    },
    "flush sync": {"timeout_ms": (5000, 1, YEAR_MS)},
    "index consume-queue": {
        "open_files_max": (256, 1, COUNT),
        "sync_volume_from": (256, 0, COUNT),
        "summary_from": (256, 0, COUNT),
    },
    "retention age": {"reserved_hours": (72.0,), "delete_when": ("04",)},
    "retention disk-ratio": {
        "early_percent": (75, 1, 100),
        "forced_percent": (85, 1, 100),
        "refuse_percent": (90, 1, 100),
        "reserved_hours": (72.0,),
    },
    "retention size": {"bytes_max": (10 << 30, 0, (1 << 63) - 1)},
}
LIMITED = [
    (strategy, name, *limits)
    for strategy, options in OPTIONS.items()
    for name, (_, *limits) in options.items()
    if limits
]


# Of each section of the configuration the settings that are numbers: the default, and the limits.
SETTINGS: dict[str, tuple[Any, ...]] = {
    "log.body_bytes_max": (4 << 20, 0, 1 << 30),
    "log.busy_ms": (1000, 0, YEAR_MS),
    "index.follow_interval_ms": (5, 0, YEAR_MS),
    "index.flush_interval_ms": (1000, 1, YEAR_MS),
    "retention.interval_ms": (10_000, 1, YEAR_MS),
    "retention.pause_ms": (100, 0, YEAR_MS),
    "scrub.seal_mib_per_s": (256, 1, 1 << 30),
    "scrub.mib_per_s": (8, 1, 1 << 30),
    "scrub.interval_hours": (24.0, 0, 365 * 24),
    "plugins.slow_ms": (10_000, 1, YEAR_MS),
    "plugins.close_limit_ms": (60_000, 1, YEAR_MS),
}


def options_of(strategy: str) -> Any:
    kind, name = strategy.split()
    return load_registry().sets()[kind].get(name).Options


@pytest.mark.parametrize("strategy", OPTIONS)
def test_each_option_has_its_default(strategy: str) -> None:
    found = attrs.asdict(options_of(strategy)())
    assert found == {name: default for name, (default, *_) in OPTIONS[strategy].items()}


def test_no_built_in_strategy_is_left_out() -> None:
    found = {
        f"{kind} {name}"
        for kind, strategies in load_registry().sets().items()
        for name in strategies.names()
        if attrs.fields(strategies.get(name).Options)
        and strategies.get(name).__module__.startswith(
            ("penstock_alloc", "penstock_flush", "penstock_index", "penstock_retention")
        )
    }
    assert found == set(OPTIONS)


@pytest.mark.parametrize(("strategy", "name", "least", "most"), LIMITED)
def test_each_option_takes_its_limits_and_nothing_beyond(
    strategy: str, name: str, least: int, most: int
) -> None:
    made = options_of(strategy)
    # These must be in ascending order.
    names = [each for each in OPTIONS[strategy] if each.endswith("_percent")] or [name]
    for value in (least, most):
        assert getattr(made(**dict.fromkeys(names, value)), name) == value
    for value in (least - 1, most + 1):
        with pytest.raises(ValueError, match=name):
            made(**{name: value})


@pytest.mark.parametrize("key", SETTINGS)
def test_each_setting_takes_its_limits_and_nothing_beyond(key: str) -> None:
    section, name = key.split(".")
    default, least, most = SETTINGS[key]
    assert getattr(SECTIONS[section](), name) == default
    for value in (least, most):
        assert getattr(SECTIONS[section](**{name: value}), name) == value
    for value in (least - 1, most + 1):
        with pytest.raises(ValueError, match=f"^{name} is {value}; it must be"):
            SECTIONS[section](**{name: value})


def test_no_number_of_a_built_in_option_or_section_is_without_limits() -> None:
    """Negative intervals and pools of -1 files were accepted, and failed or idled long after the store was opened."""
    found = {
        f"{name}.{field.name}"
        for name, section in SECTIONS.items()
        # Sizes of files are checked with the store's own ones; a mode has its own check.
        if name not in ("geometry", "files")
        for field in attrs.fields(section)
        if isinstance(field.default, int | float) and not isinstance(field.default, bool)
    }
    assert found == set(SETTINGS)
    unlimited = [
        f"{strategy}.{name}"
        for strategy, options in OPTIONS.items()
        for name, (default, *limits) in options.items()
        # Hours are a number of 0 or more, see `check_hours`.
        if type(default) is int and not limits
    ]
    assert not unlimited
