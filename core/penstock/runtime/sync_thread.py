"""The kernel's thread that syncs, as the crew watches it; see `log_flusher`."""

from penstock._kernel import SyncGate

# So long a wait that only its end is looked for.
PATIENCE_MS = 60_000


class SyncThread:
    """The gate's thread, as the crew watches it (`workers.Watched`)."""

    name = "penstock-sync"

    def __init__(self, gate: SyncGate, limit_s: float) -> None:
        self._gate = gate
        self._limit_ms = int(limit_s * 1000)

    @property
    def since(self) -> float:
        """When the sync that runs now began, in seconds; 0 between two."""
        return self._gate.since_ns / 1e9

    @property
    def is_alive(self) -> bool:
        """Whether a sync runs; between two the thread touches nothing."""
        return not self._gate.is_idle()

    def place(self) -> str:
        """Return where it stands."""
        return "a sync of the log"

    def tell(self) -> None:
        """Nothing: it is needed until the log is closed."""

    def stop(self) -> None:
        """Wait for the sync that runs; not for ever."""
        self._gate.is_idle(self._limit_ms)

    def join(self) -> None:
        """Wait for the sync that runs, however long that takes."""
        while not self._gate.is_idle(PATIENCE_MS):
            pass
