"""The sink: rows of a frame or a stream into a store, each batch exactly once.

Tasks encode and stage (`columns`, `staging`), the driver decides, appends and notes (`commit`, on the files
of `ledger`); `writer` is all that Spark sees of it. Only `writer` imports pyspark.
"""
