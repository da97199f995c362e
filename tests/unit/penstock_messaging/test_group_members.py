"""The members of a group: who lives, who has which queue from which position on, and how a group is moved or deleted from outside."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.conftest import power_cut
from tests.unit.penstock_messaging.group_services import GROUP, SETTINGS, TOPIC, services, take

from penstock import Message, errors
from penstock.files import Files
from penstock.store.store import Store
from penstock.testing import FaultyFiles, InlineWorkers, ManualClock, SimulatedDisk, open_store
from penstock_messaging.consuming.selection import TopicSelection
from penstock_messaging.groups.assignment import assigned, average_share
from penstock_messaging.groups.claims import Claims
from penstock_messaging.groups.entries import EPOCH_MAX
from penstock_messaging.groups.fold import Position
from penstock_messaging.groups.marks import Mark, write_marks
from penstock_messaging.groups.members import Membership, living_members, remove_dead_members
from penstock_messaging.groups.owned_queue import OwnedQueue
from penstock_messaging.groups.paths import GroupPaths, check_group_name, groups_of
from penstock_messaging.groups.queue_lock import holder_of, take_lock
from penstock_messaging.groups.reset import Move, delete_files, planned, reset
from penstock_messaging.groups.starts import ensure_start, read_start
from penstock_messaging.groups.store_id import ensure_store_id, read_store_id
from penstock_messaging.groups.taking import Groups

FILES = Files()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with twenty messages in a queue, each stored a millisecond after the other."""
    clock = ManualClock()
    with open_store(tmp_path / "store", clock=clock, **SETTINGS) as made:
        for number in range(20):
            made.put(TOPIC, b"%d" % number, queue=0)
            clock.now_ms += 1
        yield made


def of(store: Store, files: Files = FILES) -> Groups:
    return services(store, files, ManualClock())[0]


@pytest.fixture
def groups(store: Store) -> Groups:
    """The groups of that store."""
    return of(store)


@pytest.fixture
def paths(tmp_path: Path) -> GroupPaths:
    """The files of a group."""
    return GroupPaths(tmp_path, "g")


# --- names, the store's id, and locks


def test_only_what_penstock_names_so_is_a_group_or_a_journal(paths: GroupPaths) -> None:
    for name in ("billing", "%RETRY%x", "a|b", "x" * 120):
        assert check_group_name("consumer", name) == name
    for wrong in ("", "a/b", "..", "a b", "ä", "a\n", "x" * 121, 5, None):
        with pytest.raises(errors.ArgumentError, match="group"):
            check_group_name("consumer", wrong)
    assert (groups_of(FILES, paths.root), paths.journals(FILES)) == ([], [])
    folder = paths.topic("orders")
    folder.mkdir(parents=True)
    (paths.folder.parent / "not a group").mkdir()
    (paths.folder.parent / "file").touch()
    names = ["0", "12", "01", "x", "70000", "²"]
    for name in ("3.lock", "3.journal.new", *(f"{each}.journal" for each in names)):
        (folder / name).touch()
    (folder / "4.journal").mkdir()
    assert groups_of(FILES, paths.root) == ["g"]
    assert paths.journals(FILES) == [("orders", 0), ("orders", 12)]


def test_a_stores_id_is_made_once_and_never_guessed(tmp_path: Path) -> None:
    with pytest.raises(errors.StorageError, match="Open the store once for writing"):
        read_store_id(FILES, tmp_path)
    first = ensure_store_id(FILES, tmp_path)
    assert ensure_store_id(FILES, tmp_path) == read_store_id(FILES, tmp_path) == first > 0
    for raw in (b"", b"12", b"+123456789abcdef\n", b"1" * 17 + b"\n", b"\xff" * 17):
        (tmp_path / "penstock" / "store-id").write_bytes(raw)
        with pytest.raises(errors.CorruptionError, match="store-id"):
            ensure_store_id(FILES, tmp_path)


@pytest.mark.parametrize("is_simulated", [False, True])
def test_a_queues_lock_has_one_holder_who_is_named(tmp_path: Path, is_simulated: bool) -> None:
    files: Files = SimulatedDisk() if is_simulated else FILES
    path = Path("/0.lock") if is_simulated else tmp_path / "0.lock"
    assert holder_of(files, path) is None
    held = take_lock(files, path, "5-ab")
    assert held is not None
    assert take_lock(files, path, "6-cd") is None
    assert holder_of(files, path) == f"process {files.process_id()}, member 5-ab"
    if not is_simulated:
        for raw in (b"", b"[]", b'{"pid":[]}', b'{"pid":1e999,"member":""}', b"\xff"):
            path.write_bytes(raw)
            assert holder_of(files, path) == "an unknown process"
    files.remove(path)
    other = take_lock(files, path, "6-cd")
    assert other is not None
    assert (held.is_held, other.is_held) == (False, True)
    other.release()
    other.release()
    assert holder_of(files, path) is None


