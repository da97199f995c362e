"""Values that plugins and programs see: sizes of files, a topic's configuration, findings."""

from pathlib import Path

import pytest

from penstock.contracts.base import Geometry
from penstock.contracts.dispatcher import COPYING, Finding, damaged_blocks
from penstock.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("segment_bytes", 4096, 1 << 30), ("queue_entries", 1, 100_000_000), ("index_slots", 1, 1 << 30), ("index_entries", 2, 100_000_000)],
)  # fmt: skip
def test_a_size_out_of_bounds_is_an_error_that_names_it(name: str, least: int, most: int) -> None:
    for size in (least, most):
        assert getattr(Geometry(**{name: size}), name) == size
    for size in (least - 1, most + 1):
        with pytest.raises(ConfigError, match=f"{name} is {size}; it must be {least} to {most}"):
            Geometry(**{name: size})
    with pytest.raises(ConfigError, match="multiple of 4096"):
        Geometry(segment_bytes=10_000)


PATH = Path("/store/commitlog/0")


@pytest.mark.parametrize(
    ("part", "step"),
    [("log", "restore the segment"), ("digest", "--accept"), ("marks", "rewrites it"), ("queue", "rebuilds it from the log"),
     ("a-plugins-own", "rebuilds it from the log")],
)  # fmt: skip
@pytest.mark.parametrize("left_open", ["", COPYING])
def test_each_part_has_a_step_that_helps(part: str, step: str, left_open: str) -> None:
    assert step in Finding(part, PATH, 0, 0, "x", left_open).advised().what_now


def test_a_checkers_own_advice_stays_and_a_note_asks_for_nothing() -> None:
    finding = Finding("queue", PATH, 0, 0, "x", "do this")
    assert finding.advised() is finding
    assert Finding("log", PATH, 0, 0, "x", is_note=True).advised().what_now == ""


def test_damaged_blocks_are_told_by_position_and_log_offset() -> None:
    finding = damaged_blocks(PATH, 65_536, 4096, 8192)
    assert (finding.part, finding.position, finding.log_offset) == ("digest", 4096, 69_632)
    assert "4096 to 8192" in finding.text
