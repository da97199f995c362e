"""Asks the released stores what the dumps of the golden directories leave out: keys, times, records in no queue.

Run from the project's root after `make_java_golden`: ``python -m tests.golden.make_java_answers``; needs a JDK and
Maven. Opens copies of the cleanly closed archives, each with the version that wrote it; the archives stay as they are.
A killed one is not asked: Java deletes its newest index file at the next start and makes only a part of it again.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.conftest import unpack
from tests.golden.make_java_golden import SIZES
from tests.interop.javastore import VERSIONS, JavaStore, build

HERE = Path(__file__).parent
FOREVER = 1 << 50
KEYS = [(f"topic{n % 2}", f"k{n}") for n in range(0, 150, 7)] + [
    ("topic1", "every3"), ("topic0", "every4"), ("topic0", "U2"), ("topic1", "U13"), ("topic0", "k26"),
    ("batched", "b5"), ("topic0", "none"), ("none", "k2"),
]  # fmt: skip


def key_answers(java: JavaStore) -> list[dict[str, Any]]:
    return [
        {"topic": t, "key": k, "log_offsets": [m["log_offset"] for m in java.query(t, k, 0, FOREVER)]}
        for t, k in KEYS
    ]  # fmt: skip


def time_answers(java: JavaStore, version: str) -> list[dict[str, Any]]:
    """At, before and after each time that a queue knows; 4.x has no boundaries."""
    found = []
    for (topic, queue), dumped in java.dump().items():
        known = {m["store_time_ms"] for m in dumped["messages"]}
        for time_ms in sorted({t + d for t in known for d in (-1, 0, 1)}):
            for boundary in ("lower", "upper") if version.startswith("5") else (None,):
                offset = java.offset_by_time(topic, queue, time_ms, boundary)
                found.append({"topic": topic, "queue": queue, "time_ms": time_ms,
                              "boundary": boundary, "offset": offset})  # fmt: skip
    return found


def main() -> None:
    """Write the answers of each version beside its archive."""
    for version in VERSIONS:
        name = f"java-{version}-clean"
        with tempfile.TemporaryDirectory() as home, JavaStore(build(version)) as java:
            unpack(HERE / f"{name}.tar.gz", Path(home))
            java.open(Path(home) / "store", SIZES)
            records = java.records()
            queued = {m["log_offset"] for q in java.dump().values() for m in q["messages"]}
            answers = {
                "keys": key_answers(java),
                "times": time_answers(java, version),
                "layout": [[r["log_offset"], r["size"], r["magic"]] for r in records],
                "unqueued": [r for r in records if "topic" in r and r["log_offset"] not in queued],
            }
            text = json.dumps(answers, separators=(",", ":"), sort_keys=True)
            (HERE / f"{name}.answers.json").write_text(text)


if __name__ == "__main__":
    main()
