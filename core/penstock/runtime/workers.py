"""Background threads that the kernel owns: one step at a time, woken or on time, ended on request.

A step may be a plugin's, and hang. The crew notices one that takes too long, says so in the log with the
place where it stands, and does not wait for it for ever.
"""

import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple, Protocol

from penstock.errors import StorageError
from penstock.escape import get_logger

logger = get_logger(__name__)

OnError = Callable[[str, Exception], None]


class Worker:
    """A thread that runs a step again and again (`contracts.Stoppable`). Safe from any thread."""

    def __init__(
        self, name: str, step: Callable[[], float | None], on_error: OnError, limit_s: float
    ) -> None:
        self.name = name
        self._step = step
        self._on_error = on_error
        self._limit_s = limit_s
        # Free while a wake waits for the next step: waking is one call where nobody sleeps.
        self._asleep = threading.Lock()
        self._asleep.acquire()
        self._stopping = False
        # When the step that runs now began, in seconds; 0 between two steps.
        self.since = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            self.since = time.monotonic()
            try:
                pause = self._step()
            except Exception as error:
                self._on_error(self.name, error)
                return
            finally:
                self.since = 0.0
            if not self._stopping:
                self._asleep.acquire(timeout=-1 if pause is None else max(pause, 0))

    def wake(self) -> None:
        """Make it run its step now, or once more after the one that is running."""
        if self._asleep.locked():
            # Another thread may have done so since.
            with contextlib.suppress(RuntimeError):
                self._asleep.release()

    def tell(self) -> None:
        """Tell it to end, without waiting."""
        self._stopping = True
        self.wake()

    def stop(self) -> None:
        """End it and wait for its last step; not for ever, where that hangs."""
        self.tell()
        if threading.current_thread() is not self._thread:
            self._thread.join(self._limit_s)

    @property
    def is_alive(self) -> bool:
        """Whether its thread still runs; the thread itself asks about the others only."""
        return self._thread.is_alive() and threading.current_thread() is not self._thread

    def join(self) -> None:
        """Wait for its end, however long that takes."""
        self._thread.join()

    def place(self) -> str:
        """Return where it stands, as file, line and function."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        if frame is None:
            return "it has ended"
        last = traceback.extract_stack(frame, 1)[0]
        return f"{last.filename}:{last.lineno} in {last.name}"


class StuckStep(NamedTuple):
    """A step that takes too long."""

    name: str
    seconds: float
    place: str


class Watched(Protocol):
    """What the crew asks of a thread; see `Worker`."""

    name: str

    @property
    def since(self) -> float:
        """When the step that runs now began, in seconds; 0 between two steps."""

    @property
    def is_alive(self) -> bool:
        """Whether it may still do something, though it was told to stop."""

    def place(self) -> str:
        """Return where it stands."""

    def tell(self) -> None:
        """Tell it to end, without waiting."""

    def stop(self) -> None:
        """End it and wait for its last step; not for ever."""

    def join(self) -> None:
        """Wait for its end, however long that takes."""


class WorkerGroup:
    """All background threads of one store (`contracts.SpawnWorker`). Safe from any thread."""

    def __init__(self, on_error: OnError, *, slow_ms: int, limit_ms: int) -> None:
        self._on_error = on_error
        self._slow_s = slow_ms / 1000
        self.limit_s = limit_ms / 1000
        self._workers: list[Watched] = []
        self._told: dict[str, float] = {}

    def __call__(self, name: str, step: Callable[[], float | None]) -> Worker:
        """Start a thread; see `contracts.SpawnWorker`."""
        worker = Worker(name, step, self._on_error, self.limit_s)
        self._workers.append(worker)
        return worker

    def adopt(self, worker: "Watched") -> None:
        """Watch a thread that is not started here, and wait for it at the end, as for all others."""
        self._workers.append(worker)

    def watch(self) -> float:
        """Say once of each step that takes too long that it does; a step of a worker of its own."""
        now = time.monotonic()
        for worker in self._workers:
            since = worker.since
            if since and now - since >= self._slow_s and self._told.get(worker.name) != since:
                self._told[worker.name] = since
                logger.warning(
                    "background thread %s has been in one step for %.1f s, at %s: a plugin that hangs, or "
                    "a disk that does", worker.name, now - since, worker.place(),
                )  # fmt: skip
        return self._slow_s / 2

    def stop(self) -> None:
        """End all of them, the strategies' too; not waiting for ever for one that hangs."""
        for worker in self._workers:
            worker.tell()
        for worker in self._workers:
            worker.stop()

    def hanging(self) -> list[StuckStep]:
        """Return the threads that were told to stop and did not."""
        now = time.monotonic()
        return [
            StuckStep(worker.name, now - (worker.since or now), worker.place())
            for worker in self._workers
            if worker.is_alive
        ]

    def check_ended(self) -> None:
        """Raise if a thread that was told to stop did not."""
        hanging = self.hanging()
        if hanging:
            raise StorageError(
                f"background work did not end, so the store is left marked as not cleanly closed, and "
                f"locked until it ends or this process does; what is durable is not lost, the next "
                f"open brings it up: {'; '.join(f'{h.name} at {h.place}' for h in hanging)}"
            )

    def when_ended(self, job: Callable[[], None]) -> None:
        """Do a job once every thread has ended, however long that takes, in a thread of its own."""

        def wait() -> None:
            for worker in self._workers:
                worker.join()
            job()

        threading.Thread(target=wait, name="penstock-leave", daemon=True).start()


class StopAfterError:
    """A step that ends for good at its first error, as a `Worker` does, for whoever runs it otherwise."""

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        on_error: Callable[[str, Exception], None],
    ) -> None:
        self._name = name
        self._step = step
        self._on_error = on_error
        self._is_over = False

    def __call__(self) -> float | None:
        """Run the step once."""
        if self._is_over:
            return None
        try:
            return self._step()
        except Exception as error:
            self._is_over = True
            self._on_error(self._name, error)
            return None
