"""Jobs over stores as a whole, run by Spark: verify, reindex, export, replay, compact, stats.

Each is a module with a function `run(spark, ...)` that returns a report, can be handed to `spark-submit`,
and is a verb of `penstock spark`. Bad input is refused before a task starts. Nothing needs a broker: the
driver and the tasks open the stores' folders, which all of them must see under the same path.
"""
