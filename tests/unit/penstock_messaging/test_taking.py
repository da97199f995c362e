"""Taking queues, and positions without a writer."""

import logging
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.crash.group_story import GROUP, SETTINGS, TOPIC, opened, services, take

from penstock.errors import CorruptionError, LostQueueError, StorageError
from penstock.files import Files
from penstock.store.store import Store
from penstock.testing import ManualClock, SimulatedDisk
from penstock.testing.kit import open_store
from penstock.testing.platter import Survival
from penstock_messaging.groups.entries import EPOCH_MAX
from penstock_messaging.groups.fold import Position
from penstock_messaging.groups.marks import Mark, write_marks
from penstock_messaging.groups.starts import ensure_start
from penstock_messaging.groups.taking import Groups, taken_in


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Return a store with twenty messages."""
    with open_store(tmp_path / "store", **SETTINGS) as made:
        for number in range(20):
            made.put(TOPIC, b"%d" % number)
        yield made


def of(store: Store) -> Groups:
    """Return the store's groups."""
    return services(store, Files(), ManualClock())[0]


def test_a_reader_sees_and_takes_positions_without_a_writer(store: Store, tmp_path: Path) -> None:
    owned = take(of(store))
    owned.ack([0, 2], 0)
    owned.hand_back()
    store.close()
    with open_store(tmp_path / "store", read_only=True, **SETTINGS) as reader:
        groups = of(reader)
        assert groups.position(GROUP, TOPIC, 0) == Position(1, ((2, 3),))
        again = take(groups)
        again.sync(again.ack([1], 1))
        assert groups.position(GROUP, TOPIC, 0) == Position(3)
        again.hand_back()


def test_a_store_that_no_writer_has_prepared_is_refused(store: Store, tmp_path: Path) -> None:
    store.close()
    reader = open_store(tmp_path / "store", read_only=True, **SETTINGS)
    with reader, pytest.raises(StorageError, match="for writing"):
        of(reader).position(GROUP, TOPIC, 0)


def test_a_group_that_never_consumed_a_queue_has_no_position_or_its_start(store: Store) -> None:
    groups = of(store)
    assert groups.position(GROUP, TOPIC, 0) is None
    ensure_start(Files(), groups.paths(GROUP), TOPIC, 0, lambda: {0: 7})
    assert groups.position(GROUP, TOPIC, 0) == Position(7)
    owned = groups.take(GROUP, TOPIC, 0, member="x", begin=lambda: 7)
    assert owned is not None
    assert owned.position == Position(7)


def test_an_offset_that_a_broker_committed_counts_and_is_noted(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    groups = of(store)
    owned = take(groups)
    owned.ack([0, 1, 2, 9], 0)
    owned.hand_back()
    store.commit_offset(GROUP, TOPIC, offset=5)
    with caplog.at_level(logging.WARNING):
        again = take(groups)
    assert again.position == Position(5)
    assert "dropped" in caplog.text
    again.ack([5, 6], 5)
    assert groups.position(GROUP, TOPIC, 0) == Position(7)


def test_a_journal_of_another_store_is_not_used(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    groups = of(store)
    owned = take(groups)
    owned.ack(list(range(10)), 0)
    owned.hand_back()
    (store.path / "penstock" / "store-id").write_text(f"{5:016x}\n")
    assert take(of(store)).position == Position(0)
    assert "another store" in caplog.text


def test_a_topic_that_was_made_again_begins_anew(store: Store) -> None:
    owned = take(of(store))
    owned.ack(list(range(10)), 0)
    owned.hand_back()
    groups = of(store)
    groups.life = lambda _topic: 1
    assert groups.position(GROUP, TOPIC, 0) is None
    assert take(groups).position == Position(0)


def test_an_epoch_that_cannot_be_counted_on_is_corruption(store: Store) -> None:
    groups = of(store)
    take(groups).hand_back()
    write_marks(Files(), groups.paths(GROUP), {(TOPIC, 0): Mark(0, EPOCH_MAX)})
    with pytest.raises(CorruptionError, match="epoch"):
        take(groups)
    # The lock is free again.
    assert groups.holder(GROUP, TOPIC, 0) is None


def test_a_committed_offset_that_no_queue_has_is_refused(store: Store, tmp_path: Path) -> None:
    """The journal that began with it could not be read by anybody: `groups reset` changed nothing, and reported success."""
    take(of(store)).hand_back()
    store.close()
    file = tmp_path / "store" / "config" / "consumerOffset.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f'{{"offsetTable":{{"{TOPIC}@{GROUP}":{{0:{(1 << 63) - 1}}}}}}}')
    with open_store(tmp_path / "store", read_only=True, **SETTINGS) as reader:
        groups = of(reader)
        with pytest.raises(CorruptionError, match=r"correct it in config/consumerOffset.json"):
            take(groups)
        assert groups.holder(GROUP, TOPIC, 0) is None
    # A writer sets it back.
    with open_store(tmp_path / "store", **SETTINGS) as writer:
        assert take(of(writer)).position == Position(20)


def test_network_file_systems_are_refused_by_name(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = of(store)
    groups.check_local()
    monkeypatch.setattr(Files, "remote_kind", lambda *_: "nfs")
    with pytest.raises(StorageError, match="of type nfs"):
        groups.check_local()


def test_a_mark_of_another_life_voids_a_journal() -> None:
    assert taken_in(None, 0, TOPIC, 0) == 0
    assert taken_in(Mark(0, taken=4), 0, TOPIC, 0) == 4
    # A mark from before the topic was deleted says nothing.
    assert taken_in(Mark(7, taken=4), 1 << 32, TOPIC, 0) == 0
    for topic_life in (0, 1 << 32):
        assert taken_in(Mark(topic_life, taken=4), topic_life, TOPIC, 0) == 4
        with pytest.raises(LostQueueError, match="moved"):
            taken_in(Mark(topic_life + 1), topic_life, TOPIC, 0)


def test_folders_of_a_process_that_was_killed_before_it_synced_them_are_made_durable() -> None:
    """The journal was synced, and its folder was not: a power cut took all acknowledgements with it."""
    disk = SimulatedDisk()
    store, groups, _ = opened(disk, ManualClock())
    store.put(TOPIC, b"x")
    disk.make_folder(groups.paths(GROUP).topic(TOPIC))
    owned = take(groups)
    owned.sync(owned.ack([0], 0))
    store.flush()
    after = SimulatedDisk.after(disk.image(), Survival.NONE, Random(0))
    _, groups, _ = opened(after, ManualClock())
    assert groups.position(GROUP, TOPIC, 0) == Position(1)
