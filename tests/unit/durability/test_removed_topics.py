"""The file of removed topics: what it holds, what it survives, and what is done with one that cannot be read."""

import json
import logging
from pathlib import Path

import pytest

from penstock.durability.removed_topics import RemovedTopics, RemovedTopicsFile
from penstock.files import Files


def file_in(root: Path) -> RemovedTopicsFile:
    (root / "penstock").mkdir(exist_ok=True)
    return RemovedTopicsFile(Files(), root)


def test_a_store_without_the_file_has_removed_nothing(tmp_path: Path) -> None:
    assert file_in(tmp_path).read() == RemovedTopics()
    assert RemovedTopics().count("t") == 0
    assert file_in(tmp_path).settle(0) == []


def test_what_is_written_is_read_and_another_reader_sees_it(tmp_path: Path) -> None:
    here, there = file_in(tmp_path), file_in(tmp_path)
    assert there.read() == RemovedTopics()
    removed = RemovedTopics().with_removed("a", 10).with_removed("b", 20).with_removed("a", 30)
    here.write(removed)
    assert there.read() == here.read() == removed
    assert removed.before == {"a": 30, "b": 20}
    assert (removed.count("a"), removed.count("b"), removed.count("c")) == (2, 1, 0)


class SameVersions(Files):
    """Each write has the same time, and a file gets the inode number of the one that it replaces."""

    def version(self, path: Path) -> tuple[int, int, int]:
        size = super().version(path)[2]
        return (1, 1, size) if size else (0, 0, 0)


def test_a_reader_sees_every_change_by_the_size_alone(tmp_path: Path) -> None:
    """Two removals within a tick of the clock could look like one: the reader missed the second."""
    here, there = file_in(tmp_path), RemovedTopicsFile(SameVersions(), tmp_path)
    removed = RemovedTopics()
    for number in range(100):
        # Also those with as many digits.
        removed = removed.with_removed("a" if number % 3 else "b", 1000 + number)
        here.write(removed)
        assert there.read() == removed
    assert [removed.before_of(topic) for topic in "abc"] == [1098, 1099, 0]


@pytest.mark.parametrize("content", [
    b"", b"\xff", b"[]", b"{", json.dumps({"a": 1}).encode(), json.dumps({"a": {"before": 1}}).encode(),
    json.dumps({"a": {"before": "1", "count": 1}}).encode(), json.dumps({"a": {"before": -1, "count": 1}}).encode(),
    json.dumps({"a": {"before": 1, "count": 0}}).encode(), json.dumps({"../x": {"before": 1, "count": 1}}).encode(),
    json.dumps({"a": {"before": True, "count": 1}}).encode(), b"[" * 100_000,
])  # fmt: skip
def test_a_file_that_cannot_be_read_is_named_and_set_aside(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, path = file_in(tmp_path), tmp_path / "penstock" / "removed-topics"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert file.read() == RemovedTopics()
    assert str(path) in caplog.text
    (said,) = file.settle(100)
    assert "could not be read" in said
    assert not path.exists()
    assert path.with_name("removed-topics.unreadable-1").read_bytes() == content
    assert file.settle(100) == []
