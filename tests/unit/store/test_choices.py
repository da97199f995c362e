"""What a configuration means for one store: defaults by who made it, strategies that exist and agree."""

from pathlib import Path
from typing import Any

import pytest

from penstock.config import sources
from penstock.config.build import build_config
from penstock.errors import ConfigError, ConflictError
from penstock.plugins.registry import load_registry
from penstock.store.choices import Choices
from penstock.testing import SimulatedDisk, make_context

REGISTRY = load_registry()


def choices(**settings: Any) -> Choices:
    config = build_config(sources.gather(None, {}, settings), REGISTRY)
    return Choices(Path("/store"), config, REGISTRY, SimulatedDisk())


def test_a_new_store_has_the_defaults_of_an_embedded_one() -> None:
    made = choices()
    assert made.profile.name == "embedded"
    assert (made.config.log.checksum, made.config.picks()["retention"]) == ("crc32+record", [])
    assert made.geometry() == made.profile.geometry
    made.check_strategies()


def test_what_was_asked_for_beats_them() -> None:
    made = choices(profile="rocketmq", **{"geometry.queue_entries": 7, "log.checksum": "crc32"})
    assert (made.geometry().queue_entries, made.config.log.checksum) == (7, "crc32")
    assert made.config.picks()["retention"] == ["age"]


@pytest.mark.parametrize("use", [[], ["hash-index"]])
def test_exactly_one_dispatcher_must_know_the_queues(use: list[str]) -> None:
    with pytest.raises(
        ConfigError, match=r"exactly one of its dispatchers must be a queue index.* but 0 are"
    ):
        choices(**{"index.use": use}).check_strategies()


def test_strategies_that_make_no_sense_together_are_refused_with_the_reason() -> None:
    with pytest.raises(ConflictError, match="every put waits") as raised:
        choices(write="transient-pool", flush="sync").check_strategies()
    assert (raised.value.kind, raised.value.name) == ("write", "transient-pool")


def test_options_of_a_policy_that_is_not_used_are_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {"retention.age.reserved_hours": 5.0}
    choices(retention=["age"], **given).warn_of_idle_policies()
    assert caplog.text == ""
    choices(retention=[], **given).warn_of_idle_policies()
    assert "retention.age.reserved_hours is set" in caplog.text


def test_strategies_are_made_in_the_order_of_the_configuration(tmp_path: Path) -> None:
    made = choices(**{"index.use": ["hash-index", "consume-queue"], "retention.use": ["size", "age"]})  # fmt: skip
    context = make_context(tmp_path)
    assert [each.name for each in made.dispatchers(context)] == ["hash-index", "consume-queue"]
    assert [each.name for each in made.policies(context)] == ["size", "age"]
