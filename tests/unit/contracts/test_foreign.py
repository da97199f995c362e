"""The signs of a broker on disk: which topics have batch queues, what stops writing, what a name may show."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.contracts import foreign
from penstock.contracts.foreign import BATCH_QUEUES, KINDS, POP_STATE, Foreign
from penstock.testing import SimulatedDisk

ROOT = Path("/store")


def disk_with(**contents: bytes) -> SimulatedDisk:
    """Return a disk with files below the root; `__` in a name parts folders."""
    disk = SimulatedDisk()
    disk.make_folder_durably(ROOT)
    for name, data in contents.items():
        path = ROOT.joinpath(*name.split("__"))
        disk.make_folder_durably(path.parent)
        disk.write_whole(path, data)
    return disk


def topics(**attributes: Any) -> bytes:
    table = {topic: {"attributes": given} for topic, given in attributes.items()}
    return json.dumps({"topicConfigTable": table}).encode()


def test_a_topic_is_declared_by_its_attribute() -> None:
    about = topics(a={"queue.type": "BatchCQ"}, b={"queue.type": "SimpleCQ"}, c=None, d=[1])
    disk = disk_with(**{"config__topics.json": about})
    assert foreign.batch_topics(disk, ROOT) == {"a"}


def test_a_batch_queue_on_disk_counts_once_it_has_a_file() -> None:
    disk = disk_with(batchconsumequeue__full__0__file=b"x")
    disk.make_folder_durably(ROOT / "batchconsumequeue" / "deleted" / "0")
    assert foreign.batch_topics(disk, ROOT) == {"full"}


@pytest.mark.parametrize("damaged", [b"{", b"[]", b'{"topicConfigTable": 3}', b"[" * 100_000])
def test_where_the_list_is_damaged_its_backup_counts(damaged: bytes) -> None:
    about = topics(a={"queue.type": "BatchCQ"})
    disk = disk_with(**{"config__topics.json": damaged, "config__topics.json.bak": about})
    assert foreign.batch_topics(disk, ROOT) == {"a"}


def test_a_database_is_a_folder_with_the_file_current() -> None:
    disk = disk_with(db__CURRENT=b"", other__x=b"")
    assert foreign.is_database(disk, ROOT / "db")
    assert not foreign.is_database(disk, ROOT / "other")
    assert not foreign.is_database(disk, ROOT / "db" / "CURRENT")
    assert not foreign.is_database(disk, ROOT / "none")


def test_a_broker_is_known_by_what_it_leaves() -> None:
    assert foreign.has_broker_files(disk_with(**{"abort.bak": b""}), ROOT)
    for own in ("checkpoint", "timerwheel"):
        assert not foreign.has_broker_files(disk_with(**{own: b""}), ROOT)


@pytest.mark.parametrize("name", ["config__topics.json", "config__topics.json.bak"])
def test_a_list_of_topics_is_a_brokers_if_it_declares_what_only_brokers_declare(name: str) -> None:
    golden = Path(__file__).parents[2] / "golden" / "broker-config"
    for version in ("4.9.7", "5.3.3"):
        raw = (golden / version / "topics.json").read_bytes()
        assert foreign.has_broker_files(disk_with(**{name: raw}), ROOT)
    assert not foreign.has_broker_files(disk_with(**{name: topics(a=None)}), ROOT)
    # A topic whose name contains that one is no such sign.
    hostile = topics(**{'x"SELF_TEST_TOPIC":': None})
    assert not foreign.has_broker_files(disk_with(**{name: hostile}), ROOT)
    disk = disk_with(**{name: topics(a=None)})
    disk.plan.fail("pread")
    assert foreign.has_broker_files(disk, ROOT)


def test_only_what_a_put_would_have_to_keep_up_stops_writing() -> None:
    found = [Foreign(kind, ROOT) for kind in (BATCH_QUEUES, POP_STATE)]
    assert [each.kind for each in foreign.stopping(found)] == [BATCH_QUEUES]
    assert len({kind.name for kind in KINDS}) == len(KINDS)


def test_names_are_shown_escaped_and_not_all_of_many() -> None:
    text = Foreign(BATCH_QUEUES, ROOT, ("\x1b[2J", *"abcdef")).text
    assert "\x1b" not in text
    assert "and 2 more" in text
    assert foreign.is_light("%LMQ%a")
    assert not foreign.is_light("LMQ")
