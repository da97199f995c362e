"""Reading messages: pull, decode, columns, by key, by time."""

from bench.measure import Bench, Session, Work
from bench.workloads.puts import sizes

LIMIT = 256
IN_ORDER = ("penstock", "penstock-crc32", "rocketmq", "sqlite", "lmdb", "rocksdb")
# RocketMQ's pull returns bytes; decoding creates messages from them.
DECODED = {"rocketmq": {"do": "read", "decode": True}}


def run(bench: Bench) -> None:
    """Run all measurements of this module."""
    if any(map(bench.wants, ("read", "pull", "decode", "to_arrow"))):
        for label, size in sizes(bench).items():
            count = min(200_000 if bench.full else 100_000, (192 << 20) // size)
            with Session(bench, f"reads-{size}", IN_ORDER) as session:
                session.all("fill", count=bench.scaled(count), size=size)
                session.run(_in_order(label, count))
    if bench.wants("find") or bench.wants("offset_at"):
        keys = 10_000_000 if bench.full else 1_000_000
        engines = ("penstock-index", "penstock-1gib-index", "rocketmq-index", "sqlite-index")
        with Session(bench, "finds", engines) as session:
            session.all("fill", count=bench.scaled(keys), size=32)
            session.run(_by_key(keys))


def _in_order(label: str, count: int) -> list[Work]:
    facts = {"limit": LIMIT, "count": count}
    return [
        Work(name=f"read {label}", do="read", engines=IN_ORDER, facts=facts, own=DECODED),
        Work(name=f"pull {label}", do="read", engines=("rocketmq",), facts=facts),
        Work(name=f"decode {label}", do="decode", engines=("penstock", "penstock-crc32", "rocketmq", "sqlite"),
             facts=facts, own=DECODED),
        Work(name=f"to_arrow {label}", do="to_arrow", engines=("penstock", "penstock-crc32")),
    ]  # fmt: skip


def _by_key(keys: int) -> list[Work]:
    return [
        Work(name=f"find in {keys:,} keys", do="find", unit="us a key", scale=1000,
             engines=("penstock-index", "penstock-1gib-index", "rocketmq-index", "sqlite-index"),
             facts={"count": 2000, "seed": keys}),
        Work(name=f"offset_at in {keys:,} messages", do="offset_at", unit="us a time", scale=1000,
             engines=("penstock-index", "penstock-1gib-index", "rocketmq-index"), facts={"count": 500, "seed": 5}),
    ]  # fmt: skip
