"""Entries in memory and in the file: what is saved when, by threads and by signal handlers."""

import errno
import threading
from pathlib import Path

import pytest

from penstock.errors import BusyError, StorageError
from penstock.testing import FaultyFiles, make_context
from penstock_messaging.configuration.broker_files import BrokerFile
from penstock_messaging.configuration.config_table import ConfigTable


class Table:
    """A table on a disk that can fail."""

    def __init__(self, root: Path) -> None:
        self.files = FaultyFiles()
        self.saved: list[str] = []
        self.context = make_context(root, files=self.files)
        self.table = ConfigTable(self.file(), lambda: self.saved.append("before"))
        self.table.load()

    def file(self) -> BrokerFile:
        return BrokerFile(self.context, "topics.json", "topicConfigTable")

    def on_disk(self) -> dict[str, object]:
        return self.file().load()


def test_what_is_set_later_is_saved_later(tmp_path: Path) -> None:
    made = Table(tmp_path)
    made.table.set_later("a", {"n": 1})
    assert made.table.is_changed
    assert made.on_disk() == {}
    made.table.save()
    assert made.on_disk() == {"a": {"n": 1}}
    assert made.saved == ["before"]
    assert not made.table.is_changed


def test_nothing_is_written_if_nothing_has_changed(tmp_path: Path) -> None:
    made = Table(tmp_path)
    made.table.save()
    assert not made.table.file.path.exists()
    assert made.saved == []


def test_a_change_at_once_saves_what_was_to_be_saved_later_as_well(tmp_path: Path) -> None:
    made = Table(tmp_path)
    made.table.set_later("a", {})
    made.table.set_now("b", {})
    assert made.saved == ["before"]
    made.table.set_now("a", None)
    assert made.saved == ["before"]
    assert made.on_disk() == made.table.entries == {"b": {}}
    assert not made.table.is_changed


def test_a_change_that_cannot_be_written_is_not_made(tmp_path: Path) -> None:
    made = Table(tmp_path)
    made.table.set_now("a", {"n": 1})
    made.files.plan.fail("create", errno.EIO)
    for entry in ({"n": 2}, None):
        with pytest.raises(StorageError, match="unchanged"):
            made.table.set_now("a", entry)
    assert made.on_disk() == made.table.entries == {"a": {"n": 1}}
    made.table.set_later("b", {})
    with pytest.raises(StorageError, match="unchanged"):
        made.table.save()
    assert made.table.is_changed
    made.files.plan.heal()
    made.table.save()
    assert made.on_disk() == {"a": {"n": 1}, "b": {}}


def test_what_is_set_during_a_saving_is_saved_by_the_next(tmp_path: Path) -> None:
    made = Table(tmp_path)
    made.table.set_later("a", {})
    made.files.plan.before = lambda: made.table.set_later("b", {})
    made.table.save()
    made.files.plan.before = None
    assert made.on_disk() == {"a": {}}
    assert made.table.is_changed
    made.table.save()
    assert made.on_disk() == {"a": {}, "b": {}}


def test_a_signal_handler_within_a_saving_is_refused_a_change_and_saves_nothing(tmp_path: Path) -> None:  # fmt: skip
    made = Table(tmp_path)
    outcomes: list[str] = []

    def handler() -> None:
        made.files.plan.before = None
        made.table.save()
        with pytest.raises(BusyError, match="interrupted"):
            made.table.set_now("b", {})
        outcomes.append("handled")

    made.files.plan.before = handler
    made.table.set_now("a", {})
    assert outcomes == ["handled"]
    assert made.on_disk() == {"a": {}}


def test_threads_lose_no_change(tmp_path: Path) -> None:
    made = Table(tmp_path)

    def work(number: int) -> None:
        for at in range(5):
            made.table.set_later(f"later-{number}-{at}", {})
            made.table.set_now(f"now-{number}-{at}", {})

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made.table.save()
    assert len(made.on_disk()) == 40
    assert made.on_disk().keys() == made.table.entries.keys()
