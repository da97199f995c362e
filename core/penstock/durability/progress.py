"""How far a store is durable: RocketMQ's file `checkpoint`, and Penstock's own `penstock/progress`.

`checkpoint` has store times up to which the parts of a store are durable. Layout (big-endian, 4096 bytes, the rest
zero)::

    0 physicMsgTimestamp i64   8 logicsMsgTimestamp i64   16 indexMsgTimestamp i64
    24 masterFlushedOffset i64   32 confirmPhyOffset i64   (both 0: see `penstock.durability.replica_file`)

Every record up to the first time is durable in the log, up to the second in the queues, up to the third in the index.
A time that is too early only makes recovery start earlier; one that is too late loses entries. So a time is written
only after the sync of the files it describes. Not checksummed, because the Java store reads the values directly.
Source: spec section 5.

`progress` has two slots of 512 bytes, written alternately, each with a sequence number and a CRC; the valid slot with
the higher number counts. The file is written after every flush, without a sync: its offset is exact after a crash of
the process, and may be too small after a crash of the machine. It is synced with the checkpoint. Layout (big-endian)::

    slot := magic 8s  sequence u64  flushed_offset i64  visible_offset i64  lock_mtime_ns i64
            last_time_ms i64  failed i32  count i32  (name 24s  offset i64){count}  zero*
            lock_inode u64  lock_ctime_ns i64  crc32 u32   # the last 20 bytes

No record below `flushed_offset` has a later store time than `last_time_ms`.
`visible_offset` is for readers in other processes: below it, queues and index have every record.
A dispatcher that the last opening left out has the item -1 - offset: below that offset, its files are durable and the
log has not changed since. Its files may have records from there on that the log has lost.

Every value is only a lower bound, so losing `progress` costs time at the next open, never data.
`lock_mtime_ns` shows whether another program, such as the Java store, has locked the store since: every program writes
to the lock file when it starts. Then no value of the file is used. `lock_ctime_ns`, which no program can set, shows
whether the store is a copy: the log may have been copied before the progress file, whose offsets are too large then.
`lock_inode` distinguishes a copy that was made without file times from a store that another program opened.

Another process may read the file while it is written: a half-written slot is read again.
"""

import struct
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

import attrs

from penstock._kernel import SyncGate
from penstock.errors import FormatVersionError
from penstock.files import File, Files
from penstock.format.names import SIDE_FOLDER
from penstock.format.record import crc32

CHECKPOINT_BYTES = 4096
_TIMES = struct.Struct(">qqqqq")


class Times(NamedTuple):
    """The three times in Unix milliseconds; 0 means not known."""

    log_ms: int = 0
    queues_ms: int = 0
    index_ms: int = 0


