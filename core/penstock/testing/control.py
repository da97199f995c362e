"""Time and threads in a test's hands."""

from collections.abc import Callable

from penstock.runtime.clock import Clock


class ManualClock(Clock):
    """A clock that stands still until it is told otherwise."""

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
        """Return the time it was set to: nothing costs anything."""
        return self.monotonic_ns()


class ManualWorker:
    """A background worker that never runs by itself."""

    def __init__(self, step: Callable[[], float | None]) -> None:
        self.step = step
        self.is_awake = False

    def wake(self) -> None:
        """Remember that somebody asked for it."""
        self.is_awake = True

    def stop(self) -> None:
        """Nothing: it does not run."""


class ManualWorkers:
    """Gives a store workers that run only when the test says so; pass it as `spawn`."""

    def __init__(self) -> None:
        self.by_name: dict[str, ManualWorker] = {}

    def __call__(self, name: str, step: Callable[[], float | None]) -> ManualWorker:
        """Make a worker."""
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
    """A worker that does its step in the thread of whoever wakes it."""

    _is_running = False

    def wake(self) -> None:
        """Run the step now, unless it is what is running."""
        if not self._is_running:
            self._is_running = True
            try:
                self.step()
            finally:
                self._is_running = False


class InlineWorkers(ManualWorkers):
    """Gives a store workers without threads: woken, they run at once, so a story is the same each time."""

    @staticmethod
    def _worker(step: Callable[[], float | None]) -> ManualWorker:
        return InlineWorker(step)
