"""The Spark session of the gate's tests, for those of the night."""

from tests.spark.conftest import spark

__all__ = ["spark"]
