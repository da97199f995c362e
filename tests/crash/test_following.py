"""A follower that crashes at any moment has a whole prefix of its master's log, and goes on from there."""

import errno
import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from tests.conftest import cases, kills
from tests.following import (
    ROOT,
    SEGMENT,
    SETTINGS,
    MasterLog,
    contents,
    findings,
    follow,
    make_log,
    reader,
    whole,
)

import penstock
from penstock.durability.replica_file import ReplicaFile
from penstock.durability.written_ranges import about_ranges
from penstock.errors import DiskFullError, FollowerError
from penstock.store.following import FollowedStore
from penstock.testing import SimulatedDisk
from penstock.testing.control import InlineWorkers
from penstock.testing.platter import Image, Survival


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> MasterLog:
    return make_log(tmp_path_factory.mktemp("master") / "store", 40)


@attrs.frozen
class Moment:
    """A disk before one of its calls, and what the follower had promised: the ends that its log may have."""

    call: str
    image: Image
    durable: int
    kept: int
    most: int
    step: str


class Story:
    """A follower that gets the log in pieces of any size; each of its disks is noted."""

    def __init__(self, log: MasterLog, seed: int, **settings: Any) -> None:
        self.log = log
        self.chance = Random(seed)
        self.settings = settings
        self.disk = SimulatedDisk(seed=seed, write_back=0.05)
        self.moments: list[Moment] = []
        self.step = "open"
        self.durable = self.kept = self.most = self.held = 0
        self.workers = InlineWorkers()

    def watch(self, call: str, path: Path) -> None:
        moment = Moment(
            f"{call} {path.name}", self.disk.image(), self.durable, self.kept, self.most, self.step
        )
        self.moments.append(moment)

    def feed(self, store: FollowedStore, stop: int) -> None:
        while store.next_offset < stop:
            at = store.next_offset
            size = self.chance.choice((7, 100, 300, 900, 5000))
            self.most = self.log.end
            self.kept = store.feed(at, self.log.raw[at : min(at + size, stop)])
            self.held += store.held_from is not None
            self.workers.run("penstock-follow")
            if self.chance.random() < 0.2:
                self.durable = store.flush()
            if self.chance.random() < 0.1:
                self.workers.run("penstock-mark")

    def open(self) -> FollowedStore:
        self.workers = InlineWorkers()
        store = follow(disk=self.disk, workers=self.workers, **self.settings)
        store.note_coverage(self.log.ranges)
        return store

    def play(self) -> None:
        self.disk.plan.watch = self.watch
        store = self.open()
        self.feed(store, self.log.end * 2 // 3)
        self.step = "cut"
        to = self.chance.choice([at for at in self.log.begins if at < store.end_offset * 2 // 3])
        store.flush()
        self.durable = self.kept = to
        store.cut(to)
        self.step = "after the cut"
        assert store.end_offset == to
        self.feed(store, self.log.end // 2)
        self.step = "close"
        # A part of a batch is cut off by the close, and bytes that wait are forgotten.
        store.flush()
        self.kept = self.durable = whole(self.log, store.end_offset)
        store.close()
        self.step = "reopen"
        store = self.open()
        assert store.end_offset == self.kept
        self.feed(store, self.log.end)
        self.step = "promote"
        store.flush()
        self.durable = self.kept = self.log.end
        store.promote()
        self.step = "promoted"
        self.disk.plan.watch = None


@pytest.mark.parametrize("settings", [{}, {"flush": "sync"}, {"write": "file"}])
def test_a_crash_before_any_call_leaves_a_whole_prefix_of_the_masters_log(
    log: MasterLog, settings: dict[str, Any]
) -> None:
    story = Story(log, len(str(settings)), **settings)
    story.play()
    states = [(at, survival) for at in range(len(story.moments)) for survival in Survival]
    seen = Counter[str]()
    for at, survival in cases(states, str(settings), always=states[-6 * len(Survival) :]):
        moment = story.moments[at]
        where = (at, moment.call, survival, moment.step)
        disk = SimulatedDisk.after(moment.image, survival, Random(at))
        check(log, disk, moment, survival, where, seen, story.settings)
    assert seen["promoted"]
    assert story.held


def check(
    log: MasterLog,
    disk: SimulatedDisk,
    moment: Moment,
    survival: Survival,
    where: object,
    seen: Counter[str],
    settings: dict[str, Any],
) -> None:
    least = moment.kept if survival is Survival.PROCESS else moment.durable
    replica = ReplicaFile(disk, ROOT).read()
    if replica is not None and replica.role == "master":
        seen["promoted"] += 1
        with penstock.open(ROOT, files=disk, environ={}, clock=disk.clock, spawn=InlineWorkers(), **SETTINGS) as store:  # fmt: skip
            assert store.recovery is not None
            assert store.recovery.log_end == log.end, where
            assert store.put("t", b"new").log_offset in (log.end, -(-log.end // SEGMENT) * SEGMENT)
            assert findings(store) == [], where
        return
    if replica is not None:
        with pytest.raises(FollowerError):
            penstock.open(ROOT, files=disk, environ={}, **SETTINGS)
    else:
        assert least == 0, where
    with follow(disk=disk, **settings) as store:
        end = store.end_offset
        assert whole(log, least) <= end <= moment.most, where
        assert end == whole(log, end), where
        at = 0
        while at < end:
            piece = store.read(at, end)
            assert piece == log.raw[at : at + len(piece)], where
            at += len(piece)
        store.note_coverage(log.ranges)
        step = Random(str(where)).randrange(1, 20_000)
        while (at := store.next_offset) < log.end:
            store.feed(at, log.raw[at : at + step])
    with reader(disk=disk) as store:
        assert findings(store) == [], where
        found = contents(store)
    assert sum(len(bodies) for bodies in found.values()) == 40 + 9 * len(log.batches), where


def test_a_full_disk_stops_a_follower_without_damage(log: MasterLog) -> None:
    disk = SimulatedDisk()
    store = follow(disk=disk)
    store.note_coverage(log.ranges)
    refused = 0
    chance = Random(7)
    while (at := store.next_offset) < log.end:
        if chance.random() < 0.5:
            call = chance.choice(("pwrite", "allocate", "create"))
            disk.plan.fail(call, errno.ENOSPC, path="commitlog", times=1)
        try:
            store.feed(at, log.raw[at : at + 1000])
        except DiskFullError:
            refused += 1
            assert store.failure is None
            assert store.next_offset == store.end_offset
        disk.plan.heal()
    assert refused > 1
    assert store.end_offset == log.end
    store.close()
    with reader(disk=disk) as found:
        assert findings(found) == []


def test_a_killed_follower_has_what_it_had_taken(tmp_path: Path) -> None:
    """Killed at a random moment, again and again, until it has the whole log."""
    log = make_log(tmp_path / "master", 2000)
    path = tmp_path / "log.raw"
    path.write_bytes(log.raw)
    path.with_suffix(".json").write_text(json.dumps(about_ranges(log.ranges)))
    root, chance = tmp_path / "copy", Random(5)
    least = killed = 0
    for seed in range(200):
        command = [sys.executable, "-m", "tests.crash.copier", str(root), str(path), str(seed)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            left = chance.randrange(1, 4 + 600 // kills(200))
            for line in child.stdout:
                what, _, number = line.partition(" ")
                if what == "end":
                    assert whole(log, least) <= int(number) == whole(log, int(number))
                least = int(number)
                left -= 1
                if left == 0:
                    child.kill()
        killed += child.returncode == -signal.SIGKILL
        if child.returncode == 0:
            break
    assert killed > 3
    with reader(root) as store:
        assert findings(store) == []
        assert sum(len(each) for each in contents(store).values()) == 2000 + 9 * len(log.batches)
    assert b"".join(each.read_bytes() for each in sorted((root / "commitlog").iterdir()))[: log.end] == log.raw  # fmt: skip
