"""Waking: how those who wait for messages learn of them, in the writing process and in those that read its store.

The file `penstock/wake` has a word on which they sleep; how it moves is written down in `_kernel/system.h`. Layout
(native order, little-endian)::

    file := magic 8s  boot 40s  zero[16]  word i32  zero[60]  aside i32  zero*      # 4096 bytes

Invariants:
    * The file only says how long somebody sleeps. Any content, or none, costs some milliseconds, never a message; so
      it has no checksum and is never synced.
    * A writer keeps a file that is right, and makes one that is not anew. It stays at the close, so that who sleeps
      on it is woken by the next writer too.
    * The writer wakes after what it has dispatched is published. Whoever waits asks to be woken before it looks.
    * Whoever waits looks again by itself: after a quarter of a second where wakes arrive, else after short sleeps. They
      do not arrive where the writer is on another machine, or knows nothing of the file, and where it cannot be
      written here (a read-only mount, another user's store).

Nobody touches the memory but through the system (see `WakeWord`), so a file that is cut short ends no process: readers
get an error, and the writer wakes nobody through it until the next opening.
"""

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
_WORD_AT, _ASIDE_AT = 64, 128
# Between two looks where wakes arrive: only a writer that was killed while it woke makes anybody wait so long.
_LONG_S = 0.25
# Between two looks where nobody wakes, one more than the other while nothing comes.
_SHORT_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
# A writer wakes once a round, so between setting the bit and reading it there is one wake, seldom more.
_TRIES_MAX = 100
# After so many wakes in a row that were for others' messages, one rests before the next look, each time longer.
_IN_VAIN_MAX, _VAIN_REST_MAX_S = 3, 0.01


class WakeMap:
    """The word of one store, mapped. Safe from any thread.

    Attributes:
        is_of_this_boot: whether a writer of this machine, since it was started, has opened the store.
    """

    def __init__(self, files: Files, file: File | None) -> None:
        self._file = file
        memory = files.memory(SIZE) if file is None else file.map(SIZE, writable=True)
        descriptor = None if file is None else file.descriptor
        self._word = WakeWord(memory, _WORD_AT, _ASIDE_AT, -1 if descriptor is None else descriptor)
        head = _head(files)
        is_known = head.strip(b"\0") != _MAGIC
        self.is_of_this_boot = file is None or (is_known and file.pread(len(head), 0) == head)

    @classmethod
    def find(cls, files: Files, path: Path) -> "WakeMap | None":
        """Return the map of the file at `path`, None where there is none that is right and may be written."""
        file = _open(files, path)
        return None if file is None else cls(files, file)

    @classmethod
    def make(cls, files: Files, path: Path) -> "WakeMap":
        """Return the map of the writer's own file; of memory that only this process has where there can be none."""
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
            logger.warning("%s cannot be used: followers in other processes look every 50 ms: %s", path, error)  # fmt: skip
            return cls(files, None)

    @property
    def inode(self) -> int:
        """The file's number on its disk; 0 for none."""
        return 0 if self._file is None else self._file.inode

    def ask(self) -> int:
        """Have the next wake change the word; returns what it is until then. `OSError` where the file is no longer right."""
        for _ in range(_TRIES_MAX):
            self._word.ask()
            seen = self._read()
            # Even, where somebody woke in between.
            if seen & 1:
                return seen
        raise OSError(errno.EAGAIN, "the word does not stay as it is set")

    def _read(self) -> int:
        if self._file is None:
            return self._word.read()
        data = self._file.pread(4, _WORD_AT)
        if len(data) < 4:  # noqa: PLR2004 - the word's own size
            # Cut short within a page that is still mapped: what is set there is not in the file.
            raise OSError(errno.EIO, "the file is cut short")
        return int.from_bytes(data, "little", signed=True)

    def sleep(self, seen: int, at_most_s: float) -> bool:
        """Return True when the word is no longer what was seen, False after so long."""
        return self._word.sleep(seen, int(at_most_s * 1e9))

    def wake(self, *, always: bool = False) -> bool:
        """Wake all who wait; says whether anybody did. For the writer: see `WakeWord`."""
        return self._word.wake(always=always)

    def close(self) -> None:
        """Close the file; who still sleeps looks soon, and finds the store closed."""
        if self._file is not None:
            self._file.close()


