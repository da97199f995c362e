"""A store that this process changes, or asks the process to change that has it open for writing; see `requests`."""

import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

from penstock.durability.side_folder import SideFolder
from penstock.errors import (
    MessageTooLargeError,
    OutcomeUnknownError,
    StorageError,
    StoreLockedError,
)
from penstock.files import File, Files
from penstock.files.lock_file import Lock
from penstock.format.names import SIDE_FOLDER
from penstock.runtime.clock import Clock
from penstock.runtime.waking import REQUESTS, Waiter, Wakes, WorkWaiter
from penstock.store.open import open_store
from penstock.store.requests import (
    BYTES_MAX,
    CALLS,
    FOLDER,
    NEW,
    READING,
    TAKEN,
    WHOLE,
    call,
    line_of,
    parse_answer,
)
from penstock.store.store import Store

# Between two tries to open a store that is held, and whose holder answers no requests.
_PAUSE_S = 0.05


class WriterGoneError(Exception):
    """No process has the store open for writing any more; the request was withdrawn, and nothing was done."""


class StoreToChange(ExitStack):
    """Has the methods of `Store`; those in `requests.CALLS` are called in the process that writes. Not thread-safe.

    If that process ends, the store is opened here.

    Args:
        root: the store's folder.
        writing: the store, if this process has it open for writing.
        limit_ms: how long another process may take for an answer.
    """

    def __init__(self, root: Path, writing: Store | None, limit_ms: int) -> None:
        super().__init__()
        self._root, self._limit_ms = root, limit_ms
        self._writing = None if writing is None else self.enter_context(writing)
        self._reading: Store | None = None
        self._files, self._clock = Files(), Clock()
        self._inode = self._files.inode(root)
        self._files.anchor(self._files.followed(root))
        # The last change that another process has made for this object.
        self._done = ""
        self._wakes = Wakes(self._files, root)
        self._waiter = Waiter(self._wakes)

    def __getattr__(self, name: str) -> Any:
        if name in CALLS:
            return partial(self._change, name)
        if self._writing is None and name == "files":
            return self._files
        if self._writing is None and self._reading is None:
            self._reading = self.enter_context(open_store(self._root, read_only=True))
        found = self._writing or self._reading
        assert found is not None
        return getattr(found.lowlevel, name)

    @property
    def lowlevel(self) -> Self:
        """See `Store.lowlevel`."""
        return self

    @property
    def body_bytes_max(self) -> int:
        """See `LowLevelStore.body_bytes_max`."""
        return int(self._change("body_bytes_max"))

    def _change(self, name: str, *args: Any, **named: Any) -> Any:
        """Call a method in the process that writes; raises what it raises there, and what `_ask` raises."""
        end_ms = self._clock.monotonic_ms() + self._limit_ms
        while self._writing is None:
            self._check_folder()
            try:
                result = self._ask(name, args, named)
            except WriterGoneError:
                self._check_folder()
            except StoreLockedError:
                if self._done:
                    raise OutcomeUnknownError(
                        self._root, self._holder(), name, self._done, begun=False
                    ) from None
                raise
            else:
                self._done = self._done if name in READING else name
                return result
            try:
                self._writing = self.enter_context(open_store(self._root))
            except StoreLockedError:
                # A third process was faster, and is asked; or one that opens the store, or holds it without a lock
                # file.
                if self._clock.monotonic_ms() > end_ms:
                    raise
                self._waiter.ask()
                self._waiter.rest(_PAUSE_S)
        return call(self._writing.lowlevel, name, args, named)

    def _ask(self, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Return what a call returns in the process that writes; raises what it raises there.

        Raises:
            WriterGoneError: there is no such process any more; nothing was done.
            StoreLockedError: it does not answer; nothing was done.
            OutcomeUnknownError: it has begun, and does not answer, or was killed.
            MessageTooLargeError: the request is too large; nothing was done.
        """
        request = line_of([name, args, named])
        if len(request) > BYTES_MAX:
            advice = "the process that has the store open takes no larger one; nothing was stored"
            raise MessageTooLargeError("a request", len(request), BYTES_MAX, advice)
        path, file, lock = self._send(request)
        try:
            WorkWaiter(self._wakes, REQUESTS).wake(always=True)
            found = parse_answer(self._await(path, file, len(request)))
        finally:
            with suppress(FileNotFoundError):
                self._files.remove(path)
            lock.release()
        if found is None:
            raise OutcomeUnknownError(self._root, self._holder(), name, self._done, begun=True)
        result, error = found
        if error is not None:
            raise error
        return result

    def _check_folder(self) -> None:
        """Raise `StorageError` if the store was moved or removed: no other may be made or changed in its place."""
        if self._files.inode(self._root) != self._inode:
            what = (
                f"{self._done} was done, and nothing after it" if self._done else "nothing was done"
            )
            raise StorageError(f"{self._root} was moved or removed meanwhile; {what}")

    def _holder(self) -> str:
        return SideFolder(self._files, self._root).read_holder()

    def _send(self, request: bytes) -> tuple[Path, File, Lock]:
        """Write a request; return its path, the file, and the lock that says that this process waits."""
        folder = self._root / SIDE_FOLDER / FOLDER
        with suppress(FileExistsError):
            folder.mkdir()
        while True:
            path = folder / f"{uuid.uuid4().hex}{NEW}"
            lock = self._files.lock_one(path)
            assert lock is not None
            # The writer may have removed it just before it was locked.
            with suppress(FileNotFoundError):
                file = self._files.open(path, writable=True)
                file.pwrite(request, 0)
                self._files.rename(path, path.with_suffix(WHOLE))
                return path.with_suffix(WHOLE), file, lock

    def _await(self, path: Path, file: File, size: int) -> bytes:
        """Return the answer, which follows the `size` bytes of the request; nothing if there will be none."""
        end_ms = self._clock.monotonic_ms() + self._limit_ms
        lock = self._root / "lock"
        while True:
            self._waiter.ask()
            is_gone = not self._files.is_locked(lock)
            is_over = is_gone or not any(map(self._files.exists, (path, path.with_suffix(TAKEN))))
            # Read after that: an answer is written before the name is removed, and before the lock is released.
            answer = file.pread(BYTES_MAX, size)
            left_ms = end_ms - self._clock.monotonic_ms()
            if answer.endswith(b"\n"):
                self._waiter.go_on()
                return answer
            if is_over or left_ms <= 0:
                self._withdraw(path, is_gone=is_gone)
                # The next writer may have been faster.
                if left_ms <= 0 or not (is_gone and self._files.is_locked(lock)):
                    return b""
            self._waiter.rest(left_ms / 1000)

    def _withdraw(self, path: Path, *, is_gone: bool) -> None:
        """Withdraw a request, and raise why; does nothing if it was taken before."""
        try:
            self._files.remove(path)
        except FileNotFoundError:
            return
        if is_gone:
            raise WriterGoneError
        raise StoreLockedError(
            self._root,
            f"{self._holder()}, which has not begun within {self._limit_ms / 1000:g} s what it was asked to do; "
            "nothing was done",
        )
