"""The files beside the log: what a master sends of them and when, and what a copy takes and writes."""

import base64
import errno
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from tests.replicas.fakes import FakeLog
from tests.replicas.logs import (
    ROOT,
    SEGMENT,
    SETTINGS,
    MasterLog,
    accepted,
    check_copy,
    contents,
    crashed,
    crashes,
    feed,
    findings,
    follower,
    identity,
    images_of,
    master,
    on,
    reader,
)
from tests.replicas.test_following import NEW, Pair
from tests.replicas.test_waiting_puts import Scripted

import penstock
from penstock import FollowedStore, Message
from penstock.contracts import FollowBegin
from penstock.errors import CorruptionError, DiskFullError, ReplicationError
from penstock.files import Files
from penstock.testing import InlineWorkers, SimulatedDisk, open_store
from penstock.testing.platter import Survival
from penstock_replicate import beside, wire
from penstock_replicate.beside import ENDS, REMOVED_TOPICS, MasterFiles
from penstock_replicate.peer import Close, Feed, Level, Read, SideFile

OFFSETS, GROUPS = "config/consumerOffset.json", "config/subscriptionGroup.json"
TIMERS, STORE_ID = "config/timercheck", "penstock/store-id"
NO_REMOVALS = (REMOVED_TOPICS, 0, b"{}")


def offsets(number: int, spaces: int = 0) -> bytes:
    return json.dumps({"offsetTable": {"t@g": {"0": number}}}).encode() + b" " * spaces


class Sending(Pair):
    """A master with files, and the follower that takes them; `got` are those that came whole."""

    def __init__(self, root: Path) -> None:
        super().__init__(FakeLog(), NEW)
        self.log.root = root
        self.files = MasterFiles(Files(), self.log)
        self.meet()

    def put_file(self, name: str, data: bytes) -> None:
        path = self.log.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def turn(self, *, anew: bool = True) -> None:
        self.by_master(self.master.send_files(self.files.read() if anew else None))

    def got(self) -> list[tuple[str, int, bytes]]:
        found = [(one.name, one.log_end, one.data) for one in self.done if isinstance(one, SideFile)]  # fmt: skip
        self.done.clear()
        return found


def test_a_file_is_sent_once_for_each_content_and_in_parts(tmp_path: Path) -> None:
    pair = Sending(tmp_path)
    small, large = offsets(1), offsets(2, spaces=3 << 20)
    pair.put_file(STORE_ID, b"0123456789abcdef\n")
    for content in (small, small, large, b"not JSON", b"{}", large, small):
        pair.put_file(OFFSETS, content)
        for _ in range(5):
            pair.turn()
    assert pair.got() == [
        NO_REMOVALS, (STORE_ID, 0, b"0123456789abcdef\n"), (OFFSETS, 0, small), (OFFSETS, 0, large),
        (OFFSETS, 0, large), (OFFSETS, 0, small),
    ]  # fmt: skip
    # Levels are told while a large file changes all the time: else nobody knew that a copy had caught up.
    for number in range(10):
        pair.put_file(OFFSETS, offsets(number, spaces=3 << 19))
        pair.turn()
        pair.turn(anew=False)
    assert len([one for one in pair.done if isinstance(one, Level)]) > 3


def test_a_file_waits_for_its_log_and_a_newer_one_does_not_replace_it(tmp_path: Path) -> None:
    pair = Sending(tmp_path)
    # It is read by another thread, in the meantime.
    pair.log.recent_from = 20
    for number in (1, 2):
        pair.log.put(b"x" * 10)
        pair.put_file(OFFSETS, offsets(number))
        pair.turn()
    assert pair.got() == [NO_REMOVALS]
    assert pair.master.advanced() == [Read(0, 20)]
    for number in (1, 2):
        sent, *_ = pair.master.read_done(b"x" * 10)
        pair.by_master([sent])
        pair.turn()
        assert len([one for one in pair.done if isinstance(one, Level)]) == 1
        assert pair.got() == [(OFFSETS, number * 10, offsets(number))]


def test_a_removal_is_told_when_the_offsets_are_removed() -> None:
    """A reading between the two had the old ones, and a group skipped messages of the new topic."""
    disk, offsets_at = SimulatedDisk(), Path("/store") / OFFSETS
    with open_store(
        Path("/store"), strategies=[Scripted], replicate="scripted", files=disk, spawn=InlineWorkers()
    ) as store:  # fmt: skip
        log = Scripted.made.pop().log
        store.put("t", b"x", queue=0)
        store.commit_offset("g", "t", 0, offset=1)
        seen = list[tuple[bool, bool]]()
        disk.plan.watch = lambda _call, _path: seen.append(
            ("t" in log.removed_topics, b"t@g" in disk.read_whole(offsets_at))
        )
        store.lowlevel.remove_topic("t")
        disk.plan.watch = None
        assert "t" in log.removed_topics
    assert {(False, True), (False, False)} >= {*seen}
    assert (False, True) in seen


