"""Moving and deleting a group from outside."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.group_story import GROUP, SETTINGS, TOPIC, services, take

from penstock.errors import QueueHeldError, StorageError
from penstock.files import Files
from penstock.testing import ManualClock
from penstock.testing.kit import open_store
from penstock_messaging.groups.fold import Position
from penstock_messaging.groups.members import Membership, living_members
from penstock_messaging.groups.reset import Move, delete_files, planned, reset
from penstock_messaging.groups.taking import Groups


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Groups]:
    """Return those of a store with twenty messages, ten of them consumed."""
    clock = ManualClock()
    with open_store(tmp_path / "store", clock=clock, **SETTINGS) as store:
        for number in range(20):
            clock.now_ms = 1_700_000_000_000 + number
            store.put(TOPIC, b"%d" % number)
        made = services(store, Files(), ManualClock())[0]
        owned = take(made)
        owned.ack(list(range(10)), 0)
        owned.hand_back()
        yield made


@pytest.mark.parametrize(("to", "shift", "after"), [
    ("earliest", 0, 0), ("latest", 0, 20), (1_700_000_000_007, 0, 7), (None, -3, 7), (None, 500, 20), (None, -500, 0),
])  # fmt: skip
def test_a_plan_changes_nothing_until_it_is_carried_out(
    to: str | int | None, shift: int, after: int, groups: Groups
) -> None:
    moves = planned(groups, GROUP, [TOPIC, "none"], to=to, shift=shift)
    assert moves == [Move(TOPIC, 0, 10, after)]
    assert groups.position(GROUP, TOPIC, 0) == Position(10)
    reset(groups, GROUP, moves)
    assert groups.position(GROUP, TOPIC, 0) == Position(after)
    services(groups.store, Files(), ManualClock())[1].take_all()  # type: ignore[arg-type] # a store
    assert groups.store.committed_offset(GROUP, TOPIC, 0) == after
    assert take(groups).position == Position(after)


def test_a_queue_that_a_consumer_has_is_refused_with_its_process(groups: Groups) -> None:
    owned = take(groups)
    with pytest.raises(QueueHeldError, match=f"process {Files().process_id()}"):
        reset(groups, GROUP, [Move(TOPIC, 0, 10, 0)])
    owned.hand_back()
    assert groups.position(GROUP, TOPIC, 0) == Position(10)


def test_a_group_that_never_consumed_a_topic_can_be_moved_in_it(groups: Groups) -> None:
    (move,) = planned(groups, "new", [TOPIC], to=None, shift=4)
    assert move == Move(TOPIC, 0, None, 4)
    reset(groups, "new", [move])
    assert groups.position("new", TOPIC, 0) == Position(4)


def test_a_deleted_group_leaves_nothing_and_a_living_one_is_not_deleted(groups: Groups) -> None:
    paths = groups.paths(GROUP)
    member = Membership(Files(), paths, TOPIC, 0, {})
    member.join()
    with pytest.raises(QueueHeldError, match=member.id):
        delete_files(groups, GROUP)
    member.leave()
    owned = take(groups)
    with pytest.raises(QueueHeldError, match="process"):
        delete_files(groups, GROUP)
    owned.hand_back()
    delete_files(groups, GROUP)
    assert not paths.folder.exists()
    delete_files(groups, GROUP)
    assert groups.position(GROUP, TOPIC, 0) is None


def test_nobody_joins_a_group_that_is_deleted(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that joined then made the deletion fail after the journals were removed."""
    paths, files = groups.paths(GROUP), groups.context.files
    refused: list[Membership] = []

    def remove(path: Path) -> None:
        if not refused:
            with pytest.raises(StorageError, match="is being deleted"):
                Membership(files, paths, TOPIC, 0, {}).join()
            # One that looked before the deletion had begun sees it after it has joined; what it made is removed.
            late = Membership(files, paths, TOPIC, 0, {})
            late._join()
            refused.append(late)
            assert late.is_alive
        real(path)

    real = files.remove
    monkeypatch.setattr(files, "remove", remove)
    delete_files(groups, GROUP)
    (late,) = refused
    assert [late.is_alive] == [False]
    assert not paths.folder.exists()
    assert not paths.deleting.exists()
    late.join()
    assert late.is_alive
    with pytest.raises(QueueHeldError, match=late.id):
        delete_files(groups, GROUP)
    assert not paths.deleting.exists()
    late.leave()


def test_two_programs_do_not_delete_a_group_at_the_same_time(groups: Groups) -> None:
    paths = groups.paths(GROUP)
    lock = Files().lock_one(paths.deleting)
    assert lock is not None
    with pytest.raises(QueueHeldError):
        delete_files(groups, GROUP)
    lock.release()
    assert groups.position(GROUP, TOPIC, 0) == Position(10)
    delete_files(groups, GROUP)
    assert not paths.folder.exists()


def test_a_member_that_sees_the_deletion_after_joining_leaves(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    paths, files = groups.paths(GROUP), groups.context.files
    member = Membership(files, paths, TOPIC, 0, {})
    answers = [False, True]
    monkeypatch.setattr(files, "is_locked", lambda path: answers.pop(0))
    with pytest.raises(StorageError, match="is being deleted"):
        member.join()
    monkeypatch.undo()
    assert not member.is_alive
    assert living_members(files, paths) == []
