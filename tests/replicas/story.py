"""A master and its copies over lines in memory, in steps that a seed draws: any order, any loss, and what must hold all the same.

Records are of whole words: their size in 2 bytes, a number that no other record has, and bytes of chance. The rest of a
segment is zeros. A kill takes what was not flushed; a master that lost something, or may have, begins a new epoch.
"""

from hashlib import sha256
from random import Random
from typing import Any

import attrs
from tests.replicas.fakes import SEGMENT, FakeLog, store_id

from penstock.contracts import Epoch, Replica
from penstock_replicate import wire
from penstock_replicate.copies import Copies
from penstock_replicate.follower import FollowerPeer, Mine
from penstock_replicate.master import MasterPeer
from penstock_replicate.peer import Accept, Action, Close, Feed, Hash, Peer, Read, ReadRanges, Send

HEARTBEAT_MS, SILENCE_MS, TIMEOUT_MS = 1000, 10_000, 3000
HELD_BYTES_MAX = 13 + wire.ACCEPT_BYTES_MAX
WORD = 4
# Lists of epochs lose their oldest entries.
EPOCHS_MAX = 4
# Rounds in which everything is delivered, after the last fault: closings, deadlines and comparisons need some.
CALM_ROUNDS = 60


def whole_end(data: bytes | bytearray, start: int) -> int:
    """Return the end of the last whole record, or of the filler after it, from `start` on, where one begins."""
    end = start
    while len(data) - end >= WORD:
        size = int.from_bytes(data[end : end + 2], "big") or SEGMENT - end % SEGMENT
        if end + size > len(data):
            break
        end += size
    return end


class Master(FakeLog):
    """One opening of a master's store."""

    def __init__(
        self, story: "Story", data: bytes, epochs: tuple[Epoch, ...], min_offset: int
    ) -> None:
        super().__init__(data, epochs=epochs, min_offset=min_offset)
        self.story = story
        self.durable = len(data)

    def append(self, record: bytes) -> None:
        room = SEGMENT - len(self.data) % SEGMENT
        self.data += (bytes(room) if room < len(record) + WORD else b"") + record
        if not self.story.is_sync:
            self.visible_offset = len(self.data)

    def flush(self) -> None:
        self.durable = self.visible_offset = len(self.data)

    def reach(self, log_offset: int, *, available: bool, missed: int) -> None:
        if log_offset > self.reached and self is self.story.log:
            self.story.check_promise(self, log_offset)
        super().reach(log_offset, available=available, missed=missed)


@attrs.define(eq=False)
class Store:
    """A copy's disk, and what of it is in memory only."""

    id: str
    replica: Replica | None = None
    exists: bool = False
    begin: int = 0
    data: bytearray = attrs.Factory(bytearray)
    rest: bytes = b""
    durable: int = 0
    # What it had when it was killed.
    had: list[bytes] = attrs.Factory(list)
    line: "Line | None" = None

    def has(self, log: Master, end: int, *, on_disk: bool) -> bool:
        """Return whether it has, or has had, what a log has before `end`."""
        images = [bytes(self.data[: self.durable])] if on_disk else [bytes(self.data), *self.had]
        wanted = log.data[self.begin : end]
        return any(image[self.begin : end] == wanted for image in images)

    def feed(self, data: bytes) -> None:
        self.data += self.rest + data
        end = whole_end(self.data, self.begin)
        self.rest = bytes(self.data[end:])
        del self.data[end:]

    def kill(self, chance: Random) -> None:
        self.had.append(bytes(self.data))
        ends = [self.durable]
        while ends[-1] < len(self.data):
            size = int.from_bytes(self.data[ends[-1] : ends[-1] + 2], "big")
            ends.append(ends[-1] + (size or SEGMENT - ends[-1] % SEGMENT))
        del self.data[chance.choice(ends) :]
        self.durable = len(self.data)
        self.rest = b""


@attrs.define(eq=False)
class End:
    """One side of a line: its machine, what it is to do, and the bytes on their way to it."""

    peer: Peer
    actions: list[Action] = attrs.Factory(list)
    coming: bytearray = attrs.Factory(bytearray)
    is_open: bool = True


