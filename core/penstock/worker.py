"""Background threads that the kernel owns: one step at a time, woken or on time, ended on request."""

import threading
from collections.abc import Callable


class Worker:
    """A thread that runs a step again and again (`contracts.Stoppable`). Safe from any thread."""

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        on_error: Callable[[str, Exception], None],
    ) -> None:
        self._name = name
        self._step = step
        self._on_error = on_error
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            try:
                pause = self._step()
            except Exception as error:
                self._on_error(self._name, error)
                return
            if not self._stopping:
                self._wake.wait(pause)

    def wake(self) -> None:
        """Make it run its step now, or once more after the one that is running."""
        self._wake.set()

    def stop(self) -> None:
        """End it and wait for its last step."""
        self._stopping = True
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()


class Guarded:
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
