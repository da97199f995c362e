"""Prepared messages as `penstock stat` and `penstock transactions` print them."""

from collections.abc import Sequence
from typing import Any

from penstock.contracts import Prepared, SummaryLine

# Lines of JSON that stat has; `penstock transactions` lists all.
_LISTED_MAX = 100
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def row_of(prepared: Prepared) -> dict[str, Any]:
    """Return what is shown of a prepared message."""
    return {
        "transaction_id": prepared.transaction_id, "group": prepared.group, "topic": prepared.topic,
        "queue": prepared.queue, "age_s": round(prepared.age_s, 3), "checks": prepared.checks,
        "reason": prepared.reason or None,
    }  # fmt: skip


def age_text(seconds: float) -> str:
    """Return an age as text, such as "5 min"."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def summary_of(found: Sequence[Prepared]) -> list[SummaryLine]:
    """Return the line about prepared messages; none if there is none."""
    if not found:
        return []
    oldest = max(each.age_s for each in found)
    text = f"{len(found)}, the oldest {age_text(oldest)} old: see penstock transactions"
    value = {"open": len(found), "oldest_s": round(oldest, 3),
        "listed": [row_of(each) for each in found[:_LISTED_MAX]]}  # fmt: skip
    return [SummaryLine("prepared", "prepared, not committed", text, value)]
