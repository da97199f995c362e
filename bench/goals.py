"""The goals of the project, and the outcome of a run for each: ratio, spread, met or missed.

A ratio is the other engine's time divided by Penstock's, computed within each round; above 1 Penstock is faster. A put
is timed until the queues have all messages, if both engines have queues; the goal is measured again up to the last
receipt, for comparison. Every goal is measured with the default profile, and some without the CRC over whole records.
"""

import statistics
from collections.abc import Mapping

import attrs

from bench.engines import ENGINES
from bench.measure import Figures, acked, on_device, slowest
from bench.workloads import consumers

NOT_MEASURED = "not measured"
NOT_ASKED = "not requested"
SIZES = ("128 B", "1 KiB")
# Ours without the CRC over whole records, as a broker writes them.
BARE = {
    "penstock": "penstock-crc32",
    "penstock-sync": "penstock-sync-crc32",
    "penstock-index": "penstock-1gib-index",
}

Which = tuple[str, str]


@attrs.frozen(kw_only=True)
class Goal:
    """One line of the table.

    Attributes:
        work: the work that is done.
        against: the engine to compare with.
        ours: the figure and the engine of Penstock; the figure may end in `*`, for a name that depends on the run.
        other: the same for the other engine; None if the goal is the figure itself.
        least: the ratio to reach; or the maximum, if the goal is the figure itself.
        must: whether the goal is required; the others are desirable.
        beside: this line is for comparison only; it is not counted.
    """

    work: str
    against: str
    ours: Which
    other: Which | None
    least: float
    must: bool = False
    beside: bool = False

    @property
    def bare(self) -> Which | None:
        """Penstock's figure without the CRC over whole records; None if there is no such engine."""
        engine = BARE.get(self.ours[1])
        return None if engine is None else (self.ours[0], engine)


@attrs.frozen(kw_only=True)
class Outcome:
    """The outcome of a run for a goal.

    Attributes:
        goal: the goal.
        median: of the rounds; None if it was not measured.
        low: the minimum of the rounds.
        high: the maximum.
        bare: the median without the CRC over whole records; None if it was not measured.
        device_bytes: bytes that a message writes to the device, if each is synced; None otherwise.
        why: why it was not measured.
    """

    goal: Goal
    median: float | None = None
    low: float = 0.0
    high: float = 0.0
    bare: float | None = None
    device_bytes: float | None = None
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
        """The outcome in one word."""
        if self.median is None:
            return NOT_MEASURED
        if self.goal.beside:
            return ""
        return "met" if self.is_met else "MISSED"


def _plain(
    work: str, against: str, figure: str, ours: str, other: str, least: float, *, must: bool = False
) -> Goal:
    return Goal(work=work, against=against, ours=(figure, ours), other=(figure, other), least=least,
                must=must)  # fmt: skip


def _limit(work: str, figure: str, ours: str, most: float, *, must: bool = False) -> Goal:
    return Goal(
        work=work, against="at most", ours=(figure, ours), other=None, least=most, must=must
    )


def _acked(goal: Goal) -> Goal:
    """Return the line below a goal that counts up to the last receipt."""
    assert goal.other is not None
    return attrs.evolve(
        goal, work="  up to the last receipt", beside=True, must=False,
        ours=(acked(goal.ours[0]), goal.ours[1]), other=(acked(goal.other[0]), goal.other[1]),
    )  # fmt: skip


def _puts() -> list[Goal]:
    found: list[Goal] = []
    for size, steady, cold in (("128 B", 4.0, 10.0), ("1 KiB", 1.5, 3.0)):
        is_small = size == "128 B"
        for words, figure, against, least in (
            (f"put {size}, until queues have it", f"put {size}", "RocketMQ, steady", steady),
            (
                f"first 300,000 puts of {size} in a new process",
                f"cold {size}",
                "RocketMQ, cold",
                cold,
            ),
        ):
            goal = _plain(words, against, figure, "penstock", "rocketmq", least, must=is_small)
            found += [goal, _acked(goal)]
    for size, sqlite, rocks in (("128 B", 18.0, 3.5), ("1 KiB", 4.0, 1.3)):
        for other, words, least in (
            ("sqlite", "SQLite autocommit, no sync", sqlite), ("rocksdb", "rocksdict", rocks),
        ):  # fmt: skip
            found.append(_plain(f"put, single, {size}", words, f"put {size}", "penstock", other,
                                least, must=size == "128 B"))  # fmt: skip
    return found


def _batches() -> list[Goal]:
    found: list[Goal] = []
    for work, figure, leasts in (
        ("put_many of 1,000", "put_many 1000 x {}", (3.5, 4.0)),
        ("put_arrow of 10,000", "put_arrow 10000 x {}", (4.5, 2.0)),
    ):
        for size, least in zip(SIZES, leasts, strict=True):
            goal = Goal(
                work=f"{work}, {size}", against="RocketMQ batch of 1,000", least=least,
                ours=(figure.format(size), "penstock"), other=(f"put_many 1000 x {size}", "rocketmq"),
                must=figure.startswith("put_many") or size == "128 B",
            )  # fmt: skip
            found += [goal, _acked(goal)]
    found.append(_plain("put_arrow of 10,000, 1 KiB", "`pwrite` of the same bytes",
                        "put_arrow 10000 x 1 KiB", "penstock", "pwrite", 0.45))  # fmt: skip
    return found


