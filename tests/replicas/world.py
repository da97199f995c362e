"""A master and its follower, each a store on a simulated disk of its own, and the line between them; see `pair`."""

import contextlib
import json
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import attrs

import penstock
from penstock import PutStatus, Receipt
from penstock.contracts import Context, ReplicatedLog, Replicator
from penstock.durability.replica_file import read_replica
from penstock.errors import OffsetError, ReplicationError
from penstock.format.names import segment_name
from penstock.testing import InlineWorkers, ManualClock, SimulatedDisk, open_store
from penstock.testing.platter import Image, Survival
from penstock_replicate import beside
from penstock_replicate.copies import Copies
from penstock_replicate.follower import FollowerPeer, Mine
from penstock_replicate.master import MasterPeer
from penstock_replicate.peer import (
    Accept,
    Action,
    Close,
    Feed,
    Hash,
    Level,
    Read,
    ReadRanges,
    Send,
    SideFile,
)

HEARTBEAT_MS, SILENCE_MS, TIMEOUT_MS = 1000, 10_000, 3000
# So that most flips hit bytes of the log.
_FLIPPED_BYTES_LEAST = 100
OFFSETS, REMOVALS = "config/consumerOffset.json", "penstock/removed-topics"
TIMERS = "timerlog/00000000000000000000"


def drawn_settings(chance: Random) -> dict[str, Any]:
    """Return settings of both stores; the files are so small that all of them roll."""
    settings: dict[str, Any] = {
        "geometry.segment_bytes": chance.choice((4096, 8192, 16384)), "geometry.queue_entries": chance.choice((3, 40)),
        "geometry.index_entries": 20, "geometry.index_slots": 5, "retention.pause_ms": 0,
        "log.checksum": chance.choice(("crc32", "crc32+record")), "retention": [],
    }  # fmt: skip
    if chance.random() < 0.2:
        # A record must leave room in its segment for what its copies have in addition.
        settings["geometry.segment_bytes"] = 16384
        return settings | {"extensions": ["messaging"]} | drawn_promises(chance)
    settings["extensions"] = []
    if chance.random() < 0.3:
        settings["retention"] = ["size"]
        settings["retention.size.bytes_max"] = 3 * settings["geometry.segment_bytes"]
    return settings | drawn_promises(chance)


def drawn_promises(chance: Random) -> dict[str, Any]:
    """Return what puts wait for."""
    return {
        "in_sync_replicas": chance.choice((1, 2, 2, 2)), "wait_for": chance.choice(("disk", "disk", "received")),
    }  # fmt: skip


def drawn_strategies(chance: Random) -> dict[str, Any]:
    """Return how a store is written; the next opening may draw others."""
    flush = chance.choice(("sync", "sync", "async", "none"))
    # A pool is refused where puts wait.
    writers = ("mmap", "file") if flush == "sync" else ("mmap", "file", "transient-pool")
    return {"write": chance.choice(writers), "flush": flush}


@attrs.frozen(kw_only=True)
class SteppedOptions:
    """As of `HaOptions`."""

    in_sync_replicas: int = 1
    wait_for: str = "disk"


class Stepped(Replicator):
    """The master's side of the protocol, moved by the story that is being played."""

    name = "stepped"
    Options = SteppedOptions
    playing: ClassVar["World"]

    def __init__(self, options: Any, context: Context, log: ReplicatedLog) -> None:
        super().__init__(options, context, log)
        self.waits, self.wait_for = options.in_sync_replicas > 1, options.wait_for
        self.timeout_ms = TIMEOUT_MS
        self.copies = Copies(
            log, needed=options.in_sync_replicas - 1, wait_for=self.wait_for, timeout_ms=TIMEOUT_MS,
            heartbeat_ms=HEARTBEAT_MS, now_ms=context.clock.monotonic_ms(),
        )  # fmt: skip
        self.playing.replicator = self

    def advanced(self) -> None:
        self.copies.look()
        self.playing.log_advanced()


def offsets_in(content: bytes) -> dict[tuple[str, str], int]:
    """Return the offsets of `consumerOffset.json` by group and queue."""
    table = json.loads(content or b"{}").get("offsetTable", {})
    return {(name, queue): at for name, queues in table.items() for queue, at in queues.items()}


