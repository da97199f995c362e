"""`pip install 'penstock[spark,remote]'`: the source plans and reads a store at a URL, as Spark's tasks do."""

import fsspec

import penstock
from penstock_spark.source.offsets import survey
from penstock_spark.source.options import parse_options
from penstock_spark.source.source import PenstockSource
from penstock_spark.source.tasks import plan, read_spans
from penstock_spark.stores import find_stores

with penstock.open("data", environ={}) as store:
    store.put_many([penstock.Message("orders", b"%d" % number, queue=0) for number in range(10)])
fsspec.filesystem("memory").put("data", "/bucket/data", queue=0, recursive=True)
options = parse_options({"path": "memory://bucket/data"})
locations = find_stores(options.paths)
tasks = plan(survey(options, locations), locations.stores, options.min_partitions)
rows = [
    row["value"]
    for task in tasks
    for batch in read_spans(options, ("value",), task)
    for row in batch.to_pylist()
]
assert sorted(rows) == [b"%d" % number for number in range(10)], rows
assert PenstockSource.name() == "penstock"
