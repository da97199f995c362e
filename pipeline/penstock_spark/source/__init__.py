"""The source: messages of stores as rows, in batch reads and streams.

The driver plans, tasks read; between two calls nothing is open. Only `source`, `stream` and `partition` import pyspark.

In reading order: `source` (what Spark calls), `options`, `bounds` (where to start and to end), `schema` (the columns of a
read), `queries` (what each store has of what is asked for), `offsets` (the same for all stores), `planning` (how a read is cut
into tasks), `partition` (one task as Spark sends it), `task_reader` (what a task does); for streams: `stream` (what Spark
calls), `stream_state` (what is new and what is gone), `admission` (how much of it one batch takes), `start_offsets` (where a
named query started).
"""
