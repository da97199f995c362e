"""A strategy put to the test: which suite, and whose fault it is, in one sentence."""

from typing import Any

import pytest

from penstock.testing.check import CheckResult, Step, suite_of
from penstock_alloc.on_demand import OnDemandAllocator
from penstock_index.consume_queue import ConsumeQueueDispatcher
from penstock_index.hash_index import HashIndexDispatcher


def result(**given: Any) -> CheckResult:
    return CheckResult(**{
        "kind": "flush", "name": "own", "contract": "FlushPolicy", "plugin": "p", "distribution": "penstock-own",
        "version": "1.0", "steps": [Step(name="a", about="it holds")], **given,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "cls", "suite"),
    [
        ("index", ConsumeQueueDispatcher, "QueueIndexContract"), ("index", HashIndexDispatcher, "KeyIndexContract"),
        ("alloc", OnDemandAllocator, "AllocatorContract"),
    ],
)  # fmt: skip
def test_a_class_has_the_suite_of_what_it_is(kind: str, cls: Any, suite: str) -> None:
    assert suite_of(kind, cls) == suite


def test_one_that_keeps_its_contract_is_told_with_its_steps() -> None:
    assert result().sentence == "flush strategy 'own' of penstock-own 1.0 meets the contract FlushPolicy: 1 of 1 steps"  # fmt: skip
    assert result().failed == []


def test_a_fault_is_the_plugins_unless_the_built_in_one_has_it_too() -> None:
    steps = [Step(name="a", about="it holds"), Step(name="b", about="it lasts", failure="no")]
    broken = result(steps=steps)
    assert broken.failed == steps[1:]
    assert "breaks the contract FlushPolicy at step b (it lasts): no; the plugin is at fault" in broken.sentence  # fmt: skip
    other = result(steps=steps, blames_strategy=False).sentence
    assert "also fails here for the built-in strategy 'async'" in other
    assert "is at fault, not flush strategy 'own'" in other