def _together() -> list[Goal]:
    # At most 1.5 times as long, messages made in both.
    return [Goal(
        work="transactions of 10 puts, 128 B", against="`put_many` of 10",
        ours=("transaction 10 x 128 B", "penstock"), other=("transaction against put_many 10 x 128 B", "penstock"),
        least=0.67,
    )]  # fmt: skip


def _syncs() -> list[Goal]:
    found = [
        _plain(f"sync put, 1 KiB, {threads} thread{'s' * (threads > 1)}", "RocketMQ SYNC_FLUSH",
               f"sync {threads} threads, 1 KiB", "penstock-sync", "rocketmq-sync", least, must=True)
        for threads, least in ((1, 1.5), (16, 1.8), (64, 1.2))
    ]  # fmt: skip
    for name, words, leasts in (("lmdb", "LMDB", (1.1, 1.3)), ("rocksdb", "RocksDB", (1.2, 1.5))):
        for size, least in zip(SIZES, leasts, strict=True):
            figure = f"sync_many 1000 x {size}"
            goal = _plain(f"sync batches of 1,000, {size}", f"{words} with sync", figure, "penstock-sync",
                          f"{name}-sync", least, must=size == "128 B")  # fmt: skip
            columns = attrs.evolve(
                goal, work="  the same by put_arrow", beside=True, must=False,
                ours=(f"sync_arrow 1000 x {size}", "penstock-sync"),
            )  # fmt: skip
            found += [goal, columns]
    return found


def _reads() -> list[Goal]:
    found = []
    for words, ours, other, leasts, must in (
        ("read with bodies", "read", "read", (2.5, 0.8), True),
        ("all fields looked at", "decode", "decode", (0.9, 0.6), False),
        ("to_arrow", "to_arrow", "decode", (2.0, 0.8), True),
    ):
        for size, least in zip(SIZES, leasts, strict=True):
            found.append(
                Goal(work=f"{words}, {size}", against="RocketMQ pull and decode", least=least,
                     ours=(f"{ours} {size}", "penstock"), other=(f"{other} {size}", "rocketmq"),
                     must=must and size == "128 B")
            )  # fmt: skip
    found += [
        _plain("find in many keys", "RocketMQ queryMessage", "find in *", "penstock-index", "rocketmq-index", 1.0),
        _plain("offset_at in many messages", "RocketMQ's search by time", "offset_at in *", "penstock-index",
               "rocketmq-index", 1.0),
    ]  # fmt: skip
    return found


def _lives() -> list[Goal]:
    return [
        _plain("recovery of a killed 1 GiB store", "RocketMQ load", "recovery of a killed 1 GiB store",
               "penstock", "rocketmq", 6.0, must=True),
        _plain("open of a clean 1 GiB store", "RocketMQ load", "open a clean 1 GiB store", "penstock",
               "rocketmq", 5.0, must=True),
        _plain("close of a busy store", "RocketMQ shutdown", "close a busy store, 1 KiB", "penstock",
               "rocketmq", 100.0, must=True),
        *(_limit(f"{what} with 20,000 queues, ms", f"queues 20,000, {what}", "penstock", 1000.0)
          for what in ("open", "close")),
        _limit("memory beyond mapped files, 20,000 queues, MB", "memory of 20,000 queues", "penstock", 200.0),
        _plain("`import penstock`", "CPU of `import numpy`", "import, processor time", "penstock", "numpy",
               1.0, must=True),
        _limit("opening an empty store, modules loaded, ms of CPU", "open an empty store, processor time",
               "penstock", 10.0),
    ]  # fmt: skip


def _times() -> list[Goal]:
    tail = "tail, put to a follower in another process"
    return [
        _plain("99.9 % of puts of 128 B take no longer", "RocketMQ", slowest("latency of a put, 128 B"),
               "penstock", "rocketmq", 1.0),
        _limit(f"longest stall of another thread during syncs, ms (0.1: {STALL_0_1_MS:g})",
               "stall of another thread during sync puts, the longest", "penstock-sync", STALL_0_1_MS),
        _plain("put to seen by a follower in another process", "SQLite, polled", tail, "penstock", "sqlite",
               1.0, must=True),
        _limit("the same, median, us", f"{tail}, us", "penstock", 600.0, must=True),
    ]  # fmt: skip


