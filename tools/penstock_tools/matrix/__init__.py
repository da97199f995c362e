"""The matrix: measures every allowed combination of installed strategies on the user's own disk.

`measure` runs in a child process for one combination, `report` runs all of them in rounds and combines the results into
a report, `page` shows it.

A report is plain JSON::

    {"made": ISO time, "seconds": how long it took, "machine": {name: text}, "plan": {name: number},
     "metrics": {metric: {"title", "unit", "better": "higher" | "lower"}},
     "rows": [{"label", "write", "alloc", "flush", "acknowledged", "process_crash",
               "machine_crash", "config": TOML, "failure": text or null,
               "figures": {metric: {"median", "low", "high", "rounds": [...]}}}],
     "refused": [{"label", "write", "alloc", "flush", "reason"}],
     "best": {"throughput" | "p99" | "durability": label}}

`sync_bytes` is missing from "figures" if the system does not count written bytes, as on a tmpfs. A refused combination
is one with which no store can be opened; a row that failed may have figures of earlier rounds.
"""
