"""The source: messages of stores as rows, in batch reads and streams.

The driver plans and tasks read; no store stays open between two calls. Only `source`, `stream` and `partition` import pyspark.

In reading order: `source` (what Spark calls), `options`, `bounds` (where to start and to end), `schema` (the columns of a
read), `queries` (the requested ranges of each store), `offsets` (those of all stores), `planning` (divides a read
into tasks), `partition` (one task as Spark sends it), `task_reader` (what a task does); for streams: `stream` (what Spark
calls), `stream_state` (what is new and what is gone), `admission` (how much of it one batch takes), `start_offsets` (where a
named query started).
"""
