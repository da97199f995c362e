"""Members of one group in one process: who gets which queues, and when."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.crash.group_story import SETTINGS, services

from penstock.errors import LostQueueError
from penstock.files import Files
from penstock.store.store import Store
from penstock.testing import ManualClock
from penstock.testing.kit import open_store
from penstock_messaging.groups.claims import Claims
from penstock_messaging.groups.fold import Position
from penstock_messaging.groups.owned_queue import OwnedQueue
from penstock_messaging.groups.taking import Groups


class Names:
    """A selection of topics by names and patterns."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names = tuple(name for name in text.split(",") if "*" not in name)

    def matches(self, topic: str) -> bool:
        """Return whether the topic is selected."""
        return any(re.fullmatch(n.replace("*", ".*"), topic) for n in self.text.split(","))

    @classmethod
    def parse(cls, text: str) -> "Names":
        """Return the selection of a text."""
        if text.startswith("!"):
            raise ValueError("it begins with !")
        return cls(text)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Return a store with a topic of four queues and one of one."""
    with open_store(tmp_path / "store", **SETTINGS) as made:
        for number in range(20):
            made.put("orders", b"%d" % number, queue=number % 4)
        made.put("log", b"x")
        yield made


@pytest.fixture
def groups(store: Store) -> Groups:
    """Return the store's groups."""
    return services(store, Files(), ManualClock())[0]


class Member:
    """A consumer that hands back what is wanted back at once."""

    def __init__(self, groups: Groups, topics: str = "orders,log", group: str = "g", **given: Any) -> None:  # fmt: skip
        self.taken: list[tuple[str, int]] = []
        self.asked: list[OwnedQueue] = []
        self.wakes = 0
        self.claims = Claims(
            groups, group, Names(topics), on_taken=lambda q: self.taken.append((q.topic, q.queue)),
            on_wanted_back=self._asked, wake=self._wake, **given,
        )  # fmt: skip
        self.keeps = False
        self.claims.start()

    def _asked(self, queue: OwnedQueue) -> None:
        self.asked.append(queue)
        if not self.keeps:
            queue.hand_back()

    def _wake(self) -> None:
        self.wakes += 1

    @property
    def queues(self) -> list[tuple[str, int]]:
        """The queues that it has."""
        return sorted(self.claims.owned)


ALL = [("log", 0), *(("orders", n) for n in range(4))]


def settle(*members: Member) -> None:
    """Let each member step until nothing changes."""
    for _ in range(3):
        for member in members:
            member.claims.step()


def test_one_member_gets_all_and_two_share(groups: Groups) -> None:
    one = Member(groups)
    assert one.queues == ALL
    other = Member(groups)
    assert one.wakes == 1
    settle(one, other)
    assert sorted([*one.queues, *other.queues]) == ALL
    assert sorted([len(one.queues), len(other.queues)]) == [2, 3]
    other.claims.stop()
    assert one.wakes == 2
    settle(one)
    assert one.queues == ALL
    one.claims.stop()
    assert one.queues == []


def test_a_queue_that_is_kept_goes_to_nobody_else(groups: Groups) -> None:
    one = Member(groups)
    one.keeps = True
    other = Member(groups)
    settle(one, other)
    assert (one.queues, other.queues) == (ALL, [])
    # It is asked for again and again.
    assert len(one.asked) >= 4
    for queue in one.asked:
        queue.hand_back()
    settle(other, one)
    assert sorted([*one.queues, *other.queues]) == ALL


def test_a_dead_members_queues_move_with_the_next_step(groups: Groups) -> None:
    one = Member(groups)
    other = Member(groups)
    settle(one, other)
    # As the system does at the end of a process.
    for queue in other.claims.owned.values():
        queue._lock.release()
    lock = other.claims._member._lock
    assert lock is not None
    lock.release()
    one.claims.step()
    assert one.queues == ALL
    assert list(groups.paths("g").members.iterdir()) == [groups.paths("g").members / one.claims.id]


def test_members_share_only_topics_that_both_want(groups: Groups) -> None:
    one, other = Member(groups, "orders"), Member(groups, "l*")
    settle(one, other)
    assert (one.queues, other.queues) == (ALL[1:], ALL[:1])


