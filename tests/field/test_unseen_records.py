"""A reader of a killed store is told that the log goes on after what it sees."""

import logging
from pathlib import Path
from shutil import copytree

import pytest

import penstock
from penstock.testing import ManualWorkers, open_store


def test_what_no_queue_has_yet_is_named_when_a_killed_store_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`verify` said that everything agrees, and `stat` counted no message."""
    with open_store(tmp_path / "store", spawn=ManualWorkers()) as store:
        for _ in range(5):
            store.put("t", b"x")
        store.flush()
        killed = copytree(store.path, tmp_path / "killed")
        end = store.stats()["log_end_offset"]
    with penstock.open(killed, read_only=True, environ={}) as store:
        assert f"{killed} was not closed cleanly" in caplog.text
        assert "up to offset 0, and records follow" in caplog.text
        (note,) = [finding for finding in store.verify() if finding.is_note]
        assert f"up to offset 0, and it ends at {end}" in note.text
    with penstock.open(killed, environ={}):
        pass
    caplog.clear()
    with (
        caplog.at_level(logging.WARNING),
        penstock.open(killed, read_only=True, environ={}) as store,
    ):
        assert [message.body for message in store.scan("t")] == [b"x"] * 5
        assert list(store.verify()) == []
    assert caplog.text == ""
