"""Waking: how readers that wait for messages are notified, in the writing process and in those that read its store.

The file `penstock/wake` has a word on which the readers sleep; `_kernel/system.h` describes how the word changes. Two
more are for the other direction: background work of the writer sleeps on them, and any process wakes it. Layout (native
order, little-endian)::

    file := magic 8s  boot 40s  zero[16]  { word i32  zero[60]  aside i32  zero[60] } * 3  zero*      # 4096 bytes

Invariants:
    * The file affects only how long a reader sleeps. Wrong or missing content costs some milliseconds, never a
      message; so the file has no checksum and is never synced.
    * A writer keeps a valid file, and recreates an invalid one. The file is not deleted at the close, so that the next
      writer also wakes the readers that sleep on it.
    * The writer wakes readers after the dispatched messages are published. Readers request a wake, then check
      for messages.
    * A waiting reader checks again by itself: after a quarter of a second if wakes arrive, else after short sleeps.
      Wakes do not arrive if the writer is on another machine or does not know the file, or if this process cannot
      write the file (a read-only mount, another user's store).

The memory is accessed only through system calls (see `WakeWord`), so a truncated file does not kill a process: readers
get an error, and the writer wakes nobody through the file until the next opening.
"""

import contextlib
import errno
import time
from pathlib import Path

from penstock._kernel import WakeWord
from penstock.escape import get_logger
from penstock.files import File, Files
from penstock.format.names import SIDE_FOLDER

logger = get_logger(__name__)

SIZE = 4096
_MAGIC, _BOOT_SIZE = b"PSTKWAKE", 40
# Where a word is, and the one aside of it: for readers, for work of extensions, for requests of other processes.
MESSAGES, WORK, REQUESTS = (64, 128), (192, 256), (320, 384)
# The pause between two checks if wakes arrive. A reader waits this long only if the writer was killed during a wake.
_LONG_S = 0.25
# The pauses between two checks if no wakes arrive; they grow while no message arrives.
_SHORT_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
# The longest pause of background work: a wake file that was removed is noticed after it.
_WORK_REST_S = 10.0
# A writer wakes once a round, so between setting the bit and reading it there is one wake, rarely more.
_TRIES_MAX = 100
# After this many wakes in a row for other readers' messages, the reader pauses before the next check, each time longer.
_IN_VAIN_MAX, _VAIN_REST_MAX_S = 3, 0.01


Word = tuple[int, int]