class Checkpoint:
    """The checkpoint file of a store opened for writing. One writer."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self._path = root / "checkpoint"

    def read(self) -> Times:
        """Return the times; zeros where the file is missing or too short to hold them."""
        if not self._files.exists(self._path):
            return Times()
        data = self._files.read_whole(self._path)
        if len(data) < _TIMES.size:
            return Times()
        return Times(*(max(0, value) for value in _TIMES.unpack_from(data)[:3]))

    def write(self, times: Times) -> None:
        """Write the times and make them durable."""
        if not self._files.exists(self._path):
            self._files.write_whole(self._path, bytes(CHECKPOINT_BYTES))
        with self._files.open(self._path, writable=True) as file:
            if file.size < CHECKPOINT_BYTES:
                file.resize(CHECKPOINT_BYTES)
            file.pwrite(_TIMES.pack(*times, 0, 0), 0)
            file.sync()


_MAGIC = b"PSTKPRG3"
_SLOT_BYTES = 512
_HEAD = struct.Struct(">8sQqqqqii")
_ITEM = struct.Struct(">24sq")
_CRC = struct.Struct(">I")
_TAIL = struct.Struct(">QqI")
# Reads that find a half-written slot are repeated this often; a slot is written in one call, so the next read is
# complete.
_READS_MAX = 4
_ITEMS_MAX = (_SLOT_BYTES - _HEAD.size - _TAIL.size) // _ITEM.size


@attrs.define(kw_only=True)
class State:
    """The content of the progress file."""

    flushed_offset: int = 0
    visible_offset: int = 0
    lock_mtime_ns: int = 0
    last_time_ms: int = 0
    lock_ctime_ns: int = 0
    lock_inode: int = 0
    failed: bool = False
    dispatched: dict[str, int] = attrs.Factory(dict)
    left_out: dict[str, int] = attrs.Factory(dict)

    def without(self, names: Collection[str], changed_from: int) -> dict[str, int]:
        """Return `left_out` for an opening without all dispatchers but `names`; the log changed from that offset on."""
        known = {**self.left_out, **self.dispatched}
        return {name: min(at, changed_from) for name, at in known.items() if name not in names}


def encode_slot(state: State, sequence: int) -> bytes:
    """Return the bytes of one slot."""
    items = sorted(state.dispatched.items())
    items += [(name, -1 - offset) for name, offset in sorted(state.left_out.items())]
    items = items[:_ITEMS_MAX]
    head = _HEAD.pack(
        _MAGIC,
        sequence,
        state.flushed_offset,
        state.visible_offset,
        state.lock_mtime_ns,
        state.last_time_ms,
        state.failed,
        len(items),
    )
    body = head + b"".join(_ITEM.pack(name.encode()[:24], offset) for name, offset in items)
    body = body.ljust(_SLOT_BYTES - _TAIL.size, b"\0")
    body += struct.pack(">Qq", state.lock_inode, state.lock_ctime_ns)
    return body + _CRC.pack(crc32(body))


def decode_slot(data: bytes, path: Path) -> tuple[int, State] | None:
    """Return sequence and state of a valid slot, or None; raises `FormatVersionError` for an unknown magic."""
    if len(data) != _SLOT_BYTES or _CRC.unpack(data[-_CRC.size :])[0] != crc32(data[: -_CRC.size]):
        return None
    if not data.startswith(_MAGIC):
        raise FormatVersionError(path, data[:8].decode("ascii", "replace"), _MAGIC.decode())
    _, sequence, flushed, visible, mtime, time_ms, failed, count = _HEAD.unpack_from(data)
    dispatched, left_out = dict[str, int](), dict[str, int]()
    for index in range(min(max(count, 0), _ITEMS_MAX)):
        packed, offset = _ITEM.unpack_from(data, _HEAD.size + index * _ITEM.size)
        name = packed.rstrip(b"\0").decode("utf-8", "replace")
        if offset < 0:
            left_out[name] = -1 - offset
        else:
            dispatched[name] = offset
    lock_inode, lock_ctime_ns, _ = _TAIL.unpack_from(data, _SLOT_BYTES - _TAIL.size)
    state = State(
        flushed_offset=flushed,
        visible_offset=visible,
        lock_mtime_ns=mtime,
        last_time_ms=time_ms,
        lock_ctime_ns=lock_ctime_ns,
        lock_inode=lock_inode,
        failed=bool(failed),
        dispatched=dispatched,
        left_out=left_out,
    )
    return sequence, state


class Progress:
    """The progress file of a store opened for writing. Safe from any thread."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self._path = root / SIDE_FOLDER / "progress"
        self._sequence = 0
        self._lock = threading.Lock()
        self._file: File | None = None
        self._gate: SyncGate | None = None
        self.state = State()

    @property
    def sequence(self) -> int:
        """The sequence number of the slot that was read or written last; 0 if there is none."""
        return self._sequence if self._gate is None else self._gate.sequence

    def read(self) -> State:
        """Read the file into `state` and return it; `state` is not changed if there is no valid slot."""
        for _ in range(_READS_MAX):
            if self._read_once():
                break
        return self.state

    def _read_once(self) -> bool:
        """Read the newest valid slot into `state`; return False if a slot may be half written."""
        if not self._files.exists(self._path):
            return True
        data = self._files.read_whole(self._path)
        parts = [data[at : at + _SLOT_BYTES] for at in (0, _SLOT_BYTES)]
        slots = [decode_slot(part, self._path) for part in parts]
        for slot in slots:
            if slot is not None and slot[0] > self._sequence:
                self._sequence, self.state = slot
        return all(
            slot is not None or not part.strip(b"\0")
            for slot, part in zip(slots, parts, strict=True)
        )

    def replace(self, state: State) -> None:
        """Reinitialise the file with a state, durably, discarding its content."""
        assert self._file is None
        self.state, self._sequence = state, 1
        self._files.write_whole(self._path, bytes(_SLOT_BYTES) + encode_slot(state, 1))

    def write(self) -> None:
        """Write the state. It survives a crash of this process; after `sync`, also a crash of the machine."""
        with self._lock:
            file = self._open_file()
            if self._gate is not None:
                self._gate.write_mark(encode_slot(self.state, 0))
                return
            self._sequence += 1
            slot = encode_slot(self.state, self._sequence)
            try:
                file.pwrite(slot, self._sequence % 2 * _SLOT_BYTES)
            except BaseException:
                # The slot may be torn, so it is the next one, too, and the other stays whole.
                self._sequence += 1
                raise

    def publish(self, visible_offset: int) -> None:
        """Set the visible offset and write the state, as `write` does.

        It is written for nearly every message that a reader waits for, and encoding a slot takes longer than writing
        it.
        """
        before, self.state.visible_offset = self.state.visible_offset, visible_offset
        try:
            if self._gate is None:
                self.write()
            else:
                with self._lock:
                    self._gate.mark_visible(visible_offset)
        except OSError:
            # Not published yet: a caller that tries again must not take it for done.
            self.state.visible_offset = before
            raise

    def _open_file(self) -> File:
        if self._file is None:
            if not self._files.exists(self._path):
                self._files.write_whole(self._path, bytes(2 * _SLOT_BYTES))
            self._file = self._files.open(self._path, writable=True)
        return self._file

    def share(self, gate: SyncGate, wake: Callable[[], object] | None = None) -> None:
        """Start a gate, and write through it from now on: it writes after each sync, with the latest flushed offset."""
        with self._lock:
            descriptor = self._open_file().descriptor
            mark = self._pwrite if descriptor is None else descriptor
            gate.start(self._sequence, mark, wake, encode_slot(self.state, 0))
            self._gate = gate
        self.write()

    def _pwrite(self, slot: bytes, position: int) -> None:
        self._open_file().pwrite(slot, position)

    def record_failure(self, durable_offset: int) -> None:
        """Record that the store has failed, and is durable up to an offset; a gate records that by itself."""
        if self._gate is None:
            self.state.failed = True
            self.state.flushed_offset = min(self.state.flushed_offset, durable_offset)
            self.write()

    def sync(self) -> None:
        """Write the state and make it durable."""
        self.write()
        assert self._file is not None
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
