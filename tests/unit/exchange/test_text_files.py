"""Lines of text: what is written can be read by others; what others write is read, or refused with its line."""

import csv
import io
import json
from typing import Any

import pytest

from penstock.errors import ImportFileError
from penstock.exchange.rows import ColumnError, MessageRow
from penstock.exchange.text_files import (
    CSV_COLUMNS,
    ColumnNames,
    CsvWriter,
    FileRow,
    NdjsonWriter,
    csv_rows,
    ndjson_rows,
    row_bytes_max,
)

ROW = MessageRow(
    "t", 1, 2, 3, "ID", 4, "1.2.3.4:5", 6, "[::1]:7", "tag", "a b", {"p": 'q"\x1b'}, None, 8, 9, 10, 11, 12, b"body",
)  # fmt: skip


def ndjson(data: bytes, *, skip: int = 0, limit: int = 1000, **names: Any) -> list[FileRow]:
    return list(ndjson_rows(io.BytesIO(data), "f", ColumnNames(**names), skip=skip, line_bytes_max=limit))  # fmt: skip


def as_csv(data: bytes, *, skip: int = 0, limit: int = 1000, **names: Any) -> list[FileRow]:
    return list(csv_rows(io.BytesIO(data), "f", ColumnNames(**names), skip=skip, line_bytes_max=limit))  # fmt: skip


def written(writer: type[NdjsonWriter] | type[CsvWriter], *rows: MessageRow) -> bytes:
    file = io.BytesIO()
    made = writer(file)
    made.write(rows)
    made.finish()
    return file.getvalue()


def test_a_line_of_json_is_what_read_json_prints_and_more() -> None:
    found = json.loads(written(NdjsonWriter, ROW))
    assert found["body"] == "body"
    assert found["keys"] == ["a", "b"]
    assert found["properties"] == {"p": 'q"\x1b'}
    assert "properties_text_base64" not in found
    binary = ROW._replace(body=b"\xff", properties_text=b"\x02")
    found = json.loads(written(NdjsonWriter, binary))
    assert (found["body_base64"], found["properties_text_base64"]) == ("/w==", "Ag==")
    assert "body" not in found


def test_csv_is_what_any_reader_of_csv_reads() -> None:
    body = 'a,"b"\r\nc\r\té'
    data = written(CsvWriter, ROW._replace(body=body.encode()), ROW._replace(body=b"\0"))
    first, second = csv.DictReader(io.StringIO(data.decode(), newline=""))
    assert tuple(first) == CSV_COLUMNS
    assert (first["body"], first["body_base64"]) == (body, "")
    assert (second["body"], second["body_base64"]) == ("", "AA==")
    assert json.loads(first["properties"]) == ROW.properties


@pytest.mark.parametrize("writer", [NdjsonWriter, CsvWriter])
def test_rows_are_read_back(writer: type[NdjsonWriter] | type[CsvWriter]) -> None:
    rows = [ROW._replace(body=b"%d\r\n" % n, tag="") for n in range(5)]
    read = ndjson if writer is NdjsonWriter else as_csv
    data = written(writer, *rows)
    found = read(data)
    assert [row.fields["body"] for row in found if row.fields] == [r.body for r in rows]
    assert [row.number for row in found] == [1, 2, 3, 4, 5]
    assert read(data, skip=3) == found[3:]
    assert read(b"\xef\xbb\xbf" + data if writer is CsvWriter else data) == found


