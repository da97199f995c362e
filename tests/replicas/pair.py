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


def messages_of(store: penstock.Store, begins: int) -> list[tuple[int, int, bytes]]:
    """Return queue, place in it and body of each message from a log offset on."""
    found = store.scan("t") if "t" in store.topics() else ()
    return sorted((m.queue, m.queue_offset, m.body) for m in found if m.log_offset >= begins)


class Machine(World):
    """One story: the world, and its steps."""

    def play(self, steps: Sequence[Step]) -> None:
        """Play a story; in the end the line is calm, and both logs are equal."""
        for name, seed in steps:
            self._step(name, Random(seed))
        for side in (self.a, self.b):
            side.disk.plan.watch = None
        self._step("calm", Random(0))
        if self.settings["extensions"]:
            self._check_deliveries()
        self.store.close()
        if self.follower is not None:
            self.follower.close()

    def _step(self, name: str, chance: Random) -> None:
        self.chance = chance
        for side in (self.a, self.b):
            side.clock.now_ms += chance.choice((0, 1, 50))
        getattr(self, f"_{name}")(chance)
        if self.error is None and all(line.is_gone for line in self.lines):
            self.connect()
        if self.a.image is not None:
            self._crash_master(chance)
        if self.b.image is not None:
            self._crash_follower(chance)
        if self.error is not None:
            self._see_error(self.error)
        self.note_offsets()

    # --- putting

    def _message(self, chance: Random) -> Message:
        self.sent += 1
        start = b"%d:" % self.sent
        body = start + bytes([self.sent % 256]) * chance.randint(
            0, chance.choice((0, 40, 150, 600))
        )
        if chance.random() < 0.2:
            # The record ends near the segment's end; what follows is filler of 0 to 16 bytes, or of as many as fit.
            size = self.settings["geometry.segment_bytes"]
            head = 91 + 1 + 4
            rest = size - self.store.stats()["log_end_offset"] % size - head - chance.randint(0, 60)
            body = start.ljust(rest, b"\0") if len(start) < rest < 3800 else body
        # Of queue 2, retention removes all from time to time.
        queue = chance.choices((0, 1, 2), (20, 20, 1))[0]
        return Message("t", body, queue=queue, tag=chance.choice(("", "red")))

    def _put(self, chance: Random) -> None:
        one = self._message(chance)
        receipt = self.store.put(
            one.topic, one.body, queue=one.queue, tag=one.tag, wait=chance.random() < 0.8
        )
        self.took([receipt])

    def _put_many(self, chance: Random) -> None:
        messages = [self._message(chance) for _ in range(chance.randint(1, 12))]
        self.took(self.store.put_many(messages))

    def _atomic(self, chance: Random) -> None:
        messages = [self._message(chance) for _ in range(chance.randint(2, 4))]
        if sum(len(message.body) + 120 for message in messages) < 4000:
            self.took(self.store.put_many(messages, atomic=True))

    def _flush(self, _chance: Random) -> None:
        end = self.store.flush()
        if self.a.image is None:
            self.durable_here = max(self.durable_here, end)

    def _work(self, _chance: Random) -> None:
        self.a.workers.run_all()
        self.b.workers.run_all()

    # --- beside the log

    def _commit(self, chance: Random) -> None:
        store = self.store
        for topic, queues in store.topics().items():
            queue = chance.choice([*queues])
            low, high = store.min_offset(topic, queue), store.max_offset(topic, queue)
            store.commit_offset(chance.choice("gh"), topic, queue, offset=chance.randint(low, high))

    def _remove(self, _chance: Random) -> None:
        LowLevelStore(self.store, keeps_open=False).remove_topic("t")

    def _files(self, chance: Random) -> None:
        self.send_files(anew=chance.random() < 0.7)

    # --- delays

    def _delay(self, chance: Random) -> None:
        self.sent += 1
        level = chance.choice((1, 1, 2, 3)) if self.settings["extensions"] else 0
        at = self.a.clock.now_ms / 1000 + chance.choice((1, 5, 100))
        when = {"deliver_at": at} if level == 3 else {"delay_level": level}
        self.took([self.store.put("d", b"%d" % self.sent, queue=0, **when)])

    def _advance(self, chance: Random) -> None:
        """Let time pass, and the master deliver; the clocks of both do not agree."""
        for side in (self.a, self.b):
            side.clock.now_ms += chance.choice((300, 1000, 6000))
        self.a.workers.run_all()

    def _check_deliveries(self) -> None:
        """In the end, the last master has delivered each message that has waited, and none twice."""
        for _ in range(3):
            self.a.clock.now_ms += 3 * 3_600_000
            self.a.workers.run_all()
        known = self.store.topics(system=True)
        waited, delivered = (
            sorted(
                each.body for topic in topics if topic in known for each in self.store.scan(topic)
            )
            for topics in (("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"), ("d",))
        )
        assert delivered == waited, f"waited: {waited}, delivered: {delivered}"

    # --- the line

    def _pump(self, chance: Random) -> None:
        self.pump(chance.choice((1, 10, 100, 400)))

    def _land(self, _chance: Random) -> None:
        """Sync the copy, which then acknowledges."""
        if self.lines and self.follower is not None and self.b.image is None:
            self._sync_follower(self.lines[-1])

    def _hold(self, _chance: Random) -> None:
        for line in self.lines:
            line.is_held = not line.is_held

    def _cut(self, chance: Random) -> None:
        for line in [*self.lines]:
            self.drop(line)
        if chance.random() < 0.5:
            self.connect()

    def _flip(self, chance: Random) -> None:
        """Let a bit of one of the next pieces be flipped."""
        self.flips += 1
        for line in self.lines:
            if line.to_master:
                line.to_master[chance.randrange(len(line.to_master))] ^= 1 << chance.randrange(8)

    def _twice(self, _chance: Random) -> None:
        """Let the same store connect again while the master does not know that the old line has ended."""
        for line in self.lines:
            line.is_gone = True
        self.connect()

    def _tick(self, chance: Random) -> None:
        for side in (self.a, self.b):
            side.clock.now_ms += chance.choice((100, 1000, 4000))
        self.replicator.copies.tick(self.a.clock.now_ms)
        for line in [*self.lines]:
            line.by_master.extend(line.master.tick(self.a.clock.now_ms))
            line.by_follower.extend(line.follower.tick(self.b.clock.now_ms))

    # --- crashes

    def _doom_master(self, chance: Random) -> None:
        self.a.doom(chance.choice((1, 2, 3, 5, 9, 20)))

    def _doom_follower(self, chance: Random) -> None:
        self.b.doom(chance.choice((1, 2, 3, 5, 9, 20)))

    def _crash_master(self, chance: Random) -> None:
        survival = chance.choice(tuple(Survival))
        self.drop_all()
        copied = self.follower.end_offset if self.follower is not None else 0
        self.a.crash(survival, chance)
        self.store = self.open_master()
        end = self.store.stats()["log_end_offset"]
        if survival is not Survival.PROCESS:
            assert end >= self.durable_here, (
                f"{self.durable_here} was durable, and the log ends at {end}"
            )
        if end < copied and self.parts_at is None:
            self.parts_at = end
        self.durable_here = min(self.durable_here, end)
        self._check_after_crash()

    def _crash_follower(self, chance: Random) -> None:
        survival = chance.choice(tuple(Survival))
        self.drop_all()
        self.b.crash(survival, chance)
        self.check_role()
        self.open_follower()
        end = self.follower.end_offset if self.follower is not None else 0
        promised = self.durable_there
        if survival is Survival.PROCESS:
            promised = max(promised, self.received_there)
        assert end >= promised, f"{promised} was promised there, and the copy ends at {end}"
        if self.parts_at is not None and end <= self.parts_at:
            # It has lost what its master does not have.
            self.parts_at = None
        self.received_there = min(self.received_there, end)
        self.check_offsets()
        self._check_after_crash()

    def _check_after_crash(self) -> None:
        self.compare()
        findings = [each for each in self.store.verify() if not each.is_note]
        assert not findings, f"after a crash, verify: {findings[0]}"
        self.connect()

    def _close_master(self, _chance: Random) -> None:
        if self.a.image is None:
            self.drop_all()
            self.store.close()
            self.store = self.open_master()
            report = self.store.recovery
            assert report is not None
            assert report.state == "clean", report

    def _close_follower(self, _chance: Random) -> None:
        if self.b.image is None and self.follower is not None:
            self.drop_all()
            end = self.follower.end_offset
            self.follower.close()
            self.open_follower()
            assert self.follower.end_offset == end, "a close has cut the copy's log"

    def _promote(self, chance: Random) -> None:
        """Make the copy the master, after its master was closed or killed, which then follows it."""
        found = self.follower
        if (
            self.is_dying()
            or found is None
            or found.replica.role != "follower"
            or not found.replica.history.strip("0")
            or self.parts_at is not None
        ):
            return
        for side in (self.a, self.b):
            side.disk.plan.watch = None
        self.drop_all()
        if chance.random() < 0.5:
            self.store.close()
        else:
            self.a.crash(Survival.PROCESS, chance)
        found.close()
        self.check_offsets()
        promised_offsets = self.file_of(self.b)
        self.lacks_removal = self.file_of(self.a, REMOVALS) != self.file_of(self.b, REMOVALS)
        self.lacks_ends |= not self.has_files
        penstock.promote(
            self.b.root, files=self.b.disk, clock=self.b.clock, spawn=self.b.workers, environ={}, **self.both
        )  # fmt: skip
        self.a, self.b = self.b, self.a
        self.offsets.clear()
        self.store = self.open_master()
        self.check_promised_offsets(offsets_in(promised_offsets))
        # Of the old master.
        self.offsets.append((self.file_of(self.b), 0))
        self.open_follower()
        end = self.store.stats()["log_end_offset"]
        promised = max(self.durable_there, self.received_there)
        assert end >= promised, f"{promised} was promised, and the promoted copy ends at {end}"
        if self.follower.end_offset > end:
            self.parts_at = end
        self.durable_here, self.durable_there, self.received_there = end, 0, 0
        self.connect()

    def _see_error(self, error: Close) -> None:
        """A follower that was told that it cannot go on: it must be true, and a new copy begins."""
        self.error = None
        if error.parts_at is not None:
            assert self.parts_at is not None, f"a divergence that is none: {error}"
            assert error.parts_at <= self.parts_at, f"parted at {self.parts_at}: {error}"
        else:
            assert error.needs_copy, f"an error that nothing explains: {error}"
        found, at = self.follower, error.parts_at
        if found is None or at is None or at < found.min_offset or self.chance.random() < 0.2:
            self._begin_anew(Random(0))
        elif self.b.image is None:
            self._cut_copy(at)

    def _cut_copy(self, at: int) -> None:
        """Cut the copy where it parts from its master; what it has lost is in `penstock/saved`."""
        size = self.settings["geometry.segment_bytes"]
        self.drop_all()
        end = self.follower.end_offset
        lost = self.b.log_bytes(size, at, min(end, at - at % size + size)).rstrip(b"\0")
        self.follower.close()
        self.open_follower(cut_at=at)
        saved = self.b.disk.entries(self.b.root / "penstock" / "saved")
        assert any(lost in self.b.disk.read_whole(each.path) for each in saved), "bytes are lost"
        if self.b.image is not None:
            # It dies within: then it may still have them.
            return
        self.parts_at = None
        self.offsets.append((self.file_of(self.b), 0))
        # It has undone the removal of a topic whose queues are gone, and has no record from which they could be made.
        self.lacks_ends |= self.lacks_removal and self.follower.is_empty
        end = self.follower.end_offset
        self.durable_there = min(self.durable_there, end)
        self.received_there = min(self.received_there, end)
        self.compare()
        self.connect()

    def _begin_anew(self, _chance: Random) -> None:
        self.drop_all()
        if self.follower is not None:
            self.follower.close()
        self.b = Side(self.b.root, self.chance.getrandbits(32))
        self.follower, self.parts_at = None, None
        self.lacks_removal = self.lacks_ends = self.has_files = False
        self.offsets.append((b"", 0))
        self.durable_there = self.received_there = 0
        self.connect()

    # --- the end

    def _calm(self, chance: Random) -> None:
        """Let everything arrive: then both logs are equal to the last byte, and so is what readers find."""
        if self.is_dying():
            return
        self.store.flush()
        self.a.workers.run_all()
        for line in self.lines:
            line.is_held = False
        offered, levels = None, 0
        for _ in range(20):
            while not self.pump(10_000):
                pass
            if self.is_dying():
                return
            if self.error is not None:
                self._see_error(self.error)
            elif (
                offered in self.lines and offered.follower.levels > levels + 1 and self._is_level()
            ):
                break
            else:
                self._again(chance)
                if self.lines:
                    offered = self.lines[-1]
                    levels = offered.follower.levels
        ends = self.follower and self.follower.end_offset, self.store.stats()["log_end_offset"]
        assert self._is_level(), f"the copy and its master end at {ends}"
        self.compare()
        self.b.workers.run_all()
        self._compare_readers()

    def _again(self, chance: Random) -> None:
        self._tick(chance)
        if all(line.is_gone for line in self.lines):
            self.connect()
        for line in self.lines:
            line.by_master.extend(line.master.advanced())
        for _ in range(2):
            # The first after a removal does not count.
            self.send_files(anew=True)

    def _is_level(self) -> bool:
        found = self.follower
        end = self.store.stats()["log_end_offset"]
        return (
            found is not None
            and found.end_offset == found.flushed_offset == end
            and self._has_files()
        )

    def _has_files(self) -> bool:
        """Return whether the copy has the files that the master has; spaces follow the removals."""
        mine = {name: self.file_of(self.a, name).strip() for name in (OFFSETS, REMOVALS)}
        return all(
            mine[n] in (b"", b"{}") or self.file_of(self.b, n).strip() == mine[n] for n in mine
        )

    def _compare_readers(self) -> None:
        given = {"files": self.b.disk, "clock": self.b.clock, "environ": {}, **self.both}
        with penstock.open(self.b.root, read_only=True, **given) as reader:
            begins = max(self.store.stats()["log_min_offset"], self.follower.min_offset)
            theirs, mine = messages_of(reader, begins), messages_of(self.store, begins)
            assert theirs == mine, "readers of the copy find other messages"
            findings = [each for each in reader.verify() if not each.is_note]
            assert not findings, f"verify of the copy: {findings[0]}"
            # Those of removed topics, too.
            queues = range(3)
            ends = [(reader.max_offset("t", n), self.store.max_offset("t", n)) for n in queues]
            is_known = all(there == here for there, here in ends)
            assert is_known or self.lacks_ends, f"queues end at {ends}"


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

    def play(self) -> str:
        """Play it; returns why it fails, "" if it does not."""
        try:
            Machine(self.settings, self.seed).play(self.steps)
        except RAISED as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def shortest(self) -> "Story":
        """Return the story without the steps that it needs not to fail."""
        steps, size = self.steps, len(self.steps)
        while size := size // 2:
            at = 0
            while at < len(steps):
                fewer = attrs.evolve(self, steps=steps[:at] + steps[at + size :])
                if fewer.play():
                    steps = fewer.steps
                else:
                    at += size
        return attrs.evolve(self, steps=steps)
