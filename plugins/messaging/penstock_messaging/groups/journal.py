"""The journal of a queue, as its owner writes it: what its group has acknowledged, refused and skipped.

The layout is that of `entries`. Invariants:
    * Only the holder of the queue's lock writes. It writes a new file when it takes the queue, which replaces the one
      before by a rename, and again when the file has grown to `BYTES_MAX`.
    * The file is synced before it gets its name, and the name before anything is appended. So whatever an earlier owner
      left behind a torn entry, or wrote without success, is out of reach.
    * Entries are appended to blocks into which zeros were written before, so that a sync writes bytes and no metadata.
    * After a failed write or sync nothing more is appended: nothing is known about the bytes then.
"""

import errno
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs

from penstock.errors import LostQueueError, StorageError
from penstock.escape import shown
from penstock.files import File, Files
from penstock.files.lock_file import leave_in_child
from penstock.format.arrays import np
from penstock.format.hashes import crc32c
from penstock_messaging.groups.entries import (
    BODY,
    CRC,
    ENTRY,
    ENTRY_BYTES,
    Entries,
    EntryKind,
    encode,
    valid_entries,
)
from penstock_messaging.groups.fold import Fold, Nack, Range, ranges_of

# A new file: room for some hundred entries. Then the file doubles, up to steps of `_STEP_MAX`.
_ROOM_MIN = 16 << 10
_STEP_MAX = 256 << 10
# After this many bytes the state is written to a new file: 65,536 entries, which are read in some 50 ms.
BYTES_MAX = 8 << 20
# How much is folded at a time: some milliseconds.
_FOLD_BYTES = 16 << 10
# Refusals that wait for a writer: each is an entry of every new file until it is taken in. A file of these is read by a
# writer in a second and retried in half a minute, and twice its size is below `position.JOURNAL_BYTES_MAX`.
REFUSALS_MAX = 100_000
_ZEROS = bytes(_STEP_MAX)
# What the field of an entry holds.
_COUNT_MAX = (1 << 32) - 1
_EVENTS = (EntryKind.NACK, EntryKind.RESET)
_FORKED = "its process was forked, and the queue stays with the parent process"


@attrs.frozen
class Head:
    """The fields that all entries of a file share; see `entries`."""

    store: int
    generation: int
    epoch: int
    seen: int | None
    moved: bool = False


def entries_of(head: Head, state: Fold, first: int = 1) -> list[bytes]:
    """Return the entries of a new file with a state; its first entry has the sequence `first`."""
    made: list[bytes] = []

    def add(kind: EntryKind, base: int = 0, **fields: Any) -> None:
        made.append(
            encode(
                kind, store=head.store, generation=head.generation, epoch=head.epoch,
                sequence=first + len(made), base=base, **fields,
            )
        )  # fmt: skip

    def add_refusals(nacks: Iterable[Nack]) -> None:
        for n in nacks:
            add(
                EntryKind.NACK,
                offset=n.offset,
                count=n.ended,
                level=n.level,
                tries=n.tries,
                number=n.number,
                reason=n.reason,
            )

    nacks = sorted(state.nacks.values())
    seen = -1 if head.seen is None else head.seen
    add(EntryKind.CLAIM, offset=seen, count=int(head.moved), number=state.number)
    add_refusals(nack for nack in nacks if nack.number <= state.reset)
    if state.reset:
        add(EntryKind.RESET, offset=state.base, number=state.reset)
    add_refusals(nack for nack in nacks if nack.number > state.reset)
    add(EntryKind.BASE, state.base)
    for offset, count in split(state.acked):
        add(EntryKind.ACK, state.base, offset=offset, count=count)
    for offset, tries in sorted(state.tries.items()):
        add(
            EntryKind.RETRY, state.base, offset=offset, tries=tries, level=int(offset in state.died)
        )
    for offset, count in split(ranges_of(sorted(state.out))):
        add(EntryKind.OUT, state.base, offset=offset, count=count)
    return made


def split(ranges: Iterable[Range]) -> Iterator[tuple[int, int]]:
    """Return ranges as (offset, count), none longer than an entry can say."""
    for first, end in ranges:
        for offset in range(first, end, _COUNT_MAX):
            yield offset, min(end - offset, _COUNT_MAX)