class Line:
    """A connection."""

    def __init__(self, log: Master, copies: Copies, store: Store, now_ms: int) -> None:
        times: dict[str, Any] = {
            "heartbeat_ms": HEARTBEAT_MS, "silence_ms": SILENCE_MS, "now_ms": now_ms,
        }  # fmt: skip
        self.log, self.store = log, store
        mine = Mine(
            master="m:1", replica=store.replica, fresh_store=store.id,
            segment_bytes=SEGMENT if store.exists else None, min_offset=store.begin, end_offset=len(store.data),
        )  # fmt: skip
        self.follower = FollowerPeer(mine, **times)
        self.master = MasterPeer(log, copies, "f:1", **times)
        self.ends = [End(self.master), End(self.follower)]
        self.ends[1].actions += self.follower.start()
        self.is_accepted = self.is_garbled = self.is_held = False

    @property
    def is_open(self) -> bool:
        return any(end.is_open for end in self.ends)


class Story:
    """One seed's story."""

    def __init__(self, seed: str) -> None:
        self.chance = chance = Random(seed)
        self.needed = chance.choice([1, 2])
        self.wait_for = chance.choice(["disk", "disk", "received"])
        self.is_sync = chance.random() < 0.5
        self.now_ms = chance.randrange(1 << 40)
        self.count = 0
        self.ids = 100
        # All logs that the master ever had: what was copied is a part of one of them.
        self.past: list[bytes] = []
        self.gone: list[Store] = []
        self.log = Master(self, b"", (Epoch(1, 0, 0, store_id(1)),), 0)
        self.stores = [self.new_store() for _ in range(self.needed + chance.randrange(2))]
        self.lines: list[Line] = []
        self.copies = self.new_copies()

    def new_store(self) -> Store:
        self.ids += 1
        return Store(store_id(self.ids))

    def new_copies(self) -> Copies:
        return Copies(
            self.log, needed=self.needed, wait_for=self.wait_for, timeout_ms=TIMEOUT_MS, heartbeat_ms=HEARTBEAT_MS,
            now_ms=self.now_ms,
        )  # fmt: skip

    # --- what must hold

    def check_promise(self, log: Master, end: int) -> None:
        """Enough stores, each counted once, have all before `end`: on disk, or at least in memory at some time."""
        on_disk = self.wait_for == "disk"
        having = [s for s in (*self.stores, *self.gone) if s.has(log, end, on_disk=on_disk)]
        assert len(having) >= self.needed, f"{len(having)} of {self.needed} copies have {end}"

    def check_fed(self, line: Line, feed: Feed) -> None:
        assert line.is_accepted, "bytes before the master has accepted"
        store, start, stop = line.store, feed.log_offset, feed.log_offset + len(feed.data)
        assert len(store.data) + len(store.rest) == start
        images = [bytes(self.log.data), *self.past]
        assert any(image[start:stop] == feed.data for image in images), f"other bytes at {start}"

    def check_closed(self, line: Line, close: Close) -> None:
        """Check that a follower's connection ended for what has happened."""
        store, log = line.store, line.log
        if "breaks the protocol" in close.reason:
            assert line.is_garbled, close.reason
        if close.parts_at is not None:
            parts_at, end = close.parts_at, len(store.data)
            assert store.replica is not None
            # Without an epoch that both have, the oldest that is known of the two says only where they differ at the latest.
            if {*store.replica.epochs} & {*log.replica.epochs}:
                assert store.data[store.begin : parts_at] == log.data[store.begin : parts_at]
            differ = store.data[store.begin : end] != log.data[store.begin : end]
            # Filler that the master lost and has written again is the same, but for its epoch.
            is_filler = not any(store.data[parts_at:end])
            assert differ or is_filler, f"{close.reason}, and they are equal"
        elif close.is_final:
            assert close.needs_copy, close.reason
            assert len(store.data) < log.min_offset, close.reason

    # --- what happens

    def play(self, steps: int) -> None:
        chances = {
            self.put: 20, self.flush_master: 3, self.flush_copy: 12, self.go_on: 110, self.tick: 5, self.connect: 30,
            self.cut: 3, self.flip: 1, self.hold: 1, self.kill_copy: 2, self.kill_master: 1.5, self.reopen_master: 0.5,
            self.retire: 0.4, self.miss: 0.5,
        }  # fmt: skip
        kinds, weights = [*chances], [*chances.values()]
        for step in self.chance.choices(kinds, weights, k=steps):
            step()
        self.calm()

    def put(self) -> None:
        self.count += 1
        body = self.chance.randbytes(WORD * self.chance.choice((0, 1, 5, 30, 250)))
        record = self.count.to_bytes(6, "big") + bytes(WORD - 2) + body
        size = len(record) + 4
        self.log.append((size.to_bytes(2, "big") + record).ljust(size, b"."))
        for line in self.lines:
            line.ends[0].actions += line.master.advanced()

    def flush_master(self) -> None:
        self.log.flush()
        for line in self.lines:
            line.ends[0].actions += line.master.advanced()

    def retire(self) -> None:
        if self.log.min_offset + 2 * SEGMENT < self.log.durable:
            self.log.min_offset += SEGMENT

    def miss(self) -> None:
        self.log.missed_offset = self.log.visible_offset
        self.copies.look()

    def flush_copy(self) -> None:
        store = self.chance.choice(self.stores)
        store.durable = len(store.data)
        if store.line is not None and store.line.is_accepted:
            self.land(store.line)

    def land(self, line: Line) -> None:
        store = line.store
        line.ends[1].actions += line.follower.landed(len(store.data), store.durable)

    def connect(self) -> None:
        """A copy that has no connection makes one, though the master may still have its last one."""
        store = self.chance.choice(self.stores)
        if store.line is None:
            store.line = Line(self.log, self.copies, store, self.now_ms)
            self.lines.append(store.line)

    def tick(self) -> None:
        self.now_ms += self.chance.choice((10, 100, 300, 1000))
        self.copies.tick(self.now_ms)
        for line in self.lines:
            for end in line.ends:
                if end.is_open:
                    end.actions += end.peer.tick(self.now_ms)
                    assert end.peer.reader.held_bytes <= HELD_BYTES_MAX

    def any_line(self) -> Line | None:
        return self.chance.choice(self.lines) if self.lines else None

    def go_on(self) -> None:
        """Let one side of a line do something, or else bring it some bytes."""
        lines = [line for line in self.lines if not line.is_held]
        line = self.chance.choice(lines) if lines else None
        side = self.chance.randrange(2)
        for _ in range(self.chance.choice((1, 3, 10))):
            if line is None or not line.ends[side].is_open:
                return
            if line.ends[side].actions:
                self.do(line, side, line.ends[side].actions.pop(0))
            else:
                self.bring(line, side, self.chance.choice((1, 40, 400, 4000)))

    def do(self, line: Line, side: int, action: Action) -> None:
        end, other = line.ends[side], line.ends[not side]
        match action:
            case Send(data):
                other.coming += data
            case Read(log_offset, size):
                is_there = log_offset >= line.log.min_offset
                read = line.log.read(log_offset, size) if is_there else None
                end.actions += line.master.read_done(read)
            case ReadRanges():
                end.actions += line.master.ranges_done(line.log.ranges())
            case Hash(start, stop):
                log: Any = line.log if side == 0 else line.store
                is_there = side == 1 or start >= line.log.min_offset
                digest = sha256(log.data[start:stop]).digest() if is_there else None
                end.actions += (line.follower if side else line.master).hashed(start, stop, digest)
            case Accept(replica=replica, begin=begin):
                self.accept(line, replica, -1 if begin is None else begin.log_offset)
            case Feed():
                self.check_fed(line, action)
                line.store.feed(bytes(action.data))
                self.land(line)
            case Close():
                self.close(line, side, action)

    def accept(self, line: Line, replica: Replica, begin: int) -> None:
        store = line.store
        assert (begin < 0) is store.exists
        store.replica = attrs.evolve(replica, epochs=replica.epochs[-EPOCHS_MAX:])
        if not store.exists:
            store.exists = True
            store.begin = store.durable = begin
            store.data = bytearray(begin)
        line.is_accepted = True
        self.land(line)

    def close(self, line: Line, side: int, action: Close) -> None:
        line.ends[side].is_open = False
        line.ends[side].actions.clear()
        store = line.store
        if side == 1 and store.line is line:
            self.check_closed(line, action)
            self.leave(store)
            if action.is_final:
                # Its operator takes an empty folder.
                self.gone.append(store)
                self.stores[self.stores.index(store)] = self.new_store()
        self.drop_closed()

    def leave(self, store: Store) -> None:
        if store.line is not None:
            store.line.ends[1].is_open = False
            store.line.ends[1].actions.clear()
        store.line, store.rest = None, b""

    def drop_closed(self) -> None:
        self.lines = [line for line in self.lines if line.is_open]

    def bring(self, line: Line, side: int, most: int) -> None:
        """Give one side bytes that are on their way; if nothing can come any more, the end of the connection."""
        end = line.ends[side]
        data = bytes(end.coming[:most])
        del end.coming[:most]
        if not end.is_open:
            return
        if data:
            end.actions += end.peer.take(data)
        elif not line.ends[not side].is_open:
            self.lose(line, side)

    def lose(self, line: Line, side: int) -> None:
        end = line.ends[side]
        end.is_open = False
        end.actions.clear()
        if side == 0:
            line.master.lost("the connection was lost")
        elif line.store.line is line:
            self.leave(line.store)
        self.drop_closed()

    def cut(self) -> None:
        """Of what is on its way a part arrives; one side hears of the end, the other one much later."""
        if line := self.any_line():
            for end in line.ends:
                del end.coming[self.chance.randrange(len(end.coming) + 1) :]
            self.lose(line, self.chance.choice((0, 1, 1)))
            line.is_held = True

    def flip(self) -> None:
        line = self.any_line()
        if line is not None and (ways := [end.coming for end in line.ends if end.coming]):
            coming = self.chance.choice(ways)
            coming[self.chance.randrange(len(coming))] ^= 1 << self.chance.randrange(8)
            line.is_garbled = True

    def hold(self) -> None:
        if line := self.any_line():
            line.is_held = not line.is_held

    def kill_copy(self) -> None:
        store = self.chance.choice(self.stores)
        if store.line is not None:
            store.line.is_held = self.chance.random() < 0.5
        self.leave(store)
        store.kill(self.chance)
        self.drop_closed()

    def kill_master(self) -> None:
        """What was not flushed is lost in part, and what was flushed is not; the next opening is a new epoch."""
        kept = self.chance.randrange(self.log.durable, len(self.log.data) + 1)
        data = self.log.data[: max(whole_end(self.log.data[:kept], 0), self.log.durable)]
        newest = self.log.replica.epochs[-1]
        entry = Epoch(1, newest.opening + 1, len(data), newest.by)
        self.open_again(bytes(data), (*self.log.replica.epochs, entry)[-EPOCHS_MAX:])

    def reopen_master(self) -> None:
        for line in self.lines:
            if line.ends[0].is_open:
                line.ends[0].actions += line.master.end("closing", "the master is closing")
        for line in [*self.lines]:
            while line.ends[0].actions:
                self.do(line, 0, line.ends[0].actions.pop(0))
        self.log.flush()
        self.open_again(bytes(self.log.data), self.log.replica.epochs)

    def open_again(self, data: bytes, epochs: tuple[Epoch, ...]) -> None:
        for line in [*self.lines]:
            if line.ends[0].is_open:
                del line.ends[1].coming[self.chance.randrange(len(line.ends[1].coming) + 1) :]
                self.lose(line, 0)
        self.past.append(bytes(self.log.data))
        self.log = Master(self, data, epochs, self.log.min_offset)
        self.copies = self.new_copies()

    # --- the end

    def calm(self) -> None:
        """Deliver everything: then all are equal, nothing is left, and puts wait for copies."""
        self.log.flush()
        for line in self.lines:
            line.is_held = False
        for _ in range(CALM_ROUNDS):
            for store in [*self.stores]:
                store.durable = len(store.data)
                if store.line is not None and store.line.is_accepted:
                    self.land(store.line)
            for _ in self.stores:
                self.connect()
            for line in [*self.lines]:
                self.settle(line)
            self.tick()
        for store in self.stores:
            same = store.data[store.begin :] == self.log.data[store.begin :]
            assert same, f"{store.id} ends at {len(store.data)}, the log at {len(self.log.data)}"
            assert store.exists
            assert not store.rest
        assert self.log.available
        assert self.log.reached == self.log.visible_offset

    def settle(self, line: Line) -> None:
        for line_end in line.ends:
            if line_end.is_open and line_end.peer is line.master:
                line_end.actions += line.master.advanced()
        for side in (0, 1, 0, 1):
            end = line.ends[side]
            while end.actions:
                self.do(line, side, end.actions.pop(0))
            self.bring(line, side, 1 << 20)
