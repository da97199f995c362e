"""`pip install 'penstock[cli,arrow]'`: the commands with Parquet, and the demo without its step on Spark."""

import contextlib
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock_tools.cli.root import run

pq.write_table(pa.table({"id": [4711, 4712], "kind": ["paid", "sent"]}), "events.parquet")
out = io.StringIO()
with contextlib.redirect_stdout(out):
    assert (
        run(
            [
                "ingest",
                "data",
                "events.parquet",
                "--topic",
                "events",
                "--key-field",
                "id",
                "--tag-field",
                "kind",
            ]
        )
        == 0
    )
    assert run(["find", "data", "events", "--key", "4711", "--json"]) == 0
    assert run(["verify", "data"]) == 0
    assert run(["demo", "--no-spark", "--files", "3", "--path", "demonstrated"]) == 0
assert "4711" in out.getvalue(), out.getvalue()
assert Path("demonstrated", "store").is_dir()