class WakeMap:
    """The words of one store, mapped. Safe from any thread.

    Methods that take `word` are about readers that wait for messages (`MESSAGES`), or about background work of the
    writer (`WORK`, `REQUESTS`).

    Attributes:
        is_of_this_boot: whether a writer on this machine has opened the store since the machine was booted.
    """

    def __init__(self, files: Files, file: File | None) -> None:
        self._file = file
        memory = files.memory(SIZE) if file is None else file.map(SIZE, writable=True)
        descriptor = None if file is None else file.descriptor
        self._words = {
            each: WakeWord(memory, *each, -1 if descriptor is None else descriptor)
            for each in (MESSAGES, WORK, REQUESTS)
        }
        head = _head(files)
        is_known = head.strip(b"\0") != _MAGIC
        self.is_of_this_boot = file is None or (is_known and file.pread(len(head), 0) == head)

    @classmethod
    def find(cls, files: Files, path: Path) -> "WakeMap | None":
        """Return the map of the file at `path`; None unless there is a valid file that this process may write."""
        file = _open(files, path)
        return None if file is None else cls(files, file)

    @classmethod
    def make(cls, files: Files, path: Path) -> "WakeMap":
        """Return the map of the writer's file; if the file cannot be written, of memory private to this process."""
        head = _head(files)
        try:
            file = _open(files, path)
            if file is not None:
                file.pwrite(head, 0)
                return cls(files, file)
            if files.exists(path):
                files.remove(path)
            file = files.create(path)
            file.pwrite(head.ljust(SIZE, b"\0"), 0)
            return cls(files, file)
        except OSError as error:
            logger.warning(
                "%s cannot be used (%s); messages are not affected: readers in other processes check for new ones "
                "every 50 ms instead of being woken", path, error,
            )  # fmt: skip
            return cls(files, None)

    @property
    def inode(self) -> int:
        """The file's inode number; 0 if there is no file."""
        return 0 if self._file is None else self._file.inode

    def ask(self, word: Word = MESSAGES) -> int:
        """Request that the next wake changes the word; return its value. Raises `OSError` if the file is truncated."""
        for _ in range(_TRIES_MAX):
            self._words[word].ask()
            seen = self._read(word)
            # Even if a wake came in between.
            if seen & 1:
                return seen
        raise OSError(errno.EAGAIN, "the wake word changes each time it is set")

    def _read(self, word: Word) -> int:
        if self._file is None:
            return self._words[word].read()
        data = self._file.pread(4, word[0])
        if len(data) < 4:  # noqa: PLR2004 - the word's own size
            # Truncated within a page that is still mapped: a value set in that page is not in the file.
            raise OSError(errno.EIO, "the wake file is truncated")
        return int.from_bytes(data, "little", signed=True)

    def sleep(self, seen: int, at_most_s: float, word: Word = MESSAGES) -> bool:
        """Return True when the word differs from `seen`, False after `at_most_s` seconds."""
        return self._words[word].sleep(seen, int(at_most_s * 1e9))

    def wake(self, *, always: bool = False, word: Word = MESSAGES) -> bool:
        """Wake all that wait; return whether there were any: see `WakeWord`."""
        return self._words[word].wake(always=always)

    def close(self) -> None:
        """Close the file; a reader that still sleeps soon checks again, and finds the store closed."""
        if self._file is not None:
            self._file.close()


class Wakes:
    """The wake file of one open store, for its writer or its readers. Safe from any thread."""

    def __init__(self, files: Files, root: Path, *, writes: bool = False) -> None:
        self._files, self._path = files, root / SIDE_FOLDER / "wake"
        self._writes = writes
        self._map = WakeMap.make(files, self._path) if writes else None
        if self._map is not None:
            # A killed writer may have published messages without waking the readers.
            self._map.wake(always=True)

    def wake(self, *, always: bool = False) -> bool:
        """Wake all waiting readers, after the messages are published; return whether there were any."""
        assert self._writes
        return self._map is not None and self._map.wake(always=always)

    def interrupt(self) -> None:
        """Wake all waiting readers, as the writer does, from any process that may write the file."""
        known = self.map()
        if known is not None:
            with contextlib.suppress(OSError):
                known.wake(always=True)

    def map(self) -> WakeMap | None:
        """Return the map whose word to wait on; None if there is none yet."""
        if self._map is None:
            self._map = WakeMap.find(self._files, self._path)
        return self._map

    def look_again(self) -> None:
        """Drop the map if its file is no longer the store's wake file; the writer keeps its own."""
        known = self._map
        if known is not None and not self._writes and known.inode != self._inode():
            self._map = None

    def _inode(self) -> int:
        try:
            return self._files.inode(self._path)
        except OSError:
            return 0

    def lose(self) -> None:
        """Drop a map that cannot be used; the writer keeps its own."""
        if not self._writes:
            self._map = None

    def close(self) -> None:
        """Wake this process's readers, which then find the store closed; close the file."""
        if self._map is not None:
            if self._writes:
                self._map.wake(always=True)
            self._map.close()


