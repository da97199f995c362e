"""`pip install 'penstock[plots]'`: the plots of `penstock spark stats`, and those of `penstock matrix`."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from penstock_spark.jobs.plots import draw
from penstock_tools.matrix.page import ready

ready()
rows: list[dict[str, Any]] = [
    {
        "name": "orders",
        "messages": 3,
        "bytes": 300,
        "min": 50,
        "mean": 100,
        "p50": 90,
        "p99": 150,
        "max": 150,
    }
]
report = SimpleNamespace(hours=[], topics=rows, tags=rows, keys=[])
drawn = draw(report, Path("pictures"))
assert drawn, "nothing was drawn"
assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
