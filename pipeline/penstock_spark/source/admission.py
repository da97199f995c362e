"""How much of what is new one batch of a stream takes. No pyspark in here.

As Kafka's source does: the limit is split over the queues in proportion to what each has, and a queue with
anything new always gets at least one message, so that none waits for ever.
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
    """Return where to end, for each queue of `ends`.

    Args:
        starts: the next message of each queue.
        ends: where each ends; nowhere before its start.
        sizes: the mean record size of each, in bytes.
        rows: so many messages in all, about; 0 for no limit.
        size: so many bytes in all, about; 0 for no limit.
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