# --- members


def joined(paths: GroupPaths, files: Files = FILES) -> Membership:
    made = Membership(files, paths, "orders,log-*", 5, {"ordered": True})
    made.join()
    return made


def ids(paths: GroupPaths) -> list[str]:
    return [member.id for member in living_members(FILES, paths)]


NO_MEMBERS = [
    b"", b"{", b"[]", b'{"pid":1}', b"\xff", b"[" * 100_000, b'{"pid":1e999,"since_ms":0,"topics":"t","options":{}}',
    b'{"pid":1,"since_ms":"x","topics":"t","options":{}}',
]  # fmt: skip


def test_members_are_listed_until_they_leave_or_die(paths: GroupPaths) -> None:
    assert ids(paths) == []
    one, other = joined(paths), joined(paths)
    assert ids(paths) == sorted([one.id, other.id])
    about = living_members(FILES, paths)[0]
    assert (about.topics, about.since_ms, about.options) == ("orders,log-*", 5, {"ordered": True})
    other.leave()
    other.leave()
    dead = "12-0123456789abcdef"
    for name in (dead, f"{dead}.joining", "notes.txt"):
        (paths.members / name).write_text("{}")
    # One of another version may live, whatever it writes.
    lock = FILES.lock_one(paths.members / dead)
    assert lock is not None
    for raw in NO_MEMBERS:
        (paths.members / dead).write_bytes(raw)
        assert ids(paths) == [one.id]
    remove_dead_members(FILES, paths)
    assert (paths.members / dead).exists()
    lock.release()
    remove_dead_members(FILES, paths)
    assert {path.name for path in paths.members.iterdir()} == {one.id, "notes.txt"}
    # One whose file was removed joins again.
    before = one.id
    (paths.members / before).unlink()
    assert [one.is_alive] == [False]
    one.join()
    assert ids(paths) == [one.id] != [before]


def test_a_member_takes_no_id_and_no_file_of_others(paths: GroupPaths) -> None:
    numbers = iter(["a" * 16, "b" * 16])
    paths.members.mkdir(parents=True)
    made = Membership(FILES, paths, "orders", 5, {}, random=lambda: next(numbers))
    taken = FILES.lock_one(paths.members / f"{os.getpid()}-{'a' * 16}.joining")
    assert taken is not None
    made.join()
    assert made.id == f"{os.getpid()}-{'b' * 16}"
    taken.release()

    class Hasty(Files):
        """Removes a file before it is locked."""

        times = 2

        def lock_one(self, path: Path) -> Any:
            lock = super().lock_one(path)
            if self.times:
                self.times -= 1
                path.unlink()
            return lock

    files = Hasty()
    assert joined(paths, files).is_alive
    files.times = 100
    with pytest.raises(errors.StorageError, match="removed again and again"):
        joined(paths, files)


# --- where a group begins


def test_the_first_member_decides_where_a_group_begins(
    paths: GroupPaths, caplog: pytest.LogCaptureFixture
) -> None:
    paths.folder.mkdir(parents=True)
    lock = FILES.lock_one(paths.lock)
    assert lock is not None
    assert ensure_start(FILES, paths, "t", 0, dict) is None, "while another one decides"
    lock.release()
    assert ensure_start(FILES, paths, "t", 0, lambda: {0: 5, 3: 9}) == {0: 5, 3: 9}
    assert ensure_start(FILES, paths, "t", 0, lambda: {0: 7}) == {0: 5, 3: 9}
    # A topic that was made again begins anew, at its first message.
    assert read_start(FILES, paths, "t", 1) is None
    assert ensure_start(FILES, paths, "t", 1, lambda: {0: 7}) == {}
    assert read_start(FILES, paths, "t", 0) is None
    broken = b"", b"{", b"5", b'{"generation":0}', b'{"generation":0,"offsets":{"0":-1}}', b'{"generation":0,"offsets":{"x":1}}'  # fmt: skip
    for raw in broken:
        paths.start("t").write_bytes(raw)
        assert read_start(FILES, paths, "t", 0) == {}
    assert caplog.text.count("cannot be understood") == len(broken)


