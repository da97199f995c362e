"""What `verify` tells: each finding with a step that helps, and checkers that need little."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.contracts.dispatch_batch import DispatchBatch
from penstock.contracts.findings import COPYING, Checker, Finding, damaged_blocks

PATH = Path("/store/commitlog/0")


class Least(Checker):
    """A checker with no more than it must have."""

    def batch(self, batch: DispatchBatch) -> Iterator[Finding]:
        yield from ()

    def finish(self, end: int) -> Iterator[Finding]:
        yield Finding("mine", PATH, -1, end, "the end")


@pytest.mark.parametrize(
    ("part", "step"),
    [
        ("log", "restore the segment"),
        ("digest", "--accept"),
        ("marks", "rewrites it"),
        ("queue", "rebuilds it from the log"),
        ("a-plugins-own", "rebuilds it from the log"),
    ],
)
@pytest.mark.parametrize("left_open", ["", COPYING])
def test_each_part_has_a_step_that_helps(part: str, step: str, left_open: str) -> None:
    assert step in Finding(part, PATH, 0, 0, "x", left_open).advised().what_now


def test_a_checkers_own_advice_stays() -> None:
    finding = Finding("queue", PATH, 0, 0, "x", "do this")
    assert finding.advised() is finding


def test_a_note_asks_for_nothing() -> None:
    assert Finding("log", PATH, 0, 0, "x", is_note=True).advised().what_now == ""


def test_damaged_blocks_are_told_by_position_and_log_offset() -> None:
    finding = damaged_blocks(PATH, 65_536, 4096, 8192)
    assert (finding.part, finding.position, finding.log_offset) == ("digest", 4096, 69_632)
    assert "4096 to 8192" in finding.text


def test_a_checker_needs_only_batches_and_an_end() -> None:
    checker = Least()
    checker.damage(0, 10)
    checker.take(checker.seen())
    assert not list(checker.start())
    assert [each.log_offset for each in checker.finish(7)] == [7]
    assert not checker.is_splittable
