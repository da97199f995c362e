"""Parquet and Arrow files: plain types, bounded groups, and no trust in a file that is read."""

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import ImportFileError
from penstock_tools.exchange import arrow_files
from penstock_tools.exchange.arrow_files import (
    ArrowWriter,
    ParquetWriter,
    arrow_rows,
    parquet_rows,
)
from penstock_tools.exchange.rows import MessageRow
from penstock_tools.exchange.text_files import ColumnNames, FileRow

ROW = MessageRow(
    "t", 1, 2, 3, "ID", -(1 << 62), "1.2.3.4:5", 1 << 62, "[::1]:7", "", "a b", {"p": "q"}, None, 8, 9, 10, 11, 12, b"\xff",
)  # fmt: skip
KINDS = ["parquet", "arrow", "stream"]


def written(kind: str, *groups: list[MessageRow]) -> bytes:
    file = io.BytesIO()
    # Arrow closes what it is given.
    file.close = lambda: None  # type: ignore[method-assign] # so that its content can be read
    writer = ParquetWriter(file) if kind == "parquet" else ArrowWriter(file, is_stream=kind == "stream")  # fmt: skip
    for rows in groups:
        writer.write(rows)
    writer.finish()
    return file.getvalue()


def read(kind: str, data: bytes, *, skip: int = 0, **names: Any) -> list[FileRow]:
    rows = parquet_rows if kind == "parquet" else arrow_rows
    return list(rows(io.BytesIO(data), "f", ColumnNames(**names), skip=skip))


def table(kind: str, columns: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    made = pa.table(columns)
    if kind == "parquet":
        pq.write_table(made, file)
    else:
        with (pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream)(file, made.schema) as writer:  # fmt: skip
            writer.write_table(made)
    return file.getvalue()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_read_back(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_files, "_GROUP_ROWS", 4)
    rows = [ROW._replace(body=b"%d" % n, tag="x" * (n % 2)) for n in range(11)]
    data = written(kind, rows[:3], rows[3:5], rows[5:])
    found = read(kind, data)
    assert [r.fields["body"] for r in found if r.fields] == [row.body for row in rows]
    assert [r.number for r in found] == list(range(1, 12))
    first = found[0].fields
    assert first is not None
    expected = {**rows[0]._asdict(), "tag": None}
    assert first == expected
    for skip in (3, 4, 5, 11, 20):
        assert read(kind, data, skip=skip) == found[skip:]


def test_a_group_is_written_before_it_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_files, "_GROUP_BYTES", 10_000)
    data = written("parquet", *[[ROW._replace(body=bytes(3000))] for _ in range(10)])
    groups = pq.ParquetFile(io.BytesIO(data)).metadata.num_row_groups
    assert groups == 4


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_others_are_read_by_name(kind: str) -> None:
    columns = {
        "name": pa.array(["t", "u"]).dictionary_encode(), "body": pa.array(["a", "é"], pa.large_string()), "keys": [["k", "l"], []],
        "born_time": pa.array([1_500_000, None], pa.timestamp("us", "UTC")), "queue": pa.array([1, 2], pa.uint8()),
        "tag": pa.nulls(2), "body_size": [1, 2],
    }  # fmt: skip
    first, second = read(kind, table(kind, columns), renamed={"topic": "name"})
    assert first.fields == {"topic": "t", "body": b"a", "keys": "k l", "born_time_ms": 1500, "queue": 1, "tag": None}  # fmt: skip
    assert second.fields is not None
    assert (second.fields["body"], second.fields["born_time_ms"]) == ("é".encode(), None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("columns", "says"), [
    ({"topic": ["t"], "text": ["b"]}, "column 'text' is not a field of a message"),
    ({"topic": ["t"], "body": [1]}, "column 'body': it is int64, and must be binary"),
    ({"topic": ["t"], "body": ["b"], "queue": ["0"]}, "column 'queue': it is string, and must be int32"),
    ({"topic": pa.array([b"\xff"]), "body": ["b"]}, "column 'topic': it is binary, and must be string"),
    ({"topic": ["t"], "body": ["b"], "born_time": ["now"]}, "neither a timestamp nor integer"),
    ({"topic": ["t"], "body": ["b"], "born_time": [1], "born_time_ms": [1]}, "means the same as column 'born_time'"),
])  # fmt: skip
def test_wrong_columns_are_refused_by_name(kind: str, columns: dict[str, Any], says: str) -> None:
    with pytest.raises(ImportFileError) as raised:
        read(kind, table(kind, columns))
    assert says in str(raised.value)


def test_properties_that_are_no_properties_are_an_error_of_their_row() -> None:
    pairs = pa.array([[("a", "b"), ("a", "c")], [("a", None)], [("a", "b")]], pa.map_(pa.string(), pa.string()))  # fmt: skip
    data = table("arrow", {"topic": ["t"] * 3, "body": ["b"] * 3, "properties": pairs})
    twice, empty, good = read("arrow", data)
    assert "the same name twice" in str(twice.error)
    assert "a name without a value" in str(empty.error)
    assert good.error is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_or_changed_file_is_an_error_and_never_a_crash(kind: str) -> None:
    rows = [ROW._replace(body=b"body %d" % n) for n in range(40)]
    data = written(kind, rows)
    refused = 0
    for at in range(0, len(data), max(len(data) // 150, 1)):
        for bad in (data[:at], data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]):
            try:
                found = read(kind, bad)
                assert len(found) <= len(rows)
            except ImportFileError:
                refused += 1
    assert refused > 100


def test_offsets_outside_of_their_buffer_are_refused() -> None:
    """Arrow itself does not check them, and ends the process when it reads such a value."""
    data = bytearray(table("stream", {"topic": ["t"], "body": [b"x"]}))
    # The offsets of the one body are the last pair of 0 and 1.
    at = data.rindex(b"\0\0\0\0\1\0\0\0") + 4
    data[at : at + 4] = b"\xff\xff\xff\x7f"
    with pytest.raises(ImportFileError, match="truncated or corrupt"):
        read("stream", bytes(data))
