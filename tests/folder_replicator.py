"""A small replicator: copies the log into a folder, for tests, and as an example of the contract."""

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from penstock.contracts import (
    Context,
    CopyOutcome,
    CopyState,
    ReplicatedLog,
    Replicator,
    segment_name,
)
from penstock.errors import OffsetError
from penstock.files import File

_CHUNK_BYTES = 1 << 20
Notify = Callable[[CopyOutcome], None]


@attrs.frozen(kw_only=True)
class FolderOptions:
    """`to` is the folder, by default `<the store's folder>-copy`; with `waits`, puts wait for the copy."""

    to: str = ""
    waits: bool = True
    timeout_ms: int = 3000


class FolderReplicator(Replicator):
    """Copies the log, file by file, into a folder."""

    name = "folder"
    Options = FolderOptions
    capabilities = frozenset({"waits"})

    def __init__(self, options: Any, context: Context, log: ReplicatedLog) -> None:
        super().__init__(options, context, log)
        self.appender_waits = options.waits
        self.timeout_ms = options.timeout_ms
        self.folder = (
            Path(options.to) if options.to else context.root.with_name(f"{context.root.name}-copy")
        )
        self._waiting: deque[tuple[int, int, Notify]] = deque()
        self._end = -1
        self._error: str | None = None
        self._is_closed: bool = False
        self._file: File | None = None
        self._worker: Any = None

    def start(self) -> None:
        """See `Replicator`."""
        self._worker = self.context.spawn("folder-copy", self._step)

    def advanced(self, visible_offset: int) -> None:
        """See `Replicator`."""
        if visible_offset > self._end and self._worker is not None:
            self._worker.wake()

    def copied(self, end_offset: int, notify: Notify) -> None:
        """See `Replicator`."""
        if self._is_closed:
            notify(CopyOutcome.NOT_AVAILABLE)
            return
        deadline_ms = self.context.clock.monotonic_ms() + self.timeout_ms
        self._waiting.append((end_offset, deadline_ms, notify))
        if self._worker is not None:
            self._worker.wake()
        if self._has_closed():
            # Meanwhile, in another thread.
            self._answer_all()

    def _has_closed(self) -> bool:
        return self._is_closed

    def copies(self) -> Sequence[CopyState]:
        """See `Replicator`."""
        end, visible = max(self._end, 0), self.log.visible_offset
        lag_bytes = max(visible - end, 0)
        lag_ms = self.context.clock.time_ms() - self.log.time_ms_at(end) if lag_bytes else 0
        state = CopyState(
            name=str(self.folder), kind="folder", received_offset=end, flushed_offset=end, lag_bytes=lag_bytes,
            lag_ms=max(lag_ms, 0), in_sync=self._error is None, last_error=self._error,
        )  # fmt: skip
        return [state]

    def close(self) -> None:
        """See `Replicator`."""
        if self._worker is not None:
            self._worker.stop()
        if not self._is_closed and self._worker is not None:
            self._step()
        self._is_closed = True
        self._answer_all()
        if self._file is not None:
            self._file.close()
            self._file = None

    # --- the thread

    def _step(self) -> float | None:
        """Copy everything visible, and answer the puts that wait for it."""
        try:
            self._copy()
            self._error = None
        except (OSError, OffsetError) as error:
            self._error = str(error)
            if isinstance(error, OffsetError):
                # Retention was faster.
                self._end = -1
        now_ms = self.context.clock.monotonic_ms()
        for _ in range(len(self._waiting)):
            end, deadline_ms, notify = self._waiting.popleft()
            if end <= self._end:
                notify(CopyOutcome.ON_DISK)
            elif now_ms >= deadline_ms:
                notify(CopyOutcome.LATE)
            else:
                self._waiting.append((end, deadline_ms, notify))
        return 0.01 if self._waiting or self._error else None

    def _copy(self) -> None:
        files = self.context.files
        files.make_folder_durably(self.folder)
        if self._end < 0:
            self._end = self.log.min_offset
        while data := self.log.read(self._end, _CHUNK_BYTES):
            base = self._end - self._end % self.log.segment_bytes
            path = self.folder / segment_name(base)
            if self._file is None or self._file.path != path:
                if self._file is not None:
                    self._file.close()
                if files.exists(path):
                    self._file = files.open(path, writable=True)
                else:
                    self._file = files.create(path)
                    files.sync_folder(self.folder)
            self._file.pwrite(data, self._end - base)
            self._file.sync_all()
            self._end += len(data)

    def _answer_all(self) -> None:
        while True:
            try:
                _, _, notify = self._waiting.popleft()
            except IndexError:
                return
            notify(CopyOutcome.LATE)
