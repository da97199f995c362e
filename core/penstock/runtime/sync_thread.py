"""Adapts the compiled kernel's sync thread for a `WorkerGroup`, which watches it; see `log_flusher`."""

from penstock._kernel import SyncGate

# The limit of one wait for the end of a sync; `join` waits again.
PATIENCE_MS = 60_000


class SyncThread:
    """The gate's thread, in the form that a `WorkerGroup` watches (`workers.Watched`)."""

    name = "penstock-sync"

    def __init__(self, gate: SyncGate, limit_s: float) -> None:
        self._gate = gate
        self._limit_ms = int(limit_s * 1000)
        # When the sync began for which `stop` waited in vain; 0 if there is none.
        self._overdue_ns = 0

    @property
    def since(self) -> float:
        """When the current sync began, in seconds; 0 if none is running."""
        return self._gate.since_ns / 1e9

    @property
    def is_alive(self) -> bool:
        """Whether the sync for which `stop` waited in vain is still running.

        A later sync does not count: other threads may put until the log is closed, which ends the sync thread.
        """
        return self._overdue_ns != 0 and not self._gate.await_sync(self._overdue_ns)

    def place(self) -> str:
        """Return what the thread is doing."""
        return "a sync of the log"

    def tell(self) -> None:
        """Do nothing: the thread is needed until the log is closed."""

    def stop(self) -> None:
        """Wait for the current sync, up to the time limit."""
        began_ns = self._gate.since_ns
        self._overdue_ns = 0 if self._gate.await_sync(began_ns, self._limit_ms) else began_ns

    def join(self) -> None:
        """Wait for the sync for which `stop` waited in vain, without a time limit."""
        while not self._gate.await_sync(self._overdue_ns, PATIENCE_MS):
            pass
