"""The compiled kernel's sync thread as a `WorkerGroup` watches it; see `log_flusher`."""

from penstock._kernel import SyncGate

# The limit of one wait for the end of a sync; `join` waits again.
PATIENCE_MS = 60_000


class SyncThread:
    """The gate's thread, as a `WorkerGroup` watches it (`workers.Watched`)."""

    name = "penstock-sync"

    def __init__(self, gate: SyncGate, limit_s: float) -> None:
        self._gate = gate
        self._limit_ms = int(limit_s * 1000)

    @property
    def since(self) -> float:
        """When the current sync began, in seconds; 0 if none is running."""
        return self._gate.since_ns / 1e9

    @property
    def is_alive(self) -> bool:
        """Whether a sync is running; otherwise the thread accesses nothing."""
        return not self._gate.is_idle()

    def place(self) -> str:
        """Return what the thread is doing."""
        return "a sync of the log"

    def tell(self) -> None:
        """Do nothing: the thread is needed until the log is closed."""

    def stop(self) -> None:
        """Wait for the current sync, up to the time limit."""
        self._gate.is_idle(self._limit_ms)

    def join(self) -> None:
        """Wait for the current sync, without a time limit."""
        while not self._gate.is_idle(PATIENCE_MS):
            pass
