"""The name by which Spark finds the format "penstock": it imports every `pyspark_*` package.

A package whose import fails would stop Spark's look-up of all others, so importing this one never fails.
"""

import contextlib

with contextlib.suppress(ImportError):
    from penstock_spark.source.source import PenstockSource as DefaultSource  # noqa: F401 - looked up by Spark
