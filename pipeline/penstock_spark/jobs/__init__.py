"""Jobs over stores as a whole, run by Spark: verify, reindex, export, replay, compact, stats.

Each is a module with a function `run(spark, ...)` that returns a report, can be passed to `spark-submit`,
and is a verb of `penstock spark`. Invalid input is refused before a task starts. Nothing needs a broker: the
driver and the tasks open the stores' folders, which all of them must see under the same path.

In reading order:

* for all of them: `tasks` (which stores, and where a job may write; work as Spark tasks; progress and reports);
* jobs that change nothing: `verify`, `stats` and its `plots`;
* jobs that write files: `reindex`, `export`;
* jobs that write messages: `messages` (what is read, how it is changed, and that each batch is written once, also after
  a kill), `replay`, `compact`.
"""