def test_after_a_removal_all_files_are_sent_again_and_none_that_was_read_before(tmp_path: Path) -> None:  # fmt: skip
    """A group would skip messages of a new topic of that name, if it had the offset of the old one."""
    pair = Sending(tmp_path)
    pair.log.put(b"old")
    pair.by_master(pair.master.advanced())
    groups = b'{"subscriptionGroupTable": {}}' + b" " * (3 << 19)
    pair.put_file(GROUPS, groups)
    pair.put_file(OFFSETS, offsets(1))
    # One is sent in part now, and one waits.
    pair.turn()
    old = pair.files.read()
    # More than a part takes.
    pair.log.removed_topics = {f"t{n}": {"before": 3, "count": 1} for n in range(5000)}
    pair.log.put(b"new")
    pair.done.clear()
    pair.by_master(pair.master.advanced())
    order = [type(one) for one in pair.done if isinstance(one, SideFile | Feed)]
    assert order == [SideFile, Feed]
    pair.by_master(pair.master.send_files(old))
    ((name, log_end, content),) = pair.got()
    assert (name, log_end, json.loads(content)) == (REMOVED_TOPICS, 0, pair.log.removed_topics)
    # The first reading does not count: the master may not have removed the offsets yet.
    pair.turn()
    assert pair.got() == []
    for _ in range(2):
        pair.turn()
    assert pair.got() == [(GROUPS, 6, groups), (OFFSETS, 6, offsets(1))]


class Busy(Files):
    """While a file is read, the log goes on; `order` has what was read."""

    def __init__(self, log: FakeLog) -> None:
        super().__init__()
        self.log, self.order = log, list[str]()

    def read_whole(self, path: Path, limit: int = 0) -> bytes:
        self.log.put(b"x")
        self.order.append(path.name)
        return super().read_whole(path, limit)


def test_the_log_end_is_read_after_the_files_and_these_backwards(tmp_path: Path) -> None:
    """A topic that is created meanwhile must not lack its entry among those that messages have created."""
    pair = Sending(tmp_path)
    pair.put_file(OFFSETS, offsets(1))
    files = Busy(pair.log)
    reading = MasterFiles(files, pair.log).read()
    assert reading is not None
    assert reading.files[OFFSETS].log_end == len(files.order) == 7
    assert files.order.index("topics.json") < files.order.index("auto-topics")


def part(**changes: Any) -> bytes:
    data = changes.pop("bytes", b"{}")
    facts = {"name": OFFSETS, "log_end": 0, "size": 2, "start": 0, "data": base64.b64encode(data).decode()}  # fmt: skip
    return wire.control("file", **{**facts, **changes})


BAD_PARTS = {
    "no file that travels": [part(name="penstock/replica")],
    "too large": [part(size=(64 << 20) + 1)],
    "too large for its kind": [part(name=STORE_ID, size=18)],
    "empty": [part(size=2, bytes=b"")],
    "longer than its size": [part(size=1)],
    "no begin": [part(start=1, bytes=b"}")],
    "a part that lacks": [part(size=4), part(size=4), part(size=4, start=4)],
    "another size": [part(size=4), part(size=3, start=2, bytes=b" ")],
    "another log end": [part(size=4), part(size=4, start=2, log_end=1)],
    "no base64": [part(data="{}")],
}


@pytest.mark.parametrize("frames", BAD_PARTS.values(), ids=BAD_PARTS)
def test_parts_that_are_none_of_a_file_end_the_connection(frames: list[bytes]) -> None:
    pair = Pair(FakeLog(), NEW)
    pair.meet()
    pair.done.clear()
    for frame in frames:
        pair.by_follower(pair.follower.take(frame))
    assert [type(one) for one in pair.done if isinstance(one, Close | SideFile)][:1] == [Close]


def test_the_ends_of_queues_are_read_when_the_log_begins_later_and_after_a_removal(tmp_path: Path) -> None:  # fmt: skip
    pair = Sending(tmp_path)
    pair.log.ends = [["t", 0, 4, 0, 100, 7]]
    pair.turn()
    assert pair.got() == [NO_REMOVALS]
    for begin in (100, 200):
        pair.log.min_offset, pair.log.ends = begin, [["t", 0, begin, 0, 100, 7]]
        for _ in range(2):
            pair.turn()
        assert pair.got() == [(ENDS, 0, json.dumps(pair.log.ends).encode())]
    pair.log.removed_topics, pair.log.ends = removal(1), [["u", 0, 4, 0, 100, 7]]
    pair.by_master(pair.master.advanced())
    for _ in range(3):
        pair.turn()
    assert pair.got()[1:] == [(ENDS, 0, json.dumps(pair.log.ends).encode())]


