"""Where a group begins: resolved once, by one member."""

from pathlib import Path

import pytest

from penstock.files import Files
from penstock_messaging.groups.paths import GroupPaths
from penstock_messaging.groups.starts import ensure_start, read_start


@pytest.fixture
def paths(tmp_path: Path) -> GroupPaths:
    """Return those of a group."""
    return GroupPaths(tmp_path, "g")


def test_the_first_member_decides_for_all(paths: GroupPaths) -> None:
    assert ensure_start(Files(), paths, "t", 0, lambda: {0: 5, 3: 9}) == {0: 5, 3: 9}
    assert ensure_start(Files(), paths, "t", 0, lambda: {0: 7}) == {0: 5, 3: 9}
    assert read_start(Files(), paths, "t", 0) == {0: 5, 3: 9}


def test_a_topic_that_was_made_again_begins_anew(paths: GroupPaths) -> None:
    ensure_start(Files(), paths, "t", 0, lambda: {0: 5})
    assert read_start(Files(), paths, "t", 1) is None
    assert ensure_start(Files(), paths, "t", 1, dict) == {}
    assert read_start(Files(), paths, "t", 0) is None


def test_while_one_member_decides_others_wait(paths: GroupPaths) -> None:
    paths.folder.mkdir(parents=True)
    lock = Files().lock_one(paths.lock)
    assert lock is not None
    assert ensure_start(Files(), paths, "t", 0, dict) is None
    lock.release()
    assert ensure_start(Files(), paths, "t", 0, dict) == {}


@pytest.mark.parametrize("raw", [b"", b"{", b"5", b'{"life":0}', b'{"life":0,"offsets":{"0":-1}}', b'{"life":0,"offsets":{"x":1}}'])  # fmt: skip
def test_a_file_that_is_not_understood_begins_at_the_first_messages(
    raw: bytes, paths: GroupPaths, caplog: pytest.LogCaptureFixture
) -> None:
    ensure_start(Files(), paths, "t", 0, lambda: {0: 5})
    paths.start("t").write_bytes(raw)
    assert read_start(Files(), paths, "t", 0) == {}
    assert "cannot be understood" in caplog.text