def _consumers() -> list[Goal]:
    found = []
    for words, figure, against in (
        ("consumed, 100 acks on disk at a time", consumers.DURABLE,
         (("SQLite queue, WAL, FULL", "sqlite-queue", 3.0), ("SQLite queue, no WAL, FULL", "sqlite-queue-delete", 3.0),
          ("redis, appendfsync always", "redis-always", 3.0))),
        ("consumed, each acked, no sync", consumers.EACH,
         (("litequeue", "litequeue", 5.0), ("redis, appendfsync everysec", "redis-everysec", 5.0))),
    ):  # fmt: skip
        found += [
            _plain(f"{words}, {size}", name, f"{figure}, {size}", "consumer", engine, least, must=size == "128 B")
            for size in SIZES for name, engine, least in against
        ]  # fmt: skip
    found += [
        _plain(f"consumed in {consumers.MEMBERS} {what}, 100 acks at a time, {size}", name, f"{figure}, {size}",
            "consumer",
               engine, 3.0, must=size == "128 B")
        for what, figure in (("threads", consumers.THREADS), ("processes", consumers.TOGETHER))
        for size in SIZES
        for name, engine in (("SQLite queue, WAL, FULL", "sqlite-queue"), ("redis, appendfsync always", "redis-always"))
    ]  # fmt: skip
    for words, figure, most in (
        ("put to a consumer's hand, one process", consumers.HAND, 200.0),
        ("put to a consumer's hand, two processes", consumers.HAND_ACROSS, 1000.0),
    ):
        found.append(_limit(f"{words}, median, us", f"{figure}, us", "consumer", most, must=True))
        beside = _plain(
            "  the same", "redis, XREADGROUP BLOCK", figure, "consumer", "redis-everysec", 1.0
        )
        found.append(attrs.evolve(beside, beside=True))
    for words, engine in (
        ("no extensions", "penstock-alone"),
        ("the commit of --before", "penstock-before"),
    ):
        found.append(_plain("single puts, 128 B, with extensions", words, consumers.EXTENSIONS, "penstock", engine,
                            0.97, must=True))  # fmt: skip
    return found


# The figures of version 0.1 on the machine of docs/performance.md.
STALL_0_1_MS = 3.9
GOALS = [
    *_puts(),
    *_batches(),
    *_syncs(),
    *_reads(),
    *_lives(),
    *_times(),
    *_consumers(),
    *_together(),
]


def judge(figures: Figures, missing: Mapping[str, str]) -> list[Outcome]:
    """Return the outcome of a run for every goal."""
    return [_outcome(goal, figures, missing) for goal in GOALS]


def _outcome(goal: Goal, figures: Figures, missing: Mapping[str, str]) -> Outcome:
    each = _ratios(goal.ours, goal.other, figures)
    if not each:
        return Outcome(goal=goal, why=_why(goal, missing))
    bare = _ratios(goal.bare, goal.other, figures)
    device = _values((on_device(goal.ours[0]), goal.ours[1]), figures)
    return Outcome(
        goal=goal, median=statistics.median(each), low=min(each), high=max(each),
        bare=statistics.median(bare) if bare else None,
        device_bytes=statistics.median(device) if device else None,
    )  # fmt: skip


def _ratios(ours: Which | None, other: Which | None, figures: Figures) -> list[float]:
    """Return the ratio of each round; the figures themselves if there is no other engine."""
    mine = _values(ours, figures)
    if other is None:
        return mine
    return [b / a for a, b in zip(mine, _values(other, figures), strict=False)]


def _values(which: Which | None, figures: Figures) -> list[float]:
    if which is None:
        return []
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
    """Return the table for a terminal: a star marks a required goal."""
    outcomes = [o for o in outcomes if o.median is not None or o.why != NOT_ASKED]
    header = (
        f"{'  work':60}{'against':28}{'ratio':>8}  {'spread':16}{'goal':>6}  {'':7}{'no record CRC':>14}"
        f"{'device bytes':>14}"
    )
    lines = [header]
    for outcome in outcomes:
        goal = outcome.goal
        least = f"<{goal.least:g}" if goal.other is None else f"{goal.least:g}"
        if outcome.median is None:
            found = f"{'-':>8}  {'':16}{least:>6}  {NOT_MEASURED}: {outcome.why}"
        else:
            spread = f"{outcome.low:.3g}-{outcome.high:.3g}"
            bare = "" if outcome.bare is None else f"{outcome.bare:.3g}"
            device = "" if outcome.device_bytes is None else f"{outcome.device_bytes:,.0f}"
            found = f"{outcome.median:>8.3g}  {spread:16}{least:>6}  {outcome.verdict:7}{bare:>14}{device:>14}"
        lines.append(
            f"{'* ' if goal.must else '  '}{goal.work:58}{goal.against:28}{found}".rstrip()
        )
    lines.append(f"\n{counts(outcomes)}")
    return "\n".join(lines)


def counts(outcomes: list[Outcome]) -> str:
    """Return the number of goals that are met, as text."""
    counted = [o for o in outcomes if not o.goal.beside]
    parts = []
    for words, asked in (("required goals (*)", True), ("desirable goals", False)):
        those = [o for o in counted if o.goal.must is asked]
        missed = sum(o.verdict == "MISSED" for o in those)
        unknown = sum(o.median is None for o in those)
        parts.append(
            f"of {len(those)} {words} {len(those) - missed - unknown} met, {missed} missed, {unknown} not measured"
        )
    return "; ".join(parts)