def test_after_a_power_cut_while_a_group_begins_at_the_end_it_misses_no_later_message() -> None:
    """The file of its start was synced, and the messages that it passes over were not: others got their offsets."""
    disk, root, images = SimulatedDisk(), Path("/store"), []
    given: dict[str, Any] = {"spawn": InlineWorkers(), "flush": "async"}
    with open_store(root, files=disk, **given) as store:
        store.put("t", b"", queue=0)
        store.flush()
        store.put_many([Message("t", b"lost", queue=0)] * 5)
        disk.plan.before = lambda: images.append(power_cut(disk))
        with store.consumer("g", "t", start="latest"):
            disk.plan.before = None
    begun = [each for each in images if read_start(each, GroupPaths(root, "g"), "t", 0)]
    assert begun
    for after in begun:
        with open_store(root, files=after, **given) as store:
            assert store.max_offset("t", 0) == 1
            store.put_many([Message("t", b"%d" % number, queue=0) for number in range(8)])
            with store.consumer("g", "t", start="latest") as consumer:
                found = [message.body for message in consumer.poll(20, timeout=0)]
        assert found == [b"%d" % number for number in range(8)]


# --- shares


def test_shares_are_those_of_allocate_message_queue_averagely() -> None:
    queues = [("t", n) for n in range(8)]
    shares = [[n for _, n in average_share(m, ["a", "b", "c"], queues)] for m in "abc"]
    assert shares == [[0, 1, 2], [3, 4, 5], [6, 7]]
    few = [average_share(m, ["a", "b", "c"], queues[:2]) for m in "abcd"]
    assert few == [[("t", 0)], [("t", 1)], [], []]
    assert assigned("x", {"a": lambda _: True}, {"t": [0]}) == set(), "no living member"


# --- taking a queue, and answering for it


def now(groups: Groups) -> Position:
    """Return the group's position as others see it."""
    known = groups.position(GROUP, TOPIC, 0)
    assert known is not None
    return known


CALLS: list[Callable[[OwnedQueue], object]] = [
    lambda q: q.ack([1], 0), lambda q: q.ack([1, 3], 0), lambda q: q.ack([], 0),
    lambda q: q.nack(1, 0, 0, 0), lambda q: q.retry(1, 1, 0), lambda q: q.reset(0), lambda q: q.advance(1),
]  # fmt: skip


def test_an_answer_to_a_message_of_a_new_topic_of_the_same_name_is_refused(store: Store) -> None:
    """Until the owner's next look it had the queue of the deleted topic: its acknowledgement was durable, and did not count."""
    groups = Groups(of(store).context, store.lowlevel, generation=store.lowlevel.topic_generation)
    owned = take(groups)
    owned.sync(owned.ack([0], 0))
    store.lowlevel.remove_topic(TOPIC)
    store.put(TOPIC, b"new", queue=0)
    with pytest.raises(errors.LostQueueError, match="its topic was deleted"):
        owned.sync(owned.ack([0], 0))
    assert owned.is_lost
    owned.hand_back()
    assert take(groups).position == Position(0)


def test_a_queue_has_one_owner_and_no_answer_counts_after_it_is_handed_back(groups: Groups) -> None:
    owned = take(groups)
    assert groups.claim(GROUP, TOPIC, 0, member="x", begin=lambda: 0) is None
    assert str(os.getpid()) in str(groups.holder(GROUP, TOPIC, 0))
    ticket = owned.ack([0], 0)
    owned.hand_back()
    owned.sync(ticket)
    for call in CALLS:
        with pytest.raises(errors.LostQueueError, match="handed back"):
            call(owned)
    owned.hand_back()
    assert now(groups) == Position(1)
    assert groups.holder(GROUP, TOPIC, 0) is None
    # One that is lost for another reason says so.
    owned = take(groups)
    owned.lose("its topic was deleted")
    with pytest.raises(errors.LostQueueError, match="its topic was deleted") as caught:
        owned.ack([1], 1)
    assert (caught.value.topic, caught.value.queue) == (TOPIC, 0)
    owned.hand_back()
    assert now(groups) == Position(1)