@pytest.mark.parametrize(("line", "says"), [
    (b"{", "not valid JSON"), (b"[1]", "not a JSON object"), (b"\xff", "not valid JSON"), (b"[" * 900, "not valid JSON"),
    (b'{"body": {"a": 1}}', "column 'body' is {\"a\":1}, and must be a string"), (b'{"body": 1}', "use ingest"),
    (b'{"body_base64": "*"}', "column 'body_base64' is not base64"), (b'{"body_base64": 1}', "is not base64"),
    (b'{"body": "a", "body_base64": "YQ=="}', "are both set"), (b'{"text": "a"}', "column 'text' is not a field of a message"),
    (b'{"keys": [1]}', "column 'keys' is 1"), (b'{"keys": 1}', "a list of strings"), (b'{"properties": []}', "an object of strings"),
    (b'{"properties": {"a": 1}}', "column 'properties.a' is 1"), (b'{"topic": 1}', "column 'topic' is 1, and must be a string"),
    (b'{"body": "\\ud800"}', "column 'body' is not valid UTF-8"),
])  # fmt: skip
def test_a_line_that_is_not_a_message_says_why_and_the_next_is_read(line: bytes, says: str) -> None:
    bad, good = ndjson(line + b'\n{"topic": "t", "body": "b"}\n')
    assert bad.fields is None
    assert says in str(bad.error)
    assert (good.where, good.fields) == ("line 2", {"topic": "t", "body": b"b"})


@pytest.mark.parametrize(("data", "says"), [
    (b"topic,body\nt\n", "the row has 1 fields, the header 2"), (b"topic,body\nt,b,c\n", "the row has 3 fields"),
    (b"topic,body,queue\nt,b,x\n", "column 'queue' is 'x', and must be an integer"), (b"topic,body\nt,\xff\n", "column 'body' is not valid UTF-8"),
    (b"topic,body,properties\nt,b,x\n", "column 'properties' is not a JSON object"), (b"topic,body\n\xff,b\n", "column 'topic' is not valid UTF-8"),
    (b"topic,body,properties\nt,b,[]\n", "an object of strings"), (b"topic,body_base64\nt,*\n", "is not base64"),
])  # fmt: skip
def test_a_row_of_csv_that_is_not_a_message_says_why(data: bytes, says: str) -> None:
    (found,) = as_csv(data)
    assert says in str(found.error)
    assert found.where == "line 2"


@pytest.mark.parametrize(("data", "says"), [
    (b"", "the file is empty"), (b'topic,body\n"t', "line 2: it is not valid CSV"), (b"topic,text\n", "line 1: column 'text' is not a field"),
    (b"body,body\n", "the second one that means 'body'"), (b"topic,body\nt," + b"x" * 2000, "line 2: the line is longer than 1000 bytes"),
])  # fmt: skip
def test_a_file_that_is_not_csv_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(ImportFileError) as raised:
        as_csv(data)
    assert says in str(raised.value)


def test_a_field_over_lines_has_its_first_line_in_errors() -> None:
    rows = as_csv(b'topic,body,queue\nt,"a\nb\nc",0\nt,d,x\n')
    assert [(row.number, row.where) for row in rows] == [(1, "line 2"), (2, "line 5")]
    assert rows[0].fields == {"topic": "t", "body": b"a\nb\nc", "queue": 0}


def test_a_long_line_is_refused_before_it_is_read() -> None:
    class Endless(io.RawIOBase):
        """A line without an end: reading all of it would never return."""

        def readline(self, size: int | None = -1) -> bytes:
            assert size is not None
            assert 0 < size < 2000
            return b"x" * size

    with pytest.raises(ImportFileError, match="longer than 1000 bytes"):
        list(ndjson_rows(Endless(), "f", ColumnNames(), line_bytes_max=1000))  # type: ignore[arg-type] # it has what is used
    assert row_bytes_max(4 << 20) > 6 * (4 << 20)


def test_columns_of_others_are_named_or_left_out() -> None:
    (row,) = ndjson(b'{"text": "b", "name": "t", "id": 1}', renamed={"body": "text", "topic": "name"}, ignores_unknown=True)  # fmt: skip
    assert row.fields == {"body": b"b", "topic": "t"}
    (row,) = as_csv(b"text,id\nb,1\n", renamed={"body": "text"}, ignores_unknown=True)
    assert row.fields == {"body": b"b"}
    (row,) = ndjson(b'{"body": "b"}', renamed={"topic": "name"})
    assert "column 'name' is not there; the columns are: body" in str(row.error)
    with pytest.raises(ColumnError, match="second one"):
        ColumnNames({"body": "text"}).known(["text", "body"])
