"""The sink: rows of a frame or a stream into a store, each batch exactly once.

Tasks encode rows into staged files; the driver decides on a batch and appends it. Only `writer` imports pyspark.

In reading order: `writer` (what Spark calls, and the store or dataset that it writes to), `options`, `rows` (what a
task does: from rows to a staged file of encoded messages), `commit` (what the driver does: the steps that make a batch
part of the log once, and the files that say what is decided and done).
"""
