"""The source: messages of stores as rows, in batch reads and streams.

The driver plans and tasks read; no store stays open between two calls. Only `source` imports pyspark.

In reading order: `source` (what Spark calls), `options` (with where to start and to end, and the columns of a read),
`offsets` (the requested ranges of each store, and a stream's offsets), `tasks` (divides a read into tasks; what a task
does), `stream_state` (of a stream: where it started, what is new and what is gone, how much of it one batch takes).
"""
