"""`DataLossError` at the path that the docs of version 0.1 name. New code imports it from `penstock_spark`."""

from penstock_spark.errors import DataLossError

__all__ = ["DataLossError"]
