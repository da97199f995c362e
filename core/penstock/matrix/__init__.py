"""The matrix: every allowed combination of installed strategies, measured on the user's own disk.

`combos` says which there are, `measure` is what a child process does for one, `run` plays rounds over all of
them, `summary` makes one report of it, `page` and `plots` show it.

A report is plain JSON::

    {"made": ISO time, "seconds": how long it took, "machine": {name: text}, "plan": {name: number},
     "settings": {dotted key: value, for all combinations},
     "metrics": {metric: {"title", "unit", "better": "higher" | "lower"}},
     "rows": [{"label", "write", "alloc", "flush", "feed", "acknowledged", "process_crash",
               "machine_crash", "config": TOML, "failure": text or null,
               "figures": {metric: {"median", "low", "high", "rounds": [...]}}}],
     "refused": [{"label", "write", "alloc", "flush", "feed", "reason"}],
     "best": {"throughput" | "p99" | "durability": label},
     "effects": [{"kind", "name", "against", "where", "metric", "median", "low", "high", "pairs"}]}

`sync_bytes` is missing from "figures" where the system does not count what is written, as on a tmpfs. A refused combination is one that no store opens with; a row that failed may have figures of earlier rounds.
An effect is the median, over pairs of rows that differ in nothing else, of the ratio of `name` to `against`.
"""