def test_the_other_files_travel_though_the_queues_cannot_be_read(tmp_path: Path) -> None:
    class Broken(FakeLog):
        def lone_ends(self) -> list[list[Any]]:
            raise OSError(errno.EIO, "the disk does not answer")

    log = Broken(min_offset=100)
    log.root = tmp_path
    files = MasterFiles(Files(), log)
    assert [files.read(), files.read()] == [beside.Reading({}, log.removed_topics)] * 2


# --- the copy


def copy_of(disk: SimulatedDisk, log: MasterLog, **settings: Any) -> FollowedStore:
    store = accepted(disk, log, at=0, **settings)
    feed(store, log, log.end)
    return store


def test_a_file_is_written_after_its_log_and_the_content_before_is_kept(log: MasterLog) -> None:
    disk = SimulatedDisk()
    with copy_of(disk, log, flush="none") as store:
        for number in (1, 2, 2):
            beside.write(store, SideFile(OFFSETS, log.end, offsets(number)))
            assert store.flushed_offset == log.end
        assert disk.read_whole(ROOT / OFFSETS) == offsets(2)
        assert disk.read_whole(ROOT / (OFFSETS + ".bak")) == offsets(1)
        disk.write_whole(ROOT / OFFSETS, b"{corrupt")
        of_broker = b'{"offsetTable": {"t@g": {0:3}}}'
        beside.write(store, SideFile(OFFSETS, 0, of_broker))
        assert disk.read_whole(ROOT / OFFSETS) == of_broker
        assert disk.read_whole(ROOT / (OFFSETS + ".bak")) == offsets(1)
        for number in (1, 2):
            beside.write(store, SideFile(STORE_ID, 0, b"%016x\n" % number))
        assert disk.read_whole(ROOT / STORE_ID) == b"%016x\n" % 1


BAD_CONTENTS = {
    OFFSETS: [b"{}", b"[]", b'{"offsetTable": 1}', b"\xff", b"[" * 100_000],
    GROUPS: [b"{}"],
    TIMERS: [bytes(31), b"\xff" * 32],
    STORE_ID: [b"0123456789abcdeg\n", b"0123456789abcdef"],
    "penstock/auto-topics": [b"[]", b'{"t": "4"}'],
    REMOVED_TOPICS: [b"[]", b"{"],
    ENDS: [b"{}", b"["],
}
GOOD_END = ["t", 0, 2, 0, 100, 0]
# Each changes one field.
BAD_ENDS: dict[int, list[Any]] = {
    0: ["../t", "", 1, None], 1: [-1, 1 << 31, "0"], 2: [-1, 1 << 58, 2.0, True], 3: [-1, 1 << 63],
    4: [0, -1, (1 << 31) - 1], 5: [1 << 63, None],
}  # fmt: skip


def test_a_content_that_no_master_has_is_refused_and_nothing_is_written(log: MasterLog) -> None:
    disk = SimulatedDisk()
    with copy_of(disk, log) as store:
        changes = list[str]()
        disk.plan.watch = lambda call, _path: changes.append(call)
        for name, bad in BAD_CONTENTS.items():
            for content in bad:
                with pytest.raises(CorruptionError, match="it was not written"):
                    beside.write(store, SideFile(name, 0, content))
        with pytest.raises(CorruptionError, match="was sent"):
            beside.write(store, SideFile(OFFSETS, log.end + 1, offsets(1)))
        with pytest.raises(ReplicationError, match="removed topics"):
            beside.write(store, SideFile(REMOVED_TOPICS, 0, b'{"../t": {"before": 1, "count": 1}}'))
        changed = [(field, value) for field, values in BAD_ENDS.items() for value in values]
        bad_ends = [[*GOOD_END[:field], value, *GOOD_END[field + 1 :]] for field, value in changed]
        for bad_end in (*bad_ends, GOOD_END[1:], [*GOOD_END, 0], 7):
            with pytest.raises(ReplicationError, match="ends of queues"):
                beside.write(store, SideFile(ENDS, 0, json.dumps([GOOD_END, bad_end]).encode()))
        assert not changes
        disk.plan.watch = None