class Waiter:
    """Waiting of one reader: `ask`, then a check for messages, then `rest` or `go_on`. Not thread-safe."""

    def __init__(self, wakes: Wakes) -> None:
        self._wakes = wakes
        self._map: WakeMap | None = None
        self._seen = 0
        # Whether wakes arrive; None while that is not known.
        self._arrive: bool | None = None
        self._was_woken = self._has_rested = False
        self._looks = self._vain = 0

    def ask(self) -> None:
        """Call before a check: a message that is published after the check then ends `rest`."""
        self._map = self._wakes.map()
        try:
            if self._map is not None:
                self._seen = self._map.ask()
                if self._arrive is None:
                    self._arrive = self._map.is_of_this_boot
        except OSError:
            self._map = None
            self._wakes.lose()

    def go_on(self) -> None:
        """Call after a check that found something."""
        if self._has_rested and not self._was_woken:
            # A message without a wake: wakes do not arrive. If it was only just written, the next wake corrects this.
            self._arrive = False
        self._has_rested = False
        self._looks = self._vain = 0

    def interrupt(self) -> None:
        """End `rest` of every thread and process that waits for this store's messages. Safe from any thread."""
        self._wakes.interrupt()

    def rest(self, at_most_s: float | None = None) -> bool:
        """Call after a check that found nothing: return when there may be something, or after `at_most_s` seconds.

        Returns whether it was woken.
        """
        self._vain = self._vain + 1 if self._has_rested and self._was_woken else 0
        short_s = _SHORT_S[min(self._looks, len(_SHORT_S) - 1)]
        self._looks += 1
        self._has_rested = True
        pause_s = _LONG_S if self._arrive else short_s
        self._was_woken = self._sleep(pause_s if at_most_s is None else min(pause_s, at_most_s))
        if self._was_woken:
            self._arrive = True
            if self._vain >= _IN_VAIN_MAX:
                time.sleep(min(short_s, _VAIN_REST_MAX_S))
        else:
            self._wakes.look_again()
        return self._was_woken

    def _sleep(self, at_most_s: float) -> bool:
        """Sleep until a wake; return False after `at_most_s` seconds."""
        if self._map is None:
            time.sleep(min(at_most_s, _SHORT_S[-1]))
            return False
        try:
            return self._map.sleep(self._seen, at_most_s)
        except OSError:
            self._wakes.lose()
            time.sleep(_SHORT_S[0])
            return False


class WorkWaiter:
    """Waking background work in the writing process, from any process (`contracts.WorkWakes`). Safe from any thread."""

    def __init__(self, wakes: Wakes, word: Word = WORK) -> None:
        self._wakes = wakes
        self._word = word
        self._map: WakeMap | None = None
        self._seen = 0

    def ask(self) -> bool:
        """Call before a look for work: a `wake` after it then ends `rest`. Return False if wakes do not arrive."""
        self._map = self._wakes.map()
        try:
            if self._map is not None:
                self._seen = self._map.ask(self._word)
        except OSError:
            self._map = None
        return self._map is not None

    def go_on(self) -> None:
        """Call after a look that found work: wakes do not end the next pause."""
        self._map = None

    def rest(self, at_most_s: float | None = None) -> bool:
        """Return after a `wake` since `ask`, or `at_most_s` seconds; return False at once if wakes do not arrive."""
        known, self._map = self._map, None
        if known is None:
            return False
        try:
            known.sleep(self._seen, _WORK_REST_S if at_most_s is None else at_most_s, self._word)
        except OSError:
            return False
        return True

    def wake(self, *, always: bool = False) -> None:
        """Call after work was made: end `rest` in the writing process; with `always`, also if it has not asked."""
        try:
            known = self._wakes.map()
            if known is not None:
                known.wake(always=always, word=self._word)
        except OSError:
            self._wakes.lose()


def _open(files: Files, path: Path) -> File | None:
    """Return the file if it is valid and this process may write it, else None."""
    try:
        if not files.exists(path):
            return None
        file = files.open(path, writable=True)
        return file if file.size == SIZE and file.pread(len(_MAGIC), 0) == _MAGIC else None
    except OSError:
        return None


def _head(files: Files) -> bytes:
    """Return the first bytes of a file that a writer has opened since this machine was booted."""
    return _MAGIC + files.boot_id()[:_BOOT_SIZE].ljust(_BOOT_SIZE, b"\0")