def test_numbers_that_no_owner_can_reach_are_corruption(store: Store, groups: Groups) -> None:
    """The journal that began with such an offset could not be read by anybody: `groups reset` changed nothing, and reported success."""
    take(groups).hand_back()
    write_marks(FILES, groups.paths(GROUP), {(TOPIC, 0): Mark(0, EPOCH_MAX)})
    with pytest.raises(errors.CorruptionError, match="epoch"):
        take(groups)
    assert groups.holder(GROUP, TOPIC, 0) is None, "the lock is free again"
    groups.paths(GROUP).marks.unlink()
    store.close()
    file = store.path / "config" / "consumerOffset.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f'{{"offsetTable":{{"{TOPIC}@{GROUP}":{{0:{(1 << 63) - 1}}}}}}}')
    with open_store(store.path, read_only=True, **SETTINGS) as reader:
        with pytest.raises(
            errors.CorruptionError, match=r"correct it in config/consumerOffset.json"
        ):
            take(of(reader))
        assert of(reader).holder(GROUP, TOPIC, 0) is None
    # A writer sets it back.
    with open_store(store.path, **SETTINGS) as writer:
        assert take(of(writer)).position == Position(20)


def test_network_file_systems_are_refused_by_name(groups: Groups) -> None:
    class Remote(Files):
        def remote_kind(self, folder: Path) -> str | None:
            return "nfs"

    groups.check_local()
    groups.context = attrs.evolve(groups.context, files=Remote())
    with pytest.raises(errors.StorageError, match="of type nfs"):
        groups.check_local()


# --- who has which queues


class Selection(TopicSelection):
    """One that another version may not understand."""

    @classmethod
    def parse(cls, text: str) -> "TopicSelection":
        if text.startswith("!"):
            raise ValueError("it begins with !")
        return super().parse(text)


class Member:
    """A consumer that hands back what is wanted back at once, unless it `keeps`."""

    def __init__(self, groups: Groups, topics: str = "orders/log", group: str = "g", **given: Any) -> None:  # fmt: skip
        self.asked: list[OwnedQueue] = []
        self.keeps, self.wakes = False, 0
        self.claims = Claims(
            groups,
            group,
            Selection(topics.split("/")),
            on_wanted_back=self._asked,
            wake=self._wake,
            **given,
        )
        self.claims.start()

    def _asked(self, queue: OwnedQueue) -> None:
        self.asked.append(queue)
        if not self.keeps:
            queue.hand_back()

    def _wake(self) -> None:
        self.wakes += 1

    @property
    def queues(self) -> list[tuple[str, int]]:
        return sorted(self.claims.owned)


@pytest.fixture
def four(store: Store, groups: Groups) -> Groups:
    """The groups of a store with a topic of four queues and one of one."""
    more = [Message(TOPIC, b"%d" % n, queue=1 + n % 3) for n in range(15)]
    store.put_many([*more, Message("log", b"x", queue=0)])
    return groups


ALL = [("log", 0), *(("orders", n) for n in range(4))]


def settle(*members: Member) -> None:
    """Let each member step until nothing changes."""
    for _ in range(3):
        for member in members:
            member.claims.step()


def test_one_member_gets_all_queues_and_two_share_unless_one_is_not_understood(
    four: Groups, caplog: pytest.LogCaptureFixture
) -> None:
    one, elsewhere = Member(four), Member(four, group="h")
    assert one.queues == elsewhere.queues == ALL
    other = Member(four)
    assert (one.wakes, elsewhere.wakes) == (1, 0)
    settle(one, other)
    assert sorted([*one.queues, *other.queues]) == ALL
    assert sorted([len(one.queues), len(other.queues)]) == [2, 3]
    other.claims.stop()
    assert one.wakes == 2
    strange = Member(four, "!x")
    settle(one, one)
    assert (one.queues, strange.queues) == (ALL, [])
    assert caplog.text.count("not understood") == 1
    strange.claims.stop()
    # A queue that is kept goes to nobody else, and is asked for again and again.
    one.keeps = True
    other = Member(four)
    settle(one, other)
    assert (one.queues, other.queues) == (ALL, [])
    assert len(one.asked) >= 4
    one.claims.stop()
    settle(other)
    assert (one.queues, other.queues) == ([], ALL)
    selective, patterns = Member(four, "orders", "p"), Member(four, "l*", "p")
    settle(selective, patterns)
    assert (selective.queues, patterns.queues) == (ALL[1:], ALL[:1])


