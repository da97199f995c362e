"""Copies of a store that were made while it was written: how they are known, and what copying explains.

A copy takes files one after the other while all of them grow, so its queues, index and marks are ahead of its
log or lag it, and the log may end in a record that is there in part. Opening such a copy for writing puts all
of that right. Copying never explains bytes that are no valid record before the log's last valid record.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from penstock.contracts.findings import COPYING, Finding
from penstock.integrity.segment_digests import BLOCK_BYTES

_PART = "copy"
_WHAT_NOW = (
    "open it for writing once: that cuts what is after the log's last record, and brings queues, index and "
    "marks up to it. Messages put while it was copied may be missing: if they matter, copy again after the "
    "writer has closed the store"
)


class CopyFindings:
    """Findings in an unfinished copy, those that copying explains put together. Not thread-safe."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._count = 0
        self._parts: set[str] = set()
        self._held: list[Finding] = []

    def sift(self, found: Iterable[Finding], log_end: Callable[[], int]) -> Iterator[Finding]:
        """Return what copying does not explain, and then one finding for all that it does.

        Args:
            found: the findings, those of the log in log order.
            log_end: tells the offset after the last valid record, as far as the log was walked.
        """
        for finding in found:
            if finding.what_now == COPYING:
                self._explain(finding)
            elif _reach(finding) >= log_end():
                # Whether valid records follow shows later.
                self._held.append(finding)
            else:
                yield finding
        end = log_end()
        for finding in self._held:
            if _reach(finding) >= end:
                self._explain(finding)
            else:
                yield finding
        if self._count:
            yield self._together(end)

    def _explain(self, finding: Finding) -> None:
        self._count += 1
        self._parts.add(finding.part)

    def _together(self, end: int) -> Finding:
        what = ", ".join(sorted(self._parts))
        text = (
            f"copied while it was written: {self._count} differences that copying explains ({what}); the "
            f"log's last valid record ends at log offset {end}"
        )
        return Finding(_PART, self._root, -1, end, text, _WHAT_NOW)


def _reach(finding: Finding) -> int:
    """Return the log offset up to which a finding goes: a block of a digest may reach past the log's end."""
    if finding.log_offset < 0:
        return -1
    return finding.log_offset + (BLOCK_BYTES - 1 if finding.part == "digest" else 0)
