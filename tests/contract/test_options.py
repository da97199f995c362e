"""The options of the built-in strategies: their defaults, and the least and the greatest value of each."""

from typing import Any

import attrs
import pytest

from penstock.plugins.registry import load_registry

HUGE = 1 << 62
# By kind and name: of each option the default, and the limits of those that have any.
OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "write transient-pool": {
        "buffers": (5, 1, HUGE),
        "lock_memory": (True,),
        "interval_ms": (200, 1, HUGE),
        "least_pages": (4, 0, HUGE),
        "thorough_interval_ms": (200,),
        "fast_fail": (False,),
    },
    "alloc preallocate": {
        "prefault": (True,),
        "lock_memory": (False,),
        "timeout_ms": (5000, 1, HUGE),
    },
    "alloc recycle": {"spares": (4, 1, HUGE), "timeout_ms": (5000, 1, HUGE)},
    "flush async": {
        "interval_ms": (500,),
        "least_pages": (4,),
        "thorough_interval_ms": (10_000,),
    },
    "flush sync": {"timeout_ms": (5000,)},
    "index consume-queue": {
        "open_files_max": (256,),
        "sync_volume_from": (256, 0, HUGE),
        "summary_from": (256, 0, HUGE),
        "extended": (False,),
        "extension_bytes": (48 << 20, 24, (1 << 31) - 1),
    },
    "retention age": {"reserved_hours": (72.0,), "delete_when": ("04",)},
    "retention disk-ratio": {
        "early_percent": (75, 1, 100),
        "forced_percent": (85, 1, 100),
        "refuse_percent": (90, 1, 100),
        "reserved_hours": (72.0,),
    },
    "retention size": {"bytes_max": (10 << 30, 0, HUGE)},
}
LIMITED = [
    (strategy, name, *limits)
    for strategy, options in OPTIONS.items()
    for name, (_, *limits) in options.items()
    if limits
]


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
    for value in (least - 1, *([] if most == HUGE else [most + 1])):
        with pytest.raises(ValueError, match=name):
            made(**{name: value})
