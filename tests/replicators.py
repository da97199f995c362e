"""Replicators whose answers a test gives, for tests."""

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from penstock.contracts import Context, CopyOutcome, CopyState, ReplicatedLog, Replicator


@attrs.frozen(kw_only=True)
class ScriptedOptions:
    """`waits`: puts wait; `outcome`: what is answered at once, "" for nothing until `answer` is called."""

    waits: bool = True
    outcome: str = "on disk"
    timeout_ms: int = 200


class ScriptedReplicator(Replicator):
    """Copies nothing, and answers what the test says. `made` is the newest instance."""

    name = "scripted"
    Options = ScriptedOptions
    capabilities = frozenset({"waits"})
    made: "ScriptedReplicator"

    def __init__(self, options: Any, context: Context, log: ReplicatedLog) -> None:
        super().__init__(options, context, log)
        ScriptedReplicator.made = self
        self.appender_waits = options.waits
        self.timeout_ms = options.timeout_ms
        self.outcome = options.outcome
        self.calls: list[str] = []
        self.told: list[int] = []
        self.asked: list[int] = []
        self.waiting: list[Callable[[CopyOutcome], None]] = []
        self.raises = ""
        self.states: list[CopyState] = []
        # What the log said when it was closed: visible and appended.
        self.at_close = (-1, -1)

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call == self.raises:
            raise RuntimeError(f"{call} is broken")

    def start(self) -> None:
        """See `Replicator`."""
        self._note("start")

    def advanced(self, visible_offset: int) -> None:
        """See `Replicator`."""
        self.told.append(visible_offset)
        self._note("advanced")

    def copied(self, end_offset: int, notify: Callable[[CopyOutcome], None]) -> None:
        """See `Replicator`."""
        self.asked.append(end_offset)
        self._note("copied")
        if self.outcome:
            notify(CopyOutcome(self.outcome))
        else:
            self.waiting.append(notify)

    def answer(self, outcome: CopyOutcome) -> None:
        """Answer everyone who waits."""
        while self.waiting:
            self.waiting.pop(0)(outcome)

    def copies(self) -> Sequence[CopyState]:
        """See `Replicator`."""
        self._note("copies")
        return self.states

    def failed(self, reason: str) -> None:
        """See `Replicator`."""
        self._note("failed")

    def close(self) -> None:
        """See `Replicator`."""
        self.at_close = self.log.visible_offset, self.log.wrote_offset
        self._note("close")
        self.answer(CopyOutcome.LATE)
