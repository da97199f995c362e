"""The columns of a read: Kafka's without a user schema, else those that it names. This module does not import pyspark."""

from collections.abc import Sequence

from penstock.errors import ConfigError
from penstock_spark.columns import COLUMNS, ddl_of

DEFAULT = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
# In the order in which an error names them.
_ALL = tuple(dict.fromkeys((*DEFAULT, *COLUMNS)))


def ddl(*, headers: bool) -> str:
    """Return the schema of a read without a user schema."""
    return ddl_of((*DEFAULT, "headers") if headers else DEFAULT)


def check_schema(fields: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return the names of the requested columns.

    Args:
        fields: each one's name, and its type as Spark prints it.

    Raises:
        ConfigError: there is no such column, or it has another type.
    """
    for name, shown in fields:
        if name not in COLUMNS:
            near = next((known for known in _ALL if known.lower() == name.lower()), None)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ConfigError(f"there is no column {name!r}{hint}; there are: {', '.join(_ALL)}")
        if shown.lower() != COLUMNS[name].shown:
            raise ConfigError(
                f"the column {name!r} is {COLUMNS[name].shown}, not {shown}: read it with that type, and cast it"
            )
    return tuple(name for name, _ in fields)
