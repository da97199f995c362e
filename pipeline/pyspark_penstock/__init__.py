"""The name by which Spark finds the format "penstock": it imports every `pyspark_*` package.

A package that fails on import would end the look-up for all others, so this one never does.
"""

import contextlib

with contextlib.suppress(ImportError):
    from penstock_spark.source.source import PenstockSource as DefaultSource  # noqa: F401 - looked up by Spark
