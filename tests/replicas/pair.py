"""Plays stories of a master and its follower, each a store on a simulated disk of its own, without sockets and threads.

A story is drawn from a seed, as a list of steps: a name, and the seed of what the step draws, so that a story that
fails is made shorter by leaving out steps. The line between the two delivers pieces of any size, and may be held, cut,
or flip a bit; each side carries out the actions of its protocol object one by one, so a crash comes between any two.
What counts as promised is what a receipt says, or an acknowledgement.

A side may be doomed: the disk then takes an image at one of its next calls, and nothing that the side sends after that
moment arrives.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

import attrs
from tests.replicas.world import OFFSETS, REMOVALS, Side, World, drawn_settings, offsets_in

import penstock
from penstock import Message, PenstockError
from penstock.store.lowlevel import LowLevelStore
from penstock.testing.platter import Survival
from penstock_replicate import beside
from penstock_replicate.peer import Close

Step = tuple[str, int]
WEIGHTS = {
    "put": 30, "put_many": 8, "atomic": 6, "flush": 3, "work": 6, "pump": 30, "land": 6, "hold": 1, "cut": 3, "flip": 2,
    "twice": 1, "crash_master": 3, "crash_follower": 3, "doom_master": 2, "doom_follower": 2, "close_master": 1,
    "close_follower": 1, "promote": 1, "tick": 6, "calm": 2, "commit": 8, "remove": 2, "files": 10, "begin_anew": 1,
    "delay": 6, "advance": 6,
}  # fmt: skip
LENGTHS = (20, 40, 80)
RAISED = (PenstockError, AssertionError, OSError, LookupError, ValueError, TypeError)


class Machine:
    """One story: the world, and its steps."""

    def __init__(self, settings: dict[str, Any], seed: int) -> None:
        self.world = World(settings, seed)
        # Openings of either store.
        self.lives = 2

    def play(self, steps: Sequence[Step]) -> None:
        """Play a story; in the end the line is calm, and both logs are equal."""
        for name, seed in steps:
            self._step(name, Random(seed))
        for side in (self.world.a, self.world.b):
            side.disk.plan.watch = None
        self._step("calm", Random(0))
        if self.world.settings["extensions"]:
            self._check_deliveries()
        self.world.store.close()
        if self.world.follower is not None:
            self.world.follower.close()

    def _step(self, name: str, chance: Random) -> None:
        world = self.world
        world.chance = chance
        for side in (world.a, world.b):
            side.clock.now_ms += chance.choice((0, 1, 50))
        getattr(self, f"_{name}")(chance)
        if world.error is None and all(line.is_gone for line in world.lines):
            world.connect()
        if world.a.image is not None:
            self._crash_master(chance)
        if world.b.image is not None:
            self._crash_follower(chance)
        if world.error is not None:
            self._see_error(world.error)
        world.note_offsets()

    # --- putting

    def _message(self, chance: Random) -> Message:
        world = self.world
        world.sent += 1
        start = b"%d:" % world.sent
        body = start + bytes([world.sent % 256]) * chance.randint(
            0, chance.choice((0, 40, 150, 600))
        )
        if chance.random() < 0.2:
            # The record ends near the segment's end; what follows is filler of 0 to 16 bytes, or of as many as fit.
            size = world.settings["geometry.segment_bytes"]
            head = 91 + 1 + 4
            rest = (
                size - world.store.stats()["log_end_offset"] % size - head - chance.randint(0, 60)
            )
            body = start.ljust(rest, b"\0") if len(start) < rest < 3800 else body
        # Of queue 2, retention removes all from time to time.
        queue = chance.choices((0, 1, 2), (20, 20, 1))[0]
        return Message("t", body, queue=queue, tag=chance.choice(("", "red")))

    def _put(self, chance: Random) -> None:
        one = self._message(chance)
        receipt = self.world.store.put(
            one.topic, one.body, queue=one.queue, tag=one.tag, wait=chance.random() < 0.8
        )
        self.world.took([receipt])

    def _put_many(self, chance: Random) -> None:
        messages = [self._message(chance) for _ in range(chance.randint(1, 12))]
        self.world.took(self.world.store.put_many(messages))

    def _atomic(self, chance: Random) -> None:
        messages = [self._message(chance) for _ in range(chance.randint(2, 4))]
        if sum(len(message.body) + 120 for message in messages) < 4000:
            self.world.took(self.world.store.put_many(messages, atomic=True))

    def _flush(self, _chance: Random) -> None:
        end = self.world.store.flush()
        if self.world.a.image is None:
            self.world.durable_here = max(self.world.durable_here, end)

    def _work(self, _chance: Random) -> None:
        self.world.a.workers.run_all()
        self.world.b.workers.run_all()

    # --- beside the log

    def _commit(self, chance: Random) -> None:
        store = self.world.store
        for topic, queues in store.topics().items():
            queue = chance.choice([*queues])
            low, high = store.min_offset(topic, queue), store.max_offset(topic, queue)
            store.commit_offset(chance.choice("gh"), topic, queue, offset=chance.randint(low, high))

    def _remove(self, _chance: Random) -> None:
        LowLevelStore(self.world.store, keeps_open=False).remove_topic("t")

    def _files(self, chance: Random) -> None:
        self.world.send_files(anew=chance.random() < 0.7)

    # --- delays

    def _delay(self, chance: Random) -> None:
        world = self.world
        world.sent += 1
        level = chance.choice((1, 1, 2, 3)) if world.settings["extensions"] else 0
        at = world.a.clock.now_ms / 1000 + chance.choice((1, 5, 100))
        when = {"deliver_at": at} if level == 3 else {"delay_level": level}
        world.took([world.store.put("d", b"%d" % world.sent, queue=0, **when)])

    def _advance(self, chance: Random) -> None:
        """Let time pass, and the master deliver; the clocks of both do not agree."""
        for side in (self.world.a, self.world.b):
            side.clock.now_ms += chance.choice((300, 1000, 6000))
        self.world.a.workers.run_all()

    def _check_deliveries(self) -> None:
        """In the end, the last master has delivered each message that has waited, and none twice."""
        world = self.world
        for _ in range(3):
            world.a.clock.now_ms += 3 * 3_600_000
            world.a.workers.run_all()
        known = world.store.topics(system=True)
        waited, delivered = (
            sorted(
                each.body for topic in topics if topic in known for each in world.store.scan(topic)
            )
            for topics in (("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"), ("d",))
        )
        assert delivered == waited, f"waited: {waited}, delivered: {delivered}"

    # --- the line

    def _pump(self, chance: Random) -> None:
        self.world.pump(chance.choice((1, 10, 100, 400)))

    def _land(self, _chance: Random) -> None:
        self.world.land()

    def _hold(self, _chance: Random) -> None:
        for line in self.world.lines:
            line.is_held = not line.is_held

    def _cut(self, chance: Random) -> None:
        for line in [*self.world.lines]:
            self.world.drop(line)
        if chance.random() < 0.5:
            self.world.connect()

    def _flip(self, chance: Random) -> None:
        """Let a bit of one of the next pieces be flipped."""
        self.world.flips += 1
        for line in self.world.lines:
            if line.to_master:
                line.to_master[chance.randrange(len(line.to_master))] ^= 1 << chance.randrange(8)

    def _twice(self, _chance: Random) -> None:
        """Let the same store connect again while the master does not know that the old line has ended."""
        for line in self.world.lines:
            line.is_gone = True
        self.world.connect()

    def _tick(self, chance: Random) -> None:
        world = self.world
        for side in (world.a, world.b):
            side.clock.now_ms += chance.choice((100, 1000, 4000))
        world.replicator.copies.tick(world.a.clock.now_ms)
        for line in [*world.lines]:
            line.by_master.extend(line.master.tick(world.a.clock.now_ms))
            line.by_follower.extend(line.follower.tick(world.b.clock.now_ms))

    # --- crashes

    def _doom_master(self, chance: Random) -> None:
        self.world.a.doom(chance.choice((1, 2, 3, 5, 9, 20)))

    def _doom_follower(self, chance: Random) -> None:
        self.world.b.doom(chance.choice((1, 2, 3, 5, 9, 20)))

    def _crash_master(self, chance: Random) -> None:
        world = self.world
        survival = chance.choice(tuple(Survival))
        world.drop_all()
        copied = world.follower.end_offset if world.follower is not None else 0
        world.a.crash(survival, chance)
        world.store = world.open_master()
        self.lives += 1
        end = world.store.stats()["log_end_offset"]
        if survival is not Survival.PROCESS:
            assert end >= world.durable_here, (
                f"{world.durable_here} was durable, and the log ends at {end}"
            )
        if end < copied and world.parts_at is None:
            world.parts_at = end
        world.durable_here = min(world.durable_here, end)
        self._check_after_crash()

    def _crash_follower(self, chance: Random) -> None:
        world = self.world
        survival = chance.choice(tuple(Survival))
        world.drop_all()
        world.b.crash(survival, chance)
        world.open_follower()
        self.lives += 1
        end = world.follower.end_offset if world.follower is not None else 0
        promised = world.durable_there
        if survival is Survival.PROCESS:
            promised = max(promised, world.received_there)
        assert end >= promised, f"{promised} was promised there, and the copy ends at {end}"
        world.received_there = min(world.received_there, end)
        world.check_offsets()
        self._check_after_crash()

    def _check_after_crash(self) -> None:
        self.world.compare()
        findings = [each for each in self.world.store.verify() if not each.is_note]
        assert not findings, f"after a crash, verify: {findings[0]}"
        self.world.connect()

    def _close_master(self, _chance: Random) -> None:
        world = self.world
        if world.a.image is None:
            world.drop_all()
            world.store.close()
            world.store = world.open_master()
            self.lives += 1
            report = world.store.recovery
            assert report is not None
            assert report.state == "clean", report

    def _close_follower(self, _chance: Random) -> None:
        world = self.world
        if world.b.image is None and world.follower is not None:
            world.drop_all()
            world.follower.close()
            world.open_follower()
            self.lives += 1

    def _promote(self, chance: Random) -> None:
        """Make the copy the master, after its master was closed or killed, which then follows it."""
        world, found = self.world, self.world.follower
        if (
            world.is_dying()
            or found is None
            or found.replica.role != "follower"
            or not found.replica.history.strip("0")
            or world.parts_at is not None
        ):
            return
        for side in (world.a, world.b):
            side.disk.plan.watch = None
        world.drop_all()
        if chance.random() < 0.5:
            world.store.close()
        else:
            world.a.crash(Survival.PROCESS, chance)
        found.close()
        world.check_offsets()
        promised_offsets = world.file_of(world.b)
        world.lacks_removal = world.file_of(world.a, REMOVALS) != world.file_of(world.b, REMOVALS)
        world.lacks_ends |= not world.has_files
        penstock.promote(
            world.b.root, files=world.b.disk, clock=world.b.clock, spawn=world.b.workers, environ={}, **world.both
        )  # fmt: skip
        world.a, world.b = world.b, world.a
        world.offsets.clear()
        world.store = world.open_master()
        world.check_promised_offsets(offsets_in(promised_offsets))
        # Of the old master.
        world.offsets.append((world.file_of(world.b), 0))
        world.open_follower()
        self.lives += 2
        end = world.store.stats()["log_end_offset"]
        promised = max(world.durable_there, world.received_there)
        assert end >= promised, f"{promised} was promised, and the promoted copy ends at {end}"
        if world.follower.end_offset > end:
            world.parts_at = end
        world.durable_here, world.durable_there, world.received_there = end, 0, 0
        world.connect()

    def _see_error(self, error: Close) -> None:
        """A follower that was told that it cannot go on: it must be true, and a new copy begins."""
        world = self.world
        world.error = None
        if error.parts_at is not None:
            assert world.parts_at is not None, f"a divergence that is none: {error}"
            assert error.parts_at <= world.parts_at, f"parted at {world.parts_at}: {error}"
        else:
            assert error.needs_copy, f"an error that nothing explains: {error}"
        found, at = world.follower, error.parts_at
        if found is None or at is None or at < found.min_offset or world.chance.random() < 0.2:
            self._begin_anew(Random(0))
        elif world.b.image is None:
            self._cut_copy(at)

    def _cut_copy(self, at: int) -> None:
        """Cut the copy where it parts from its master; what it has lost is in `penstock/saved`."""
        world, size = self.world, self.world.settings["geometry.segment_bytes"]
        world.drop_all()
        end = world.follower.end_offset
        lost = world.b.log_bytes(size, at, min(end, at - at % size + size)).rstrip(b"\0")
        beside.renew_store_id(world.follower)
        world.follower.close()
        world.open_follower(cut_at=at)
        self.lives += 1
        saved = world.b.disk.entries(world.b.root / "penstock" / "saved")
        assert any(lost in world.b.disk.read_whole(each.path) for each in saved), "bytes are lost"
        if world.b.image is not None:
            # It dies within: then it may still have them.
            return
        world.parts_at = None
        world.offsets.append((world.file_of(world.b), 0))
        # It has undone the removal of a topic whose queues are gone, and has no record from which they could be made.
        world.lacks_ends |= world.lacks_removal and world.follower.is_empty
        end = world.follower.end_offset
        world.durable_there = min(world.durable_there, end)
        world.received_there = min(world.received_there, end)
        world.compare()
        world.connect()

    def _begin_anew(self, _chance: Random) -> None:
        world = self.world
        world.drop_all()
        if world.follower is not None:
            world.follower.close()
        world.b = Side(world.b.root, world.chance.getrandbits(32))
        world.follower, world.parts_at = None, None
        world.lacks_removal = world.lacks_ends = world.has_files = False
        world.offsets.append((b"", 0))
        world.durable_there = world.received_there = 0
        world.connect()

    # --- the end

    def _calm(self, chance: Random) -> None:
        """Let everything arrive: then both logs are equal to the last byte, and so is what readers find."""
        world = self.world
        if world.is_dying():
            return
        world.store.flush()
        world.a.workers.run_all()
        for line in world.lines:
            line.is_held = False
        offered, levels = None, 0
        for _ in range(20):
            while not world.pump(10_000):
                pass
            if world.is_dying():
                return
            if world.error is not None:
                self._see_error(world.error)
            elif (
                offered in world.lines and offered.follower.levels > levels + 1 and self._is_level()
            ):
                break
            else:
                self._again(chance)
                if world.lines:
                    offered = world.lines[-1]
                    levels = offered.follower.levels
        ends = world.follower and world.follower.end_offset, world.store.stats()["log_end_offset"]
        assert self._is_level(), f"the copy and its master end at {ends}"
        world.compare()
        world.b.workers.run_all()
        self._compare_readers()

    def _again(self, chance: Random) -> None:
        self._tick(chance)
        if all(line.is_gone for line in self.world.lines):
            self.world.connect()
        for line in self.world.lines:
            line.by_master.extend(line.master.advanced())
        for _ in range(2):
            # The first after a removal does not count.
            self.world.send_files(anew=True)

    def _is_level(self) -> bool:
        found = self.world.follower
        end = self.world.store.stats()["log_end_offset"]
        return (
            found is not None
            and found.end_offset == found.flushed_offset == end
            and self._has_files()
        )

    def _has_files(self) -> bool:
        """Return whether the copy has the files that the master has; spaces follow the removals."""
        world = self.world
        mine = {name: world.file_of(world.a, name).strip() for name in (OFFSETS, REMOVALS)}
        return all(
            mine[n] in (b"", b"{}") or world.file_of(world.b, n).strip() == mine[n] for n in mine
        )

    def _compare_readers(self) -> None:
        world = self.world
        begins = world.follower.min_offset
        mine = [
            (message.queue, message.queue_offset, message.body)
            for message in world.store.scan("t") if message.log_offset >= begins
        ] if "t" in world.store.topics() else []  # fmt: skip
        with penstock.open(
            world.b.root,
            read_only=True,
            files=world.b.disk,
            clock=world.b.clock,
            environ={},
            **world.both,
        ) as reader:
            low = max(world.store.stats()["log_min_offset"], begins)
            theirs = [
                (message.queue, message.queue_offset, message.body)
                for message in (reader.scan("t") if "t" in reader.topics() else ()) if message.log_offset >= low
            ]  # fmt: skip
            assert sorted(theirs) == sorted(mine), "readers of the copy find other messages"
            findings = [each for each in reader.verify() if not each.is_note]
            assert not findings, f"verify of the copy: {findings[0]}"
            # Those of removed topics, too.
            queues = range(3)
            ends = [(reader.max_offset("t", n), world.store.max_offset("t", n)) for n in queues]
            is_known = all(there == here for there, here in ends)
            assert is_known or world.lacks_ends, f"queues end at {ends}"


@attrs.frozen
class Story:
    """Steps, the settings of both stores, and the seed of what the world draws."""

    seed: int
    settings: dict[str, Any]
    steps: list[Step]

    @classmethod
    def drawn(cls, seed: int) -> "Story":
        """Return the story of a seed."""
        chance = Random(seed)
        settings = drawn_settings(chance)
        names = chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=chance.choice(LENGTHS))
        return cls(seed, settings, [(name, chance.getrandbits(32)) for name in names])

    def play(self) -> tuple[int, str]:
        """Play it; returns how many lives it had, and why it fails, "" if it does not."""
        machine = Machine(self.settings, self.seed)
        try:
            machine.play(self.steps)
        except RAISED as error:
            return machine.lives, f"{type(error).__name__}: {error}"
        return machine.lives, ""

    def shortest(self) -> "Story":
        """Return the story without the steps that it needs not to fail."""
        steps, size = self.steps, len(self.steps)
        while size := size // 2:
            at = 0
            while at < len(steps):
                fewer = attrs.evolve(self, steps=steps[:at] + steps[at + size :])
                if fewer.play()[1]:
                    steps = fewer.steps
                else:
                    at += size
        return attrs.evolve(self, steps=steps)
