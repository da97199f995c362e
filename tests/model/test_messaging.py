"""Messaging does what a plain model of it says: groups, delays, transactions and prepared messages, in two worlds."""

from pathlib import Path

import pytest
from tests.lanes import rounds
from tests.model.members import Messaging
from tests.model.story import play_stories
from tests.model.worlds import DiskWorld, FolderWorld

# They can be played side by side.
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_on_a_disk_that_loses_what_was_not_synced(part: int, tmp_path: Path) -> None:
    play_stories(Messaging, DiskWorld, tmp_path, rounds(gate=40, night=8_000), part, PARTS)


def test_on_files_when_the_process_dies(tmp_path: Path) -> None:
    play_stories(Messaging, FolderWorld, tmp_path, rounds(gate=16, night=2_000))
