"""The columns of messages in Arrow: names, types and their order."""

import pyarrow as pa
import pytest

from penstock.errors import ConfigError
from penstock.format.arrow_schema import COLUMNS, check_columns, reader_of, schema_of


def test_the_default_is_what_most_ask_for_without_the_map_of_properties() -> None:
    assert check_columns(None) == (
        "topic", "queue", "queue_offset", "log_offset", "store_time", "born_time", "tag", "keys", "body",
    )  # fmt: skip


def test_columns_come_in_the_order_asked_for() -> None:
    assert check_columns(["body", "topic"]) == ("body", "topic")
    assert schema_of(("body", "topic")) == pa.schema([("body", pa.binary()), ("topic", pa.string())])  # fmt: skip
    assert check_columns([]) == ()


def test_an_unknown_column_is_an_error_that_names_all_there_are() -> None:
    with pytest.raises(
        ConfigError, match="no column 'offset'; the columns are: topic, queue, "
    ) as raised:
        check_columns(["topic", "offset"])
    assert all(name in str(raised.value) for name in COLUMNS)


def test_a_stream_has_its_schema_before_its_first_batch_and_errors_as_they_are() -> None:
    def batches() -> "object":
        yield pa.record_batch({"topic": ["a"]})
        raise ConfigError("gone")

    reader = reader_of(batches(), ["topic"])  # type: ignore[arg-type] # pyarrow is untyped
    assert reader.schema.names == ["topic"]
    assert reader.read_next_batch().to_pydict() == {"topic": ["a"]}
    with pytest.raises(ConfigError, match="gone"):
        reader.read_next_batch()
