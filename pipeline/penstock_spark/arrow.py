"""pyarrow, for every module here that needs it at run time; its absence is an error that names the extra.

The commands of `penstock spark` import a job before they start Spark, so pyarrow is the first package that they miss.
"""

from penstock.errors import MissingExtraError

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ModuleNotFoundError as error:
    raise MissingExtraError("pyarrow", "spark", "penstock_spark") from error

__all__ = ["pa", "pc", "pq"]
