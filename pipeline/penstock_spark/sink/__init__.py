"""The sink: rows of a frame or a stream into a store, each batch exactly once.

Tasks encode rows into staged files; the driver decides on a batch, appends it, and records it in the ledger. Only `writer` imports pyspark.

In reading order: `writer` (what Spark calls), `options`, `target` (the store or dataset, opened or created), `columns` (from rows to
messages and their queues), `staging` (encoded messages in files), `ledger` (the files that say what is decided and done),
`commit` (the steps that make a batch part of the log once).
"""
