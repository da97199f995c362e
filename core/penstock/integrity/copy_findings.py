"""Findings in a copy of a store that was made during writes: separates those that the copying explains.

Such a copy contains each file at a different time, so its queues, index and metadata files may be ahead of its log
or lag it, and the log may end with an incomplete record. Opening the copy for writing repairs all of that.
Copying never explains invalid bytes before the log's last valid record.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from penstock.contracts.dispatcher import COPYING, Finding
from penstock.integrity.segment_digests import BLOCK_BYTES

_PART = "copy"
_WHAT_NOW = (
    "open the copy for writing once: this cuts off the bytes after the log's last record, and updates queues, index "
    "and metadata. Messages put during the copying may be missing: if they matter, copy again after the "
    "writer has closed the store"
)


class CopyFindings:
    """Combines the findings in a copy that copying explains into one finding. Not thread-safe."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._count = 0
        self._parts: set[str] = set()
        self._held: list[Finding] = []

    def sift(self, found: Iterable[Finding], log_end: Callable[[], int]) -> Iterator[Finding]:
        """Yield the findings that copying does not explain, then one finding for all others.

        Args:
            found: the findings, those of the log in log order.
            log_end: returns the offset after the last valid record scanned so far.
        """
        for finding in found:
            if finding.what_now == COPYING:
                self._explain(finding)
            elif _reach(finding) >= log_end():
                # The scan has not yet shown whether valid records follow.
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
            yield self._combine(end)

    def _explain(self, finding: Finding) -> None:
        self._count += 1
        self._parts.add(finding.part)

    def _combine(self, end: int) -> Finding:
        what = ", ".join(sorted(self._parts))
        text = (
            f"the store was copied while it was written, which explains {self._count} differences ({what}); the "
            f"log's last valid record ends at log offset {end}"
        )
        return Finding(_PART, self._root, -1, end, text, _WHAT_NOW)


def _reach(finding: Finding) -> int:
    """Return the last log offset of a finding: a block of a digest may extend past the log's end."""
    if finding.log_offset < 0:
        return -1
    return finding.log_offset + (BLOCK_BYTES - 1 if finding.part == "digest" else 0)