def shrunk(count: int) -> tuple[SimulatedDisk, FollowedStore, SideFile]:
    """Return a new copy of a log without the `count` messages that a queue had, and what is told of the queue's end."""
    disk, copied = SimulatedDisk(), SimulatedDisk()
    given = {"replicate.scripted.waits": False, "flush": "none", **SETTINGS}
    with open_store(
        ROOT, **on(disk, strategies=[Scripted], replicate="scripted", **given)
    ) as store:
        store.put_many([Message("idle", b"x", queue=3, tag="red")] * count)
        store.put_many([Message("t", b"x" * 6000, queue=0)] * 4)
        assert store.discard_before(log_offset=SEGMENT) == 1
        log = Scripted.made.pop().log
        begin = FollowBegin(segment_bytes=SEGMENT, log_offset=SEGMENT)
        copy = follower(copied, begin=begin, flush="none")
        copy.accept(identity(), log.ranges())
        while (at := copy.next_offset) < log.visible_offset:
            copy.feed(at, log.read(at, SEGMENT))
        return copied, copy, SideFile(ENDS, copy.end_offset, json.dumps(log.lone_ends()).encode())


@pytest.mark.parametrize("count", [5, 20, 21])
def test_a_promoted_copy_goes_on_where_queues_without_messages_ended(count: int) -> None:
    """They began at 0 again, and groups skipped their messages. A queue's file has 20 entries.

    The copy was closed, or killed then; or it was killed before, or had no room, and was told of the ends again.
    """
    disk, copy, ends = shrunk(count)
    copy.flush()
    disk.plan.fail("create", errno.ENOSPC, times=1)
    with pytest.raises(DiskFullError):
        beside.write(copy, ends)

    def tell() -> None:
        for _ in range(2):
            beside.write(copy, ends)

    images = images_of(disk, tell)
    found = [disk, *(crashed(images[-1], survival) for survival in Survival)]
    copy.close()
    for left in crashes(images, f"ends {count}"):
        with follower(left) as again:
            beside.write(again, ends)
        found.append(left)
    assert len(found) > 6
    for left in found:
        penstock.promote(ROOT, **on(left, **SETTINGS))
        with master(left) as store:
            assert (store.min_offset("idle", 3), store.max_offset("idle", 3)) == (count, count)
            assert store.put("idle", b"y", queue=3).queue_offset == count
            assert [m.body for m in store.scan("idle")] == [b"y"]
            assert not findings(store)


def test_a_queue_that_the_copy_knows_better_is_left_as_it_is(log: MasterLog) -> None:
    """The copy has kept the messages; or, for a told end of a record that it has, they are of its log."""
    disk = SimulatedDisk()
    with copy_of(disk, log) as store:
        told = [["t", 0, 2, 0, 100, 0], ["t", 1, 100, log.begins[1], 100, 0]]
        beside.write(store, SideFile(ENDS, log.end, json.dumps(told).encode()))
    check_copy(disk, log)


# --- removals


def removal(before: int, count: int = 1) -> Mapping[str, Any]:
    return MappingProxyType({"t": {"before": before, "count": count}})


def test_a_removal_comes_before_the_records_that_it_hides(log: MasterLog) -> None:
    """The copy was away while the topic was removed twice; or it ends before the removal, and is opened again."""
    disk = SimulatedDisk()
    others = {key: bodies for key, bodies in log.queues.items() if key[0] != "t"}
    store = accepted(disk, log, at=0)
    feed(store, log, log.begins[5])
    beside.write(store, SideFile(OFFSETS, 0, offsets(1)))
    for _ in range(2):
        store.remove_topics(removal(log.end, count=2))
        with reader(disk) as found:
            assert not {key for key in contents(found) if key[0] == "t"}
            assert found.committed_offset("g", "t", 0) is None
        store.close()
        store = accepted(disk, log)
    store.remove_topics(removal(log.end, count=2))
    feed(store, log, log.end)
    store.close()
    with reader(disk) as found:
        assert contents(found) == others
        assert not findings(found)


def test_a_removal_that_the_master_does_not_know_is_refused(log: MasterLog) -> None:
    """The copy was the master, removed a topic, and was lost before another copy knew of it."""
    disk = SimulatedDisk()
    with copy_of(disk, log) as store:
        with pytest.raises(ReplicationError, match="was not removed there"):
            # Before records that the copy has, which would follow it with offsets of queues that were not removed.
            store.remove_topics(removal(log.begins[9]))
        store.remove_topics(removal(log.end))
        for removals in ({}, removal(log.end - 1)):
            with pytest.raises(ReplicationError, match="was not removed there") as caught:
                store.remove_topics(removals)
            assert caught.value.needs_copy
        store.remove_topics(removal(log.end + 10))
        # The master has lost its log after the copy's end.
        store.remove_topics(removal(log.end))
    with reader(disk) as found:
        assert not findings(found)
