"""RocketMQ's own protocol (default HA of 4.x and 5.x), for slaves of a Penstock master and for copies of a broker.

Layout (big-endian)::

    report := log_offset:i64                           # from the slave, all that it ever says: its log ends there
    chunk  := log_offset:i64  size:i32  bytes[size]    # from the master; without bytes: a heartbeat

The first report asks for the log from there on, where 0, an empty log, stands for the begin of the master's last file.
Later reports acknowledge. No identity travels, no checksum, no size of segments, and no reason for a close.

A RocketMQ master sends heartbeats for ever if it does not have what was asked for, and bytes that corrupt the slave's
log if that was within a record. The master here closes such a connection, and its status says why. Its chunks end with
a record, so that a slave is never within one, except for records that do not fit into a slave's memory.
"""

from collections.abc import Iterator
from hashlib import sha256
from struct import Struct
from typing import Any

import attrs

from penstock.contracts import FollowBegin, Replica, whole_end
from penstock.format.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC
from penstock_replicate.copies import NOTHING
from penstock_replicate.follower import Mine
from penstock_replicate.master import MasterEnd
from penstock_replicate.peer import Accept, Action, Feed, Hash, Machine, Send
from penstock_replicate.wire import WireViolation

PROTOCOL = "rocketmq"
# As RocketMQ: a slave reports that often, and either side closes a connection on which it hears nothing for so long.
# After its start, a slave may say its first word as late as that.
REPORT_MS, SILENCE_MS = 5000, 20_000
CHUNK_BYTES = 32 << 10
# The stated log offset of a record, and the bytes up to its end.
_OFFSET_AT, _HEAD_BYTES = 28, 36

_REPORT, _HEADER = Struct(">q"), Struct(">qi")
# A slave of RocketMQ has 4 MiB of memory for a chunk and its header.
CHUNK_BYTES_MAX = (4 << 20) - _HEADER.size


def report(log_offset: int) -> bytes:
    """Return the bytes of a report."""
    return _REPORT.pack(log_offset)


def chunk(log_offset: int, data: bytes | memoryview = b"") -> bytes:
    """Return the bytes of a chunk; without data, of a heartbeat."""
    return _HEADER.pack(log_offset, len(data)) + data


def is_report(first: bytes) -> bool:
    """Return whether the first bytes of a connection are a slave's: the end of its log is not negative."""
    return not first[0] >> 7


def begins_record(head: bytes, log_offset: int, segment_bytes: int | None) -> bool:
    """Return whether a record, or the filler up to its segment's end, begins with 36 bytes of a log offset."""
    if len(head) < SIZE_AND_MAGIC.size:
        return False
    size, magic = SIZE_AND_MAGIC.unpack_from(head)
    if magic == MAGIC_BLANK:
        return segment_bytes is not None and size == segment_bytes - log_offset % segment_bytes
    stated = int.from_bytes(head[_OFFSET_AT:_HEAD_BYTES], "big")
    return magic in (MAGIC_V1, MAGIC_V2) and len(head) >= _HEAD_BYTES and stated == log_offset


def _whole_records(data: memoryview) -> int:
    """Return the size of the whole records that fit into a chunk, else that of the first one; 0 if it is none."""
    stop, least = whole_end(data, CHUNK_BYTES), SIZE_AND_MAGIC.size
    if stop or len(data) < least:
        return stop or least
    size = int(SIZE_AND_MAGIC.unpack_from(data)[0])
    return size if size >= least else 0