def test_groups_do_not_share(groups: Groups) -> None:
    one, other = Member(groups), Member(groups, group="h")
    assert one.queues == other.queues == ALL
    assert one.wakes == 0


def test_a_member_with_a_selection_that_is_not_understood_gets_nothing(
    groups: Groups, caplog: pytest.LogCaptureFixture
) -> None:
    one = Member(groups)
    strange = Member(groups, "!")
    with caplog.at_level(logging.WARNING):
        settle(one, one)
    assert one.queues == ALL
    assert caplog.text.count("not understood") == 1
    strange.claims.stop()


def begins(groups: Groups, store: Store, **given: Any) -> dict[tuple[str, int], int]:
    """Return where a new member begins in each queue."""
    member = Member(groups, "orders,later,%RETRY%g", **given)
    store.put("later", b"first")
    store.put("orders", b"new", queue=7)
    store.put("%RETRY%g", b"again")
    member.claims.step()
    return {key: queue.position.base for key, queue in member.claims.owned.items()}


def test_a_new_group_begins_at_the_first_message(groups: Groups, store: Store) -> None:
    assert set(begins(groups, store).values()) == {0}


def test_new_queues_of_its_topics_are_told_until_the_next_step(groups: Groups, store: Store) -> None:  # fmt: skip
    one = Member(groups).claims
    assert not one.has_new()
    store.put("other", b"")
    assert not one.has_new()
    store.put("orders", b"", queue=7)
    assert one.has_new()
    one.step()
    assert not one.has_new()
    one.stop()


def test_a_group_that_begins_at_the_end_misses_nothing_that_comes_later(groups: Groups, store: Store) -> None:  # fmt: skip
    found = begins(groups, store, start="latest")
    new = {("later", 0): 0, ("orders", 7): 0, ("%RETRY%g", 0): 0}
    assert found == {**{("orders", n): 5 for n in range(4)}, **new}


def test_a_group_begins_at_a_time(groups: Groups, store: Store) -> None:
    at = store.read("orders", 0, 3).messages[0].store_time_ms
    found = begins(groups, store, start=at + 1)
    assert found["orders", 0] == 5


def test_a_group_that_a_broker_knows_goes_on_there(groups: Groups, store: Store) -> None:
    store.commit_offset("g", "orders", 1, offset=3)
    found = begins(groups, store, start="latest")
    assert (found["orders", 0], found["orders", 1]) == (0, 3)


def test_an_owner_whose_offset_was_moved_loses_the_queue_and_takes_it_there(
    store: Store, groups: Groups
) -> None:
    intake = services(store, Files(), ManualClock())[1]
    one = Member(groups, "log,orders")
    owned = one.claims.owned["orders", 0]
    owned.ack([0, 1, 2], 0)
    intake.take_all()
    assert store.committed_offset("g", "orders", 0) == 3
    store.commit_offset("g", "orders", 0, offset=1)
    intake.take_all()
    one.claims.step()
    with pytest.raises(LostQueueError, match="moved"):
        owned.ack([3], 3)
    one.claims.step()
    again = one.claims.owned["orders", 0]
    assert (again.position, again.epoch) == (Position(1), 2)


def test_a_deleted_topic_or_lock_file_loses_the_queue(groups: Groups) -> None:
    one = Member(groups)
    groups.paths("g").queue_lock("log", 0).unlink()
    groups.life = lambda topic: int(topic == "orders")
    before = dict(one.claims.owned)
    one.claims.step()
    assert all(queue.is_lost for queue in before.values())
    assert one.queues == ALL
    assert not any(queue.is_lost for queue in one.claims.owned.values())


def test_a_failing_disk_is_tried_again(groups: Groups, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(Groups, "take", fail)
        one = Member(groups)
        one.claims.step()
    assert one.queues == []
    # Once for each queue, not once a second.
    assert caplog.text.count("No space left") == len(ALL)
    one.claims.step()
    assert one.queues == ALL


def test_stop_hands_back_all_queues_though_one_fails(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    one = Member(groups)
    first = next(iter(one.claims.owned.values()))

    def fail() -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(first._journal._file, "sync_all", fail)
    with pytest.raises(Exception, match="could not be written"):
        one.claims.stop()
    other = Member(groups)
    assert other.queues == ALL
    other.claims.stop()
