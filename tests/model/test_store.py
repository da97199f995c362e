"""A store does what a plain model of it says: stories by the thousand, in four worlds."""

import functools
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lanes import SEED, rounds
from tests.model.machine import Story
from tests.model.questions import SecondProcess
from tests.model.worlds import DiskWorld, FolderWorld, MakeWorld, ReadWorld, ThreadedWorld

from penstock.plugins.registry import load_registry

# They can be played side by side.
PARTS = 4


@pytest.fixture(autouse=True)
def _opening_is_quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A story opens a store ten times: plugins are loaded once, and what is logged of crashes is not kept."""
    registry = load_registry()
    monkeypatch.setattr("penstock.store.open.load_registry", lambda *_: registry)
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def reader() -> Iterator[SecondProcess]:
    process = SecondProcess()
    yield process
    process.end()


def play_stories(make: MakeWorld, folder: Path, count: int, part: int = 0, parts: int = 1) -> None:
    """Play stories; of the first that fails, shows the shortest one that fails as well."""
    for number in range(part, count, parts):
        story = Story.drawn(SEED * 1_000_000 + number)
        if why := story.play(make, folder):
            least = story.shortest(make, folder)
            pytest.fail(
                f"{why}\nat the shortest: {least.play(make, folder)}\n"
                f"repeat with PENSTOCK_SEED={SEED}, or play {least}"
            )


@pytest.mark.parametrize("part", range(PARTS))
def test_on_a_disk_that_loses_what_was_not_synced(part: int, tmp_path: Path) -> None:
    play_stories(DiskWorld, tmp_path, rounds(gate=100, night=16_000), part, PARTS)


def test_on_files_when_the_process_dies(tmp_path: Path) -> None:
    play_stories(FolderWorld, tmp_path, rounds(gate=16, night=2_000))


def test_on_files_with_the_threads_of_the_store(tmp_path: Path) -> None:
    play_stories(ThreadedWorld, tmp_path, rounds(gate=10, night=1_000))


def test_from_a_second_process(tmp_path: Path, reader: SecondProcess) -> None:
    make = functools.partial(ReadWorld, reader=reader)
    play_stories(make, tmp_path, rounds(gate=16, night=2_000))
