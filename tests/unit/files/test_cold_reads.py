"""Segments that are not in memory are read by another thread first."""

import os
from pathlib import Path

import pytest

from penstock.files.cold_reads import is_in_memory, read_through


def test_what_was_just_written_is_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(3 << 20))
    with path.open("rb") as file:
        assert is_in_memory(file.fileno(), 0, 3 << 20)


def test_what_only_the_disk_has_is_not_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waits(*_unused: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "RWF_NOWAIT", 8, raising=False)
    monkeypatch.setattr(os, "preadv", waits, raising=False)
    assert not is_in_memory(0, 0, 10)


def test_a_system_that_does_not_tell_sends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def has_not(*_unused: object) -> int:
        raise OSError(95, "not supported")

    monkeypatch.setattr(os, "preadv", has_not, raising=False)
    assert is_in_memory(0, 0, 10)
    monkeypatch.delattr(os, "RWF_NOWAIT", raising=False)
    assert is_in_memory(0, 0, 10)


def test_a_range_is_read_through_and_no_further_than_the_file(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(3 << 20))
    with path.open("rb") as file:
        read_through(file.fileno(), 100, (3 << 20) - 100)
        read_through(file.fileno(), 1 << 20, 1 << 30)
        assert file.tell() == 0
