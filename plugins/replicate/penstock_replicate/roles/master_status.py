"""What a master says of itself once a second, for `penstock replica status` of any process."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import attrs

from penstock.contracts import Context, CopyState, ReplicatedLog
from penstock_replicate.roles.status_file import INTERVAL_MS, ReplicaStatus, StatusFile, peers_of


class MasterStatus:
    """Writes the status file of one master. Used by one thread at a time."""

    def __init__(
        self, context: Context, log: ReplicatedLog, copies: Callable[[], Sequence[CopyState]], about: ReplicaStatus,
    ) -> None:  # fmt: skip
        self._clock, self._log, self._copies, self._about = context.clock, log, copies, about
        self._file = StatusFile(context.files, log.root)

    async def run(self) -> None:
        """Write what is known, again and again."""
        while True:
            self._write("listening")
            await asyncio.sleep(INTERVAL_MS / 1000)

    def finish(self) -> None:
        """Write what is known at the end."""
        self._write("stopped")

    def _write(self, state: str) -> None:
        status = attrs.evolve(
            self._about,
            state=state,
            time_ms=self._clock.time_ms(),
            end_offset=self._log.visible_offset,
            flushed_offset=self._log.flushed_offset,
            copies=peers_of(self._copies()),
        )
        # It only informs: nothing depends on it.
        with contextlib.suppress(OSError):
            self._file.write(status)
