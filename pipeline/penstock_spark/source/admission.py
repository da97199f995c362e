"""Limits the new messages that one batch of a stream reads. This module does not import pyspark.

As in Kafka's source, the limit is divided among the queues in proportion to their new messages, and each queue with
new messages gets at least one, so no queue starves.
"""

import math
from collections.abc import Mapping
from typing import TypeVar

_K = TypeVar("_K")


def limited(
    starts: Mapping[_K, int],
    ends: Mapping[_K, int],
    sizes: Mapping[_K, float],
    *,
    rows: int = 0,
    size: int = 0,
) -> dict[_K, int]:
    """Return the end offset of the batch for each queue of `ends`.

    Args:
        starts: the next message of each queue.
        ends: the end offset of each queue, not before its start.
        sizes: the mean record size of each, in bytes.
        rows: approximate maximum number of messages in total; 0 for no limit.
        size: approximate maximum number of bytes in total; 0 for no limit.
    """
    new = {place: ends[place] - starts[place] for place in ends}
    share = 1.0
    if rows:
        share = min(share, rows / max(sum(new.values()), 1))
    if size:
        total = sum(count * sizes[place] for place, count in new.items())
        share = min(share, size / max(total, 1.0))
    if share >= 1.0:
        return dict(ends)
    return {place: starts[place] + min(count, _part(count * share)) for place, count in new.items()}


def _part(wanted: float) -> int:
    # A share is a quotient: what should be whole may lie a little below.
    return math.ceil(wanted) if wanted < 1 else math.floor(wanted * (1 + 1e-12))