class Wakes:
    """What one open store knows of waking. Safe from any thread."""

    def __init__(self, files: Files, root: Path, *, writes: bool = False) -> None:
        self._files, self._path = files, root / SIDE_FOLDER / "wake"
        self._writes = writes
        self._map = WakeMap.make(files, self._path) if writes else None
        if self._map is not None:
            # A writer that was killed may have left sleepers whom it owed a wake.
            self._map.wake(always=True)

    def wake(self, *, always: bool = False) -> bool:
        """Wake all who wait, after what they wait for is published; says whether anybody did."""
        assert self._writes
        return self._map is not None and self._map.wake(always=always)

    def map(self) -> WakeMap | None:
        """Return the word to wait on, None where there is none yet."""
        if self._map is None:
            self._map = WakeMap.find(self._files, self._path)
        return self._map

    def look_again(self) -> None:
        """Forget a word of a file that is no longer the store's; the writer keeps its own."""
        known = self._map
        if known is not None and not self._writes and known.inode != self._inode():
            self._map = None

    def _inode(self) -> int:
        try:
            return self._files.inode(self._path)
        except OSError:
            return 0

    def lose(self) -> None:
        """Forget a word that cannot be used; the writer keeps its own."""
        if not self._writes:
            self._map = None

    def close(self) -> None:
        """Let this process's followers look, and find the store closed; close the file."""
        if self._map is not None:
            if self._writes:
                self._map.wake(always=True)
            self._map.close()


class Waiter:
    """One follower's waiting: `ask`, then a look, then `rest` or `go_on`. Not thread-safe."""

    def __init__(self, wakes: Wakes) -> None:
        self._wakes = wakes
        self._map: WakeMap | None = None
        self._seen = 0
        # Whether wakes arrive; not known at first where the writer may be on another machine.
        self._arrive: bool | None = None
        self._was_woken = self._has_rested = False
        self._looks = self._vain = 0

    def ask(self) -> None:
        """Before a look: have whatever comes after it end the rest."""
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
        """After a look that found something."""
        if self._has_rested and not self._was_woken:
            # Nobody said so. It may just have come; then the next wake puts that right.
            self._arrive = False
        self._has_rested = False
        self._looks = self._vain = 0

    def rest(self) -> None:
        """After a look that found nothing: return when there may be something."""
        self._vain = self._vain + 1 if self._has_rested and self._was_woken else 0
        short_s = _SHORT_S[min(self._looks, len(_SHORT_S) - 1)]
        self._looks += 1
        self._has_rested = True
        self._was_woken = self._sleep(_LONG_S if self._arrive else short_s)
        if self._was_woken:
            self._arrive = True
            if self._vain >= _IN_VAIN_MAX:
                time.sleep(min(short_s, _VAIN_REST_MAX_S))
        else:
            self._wakes.look_again()

    def _sleep(self, at_most_s: float) -> bool:
        """Sleep until somebody wakes; False after so long."""
        if self._map is None:
            time.sleep(min(at_most_s, _SHORT_S[-1]))
            return False
        try:
            return self._map.sleep(self._seen, at_most_s)
        except OSError:
            self._wakes.lose()
            time.sleep(_SHORT_S[0])
            return False


def _open(files: Files, path: Path) -> File | None:
    """Return the file if it is right and may be written, else None."""
    try:
        if not files.exists(path):
            return None
        file = files.open(path, writable=True)
        return file if file.size == SIZE and file.pread(len(_MAGIC), 0) == _MAGIC else None
    except OSError:
        return None


def _head(files: Files) -> bytes:
    """Return what a file begins with that was opened since this machine was started."""
    return _MAGIC + files.boot_id()[:_BOOT_SIZE].ljust(_BOOT_SIZE, b"\0")
