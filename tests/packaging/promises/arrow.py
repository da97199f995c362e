"""`pip install 'penstock[arrow]'`: tables out of a store and into one, and an archive in Parquet of what is deleted."""

from pathlib import Path

import pyarrow as pa

import penstock
from penstock_spark.archive import ArchiveOptions, archive

bodies = [b"%d" % number for number in range(100)]
with penstock.open("data", retention=["archive"], environ={}) as store:
    store.put_arrow(pa.table({"topic": ["orders"] * 100, "body": pa.array(bodies, pa.binary())}))
    found = store.to_arrow("orders")
    assert found["body"].to_pylist() == bodies, found
    reader = store.to_reader(["orders"], ["topic", "body"])
    assert sum(len(batch) for batch in reader) == 100
assert (
    archive(Path("data").absolute(), 1 << 20, ArchiveOptions(to=str(Path("kept").absolute())))
    == 100
)
assert list(Path("kept").rglob("*.parquet"))
