"""The goals of the project, and what a run says about each: ratio, spread, met or missed.

A ratio is the other's time through ours, taken within each round; above 1 Penstock is faster. A figure counts until queues
have what was put, wherever both have queues; the goal is measured once more up to the last receipt, for comparison.
"""

import statistics
from collections.abc import Mapping

import attrs

from bench.engines import ENGINES
from bench.measure import Figures, acked

NOT_MEASURED = "not measured"
NOT_ASKED = "not asked for"


@attrs.frozen(kw_only=True)
class Goal:
    """One line of the table.

    Attributes:
        work: what is done.
        against: beside what.
        ours: the figure and the engine of ours; the figure may end in `*`, for a name that depends on the run.
        other: the same of the other; None where the goal is the figure itself.
        least: the ratio to be reached; or the most, where the goal is the figure itself.
        beside: this line is for comparison; it counts for nothing.
    """

    work: str
    against: str
    ours: tuple[str, str]
    other: tuple[str, str] | None
    least: float
    beside: bool = False


@attrs.frozen(kw_only=True)
class Outcome:
    """What a run says about a goal. `median` is None where it was not measured, and `why` says why."""

    goal: Goal
    median: float | None = None
    low: float = 0.0
    high: float = 0.0
    why: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the median reaches the goal."""
        if self.median is None:
            return False
        if self.goal.other is None:
            return self.median <= self.goal.least
        return self.median >= self.goal.least

    @property
    def verdict(self) -> str:
        """One word."""
        if self.median is None:
            return NOT_MEASURED
        if self.goal.beside:
            return ""
        return "met" if self.is_met else "MISSED"


def _put(work: str, figure: str, ours: str, least: float, against: str) -> list[Goal]:
    """Return the line of a put until queues have it, and the one beside it up to the last receipt."""
    return [
        Goal(work=work, against=against, ours=(figure, ours), other=(figure, "rocketmq"), least=least),
        Goal(work="  up to the last receipt", against=against, ours=(acked(figure), ours),
             other=(acked(figure), "rocketmq"), least=least, beside=True),
    ]  # fmt: skip


def _batch(work: str, figure: str, size: str, least: float) -> list[Goal]:
    other = f"put_many 1000 x {size}"
    return [
        Goal(work=work, against="RocketMQ batch of 1,000", ours=(figure, "penstock"),
             other=(other, "rocketmq"), least=least),
        Goal(work="  up to the last receipt", against="RocketMQ batch of 1,000",
             ours=(acked(figure), "penstock"), other=(acked(other), "rocketmq"), least=least,
             beside=True),
    ]  # fmt: skip


def _sync_batch(size: str, other: str, against: str) -> list[Goal]:
    """Return the line of a batch of messages that is synced, and the one beside it of columns."""
    figure = f"sync_many 1000 x {size}"
    return [
        _plain(f"sync batches of 1,000, {size}", against, figure, "penstock-sync", other, 1.0),
        Goal(work="  the same by put_arrow", against=against, other=(figure, other), least=1.0,
             ours=(f"sync_arrow 1000 x {size}", "penstock-sync"), beside=True),
    ]  # fmt: skip


def _plain(work: str, against: str, figure: str, ours: str, other: str, least: float) -> Goal:
    return Goal(work=work, against=against, ours=(figure, ours), other=(figure, other), least=least)


def _goals() -> list[Goal]:
    found: list[Goal] = []
    sizes = ("128 B", "1 KiB")
    for size in sizes:
        found += _put(f"put {size}, 1 thread, async, queues dispatched", f"put {size}", "penstock",
                      1.0, "RocketMQ, steady")  # fmt: skip
    for size in sizes:
        found += _put(f"first 300,000 messages of {size} of a process", f"cold {size}", "penstock",
                      4.0, "RocketMQ, cold")  # fmt: skip
    for size in sizes:
        found += _batch(f"put_many of 1,000, {size}", f"put_many 1000 x {size}", size, 2.5)
    for size in sizes:
        found += _batch(f"put_arrow of 10,000, {size}", f"put_arrow 10000 x {size}", size, 4.0)
    found.append(_plain("put_arrow of 10,000, 1 KiB", "memcpy of the same bytes",
                        "put_arrow 10000 x 1 KiB", "penstock", "memcpy", 0.2))  # fmt: skip
    for threads, least in ((16, 1.5), (1, 1.0)):
        found.append(_plain(f"sync put, 1 KiB, {threads} thread{'s' * (threads > 1)}", "RocketMQ SYNC_FLUSH",
                            f"sync {threads} threads, 1 KiB", "penstock-sync", "rocketmq-sync", least))  # fmt: skip
    for size in sizes:
        for name, words in (("lmdb", "LMDB"), ("rocksdb", "RocksDB")):
            found += _sync_batch(size, f"{name}-sync", f"{words} with sync")
    for size in sizes:
        found.append(_plain(f"read, lazily decoded, {size}", "RocketMQ pull and decode",
                            f"read {size}", "penstock", "rocketmq", 0.7))  # fmt: skip
    for size in sizes:
        found.append(Goal(work=f"to_arrow, {size}", against="RocketMQ pull and decode",
                          ours=(f"to_arrow {size}", "penstock"), other=(f"decode {size}", "rocketmq"),
                          least=1.0))  # fmt: skip
    found += _rest(sizes)
    return found


def _rest(sizes: tuple[str, ...]) -> list[Goal]:
    queries, killed, clean = (
        "find in *",
        "recovery of a killed 1 GiB store",
        "open a clean 1 GiB store",
    )
    return [
        _plain("find in many keys", "RocketMQ queryMessage", queries, "penstock-1gib-index",
               "rocketmq-index", 1.0),
        _plain("recovery of a killed 1 GiB store", "RocketMQ load", killed, "penstock", "rocketmq", 3.0),
        _plain("close of a busy store", "RocketMQ shutdown", "close a busy store, 1 KiB", "penstock",
               "rocketmq", 20.0),
        _plain("open of a clean 1 GiB store", "RocketMQ load", clean, "penstock", "rocketmq", 5.0),
        *(_plain(f"put, single, {size}", words, f"put {size}", "penstock", other, least)
          for size in sizes
          for other, words, least in (("sqlite", "SQLite autocommit, no sync", 8.0), ("rocksdb", "rocksdict", 2.0))),
        Goal(work="memory beyond mapped files, 20,000 queues, MB", against="at most",
             ours=("memory of 20,000 queues", "penstock"), other=None, least=200.0),
        *(Goal(work=f"{what} with 20,000 queues, ms", against=f"at most (0.1: {of_0_1})",
               ours=(f"queues 20,000, {what}", "penstock"), other=None, least=1000.0)
          for what, of_0_1 in (("open", "4,687"), ("close", "3,174"))),
    ]  # fmt: skip


GOALS = _goals()


def judge(figures: Figures, missing: Mapping[str, str]) -> list[Outcome]:
    """Return what a run says about every goal."""
    return [_outcome(goal, figures, missing) for goal in GOALS]


def _outcome(goal: Goal, figures: Figures, missing: Mapping[str, str]) -> Outcome:
    ours = _values(goal.ours, figures)
    other = _values(goal.other, figures) if goal.other is not None else None
    if not ours or (goal.other is not None and not other):
        return Outcome(goal=goal, why=_why(goal, missing))
    each = [b / a for a, b in zip(ours, other, strict=False)] if other is not None else ours
    return Outcome(goal=goal, median=statistics.median(each), low=min(each), high=max(each))


def _values(which: tuple[str, str], figures: Figures) -> list[float]:
    work, engine = which
    if work.endswith("*"):
        work = next((name for name in figures if name.startswith(work[:-1])), work)
    return figures.get(work, {}).get(engine, [])


def _why(goal: Goal, missing: Mapping[str, str]) -> str:
    for work, engine in filter(None, (goal.ours, goal.other)):
        for lacking in (ENGINES[engine].kind, work):
            if lacking in missing:
                return missing[lacking]
    return NOT_ASKED


def table(outcomes: list[Outcome]) -> str:
    """Return the table for a terminal."""
    outcomes = [o for o in outcomes if o.median is not None or o.why != NOT_ASKED]
    lines = [f"{'work':50}{'against':28}{'ratio':>8}  {'spread':16}{'goal':>6}"]
    for outcome in outcomes:
        goal = outcome.goal
        least = f"<{goal.least:g}" if goal.other is None else f"{goal.least:g}"
        if outcome.median is None:
            found = f"{'-':>8}  {'':16}{least:>6}  {NOT_MEASURED}: {outcome.why}"
        else:
            spread = f"{outcome.low:.3g}-{outcome.high:.3g}"
            found = f"{outcome.median:>8.3g}  {spread:16}{least:>6}  {outcome.verdict}"
        lines.append(f"{goal.work:50}{goal.against:28}{found}")
    counted = [o for o in outcomes if not o.goal.beside]
    missed = [o for o in counted if o.verdict == "MISSED"]
    unknown = [o for o in counted if o.median is None]
    met = len(counted) - len(missed) - len(unknown)
    lines.append(f"\n{met} met, {len(missed)} missed, {len(unknown)} not measured")
    return "\n".join(lines)