def test_a_comma_is_a_part_of_a_topics_name(four: Groups, store: Store) -> None:
    store.put("log,orders", b"", queue=0)
    one, other = Member(four, "log,orders"), Member(four, "log")
    settle(one, other)
    assert (one.queues, other.queues) == ([("log,orders", 0)], ALL[:1])


@pytest.mark.parametrize("start", ["earliest", "latest", "time", "committed"])
def test_a_new_group_begins_where_it_says_and_misses_nothing_that_comes_later(
    four: Groups, store: Store, start: str
) -> None:
    given: Any = start
    if start == "time":
        given = store.read(TOPIC, 0, 3).messages[0].store_time_ms
    if start == "committed":
        # A broker knows the group.
        given = "latest"
        store.commit_offset("g", TOPIC, 1, offset=3)
    member = Member(four, "orders/later/%RETRY%g", start=given)
    assert not member.claims.has_new()
    store.put("other", b"", queue=0)
    assert not member.claims.has_new()
    store.put("later", b"first", queue=0)
    store.put(TOPIC, b"new", queue=7)
    store.put("%RETRY%g", b"again", queue=0)
    assert member.claims.has_new()
    member.claims.step()
    assert not member.claims.has_new()
    found = {key: queue.position.base for key, queue in member.claims.owned.items()}
    new = {("later", 0): 0, (TOPIC, 7): 0, ("%RETRY%g", 0): 0}
    first = {"earliest": [0, 0], "latest": [20, 5], "time": [3, 0], "committed": [0, 3]}[start]
    assert [found.pop((TOPIC, queue)) for queue in (0, 1)] == first
    assert {key: base for key, base in found.items() if key in new} == new


@pytest.mark.parametrize("lives", [True, False])
def test_a_group_from_the_end_misses_nothing_of_a_topic_that_is_made_again(
    four: Groups, store: Store, lives: bool
) -> None:
    """It took what was there when it noticed the deletion, up to a second later, for old messages."""
    four.generation = store.lowlevel.topic_generation
    member = Member(four, TOPIC, start="latest")
    assert member.claims.owned[TOPIC, 0].position == Position(20)
    if not lives:
        member.claims.stop()
    store.lowlevel.remove_topic(TOPIC)
    store.put(TOPIC, b"new", queue=0)
    if lives:
        member.claims.step()
    else:
        member = Member(four, TOPIC, start="latest")
    assert member.claims.owned[TOPIC, 0].position == Position(0)


def test_an_owner_whose_offset_was_moved_loses_the_queue_and_takes_it_there(store: Store) -> None:
    groups, intake = services(store, FILES, ManualClock())
    one = Member(groups)
    owned = one.claims.owned[TOPIC, 0]
    owned.ack([0, 1, 2], 0)
    intake.take_all()
    assert store.committed_offset("g", TOPIC, 0) == 3
    store.commit_offset("g", TOPIC, 0, offset=1)
    intake.take_all()
    one.claims.step()
    with pytest.raises(errors.LostQueueError, match="moved"):
        owned.ack([3], 3)
    one.claims.step()
    again = one.claims.owned[TOPIC, 0]
    assert (again.position, again.epoch) == (Position(1), 2)


def test_a_deleted_topic_or_lock_file_loses_the_queue(four: Groups) -> None:
    one = Member(four)
    four.paths("g").queue_lock("log", 0).unlink()
    four.generation = lambda topic: int(topic == TOPIC)
    before = dict(one.claims.owned)
    one.claims.step()
    assert all(queue.is_lost for queue in before.values())
    assert one.queues == ALL
    assert not any(queue.is_lost for queue in one.claims.owned.values())