class PlainMasterPeer(MasterEnd):
    """Serves one connection of a RocketMQ slave. Of several slaves at one host, the last one to connect counts."""

    other = "RocketMQ slave"
    remedy = ": clear the slave's store"

    def __init__(self, *given: Any, is_served: bool, **options: Any) -> None:
        super().__init__(*given, **options)
        self._is_served = is_served
        self._held = b""
        self._first: int | None = None
        # Where the slave was last, as far as is known.
        self._reached = 0
        # What is left of a record that is sent in pieces.
        self._rest = 0

    def _taken(self, data: bytes) -> Iterator[Action]:
        data = self._held + data
        stop = len(data) - len(data) % _REPORT.size
        self._held = data[stop:]
        for (log_offset,) in _REPORT.iter_unpack(data[:stop]):
            if self._first is None:
                self._first = log_offset
                yield from self._begin(log_offset)
            else:
                self._on_report(log_offset)
            if self.is_over:
                return

    def _begin(self, first: int) -> Iterator[Action]:
        log, visible = self._log, self._log.visible_offset
        self._store = f"{PROTOCOL} {self._address.rpartition(':')[0]}"
        self.position = first or visible - visible % log.segment_bytes
        if not self._is_served:
            text = "RocketMQ slaves are served only with replicate.ha.rocketmq_slaves = true"
            yield from self.end("refused", text)
        elif not 0 <= first <= visible:
            lost = "it has another log, or the master has lost the end of its own"
            text = f"the slave ends at {first}, and the master's log at {visible}: {lost}"
            yield from self.end("ahead", text)
        elif self.position < log.min_offset:
            yield from self._removed()
        elif self.position in (visible, visible - visible % log.segment_bytes):
            yield from self._serve()
        else:
            yield from self._read(_HEAD_BYTES)

    def _serve(self) -> list[Action]:
        self._reached = self.position
        # What it has before, and whether it is the same, is not known.
        self._copy = self._copies.join(self._store, self._address, self.position)
        self._sent_ms = self._now_ms
        return self.advanced()

    def _on_report(self, log_offset: int) -> None:
        copy = self._copy
        is_first = log_offset == self._first
        if is_first and (copy is None or (log_offset < self._reached and copy.received == NOTHING)):
            # It says again where it begins, or that it is still empty.
            return
        if copy is None or not self._reached <= log_offset <= self.position:
            span = f"from {self._reached} to {self.position}"
            raise WireViolation(f"a report of log offset {log_offset}, which is not {span}")
        self._reached = log_offset
        self._copies.acked(copy, log_offset, NOTHING)

    @property
    def is_behind(self) -> bool:
        """Whether the slave is served and has not reported all that is visible."""
        is_behind = self._reached < self._log.visible_offset
        return is_behind and self._copy is not None and not self.is_over

    def _have_read(self, data: bytes) -> list[Action]:
        if self._copy is not None:
            return self._send(memoryview(data))
        if begins_record(data, self.position, self._log.segment_bytes):
            return self._serve()
        todo = "restart it, so that it cuts off an incomplete record, or clear its store if its log is another one"
        text = f"the slave ends at {self.position}, within a record of the master's log: {todo}"
        return self.end("within", text)

    def _send(self, data: memoryview) -> list[Action]:
        actions: list[Action] = []
        segment = self._log.segment_bytes
        end = min(self._log.visible_offset, self.position - self.position % segment + segment)
        size = 0
        while data and 0 < (size := self._chunk_size(data, end - self.position)) <= len(data):
            actions.append(Send(chunk(self.position, data[:size])))
            self.position += size
            data = data[size:]
        if actions:
            self._sent_ms = self._now_ms
            return [*actions, *self.advanced()]
        if size:
            return self._read(size)
        text = f"the master's log has no record at {self.position}: run penstock verify on it"
        return self.end("corrupt", text)

    def _chunk_size(self, data: memoryview, left: int) -> int:
        """Return the size of the next chunk, even if more than `data`; 0 if no record of `left` bytes is there."""
        if not self._rest:
            size = _whole_records(data)
            if size <= min(CHUNK_BYTES_MAX, left):
                return size
            self._rest = size if size <= left else 0
        size = min(self._rest, CHUNK_BYTES, len(data))
        self._rest -= size
        return size

    def _heartbeat(self) -> list[Action]:
        return [] if self._copy is None else self._say(chunk(self.position))


