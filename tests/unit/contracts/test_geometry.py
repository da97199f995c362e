"""The sizes of a store's files: bounds, and the lengths that follow from them."""

import pytest

from penstock.contracts.geometry import ROCKETMQ, Geometry
from penstock.errors import ConfigError


def test_lengths_of_files_follow_from_what_they_hold() -> None:
    made = Geometry(segment_bytes=4096, queue_entries=10, index_slots=3, index_entries=5)
    assert made.queue_file_bytes == 200
    assert made.index_file_bytes == 40 + 3 * 4 + 5 * 20


def test_rocketmqs_files_have_the_lengths_that_java_gives_them() -> None:
    assert ROCKETMQ.segment_bytes == 1024**3
    assert ROCKETMQ.queue_file_bytes == 6_000_000
    assert ROCKETMQ.index_file_bytes == 420_000_040


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("segment_bytes", 4096, 1 << 30),
        ("queue_entries", 1, 100_000_000),
        ("index_slots", 1, 1 << 30),
        ("index_entries", 2, 100_000_000),
    ],
)
def test_a_size_out_of_bounds_is_an_error_that_names_it(name: str, least: int, most: int) -> None:
    for size in (least, most):
        assert getattr(Geometry(**{name: size}), name) == size
    for size in (least - 1, most + 1):
        with pytest.raises(ConfigError, match=f"{name} is {size}; it must be {least} to {most}"):
            Geometry(**{name: size})


def test_a_segment_is_whole_pages() -> None:
    with pytest.raises(ConfigError, match="multiple of 4096"):
        Geometry(segment_bytes=10_000)
