"""A file time in the future, from a clock that was ahead, neither stops nor hastens the deletion by age, and is reported."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.log.segmented_log import plausible
from penstock.store.store import Store
from penstock.testing import ManualClock

HOUR = 3_600_000
NOW = 1_800_000_000_000
SEGMENTS = 5
AGE: dict[str, Any] = {
    "retention": {"use": ["age"], "age": {"reserved_hours": 1, "delete_when": "*"}, "interval_ms": 3_600_000, "pause_ms": 0},
    "geometry.segment_bytes": 65536,
}  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store of five segments that were written ten days ago."""
    with penstock.open(tmp_path / "s", environ={}, **{**AGE, "retention": {"use": []}}) as store:
        for _ in range(2 * SEGMENTS + 3):
            store.put("t", b"x" * 20_000, queue=0)
    for path in segments(tmp_path / "s"):
        os.utime(path, (path.stat().st_mtime - 10 * 86_400,) * 2)
    return tmp_path / "s"


def segments(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def ahead(path: Path) -> None:
    os.utime(path, (path.stat().st_mtime + 400 * 86_400,) * 2)


def opened(root: Path, **more: Any) -> Store:
    return penstock.open(root, environ={}, **{**AGE, **more})


@pytest.mark.parametrize("wrong", [[0], [1], [0, 1], [0, 2]])
def test_segments_after_it_are_deleted_as_if_it_were_not_there(
    root: Path, wrong: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """One file of the future kept all others for ever, without a word."""
    for at in wrong:
        ahead(segments(root)[at])
    with opened(root, read_only=True) as store:
        reason = store.lowlevel.forecast(1)[0].reason
    assert f"not written for 1 hours; the file times of {len(wrong)} are in the future" in reason
    with caplog.at_level(logging.WARNING), opened(root) as store:
        store.retain()
    assert len(segments(root)) == 1
    assert f"{len(wrong)} segment files are in the future" in caplog.text


def test_where_all_are_in_the_future_nothing_is_deleted_and_that_is_said(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    count = len(segments(root))
    for path in segments(root):
        ahead(path)
    with caplog.at_level(logging.WARNING), opened(root) as store:
        assert store.retain() == 0
    assert len(segments(root)) == count
    assert "are in the future" in caplog.text


def test_a_deletion_by_time_goes_past_it(root: Path) -> None:
    before = segments(root)
    ahead(before[0])
    day_after_ms = (before[1].stat().st_mtime + 86_400) * 1000
    with opened(root, retention={"use": []}) as store:
        assert store.discard_before(time=day_after_ms / 1000) == len(before) - 1


def test_a_record_of_the_future_is_reported_and_stops_nothing(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every later record gets its store time too, and nothing said so."""
    with penstock.open(root, environ={}, clock=ManualClock(NOW), **AGE) as store:
        store.put("t", b"", queue=0)
    with penstock.open(root, environ={}, clock=ManualClock(NOW - 20 * HOUR), **AGE) as store:
        store.put("t", b"", queue=0)
    assert "stored 20.0 hours in the future" in caplog.text
    for path in segments(root):
        os.utime(path, (NOW / 1000 - 30 * 3600,) * 2)
    with penstock.open(root, environ={}, clock=ManualClock(NOW - 20 * HOUR), **AGE) as store:
        store.retain()
    assert len(segments(root)) == 1


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([NOW + 9 * HOUR, NOW - 5 * HOUR, NOW - HOUR], [NOW - 5 * HOUR] * 2 + [NOW - HOUR]),
        ([NOW - 5 * HOUR, NOW + 9 * HOUR, NOW - HOUR], [NOW - 5 * HOUR] + [NOW - HOUR] * 2),
        ([NOW - 5 * HOUR, NOW + 9 * HOUR], [NOW - 5 * HOUR, NOW]),
        ([NOW + 9 * HOUR, NOW + 8 * HOUR], [NOW, NOW]),
        # Clocks differ a little.
        ([NOW - HOUR, NOW + 1000], [NOW - HOUR, NOW + 1000]),
    ],
)
def test_the_next_plausible_time_counts_instead(times: list[int], expected: list[int]) -> None:
    assert plausible(times, NOW) == expected
