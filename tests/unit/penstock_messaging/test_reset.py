"""Moving and deleting a group from outside."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.group_story import GROUP, SETTINGS, TOPIC, services, take

from penstock.errors import QueueHeldError
from penstock.files import Files
from penstock.testing import ManualClock
from penstock.testing.kit import open_store
from penstock_messaging.groups.fold import Position
from penstock_messaging.groups.members import Membership
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


def test_a_member_that_joins_while_its_group_is_deleted_is_an_error(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was an `OSError` without a word about the consumer."""
    paths = groups.paths(GROUP)
    late = Membership(Files(), paths, TOPIC, 0, {})
    remove_folder = Files.remove_folder

    def joins_first(self: Files, path: Path) -> None:
        if path == paths.members or not paths.members.exists():
            late.join()
        remove_folder(self, path)

    monkeypatch.setattr(Files, "remove_folder", joins_first)
    with pytest.raises(QueueHeldError, match="just joined"):
        delete_files(groups, GROUP)
    assert groups.holder(GROUP, TOPIC, 0) is None
    assert late.is_alive
    late.leave()
    monkeypatch.undo()
    delete_files(groups, GROUP)
    assert not paths.folder.exists()


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
