"""Background threads that the kernel owns. Each runs a step at a time, on a schedule or when woken, until stopped.

A step may belong to a plugin, and may hang. `WorkerGroup` detects a step that takes too long, logs the source line
at which it is, and does not wait for it for ever.
"""

import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple, Protocol

from penstock._kernel import is_sync_thread
from penstock.errors import ConfigError, StorageError
from penstock.escape import get_logger

logger = get_logger(__name__)

OnError = Callable[[str, BaseException], None]


class _Wakes(Protocol):
    """An object with which a thread may rest instead; see `contracts.WorkWakes`."""

    def rest(self, at_most_s: float | None = None) -> bool:
        """Return when there may be work, or after `at_most_s` seconds; return False at once if wakes do not arrive."""

    def wake(self, *, always: bool = False) -> None:
        """End `rest`."""


class Worker:
    """A thread that runs a step again and again (`contracts.Stoppable`). Safe from any thread."""

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        on_error: OnError,
        limit_s: float,
        wakes: _Wakes | None = None,
    ) -> None:
        self.name = name
        self._step = step
        self._wakes = wakes
        self._on_error = on_error
        self._limit_s = limit_s
        # Released while a wake is pending, so that waking costs one call while a step runs.
        self._asleep = threading.Lock()
        self._asleep.acquire()
        self._stopping = False
        # When the current step began, in seconds; 0 between two steps.
        self.since = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. It runs no step if it was requested to stop before."""
        self._thread.start()

    def _run(self) -> None:
        try:
            self._repeat()
        finally:
            # The group keeps a thread that has ended for a while, but not what its step belonged to.
            self._step, self._wakes = _nothing, None

    def _repeat(self) -> None:
        while not self._stopping:
            self.since = time.monotonic()
            try:
                pause = self._step()
            except BaseException as error:
                # Also `SystemExit`, which ends a thread without a word.
                self._on_error(self.name, error)
                return
            finally:
                self.since = 0.0
            if not self._stopping:
                self._rest(pause)

    def _rest(self, pause: float | None) -> None:
        if self._wakes is None or not self._wakes.rest(pause):
            self._asleep.acquire(timeout=-1 if pause is None else max(pause, 0))

    def wake(self) -> None:
        """Run the step now, or once more after the current step."""
        if self._asleep.locked():
            try:  # noqa: SIM105 - a put that wakes waits for it, and a context manager takes longer than the release
                self._asleep.release()
            except RuntimeError:
                # Another thread has released it since.
                pass
        if self._wakes is not None:
            self._wakes.wake(always=True)

    def request_stop(self) -> None:
        """Request the thread to end, without waiting."""
        self._stopping = True
        self.wake()

    def stop(self) -> None:
        """End the thread and wait for its last step, up to the time limit."""
        self.request_stop()
        if self.is_alive:
            self._thread.join(self._limit_s)

    @property
    def is_alive(self) -> bool:
        """Whether the thread still runs; False in the thread itself, which cannot wait for its own end."""
        return self._thread.is_alive() and threading.current_thread() is not self._thread

    @property
    def has_ended(self) -> bool:
        """Whether the thread has ended its last step."""
        return self._step is _nothing

    def join(self) -> None:
        """Wait for the thread's end, without a time limit."""
        if self.is_alive:
            self._thread.join()

    def place(self) -> str:
        """Return file, line and function that the thread is at."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        if frame is None:
            return "it has ended"
        last = traceback.extract_stack(frame, 1)[0]
        return f"{last.filename}:{last.lineno} in {last.name}"


def _nothing() -> None:
    """Be the step of a thread that has ended."""


class StuckStep(NamedTuple):
    """A step that takes too long."""

    name: str
    seconds: float
    place: str


class Watched(Protocol):
    """The interface that `WorkerGroup` needs from a thread; see `Worker`."""

    name: str

    @property
    def since(self) -> float:
        """When the current step began, in seconds; 0 between two steps."""

    @property
    def is_alive(self) -> bool:
        """Whether the thread may still do something after it was requested to stop."""

    def place(self) -> str:
        """Return where in the source the thread is."""

    def request_stop(self) -> None:
        """Request the thread to end, without waiting."""

    def stop(self) -> None:
        """End the thread and wait for its last step, up to the time limit."""

    def join(self) -> None:
        """Wait for the thread's end, without a time limit."""


