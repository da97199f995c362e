"""Putting, warm: by size, in batches, as columns, from threads, with and without sync, and how long each one takes."""

from bench.measure import Bench, Session, Work

SIZES = {"128 B": 128, "1 KiB": 1024, "16 KiB": 16 << 10}
SINGLE = ("penstock", "penstock-crc32", "rocketmq", "sqlite", "lmdb", "rocksdb", "plain")
SYNCED = ("penstock-sync", "penstock-sync-crc32", "rocketmq-sync", "sqlite-sync", "lmdb-sync", "rocksdb-sync",
          "plain-sync")  # fmt: skip
MORE = ("penstock-index", "penstock-preallocate", "rocketmq-index")


def run(bench: Bench) -> None:
    """Run all measurements of this module."""
    if any(map(bench.wants, ("put", "put_bare", "put_many", "put_arrow", "latency"))):
        for label, size in sizes(bench).items():
            engines = [*SINGLE, *(MORE if bench.full else ()), "pwrite"]
            with Session(bench, f"puts-{size}", engines) as session:
                session.run(_async(bench, label, size))
    if bench.wants("transaction"):
        with Session(bench, "transaction", ("penstock",)) as session:
            session.run(_transactions())
    if bench.wants("threads"):
        with Session(bench, "threads", ("penstock", "rocketmq")) as session:
            session.run(_threads(bench))
    if any(map(bench.wants, ("sync", "sync_many", "sync_arrow"))):
        engines = [*SYNCED, "penstock-sync-mapped"]
        with Session(bench, "sync", engines) as session:
            session.run(_sync(bench))


def sizes(bench: Bench) -> dict[str, int]:
    """Return the sizes of bodies; the short run skips the largest."""
    return {k: v for k, v in SIZES.items() if bench.full or v <= 1024}


def batch_of(size: int) -> int:
    """Return the largest batch: RocketMQ accepts 4 MiB at most."""
    return 1000 if size <= 1024 else 100


def _async(bench: Bench, label: str, size: int) -> list[Work]:
    # Counts are chosen so that a turn takes a few tenths of a second for each size.
    count = min(100_000 if bench.full else 50_000, (96 << 20) // size)
    largest = batch_of(size)
    works = [
        Work(name=f"put {label}", do="put", engines=SINGLE + MORE,
             facts={"count": count, "size": size}),
        Work(name=f"put_bare {label}", do="put", engines=("rocketmq",),
             facts={"count": count, "size": size, "bare": True}),
    ]  # fmt: skip
    works += [
        Work(name=f"put_many {batch} x {label}", do="put_many", engines=SINGLE + MORE,
             facts={"count": count, "size": size, "batch": batch})
        for batch in (10, 100, 1000)
        if batch <= largest and (bench.full or size == 128 or batch == largest)
    ]  # fmt: skip
    works += [
        Work(name=f"put_bare {largest} x {label}", do="put_many", engines=("rocketmq",),
             facts={"count": count, "size": size, "batch": largest, "bare": True}),
        Work(name=f"put_arrow {10 * largest} x {label}", do="put_arrow",
             engines=("penstock", "penstock-crc32", "penstock-index", "penstock-preallocate", "pwrite"),
             facts={"count": max(count, 10 * largest), "size": size, "batch": 10 * largest}),
    ]  # fmt: skip
    if size == 128:
        works.append(
            Work(name=f"latency of a put, {label}", do="put", engines=SINGLE,
                 facts={"count": 30_000, "size": size, "each": True}),
        )  # fmt: skip
    return works


def _transactions() -> list[Work]:
    facts = {"count": 50_000, "size": SIZES["128 B"], "batch": 10}
    return [
        Work(name=f"{name} 10 x 128 B", do=do, engines=("penstock",), facts=facts)
        for name, do in (
            ("transaction", "transaction"),
            ("transaction against put_many", "put_loose"),
        )
    ]


def _threads(bench: Bench) -> list[Work]:
    labels = ("128 B", "1 KiB") if bench.full else ("128 B",)
    return [
        Work(name=f"threads {threads} x {label}", do="put", engines=("penstock", "rocketmq"),
             facts={"count": 32_000, "size": SIZES[label], "threads": threads})
        for label in labels for threads in (1, 4, 16, 64)
    ]  # fmt: skip


def _sync(bench: Bench) -> list[Work]:
    ours = ("penstock-sync", "penstock-sync-crc32", "penstock-sync-mapped", "rocketmq-sync")
    singles = [
        Work(name=f"sync {threads} threads, {label}", do="put", engines=ours,
             facts={"count": count, "size": SIZES[label], "threads": threads})
        for label in (("128 B", "1 KiB") if bench.full else ("1 KiB",))
        for threads, count in ((1, 500), (4, 1000), (16, 3000), (64, 6000))
    ]  # fmt: skip
    batches = [
        Work(name=f"sync_many 1000 x {label}", do="put_many",
             engines=[*SYNCED, "penstock-sync-mapped"],
             facts={"count": 10_000, "size": SIZES[label], "batch": 1000})
        for label in ("128 B", "1 KiB")
    ]  # fmt: skip
    columns = [
        Work(name=f"sync_arrow 1000 x {label}", do="put_arrow", engines=("penstock-sync", "penstock-sync-crc32"),
             facts={"count": 10_000, "size": SIZES[label], "batch": 1000})
        for label in ("128 B", "1 KiB")
    ]  # fmt: skip
    return singles + batches + columns