def test_a_failing_disk_is_tried_again_and_keeps_nothing_from_being_handed_back(
    store: Store, four: Groups, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles()
    files.plan.fail("create", 28, path=".journal")
    one = Member(of(store, files))
    one.claims.step()
    assert one.queues == []
    # Once for each queue, not once a second.
    assert caplog.text.count("No space left") == len(ALL)
    files.plan.heal()
    one.claims.step()
    assert one.queues == ALL
    files.plan.fail("sync", path="1.journal")
    with pytest.raises(errors.StorageError, match="could not be written"):
        one.claims.stop()
    other = Member(four)
    assert other.queues == ALL
    other.claims.stop()


# --- moved and deleted from outside


@pytest.fixture
def half(groups: Groups) -> Groups:
    """The groups of the store, one of which has consumed ten messages."""
    owned = take(groups)
    owned.ack(list(range(10)), 0)
    owned.hand_back()
    return groups


TIME = 1_700_000_000_007
PLANS: list[tuple[Any, int, int]] = [
    ("earliest", 0, 0), ("latest", 0, 20), (TIME, 0, 7), (None, -3, 7), (None, 500, 20), (None, -500, 0),
]  # fmt: skip


@pytest.mark.parametrize(("to", "shift", "after"), PLANS)
def test_a_plan_alone_changes_nothing(half: Groups, to: Any, shift: int, after: int) -> None:
    moves = planned(half, GROUP, [TOPIC, "none"], to=to, shift=shift)
    assert moves == [Move(TOPIC, 0, 10, after)]
    assert now(half) == Position(10)
    owned = take(half)
    with pytest.raises(errors.QueueHeldError, match=f"process {os.getpid()}"):
        reset(half, GROUP, moves)
    owned.hand_back()
    assert now(half) == Position(10)
    reset(half, GROUP, moves)
    assert now(half) == Position(after)
    store: Any = half.store
    services(store, FILES, ManualClock())[1].take_all()
    assert store.committed_offset(GROUP, TOPIC, 0) == after
    assert take(half).position == Position(after)
    # A group that never consumed the topic.
    (move,) = planned(half, "new", [TOPIC], to=None, shift=4)
    assert move == Move(TOPIC, 0, None, 4)
    reset(half, "new", [move])
    assert half.position("new", TOPIC, 0) == Position(4)


def test_a_deleted_group_leaves_nothing_and_a_living_one_is_not_deleted(half: Groups) -> None:
    paths = half.paths(GROUP)
    member = Membership(FILES, paths, TOPIC, 0, {})
    member.join()
    with pytest.raises(errors.QueueHeldError, match=member.id):
        delete_files(half, GROUP)
    member.leave()
    owned = take(half)
    with pytest.raises(errors.QueueHeldError, match="process"):
        delete_files(half, GROUP)
    owned.hand_back()
    # While another program deletes it.
    lock = FILES.lock_one(paths.deleting)
    assert lock is not None
    with pytest.raises(errors.QueueHeldError):
        delete_files(half, GROUP)
    lock.release()
    assert now(half) == Position(10)
    delete_files(half, GROUP)
    assert not paths.folder.exists()
    delete_files(half, GROUP)
    assert half.position(GROUP, TOPIC, 0) is None


def test_a_group_of_many_queues_is_deleted_with_few_files_open(half: Groups) -> None:
    """It held a lock for each queue: a group of a thousand could not be deleted."""

    def count_open() -> int:
        return len(os.listdir("/proc/self/fd"))

    class Counting(Files):
        def remove(self, path: Path) -> None:
            counts.append(count_open())
            super().remove(path)

    queues = half.paths(GROUP).folder / "queues"
    for number in range(40):
        shutil.copytree(queues / TOPIC, queues / f"job-{number}")
    counts = [count_open()]
    half.context = attrs.evolve(half.context, files=Counting())
    delete_files(half, GROUP)
    assert len(counts) > 40
    assert max(counts) - counts[0] < 20


def test_nobody_joins_a_group_that_is_deleted(half: Groups) -> None:
    """A member that joined then made the deletion fail after the journals were removed."""
    paths = half.paths(GROUP)
    refused: list[Membership] = []

    class Slow(Files):
        """Looks for the deletion before it begins."""

        has_looked = False

        def is_locked(self, path: Path) -> bool:
            if path == paths.deleting and not self.has_looked:
                self.has_looked = True
                return False
            return super().is_locked(path)

    class Deleting(Files):
        def remove(self, path: Path) -> None:
            for files in (FILES, Slow()) if not refused else ():
                refused.append(Membership(files, paths, TOPIC, 0, {}))
                # The second one sees it after it has joined.
                with pytest.raises(errors.StorageError, match="is being deleted"):
                    refused[-1].join()
            super().remove(path)

    half.context = attrs.evolve(half.context, files=Deleting())
    delete_files(half, GROUP)
    assert [each.is_alive for each in refused] == [False, False]
    assert not paths.folder.exists()
    assert not paths.deleting.exists()
    refused[0].join()
    assert refused[0].is_alive
    with pytest.raises(errors.QueueHeldError, match=refused[0].id):
        delete_files(half, GROUP)
    assert not paths.deleting.exists()
    refused[0].leave()