class PlainFollowerPeer(Machine):
    """Follows a RocketMQ master over one connection.

    A store with records that was never a copy asks for its last segment once more, and compares it. Else nothing tells
    whether the two logs are equal. A chunk must begin where the last one ended, and what `Feed` appends must be whole
    records with a valid CRC that state their log offset. Nothing is changed, and no store created, before a record has
    begun where it must.

    Attributes:
        master_visible: where the master's log ended, as far as is known.
        heartbeats: how often the master had no more than that.
    """

    other = "RocketMQ master"

    def __init__(self, mine: Mine, **options: Any) -> None:
        super().__init__(**options)
        self._mine = mine
        replica = mine.replica
        self._was_copy = replica is not None and replica.protocol == PROTOCOL
        self._held = bytearray()
        # Of the first record, before the store is a copy.
        self._head = b""
        self._next = None if self._mine.is_new else mine.end_offset
        self._reported = mine.end_offset
        self._is_accepted = False
        # Of the last segment, if it is compared: the own digest, and the master's so far.
        self._own, self._theirs = b"", sha256()
        self._is_hashing = False
        self.master_visible = 0
        self.heartbeats = 0

    def start(self) -> list[Action]:
        """Return what to do when the connection is made."""
        mine, replica = self._mine, self._mine.replica
        if replica is None and mine.segment_bytes and not mine.is_empty:
            begin = mine.end_offset - 1 - (mine.end_offset - 1) % mine.segment_bytes
            # The master says nothing before the first report.
            self.is_deaf = self._is_hashing = True
            return [Hash(max(begin, mine.min_offset), mine.end_offset)]
        if replica is None or (replica.role == "follower" and replica.protocol in (None, PROTOCOL)):
            return self._heartbeat()
        was = "is a master" if replica.role == "master" else f"has followed a {replica.protocol} master"  # fmt: skip
        text = f"the store {was}, and the log of a RocketMQ master cannot be compared with its own; use an empty folder"
        return self.end("protocol", text, is_final=True)

    def hashed(self, start: int, _stop: int, digest: bytes | None) -> list[Action]:
        """Ask for the log from `start` on, whose SHA-256 is known now; None if retention has removed it."""
        if digest is None or self.is_over:
            return self.end("closing", "the copy has just removed what is compared")
        self.is_deaf = self._is_hashing = False
        self._own, self._next, self._reported = digest, start, start
        return self._heartbeat()

    def _compare(self, data: bytes) -> Iterator[Action]:
        """Compare bytes that the log here has, too; with the last of them, the store is a copy."""
        self._theirs.update(data)
        self._next = self.master_visible = (self._next or 0) + len(data)
        if self._next < self._mine.end_offset:
            return
        if self._theirs.digest() == self._own:
            self._was_copy = True
            yield from self._accept(self._next, b"")
        else:
            text = "the last segment here is another one than the master's: the two logs differ"
            yield from self.end("diverged", text, is_final=True, needs_copy=True)

    def _heartbeat(self) -> list[Action]:
        return [] if self._is_hashing else self._say(report(self._reported))

    def _taken(self, data: bytes) -> Iterator[Action]:
        held = self._held
        held += data
        while len(held) >= _HEADER.size and not self.is_over:
            log_offset, size = _HEADER.unpack_from(held)
            stop = _HEADER.size + size
            if log_offset < 0 or not 0 <= size <= CHUNK_BYTES_MAX:
                raise WireViolation(f"a chunk of log offset {log_offset} and {size} bytes")
            if len(held) < stop:
                return
            piece = bytes(held[_HEADER.size : stop])
            del held[:stop]
            yield from self._on_chunk(log_offset, piece)

    def _on_chunk(self, log_offset: int, data: bytes) -> Iterator[Action]:
        if self._is_hashing:
            raise WireViolation("a chunk before the first report")
        if self._next is None and data:
            self._next = log_offset
        if self._next not in (None, log_offset):
            yield from self._misplaced(log_offset)
        elif data and self._own and (known := self._mine.end_offset - log_offset) > 0:
            yield from self._compare(data[:known])
            if data[known:] and not self.is_over:
                yield from self._on_chunk(log_offset + known, data[known:])
        elif data:
            start, data = log_offset - len(self._head), self._head + data
            self._next = self.master_visible = start + len(data)
            if len(data) < _HEAD_BYTES and not (self._is_accepted or self._was_copy):
                self._head = data
                return
            self._head = b""
            yield from self._accept(start, data)
            if not self.is_over:
                yield Feed(start, data)
        else:
            self.master_visible = self._next or 0
            self.heartbeats += 1
            # It answers a position that it does not have, too: only a store that is a copy already is one by it.
            if self._was_copy:
                yield from self._accept(log_offset, data)

    def _misplaced(self, log_offset: int) -> list[Action]:
        mine = self._mine
        if self._is_accepted or not (mine.is_empty or self._own):
            raise WireViolation(f"data of log offset {log_offset} instead of {self._next}")
        text = f"the master's last file begins at {log_offset}, and the log here at {self._next}"
        return self.end("begin", text, is_final=True, needs_copy=True)

    def _accept(self, start: int, data: bytes) -> Iterator[Action]:
        mine, own = self._mine, self._mine.fresh_store
        if self._is_accepted:
            return
        if not self._was_copy and not begins_record(data, start, mine.segment_bytes):
            where = "" if self._mine.is_new else ", where the log here ends: the two logs differ"
            text = f"the master has no record at {start}{where}"
            yield from self.end("begin", text, is_final=True, needs_copy=not self._mine.is_new)
            return
        self._is_accepted = True
        # RocketMQ has no histories: this one is the copy's own.
        was = mine.replica or Replica(history=own * 2, store=own, role="follower")
        replica = attrs.evolve(was, master=mine.master, protocol=PROTOCOL)
        begin = FollowBegin(segment_bytes=None, log_offset=start) if self._mine.is_new else None
        # Penstock wrote none of it, as far as is known.
        ranges: dict[str, Any] = {"ranges": [], "perhaps": [], "gaps": []}
        yield Accept(replica=replica, ranges=ranges, begin=begin)

    def landed(self, received: int, _flushed: int) -> list[Action]:
        """Report that the own log ends at `received`, if it has grown."""
        if self.is_over or received <= self._reported:
            return []
        self._reported = received
        return self._heartbeat()