class WorkerGroup:
    """All background threads of one store (`contracts.SpawnWorker`). Safe from any thread."""

    def __init__(self, on_error: OnError, *, slow_ms: int, limit_ms: int) -> None:
        self._on_error = on_error
        self._slow_s = slow_ms / 1000
        self.limit_s = limit_ms / 1000
        self._workers: list[Watched] = []
        self._warned_since: dict[str, float] = {}

    def __call__(
        self, name: str, step: Callable[[], float | None], wakes: _Wakes | None = None
    ) -> Worker:
        """Start a thread; see `contracts.SpawnWorker`."""
        worker = Worker(name, step, self._on_error, self.limit_s, wakes)
        # Before it runs: after an interrupt in between, nobody would wait for its end.
        self._workers.append(worker)
        worker.start()
        self._drop_ended()
        return worker

    def _drop_ended(self) -> None:
        """Forget threads that have ended: consumers come and go, and the store may stay open for months."""
        for each in list(self._workers):
            if isinstance(each, Worker) and each.has_ended:
                # Another thread may have been faster.
                with contextlib.suppress(ValueError):
                    self._workers.remove(each)
                self._warned_since.pop(each.name, None)

    def adopt(self, worker: "Watched") -> None:
        """Watch a thread that was started elsewhere, and wait for it at the end like for the others."""
        self._workers.append(worker)

    def watch(self) -> float:
        """Log a warning, once a step, for steps that take too long; return the seconds until the next call."""
        now = time.monotonic()
        for worker in list(self._workers):
            since = worker.since
            is_slow = since and now - since >= self._slow_s
            if is_slow and self._warned_since.get(worker.name) != since:
                self._warned_since[worker.name] = since
                logger.warning(
                    "background thread %s has been in one step for %.1f s, at %s: a plugin or the disk does not "
                    "respond", worker.name, now - since, worker.place(),
                )  # fmt: skip
        return self._slow_s / 2

    def stop(self) -> None:
        """End all threads, including the strategies'; waits for each up to the time limit."""
        for worker in list(self._workers):
            worker.request_stop()
        for worker in list(self._workers):
            worker.stop()

    def hanging(self) -> list[StuckStep]:
        """Return the threads that were requested to stop and still run."""
        now = time.monotonic()
        return [
            StuckStep(worker.name, now - (worker.since or now), worker.place())
            for worker in list(self._workers)
            if worker.is_alive
        ]

    def check_ended(self) -> None:
        """Raise `StorageError` if a thread that was requested to stop still runs."""
        hanging = self.hanging()
        if hanging:
            raise StorageError(
                f"background work did not end, so the store is not cleanly closed, and stays locked until that work "
                f"or this process ends; durable messages are not lost, and the next open recovers them. Still "
                f"running: {'; '.join(f'{h.name} at {h.place}' for h in hanging)}"
            )

    def end(self, then: Callable[[], None]) -> None:
        """Stop all threads, and call a function once the last one has ended, also if an interrupt ends the waiting."""
        try:
            self.stop()
        finally:
            self.when_ended(then)

    def when_ended(self, job: Callable[[], None]) -> None:
        """Run `job` once every thread has ended: now, or in a new thread if one still runs, without a time limit."""
        if not self.hanging():
            job()
            return

        def wait() -> None:
            for worker in list(self._workers):
                worker.join()
            job()

        threading.Thread(target=wait, name="penstock-leave", daemon=True).start()


def check_threads() -> None:
    """Raise `ConfigError` if threads are replaced by tasks of one thread, which would wait for each other for ever."""
    package = type(threading.Lock()).__module__.partition(".")[0]
    if package in ("gevent", "eventlet"):
        call = {"gevent": "monkey.patch_all", "eventlet": "eventlet.monkey_patch"}[package]
        raise ConfigError(
            f"a store cannot be opened for writing where {package} has replaced Python's threads: its background "
            "threads would block the whole program; nothing was opened. Leave threads as they are with "
            f"{call}(thread=False), open the store in a process of its own, or open it with read_only=True"
        )


# How long a thread waits for a job that runs aside; and a signal handler.
_ASIDE_S = 60
_HANDLER_S = 1.0


def run_aside(job: Callable[[], object]) -> None:
    """Run a job in a thread of its own and wait for it, unless this is a thread of a store, for which the job may wait.

    Not for ever: this thread may hold a lock that the job needs, as of a handler of logging.
    """
    thread = threading.Thread(target=job, name="penstock-aside", daemon=True)
    thread.start()
    if not (is_sync_thread() or threading.current_thread().name.startswith("penstock-")):
        thread.join(_ASIDE_S)


class HandlerThread(threading.Thread):
    """A thread that does what a signal handler must not wait for."""

    def __init__(self, job: Callable[[], object]) -> None:
        # Not daemonic, it would take a lock of `threading` that the interrupted call may hold.
        super().__init__(target=job, name="penstock-handler", daemon=True)

    def run_shortly(self) -> bool:
        """Start once, and wait for as long as a handler may. Returns False if the system has no thread left."""
        try:
            if self.ident is None:
                self.start()
        except RuntimeError:
            if self.ident is not None:
                raise
            return False
        self.join(_HANDLER_S)
        return True


def is_signal_handler(frame: FrameType) -> bool:
    """Return whether a frame is that of a signal handler: it was given the frame that it has interrupted."""
    given = [*frame.f_locals.values()]
    given += [each for several in given if type(several) is tuple for each in several]
    return frame.f_back is not None and any(each is frame.f_back for each in given)


def is_main_thread() -> bool:
    """Return whether this is the thread in which signal handlers run."""
    return threading.get_ident() == threading.main_thread().ident


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception is not of the code that it has left: Ctrl-C, or one of a signal handler."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return not isinstance(error, Exception) or (
        is_main_thread() and any(map(is_signal_handler, frames))
    )


def is_for_program(error: BaseException) -> bool:
    """Return whether an exception is to reach the program that called: an interrupt of the thread that gets signals.

    In another thread it came of the code that was called, and would only end the thread.
    """
    return is_main_thread() and is_interrupt(error)


class StopAfterError:
    """Wraps a step so that it stops permanently after its first exception, for callers with their own scheduler."""

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        on_error: OnError,
    ) -> None:
        self._name = name
        self._step = step
        self._on_error = on_error
        self._is_over = False

    def __call__(self) -> float | None:
        """Run the step once, unless it has failed before; return the seconds until the next run."""
        if self._is_over:
            return None
        try:
            return self._step()
        except BaseException as error:
            if is_for_program(error):
                raise
            self._is_over = True
            self._on_error(self._name, error)
            return None