class Journal:
    """The journal of one queue, open for appending by its owner. Safe from any thread."""

    def __init__(
        self, files: Files, path: Path, place: tuple[str, int], head: Head, state: Fold,
        taken: Callable[[], int],
    ) -> None:  # fmt: skip
        """Write a new file with a state, durably.

        `taken` returns up to which event the writer has taken the journal in; it raises `LostQueueError` if the journal
        does not count any more.
        """
        self._files = files
        self._path = path
        self._place = place
        self.head = head
        self._taken = taken
        self._process = files.process_id()
        # Held while entries are appended, and while a sync runs; a new file needs both, in this order.
        self._appends, self._syncs = threading.Lock(), threading.Lock()
        self._refusal: Exception | None = None
        self._sequence = self._synced = self._position = self._room = 0
        self._number = state.number
        # How many refusals the file has, which were taken in when it was begun, and when to begin the next.
        self._refusals = self._taken_then = self._bytes_max = 0
        # The state that the first `_folded` bytes of the file describe, and the last entry of them.
        self._folding = threading.Lock()
        self._state: Fold | None = None
        self._last: Entries | None = None
        self._folded = 0
        self._file = self._write(state)
        leave_in_child(self)

    # --- appending

    def append(
        self, kind: int, offset: int, count: int, base: int, level: int = 0, tries: int = 0,
        reason: bytes = b"",
    ) -> int:  # fmt: skip
        """Append one entry; return its ticket for `sync`.

        Raises:
            LostQueueError: the queue is lost.
            StorageError: the disk is full or has failed, or too many refusals wait; this one was not recorded.
        """
        with self._appends:
            # The last entry of an owner has room that no other one has used, also on a disk that is full.
            self._make_ready(ENTRY_BYTES if kind == EntryKind.FREE else 2 * ENTRY_BYTES)
            number = 0
            if kind == EntryKind.NACK:
                self._make_room_for_refusal()
            if kind in _EVENTS:
                # Used up even if the write is interrupted: the writer may have seen the entry.
                number = self._number = self._number + 1
            head, sequence = self.head, self._sequence + 1
            body = BODY.pack(
                head.store, head.generation, sequence, offset, count, head.epoch, kind, level, tries, base, number,
                reason,
            )  # fmt: skip
            self._put(body + CRC.pack(crc32c(body)))
            self._position += ENTRY_BYTES
            self._sequence = sequence
            self._refusals += kind == EntryKind.NACK
            return sequence

    def append_ranges(self, ranges: Iterable[Range], base: int, kind: int = EntryKind.ACK) -> int:
        """Append an entry for each range in one write; return the ticket of the last one."""
        parts = list(split(ranges))
        size = len(parts) * ENTRY_BYTES
        with self._appends:
            self._make_ready(size + ENTRY_BYTES)
            head, sequence = self.head, self._sequence
            made = []
            for offset, count in parts:
                sequence += 1
                made.append(
                    encode(
                        kind, store=head.store, generation=head.generation, epoch=head.epoch,
                        sequence=sequence, base=base, offset=offset, count=count,
                    )
                )  # fmt: skip
            self._put(b"".join(made))
            self._position += size
            self._sequence = sequence
            return sequence

    def has_refused(self, offset: int) -> bool:
        """Return whether the last event is the refusal of a message, also one whose append an interrupt has cut off.

        Entries are then appended after it, since the writer may have taken it in.
        """
        with self._appends:
            if self._refusal is not None:
                return False
            raw = self._file.pread(2 * ENTRY_BYTES, self._position - ENTRY_BYTES)
            last = np.frombuffer(raw, ENTRY, count=1)
            uncounted = valid_entries(raw[ENTRY_BYTES:], last)
            entry = (uncounted if len(uncounted) else last)[0]
            found = int(entry["kind"]), int(entry["offset"]), int(entry["number"])
            is_refused = found == (EntryKind.NACK, offset, self._number)
            if is_refused and len(uncounted):
                self._position += ENTRY_BYTES
                self._sequence += 1
                self._refusals += 1
            return is_refused

    def _make_ready(self, size: int) -> None:
        """Ensure that the next `size` bytes can be written; begins a new file if this one is full."""
        if self._refusal is not None or self._files.process_id() != self._process:
            raise self._refused()
        if self._position + size <= self._room:
            return
        if self._position + size > self._bytes_max:
            self._begin_anew()
        while self._position + size > self._room:
            self._grow()

    def _make_room_for_refusal(self) -> None:
        if self._refusals < REFUSALS_MAX:
            return
        if self._taken() > self._taken_then:
            self._begin_anew()
            self._make_ready(2 * ENTRY_BYTES)
        if self._refusals >= REFUSALS_MAX:
            topic, queue = self._place
            raise StorageError(
                f"queue {queue} of topic {shown(topic)} has {self._refusals:,} refused messages that wait to be "
                "retried, since no process has the store open for writing: this message was not refused, and all "
                "earlier answers are recorded; acknowledge it, release it, or open the store for writing, which "
                "retries them"
            )

    def _grow(self) -> None:
        more = min(self._room, _STEP_MAX)
        try:
            self._file.pwrite_pieces(memoryview(_ZEROS)[:more], self._room)
        except OSError as error:
            # Zeros after the last entry change nothing: the next call tries again.
            raise StorageError(
                f"{self._path} cannot grow ({error}): the answer was not recorded, and all earlier ones are; free "
                "space, and answer again"
            ) from error
        self._room += more

    def _put(self, data: bytes) -> None:
        try:
            self._file.pwrite(data, self._position)
        except OSError as error:
            raise self._failed(error) from error

    # --- syncing

    def sync(self, ticket: int) -> None:
        """Return when everything up to a ticket is durable; threads that call this at the same time share a sync.

        Raises:
            LostQueueError: the file is not the queue's journal any more, so nobody will read what was appended.
            StorageError: the disk has failed; nothing more can be appended, and the queue must be handed back.
        """
        if ticket <= self._synced:
            return
        with self._syncs:
            if ticket <= self._synced:
                return
            if self._refusal is not None or self._files.process_id() != self._process:
                raise self._refused()
            last = self._sequence
            try:
                self._file.sync()
                self._check_name()
            except OSError as error:
                raise self._failed(error) from error
            self._synced = last
        self._fold_ahead()

    def _check_name(self) -> None:
        """Raise `LostQueueError` if the file is not the queue's journal any more."""
        if self._files.inode(self._path) != self._file.inode:
            self.refuse("another owner has replaced its journal, or the group was deleted")
            raise self._refused()

    def close(self) -> None:
        """Make everything durable, free the unused space, and close the file; raises as `sync` does."""
        with self._appends:
            if self._refusal is None:
                with self._syncs:
                    try:
                        self._file.resize(self._position)
                        self._file.sync_all()
                    except OSError as error:
                        raise self._failed(error) from error
                    self._synced = self._sequence
                self.refuse("it was handed back to the group")
            # A sync that began before the refusal, and a fold, still use the file.
            with self._syncs, self._folding:
                self._file.close()

    # --- refusing

    @property
    def number(self) -> int:
        """The number of the last event."""
        return self._number

    @property
    def refusal(self) -> Exception | None:
        """Why nothing more can be appended; None if it can."""
        return self._refusal

    def refuse(self, reason: str) -> None:
        """Raise `LostQueueError` with this reason from now on; the first reason stays."""
        if self._refusal is None:
            self._refusal = LostQueueError(*self._place, reason)

    def leave(self) -> None:
        """Close the file in a forked child, without waiting for locks, which a thread of the parent may have held."""
        self.refuse(_FORKED)
        self._file.close()

    def _refused(self) -> Exception:
        if self._files.process_id() != self._process:
            self.refuse(_FORKED)
        known = self._refusal
        if isinstance(known, LostQueueError):
            # A new object: an exception that is raised in multiple threads collects all their tracebacks.
            return LostQueueError(known.topic, known.queue, known.reason)
        return StorageError(str(known))

    def _failed(self, error: OSError) -> Exception:
        if self._refusal is None:
            self._refusal = StorageError(
                f"{self._path} could not be written ({error}): the answer may not be recorded, and the queue is handed "
                "back; messages without a recorded answer are redelivered"
            )
        return self._refused()

    # --- new files

    def _begin_anew(self) -> None:
        """Write the state to a new file, without the entries that no longer matter."""
        with self._syncs, self._folding:
            old = self._file
            try:
                self._check_name()
                state = self._read_back()
                self._taken_then = self._taken()
                state.take_in(self._taken_then)
                state.number = self._number
                self._file = self._write(state)
            except LostQueueError as error:
                self._refusal = error
                raise
            except OSError as error:
                raise self._failed(error) from error
            old.close()

    def _read_back(self) -> Fold:
        # The second time from the beginning: an interrupt may have cut off the folding before.
        for _ in range(2):
            self._fold(self._position)
            state, folded = self._state, self._folded
            # The caller changes it, and another file begins.
            self._state, self._folded, self._last = None, 0, None
            if state is not None and folded == self._position:
                return state
        raise OSError(errno.EIO, "its entries cannot be read back")

    def _fold_ahead(self) -> None:
        """Fold what was appended, without holding up who appends: little is left to do when a new file is begun."""
        if self._position - self._folded < _FOLD_BYTES or not self._folding.acquire(blocking=False):
            return
        try:
            # With the lock, `_begin_anew` does not go over to another file, nobody closes it, and what is before the
            # position is written.
            if self._refusal is None:
                self._fold(self._position)
        except OSError:
            # The next new file needs it, and says so.
            self._state, self._folded, self._last = None, 0, None
        finally:
            self._folding.release()

    def _fold(self, end: int) -> None:
        raw = self._file.pread(end - self._folded, self._folded)
        entries = valid_entries(raw, self._last)
        if not len(entries):
            return
        if self._state is None:
            self._state = Fold.of(entries)
        else:
            self._state.apply(entries)
        self._folded += len(entries) * ENTRY_BYTES
        self._last = entries[-1:].copy()

    def _write(self, state: Fold) -> File:
        """Write a new file durably in place of the last one; return it, open for appending."""
        entries = entries_of(self.head, state, self._sequence + 1)
        data = b"".join(entries)
        room = len(data) + ENTRY_BYTES
        room += -room % _ROOM_MIN
        fresh = self._path.with_name(self._path.name + ".new")
        if self._files.exists(fresh):
            self._files.remove(fresh)
        file = self._files.create(fresh)
        try:
            file.pwrite_pieces(data.ljust(room, b"\0"), 0)
            file.sync_all()
            self._files.rename(fresh, self._path)
            # Errors name the file by it.
            file.path = self._path
            self._files.sync_folder(self._path.parent)
        except BaseException:
            file.close()
            raise
        self._sequence += len(entries)
        self._synced, self._position, self._room = self._sequence, len(data), room
        self._refusals = len(state.nacks)
        # A large state is not written again with every entry.
        self._bytes_max = max(BYTES_MAX, 2 * len(data))
        return file
