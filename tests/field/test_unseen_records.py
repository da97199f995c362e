"""A reader of a killed store is told that the log goes on after what it sees."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

PUT = """
import os, sys
from pathlib import Path
from penstock.testing import ManualWorkers, open_store
store = open_store(Path(sys.argv[1]), spawn=ManualWorkers())
for _ in range(5):
    store.put("t", b"x", queue=0)
store.flush()
os._exit(1)
"""


def test_what_no_queue_has_yet_is_named_when_a_killed_store_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`verify` said that everything agrees, and `stat` counted no message."""
    root = tmp_path / "store"
    subprocess.run([sys.executable, "-c", PUT, root], check=False)
    with penstock.open(root, read_only=True, environ={}) as store:
        assert f"{root} was not closed cleanly" in caplog.text
        assert "records follow log offset 0 that readers may not see" in caplog.text
        (note,) = [finding for finding in store.verify() if finding.is_note]
        assert "readers may not see the log from offset 0 to its end at" in note.text
    with penstock.open(root, environ={}):
        pass
    caplog.clear()
    with (
        caplog.at_level(logging.WARNING),
        penstock.open(root, read_only=True, environ={}) as store,
    ):
        assert [message.body for message in store.scan("t")] == [b"x"] * 5
        assert list(store.verify()) == []
    assert caplog.text == ""
