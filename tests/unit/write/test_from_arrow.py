"""Arrow tables into records: the same as the messages they stand for, or one error that names the row."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.conftest import OpenStore

from penstock._kernel import QueueCursor, RecordEncoder
from penstock.errors import MessageError
from penstock.write.from_arrow import TableRows, encode_table


def encoder() -> RecordEncoder:
    return RecordEncoder(
        b"\x7f\0\0\1\0\0\x2a\x9f", crc_property=False, body_bytes_max=100, time_ms=lambda: 5,
        make_cursor=lambda topic, queue: QueueCursor(topic, queue, 0),
    )  # fmt: skip


TABLE = pa.table({
    "topic": ["a", "b", "a"], "body": [b"x", b"", b"z"], "queue": pa.array([0, 1, None], pa.int64()),
    "tag": ["red", None, ""], "keys": [["k", "l"], None, []], "flag": pa.array([1, 2, 3], pa.int32()),
    "properties": pa.array([[("n", "1")], None, [("m", "2"), ("o", "3")]], pa.map_(pa.string(), pa.string())),
    "born_time": [datetime(2024, 1, 1, tzinfo=UTC)] * 3,
})  # fmt: skip


def test_plain_rows_are_encoded_without_a_message_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the time tells otherwise: the records are the same."""
    expected = bytes(memoryview(encode_table(encoder(), TABLE)))
    monkeypatch.setattr(TableRows, "message", None)
    assert bytes(memoryview(encode_table(encoder(), TABLE))) == expected


def test_a_table_in_chunks_or_a_slice_is_taken_like_a_whole_one() -> None:
    twice = pa.concat_tables([TABLE, TABLE])
    assert len(encode_table(encoder(), twice)) == 6
    sliced = encode_table(encoder(), TABLE.slice(1, 1))
    whole = encode_table(encoder(), TABLE.take([1]))
    assert bytes(memoryview(sliced)) == bytes(memoryview(whole))


BORN = [
    ("1", pa.string()), (0, pa.date32()), (0.5, pa.float64()), (2**64 - 1, pa.uint64()), (2**62, pa.timestamp("s")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"topic": ["a"]}, "no column 'body'"), ({"body": [b""]}, "no column 'topic'"),
        ({"topic": ["a"], "body": [None]}, "'body' has nulls"), ({"topic": ["a"], "body": [b""], "colour": [1]}, "'colour'"),
        ({"topic": ["a"], "body": [b""], "queue": ["x"]}, "queue"),
        *(({"topic": ["a"], "body": [b""], "keys": [keys]}, "a null or an empty key") for keys in (["k", None], ["", "k"])),
        *(({"topic": ["a"], "body": [b""], "born_time": pa.array([time], kind)}, "'born_time' is") for time, kind in BORN),
    ],
)  # fmt: skip
def test_a_table_that_is_none_is_refused(columns: dict[str, Any], reason: str) -> None:
    with pytest.raises(MessageError, match=reason):
        encode_table(encoder(), pa.table(columns))


def test_a_column_that_is_given_twice_is_refused() -> None:
    with pytest.raises(MessageError, match="'tag' more than once"):
        encode_table(encoder(), pa.table([[""]] * 4, names=["topic", "body", "tag", "tag"]))


@pytest.mark.parametrize("name", ["topic", "body", "tag"])
@pytest.mark.parametrize("bounds", [[0, 100, 100, 5], [0, 3, 2, 5], [0, -1, 2, 5]])
def test_offsets_outside_of_a_columns_bytes_are_refused(name: str, bounds: list[int]) -> None:
    """Arrow checks only the last one, and ended the process when the row was to be shown."""
    kind = pa.binary() if name == "body" else pa.string()
    buffers = [None, pa.py_buffer(np.array(bounds, np.int32).tobytes()), pa.py_buffer(b"abcde")]
    columns = {"topic": pa.array(["t"] * 3), "body": pa.array([b"x"] * 3)}
    columns[name] = pa.Array.from_buffers(kind, 3, buffers)
    with pytest.raises(MessageError, match=f"column '{name}' is not a valid Arrow array"):
        encode_table(encoder(), pa.table(columns))


def test_the_first_row_that_cannot_be_stored_is_named() -> None:
    table = pa.table({"topic": ["a", "a", "a"], "body": [b"", b"x" * 101, b"x" * 102]})
    with pytest.raises(MessageError) as raised:
        encode_table(encoder(), table)
    assert raised.value.__notes__ == ["it is row 1 of the table; nothing was stored"]


@pytest.mark.parametrize("name", ["queue", "flag"])
@pytest.mark.parametrize("column", [
    ["1", None], [True, False], [b"1", b"2"],
])  # fmt: skip
def test_numbers_given_as_text_or_truth_are_refused_with_nulls_or_without(
    name: str, column: list[Any], open_small: OpenStore
) -> None:
    table = pa.table({"topic": ["t", "t"], "body": [b"a", b"b"], name: column})
    with open_small() as store:
        with pytest.raises(MessageError, match=f"column '{name}' is .* must contain integers"):
            store.put_arrow(table)
        store.put_arrow(
            pa.table({"topic": ["t"], "body": [b"a"], name: pa.array([None], pa.int8())})
        )
