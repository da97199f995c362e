"""A follower that crashes at any call has a whole prefix of its master's log, and its role; then it goes on from there."""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from tests.lanes import cases
from tests.replicas.logs import (
    ROOT,
    SEGMENT,
    MasterLog,
    accepted,
    contents,
    crashed,
    feed,
    findings,
    follower,
    identity,
    make_log,
    master,
    raw_log,
    reader,
)

from penstock.durability.replica_file import read_replica
from penstock.errors import FollowerError, NotAStoreError
from penstock.testing import SimulatedDisk
from penstock.testing.platter import Image, Survival


@pytest.fixture(scope="module")
def log() -> MasterLog:
    return make_log(40)


@attrs.frozen
class Moment:
    """A disk before one of its calls, and the ends that the log may have: after a power cut, and after a kill."""

    call: str
    image: Image
    step: str
    durable: int
    kept: int
    most: int


class Life:
    """A follower that gets a log in pieces of any size, and is closed twice within an atomic batch."""

    def __init__(self, log: MasterLog, at: int, settings: dict[str, Any]) -> None:
        self.log, self.at, self.settings = log, at, settings
        self.chance = Random(str(settings))
        self.disk = SimulatedDisk(seed=len(str(settings)), write_back=0.05)
        self.moments: list[Moment] = []
        self.step, self.durable, self.kept, self.most = "begin", at, at, at
        self.disk.plan.watch = self.watch

    def watch(self, call: str, path: Path) -> None:
        about = f"{call} {path.name}"
        self.moments.append(
            Moment(about, self.disk.image(), self.step, self.durable, self.kept, self.most)
        )

    def play(self) -> None:
        _, middle = self.log.batches[2]
        for stop, begin in ((middle - 1, self.at), (self.log.batches[3][1] - 1, None), (self.log.end, None)):  # fmt: skip
            store = accepted(self.disk, self.log, at=begin, **self.settings)
            self.step = "feed"
            while (at := store.next_offset) < stop:
                size = self.chance.choice((7, 100, 300, 900, 5000))
                self.most = self.log.end
                self.kept = max(self.kept, store.feed(at, self.log.raw[at : min(at + size, stop)]))
                if self.chance.random() < 0.2:
                    self.durable = store.flush()
            self.step = "close"
            self.kept = store.end_offset
            store.close()
            self.step, self.durable = "open", self.kept


@pytest.mark.parametrize("at", [0, SEGMENT])
@pytest.mark.parametrize("settings", [{}, {"flush": "sync"}, {"write": "file"}])
def test_a_crash_at_any_call_leaves_a_whole_prefix(
    log: MasterLog, at: int, settings: dict[str, Any]
) -> None:
    """Plants: the role is written after the log; a part of a batch is cut off by recovery."""
    life, seen = Life(log, at, settings), Counter[str]()
    life.play()
    states = [(number, survival) for number in range(len(life.moments)) for survival in Survival]
    for number, survival in cases(states, str(settings), of_so_many=40):
        moment = life.moments[number]
        disk = crashed(moment.image, survival, number)
        least = moment.kept if survival is Survival.PROCESS else moment.durable
        try:
            if survival is Survival.PROCESS and moment.step != "begin":
                with reader(disk) as found:
                    assert [text for text in findings(found) if "torn tail" not in text] == []
            seen[check(log, disk, moment, least, at, settings)] += 1
        except Exception as error:
            raise AssertionError(f"{moment.call} of {moment.step}, {survival}") from error
    assert seen.keys() == {"nothing", "begun", "whole"}


def check(
    log: MasterLog, disk: SimulatedDisk, moment: Moment, least: int, at: int, settings: dict[str, Any]
) -> str:  # fmt: skip
    replica = read_replica(disk, ROOT)
    if replica is None:
        assert least == moment.most == at
        # Else it could be opened as a master.
        assert not disk.exists(ROOT / "commitlog")
        with accepted(disk, log, at=at, **settings) as store:
            feed(store, log, log.end)
        return "nothing"
    with pytest.raises(FollowerError):
        master(disk)
    try:
        store = follower(disk, **settings)
    except NotAStoreError:
        assert least == at == moment.most
        store = accepted(disk, log, at=at, **settings)
    if store.is_empty:
        assert least == at
        store.close()
        store = accepted(disk, log, at=at, **settings)
    with store:
        end = store.end_offset
        assert least <= end <= moment.most
        assert store.shown_offset == log.whole(end)
        assert store.digest(at, end) == log.digest(at, end)
        store.accept(identity(), log.ranges, zero_filler=True)
        feed(store, log, log.end, Random(end).randrange(1, 20_000))
    assert raw_log(disk)[: log.end - at] == log.raw[at:]
    with reader(disk) as found:
        assert findings(found) == []
        if at == 0:
            assert contents(found) == log.queues
    return "begun" if end == at else "whole"


def test_a_crash_within_an_acceptance_leaves_a_master_or_a_follower(log: MasterLog) -> None:
    """A master that another one accepts, at each call; no byte of it is lost, and a refusal leaves what was there."""
    disk = SimulatedDisk(seed=5, write_back=0.05)
    with accepted(disk, log, at=0) as store:
        feed(store, log, log.begins[20])
    # As a master that was never copied.
    disk.remove(ROOT / "penstock" / "replica")
    disk.sync_folder(ROOT / "penstock")
    moments: list[tuple[str, Image]] = []
    disk.plan.watch = lambda call, path: moments.append((f"{call} {path.name}", disk.image()))
    with follower(disk):
        pass
    refused = len(moments)
    with accepted(disk, log) as store:
        feed(store, log, log.end)
    states = [(number, survival) for number in range(len(moments)) for survival in Survival]
    roles = Counter[bool]()
    for number, survival in cases(states, "acceptance"):
        after = crashed(moments[number][1], survival, number)
        is_follower = read_replica(after, ROOT) is not None
        roles[is_follower] += 1
        if is_follower:
            assert number >= refused
            with follower(after) as copy:
                assert copy.end_offset >= log.begins[20]
        else:
            with master(after) as own:
                assert raw_log(after)[: log.begins[20]] == log.raw[: log.begins[20]], moments[number][0]  # fmt: skip
                assert own.put("t", b"new").log_offset == log.begins[20]
            with reader(after) as found:
                assert findings(found) == []
    assert min(roles[True], roles[False]) > 10
