"""A clock and background workers that are controlled by the test."""

from collections.abc import Callable

from penstock.runtime.clock import Clock


class ManualClock(Clock):
    """A clock that does not advance until the test sets it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def time_ms(self) -> int:
        """Return the time it was set to."""
        return self.now_ms

    def monotonic_ms(self) -> int:
        """Return the time it was set to."""
        return self.now_ms

    def monotonic_ns(self) -> int:
        """Return the time it was set to."""
        return self.now_ms * 1_000_000

    def thread_ns(self) -> int:
        """Return the time it was set to, so that work takes no CPU time."""
        return self.monotonic_ns()


class ManualWorker:
    """A background worker that never runs by itself."""

    def __init__(self, step: Callable[[], float | None]) -> None:
        self.step = step
        self.is_awake = False

    def wake(self) -> None:
        """Record that the worker was woken."""
        self.is_awake = True

    def stop(self) -> None:
        """Do nothing: the worker never runs by itself."""


class ManualWorkers:
    """Creates workers that run only when the test runs them; pass it to a store as `spawn`."""

    def __init__(self) -> None:
        self.by_name: dict[str, ManualWorker] = {}

    def __call__(
        self, name: str, step: Callable[[], float | None], wakes: object = None
    ) -> ManualWorker:
        """Create a worker; nothing wakes it but the test."""
        self.by_name[name] = self._worker(step)
        return self.by_name[name]

    @staticmethod
    def _worker(step: Callable[[], float | None]) -> ManualWorker:
        return ManualWorker(step)

    def run(self, name: str) -> float | None:
        """Run one step of one worker."""
        return self.by_name[name].step()

    def run_all(self) -> None:
        """Run one step of each worker."""
        for worker in list(self.by_name.values()):
            worker.step()


class InlineWorker(ManualWorker):
    """A worker that runs its step in the thread that wakes it."""

    _is_running = False

    def wake(self) -> None:
        """Run the step now, unless it is already running."""
        if not self._is_running:
            self._is_running = True
            try:
                self.step()
            finally:
                self._is_running = False


class InlineWorkers(ManualWorkers):
    """Creates workers without threads, which run at once when woken, so that a story is deterministic."""

    @staticmethod
    def _worker(step: Callable[[], float | None]) -> ManualWorker:
        return InlineWorker(step)
