"""A store does what a plain model of it says: stories by the thousand, in four worlds."""

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lanes import rounds
from tests.model.machine import Machine
from tests.model.questions import SecondProcess
from tests.model.story import play_stories
from tests.model.worlds import DiskWorld, FolderWorld, ReadWorld, ThreadedWorld

# They can be played side by side.
PARTS = 4


@pytest.fixture(scope="module")
def reader() -> Iterator[SecondProcess]:
    process = SecondProcess()
    yield process
    process.end()


@pytest.mark.parametrize("part", range(PARTS))
def test_on_a_disk_that_loses_what_was_not_synced(part: int, tmp_path: Path) -> None:
    play_stories(Machine, DiskWorld, tmp_path, rounds(gate=100, night=16_000), part, PARTS)


def test_on_files_when_the_process_dies(tmp_path: Path) -> None:
    play_stories(Machine, FolderWorld, tmp_path, rounds(gate=16, night=2_000))


def test_on_files_with_the_threads_of_the_store(tmp_path: Path) -> None:
    play_stories(Machine, ThreadedWorld, tmp_path, rounds(gate=10, night=1_000))


def test_from_a_second_process(tmp_path: Path, reader: SecondProcess) -> None:
    make = functools.partial(ReadWorld, reader=reader)
    play_stories(Machine, make, tmp_path, rounds(gate=16, night=2_000))