class Side:
    """One machine: its disk, its clock, its workers, and whether it is doomed."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.clock = ManualClock(1_700_000_000_000 + seed % 7_200_000)
        self.disk = SimulatedDisk(clock=self.clock, seed=seed, write_back=0.05)
        self.workers = InlineWorkers()
        self.image: Image | None = None

    def doom(self, after: int) -> None:
        """Take an image before one of the next calls that change the disk; the side is dead from then on."""
        left = after

        def count(_call: str, _path: Path) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self.disk.plan.watch = None
                self.image = self.disk.image()

        self.disk.plan.watch = count

    def crash(self, survival: Survival, chance: Random) -> None:
        """Be what a crash leaves: of the doomed moment, or of now."""
        image, self.image = self.image or self.disk.image(), None
        self.disk = SimulatedDisk.after(image, survival, chance, clock=self.clock)
        self.workers = InlineWorkers()

    def log_bytes(self, segment_bytes: int, start: int, stop: int) -> bytes:
        """Return the bytes of the log as programs see them, read around the code."""
        found = b""
        while start < stop:
            base = start - start % segment_bytes
            with self.disk.open(self.root / "commitlog" / segment_name(base)) as file:
                found += file.pread(min(stop, base + segment_bytes) - start, start - base)
            start = base + segment_bytes
        return found


class Line:
    """One connection: bytes on their way in both directions, and the actions that each end has still to carry out."""

    def __init__(self, master: MasterPeer, follower: FollowerPeer) -> None:
        self.master, self.follower = master, follower
        self.to_master, self.to_follower = bytearray(), bytearray()
        self.by_master: deque[Action] = deque()
        self.by_follower: deque[Action] = deque(follower.start())
        self.is_held = False
        # The follower has let it go, and the master does not know that.
        self.is_gone = False


class World:
    """Both sides, the line, and what was promised."""

    def __init__(self, settings: dict[str, Any], seed: int) -> None:
        self.settings = dict(settings)
        self.both = {k: v for k, v in settings.items() if k not in ("in_sync_replicas", "wait_for")}
        self.chance = Random(seed)
        self.a, self.b = Side(Path("/a"), seed), Side(Path("/b"), seed + 1)
        self.replicator: Stepped
        self.lines: list[Line] = []
        self.is_in_line = False
        self.follower: Any = None
        self.sent = 0
        # Ends of what a receipt has promised: durable on the master, received or durable on the follower.
        self.durable_here = self.durable_there = self.received_there = 0
        # Where the master has lost bytes that the follower has: the two must part there.
        self.parts_at: int | None = None
        self.error: Close | None = None
        # How many pieces on their way to the follower will be changed.
        self.flips = 0
        # Contents that the offsets of groups had on the master, each with the log end then.
        self.offsets = [(b"", 0)]
        # The master has forgotten a removal that the copy knows: it was promoted without.
        self.lacks_removal = False
        # The copy has had all files of its master once; and the master was promoted without.
        self.has_files = self.lacks_ends = False
        Stepped.playing = self
        self.store = self.open_master()
        self.open_follower()

    def is_dying(self) -> bool:
        """Whether an image of either side was taken, so the next step begins with a crash."""
        return self.a.image is not None or self.b.image is not None

    # --- opening, closing

    def open_master(self) -> penstock.Store:
        # A first file of the timer log says how long all are: 100 MiB would take too long here.
        if self.settings["extensions"] and not self.a.disk.exists(self.a.root / TIMERS):
            self.a.disk.make_folder_durably((self.a.root / TIMERS).parent)
            self.a.disk.write_whole(self.a.root / TIMERS, bytes(4096))
        given = {"replicate.stepped.in_sync_replicas": self.settings["in_sync_replicas"],
                 "replicate.stepped.wait_for": self.settings["wait_for"]}  # fmt: skip
        store = open_store(
            self.a.root, strategies=[Stepped], files=self.a.disk, clock=self.a.clock, spawn=self.a.workers,
            replicate="stepped", **given, **self.both, **drawn_strategies(self.chance),
        )  # fmt: skip
        self.files = beside.MasterFiles(self.a.disk, self.replicator.log)
        self.note_offsets()
        return store

    def open_follower(self, begin: Any = None, cut_at: int | None = None) -> None:
        """Open the follower's store if it is there, or with `begin` make it."""
        if begin is None and not self.b.disk.exists(self.b.root / "commitlog"):
            self.follower = None
            return
        self.follower = penstock.open_follower(
            self.b.root, begin=begin, cut_at=cut_at, files=self.b.disk, clock=self.b.clock, spawn=self.b.workers,
            environ={}, **self.both, **drawn_strategies(self.chance),
        )  # fmt: skip

    def connect(self) -> Line | None:
        """Return a new line, if both sides live."""
        if self.is_dying():
            return None
        found = self.follower
        mine = Mine(master="m:1", replica=None, fresh_store=f"{self.chance.getrandbits(64):016x}")
        if found is not None:
            found.forget()
            mine = attrs.evolve(
                mine, replica=found.replica, segment_bytes=found.segment_bytes, min_offset=found.min_offset,
                end_offset=found.end_offset,
            )  # fmt: skip
        times = {"heartbeat_ms": HEARTBEAT_MS, "silence_ms": SILENCE_MS}
        master = MasterPeer(
            self.replicator.log, self.replicator.copies, "f:1", now_ms=self.a.clock.now_ms, **times
        )
        line = Line(master, FollowerPeer(mine, now_ms=self.b.clock.now_ms, **times))
        self.lines.append(line)
        return line

    def drop(self, line: Line, reason: str = "the line was cut") -> None:
        """End a line; what is on its way is lost."""
        if line in self.lines:
            self.lines.remove(line)
            line.master.lost(reason)
            if self.follower is not None:
                self.follower.forget()

    def drop_all(self) -> None:
        for line in [*self.lines]:
            self.drop(line)

    # --- the line

    def log_advanced(self) -> None:
        """Tell the master's ends of the lines; a put that waits lets the line work for a while."""
        for line in self.lines:
            line.by_master.extend(line.master.advanced())
        if not self.is_in_line:
            self.pump(self.chance.choice((0, 10, 400, 400)))

    def pump(self, steps: int) -> bool:
        """Let the line work for so many steps; returns whether it has done all that is to do."""
        self.is_in_line, before = True, self.is_in_line
        try:
            for _ in range(steps):
                ready = [line for line in self.lines if not line.is_held]
                jobs = [(line, what) for line in ready for what in self._jobs(line)]
                if not jobs:
                    return True
                line, what = self.chance.choice(jobs)
                getattr(self, f"_{what}")(line)
        finally:
            self.is_in_line = before
        return False

    def _jobs(self, line: Line) -> Iterator[str]:
        if self.a.image is None:
            if line.to_master:
                yield "deliver_to_master"
            if line.by_master:
                yield "act_master"
        if self.b.image is None and not line.is_gone:
            if line.to_follower:
                yield "deliver_to_follower"
            if line.by_follower:
                yield "act_follower"
            if (
                self.follower is not None
                and self.follower.flushed_offset < self.follower.end_offset
            ):
                yield "sync_follower"

    def _piece(self, way: bytearray) -> bytes:
        size = self.chance.choice((1, 7, 100, 1000, *[len(way)] * 6))
        piece = bytes(way[:size])
        del way[:size]
        return piece

    def _deliver_to_master(self, line: Line) -> None:
        line.by_master.extend(line.master.take(self._piece(line.to_master)))

    def _deliver_to_follower(self, line: Line) -> None:
        piece = self._piece(line.to_follower)
        if self.flips and len(piece) >= _FLIPPED_BYTES_LEAST:
            self.flips -= 1
            at = self.chance.randrange(len(piece))
            piece = (
                piece[:at] + bytes((piece[at] ^ 1 << self.chance.randrange(8),)) + piece[at + 1 :]
            )
        next_offset = line.follower.next_offset
        # In its turn, and not always: frames that come alone also go through the machine.
        if next_offset is not None and line is self.lines[-1] and not line.by_follower and self.chance.random() < 0.8:  # fmt: skip
            taken, end = self.follower.land(bytes(piece), next_offset)
            line.follower.passed(end)
            piece = piece[taken:]
            self._landed(line)
        line.by_follower.extend(line.follower.take(piece))

    def _act_master(self, line: Line) -> None:
        action, log = line.by_master.popleft(), self.replicator.log
        if self.a.image is not None:
            return
        match action:
            case Send(frames):
                line.to_follower += frames
            case Read(log_offset, size):
                data: bytes | None = None
                with contextlib.suppress(OffsetError):
                    data = log.read(log_offset, size)
                line.by_master.extend(line.master.read_done(data))
            case Hash(start, stop):
                digest = None
                with contextlib.suppress(OffsetError):
                    digest = log.digest(start, stop)
                line.by_master.extend(line.master.hashed(start, stop, digest))
            case ReadRanges():
                line.by_master.extend(line.master.ranges_done(log.ranges()))
            case Close():
                # What was sent before arrives.
                self._finish(line)

    def _finish(self, line: Line) -> None:
        while (
            line.to_follower
            and self.b.image is None
            and not (line.is_gone or line.follower.is_over)
        ):
            self._deliver_to_follower(line)
        while line.by_follower and self.b.image is None and not line.is_gone and line in self.lines:
            self._act_follower(line)
        self.drop(line, "closed")

    def _act_follower(self, line: Line) -> None:
        action = line.by_follower.popleft()
        match action:
            case Send(data):
                line.to_master += data
                if self.b.image is not None:
                    del line.to_master[-len(data) :]
            case Hash(start, stop):
                digest = None
                with contextlib.suppress(OffsetError):
                    digest = self.follower.digest(start, stop)
                line.by_follower.extend(line.follower.hashed(start, stop, digest))
            case Accept(replica=replica, ranges=ranges, begin=begin):
                if begin is not None:
                    self.open_follower(begin)
                self.follower.accept(replica, ranges)
                self._landed(line)
            case Feed(log_offset, data):
                self.follower.feed(log_offset, data)
                self._landed(line)
            case SideFile() | Level():
                self._beside(line, action)
            case Close() as close:
                self.drop(line, close.reason)
                if close.is_final:
                    self.error = close

    def _beside(self, line: Line, action: SideFile | Level) -> None:
        if isinstance(action, Level):
            line.by_follower.extend(line.follower.leveled(action.number))
            self.has_files = True
            return
        try:
            beside.write(self.follower, action)
        except ReplicationError as error:
            if not (error.needs_copy and self.lacks_removal):
                raise
            self.drop(line)
            self.error = Close(reason=str(error), is_final=True, needs_copy=True)

    def _landed(self, line: Line) -> None:
        if self.b.image is None:
            flushed = self.follower.flushed_offset
            line.by_follower.extend(line.follower.landed(self.follower.commit(), flushed))

    def _sync_follower(self, line: Line) -> None:
        self.follower.flush()
        # Only the line that feeds the store acknowledges.
        if line is self.lines[-1]:
            self._landed(line)

    # --- what is beside the log

    def send_files(self, *, anew: bool) -> None:
        """Let the master send of the files beside the log, of a new reading or of the last one."""
        reading = self.files.read() if anew else None
        for line in self.lines:
            line.by_master.extend(line.master.send_files(reading))

    @staticmethod
    def file_of(side: Side, name: str = OFFSETS) -> bytes:
        path = side.root / name
        return side.disk.read_whole(path) if side.disk.exists(path) else b""

    def note_offsets(self) -> None:
        self.offsets.append((self.file_of(self.a), self.replicator.log.visible_offset))

    def check_offsets(self) -> None:
        """Check that no offset of a group on the copy is beyond those of its master at a log end that the copy has.

        They may be before: an opening after a cut or a removal sets them back.
        """
        content = self.file_of(self.b)
        found = offsets_in(content)
        known = [(offsets_in(each), end) for each, end in [*self.offsets, (b"", 0)]]
        ends = [end for each, end in known if all(at <= each.get(q, 0) for q, at in found.items())]
        assert ends, f"offsets that no master had: {content!r}"
        if self.follower is not None:
            end = self.follower.end_offset
            assert min(ends) <= end, f"the copy ends at {end}, its offsets are of {ends}"

    def check_promised_offsets(self, promised: dict[tuple[str, str], int]) -> None:
        """Check that a master that was a copy has the offsets of groups that it had; none is beyond its queue's end."""
        found = offsets_in(self.file_of(self.a))
        known, expected = self.store.topics(), dict(promised)
        for (name, queue), at in promised.items():
            topic = name.partition("@")[0]
            if int(queue) in known.get(topic, ()):
                end = self.store.max_offset(topic, int(queue))
                expected[name, queue] = min(end, at)
        assert found == expected, (found, expected, self.store.recovery)

    # --- what holds

    def check_role(self) -> None:
        """Check that a copy's log, once it has begun, cannot be opened as a master's."""
        replica = read_replica(self.b.disk, self.b.root)
        assert replica is not None or not self.b.disk.exists(self.b.root / "commitlog")

    def took(self, receipts: Sequence[Receipt]) -> None:
        """Note what receipts promise, unless their writer was dead by then."""
        if self.a.image is not None:
            return
        last = receipts[-1]
        end = last.log_offset + last.size
        if "on disk here" in last.durability or last.durability == "on disk":
            self.durable_here = max(self.durable_here, end)
        if last.durability in ("on disk here and there", "on disk there"):
            assert last.status == PutStatus.PUT_OK
            self.durable_there = max(self.durable_there, end)
        if last.durability in ("on disk here, received there", "received there"):
            self.received_there = max(self.received_there, end)
        if last.status == PutStatus.PUT_OK and "there" in last.durability and self.b.image is None:
            assert self.follower.end_offset >= end, (
                f"{last} is not there: {self.follower.end_offset}"
            )
            if self.settings["wait_for"] == "disk":
                assert self.follower.flushed_offset >= end, f"{last} is not durable there"

    def compare(self) -> None:
        """Compare the bytes of both logs, filler included, as far as both have them."""
        if self.follower is None or self.parts_at is not None:
            return
        stats = self.store.stats()
        start = max(stats["log_min_offset"], self.follower.min_offset)
        stop = min(stats["log_end_offset"], self.follower.end_offset)
        if start < stop:
            # Writers may gather what was appended; who reads through the store sees it, and so do all after that.
            self.follower.read(self.follower.min_offset, 1)
            size = self.settings["geometry.segment_bytes"]
            mine = self.a.log_bytes(size, start, stop)
            theirs = self.b.log_bytes(size, start, stop)
            if mine != theirs:
                at = next(i for i, (x, y) in enumerate(zip(mine, theirs, strict=True)) if x != y)
                raise AssertionError(f"the logs differ at {start + at} of {start} to {stop}")
