"""Files of messages: what their names say, rows of them, and text: NDJSON and CSV."""

import csv
import gzip
import io
import json
from typing import Any

import pytest
from tests.conftest import OpenStore, append_record

from penstock import Message
from penstock.errors import ConfigError, ImportFileError, PropertyError
from penstock_tools.exchange.rows import (
    COLUMNS,
    ColumnError,
    MessageRow,
    is_stored_as,
    key_list,
    parts_of,
    put_of,
    row_of,
    text_of,
)
from penstock_tools.exchange.text_files import (
    CSV_COLUMNS,
    FORMATS,
    ColumnNames,
    CsvWriter,
    FileRow,
    NdjsonWriter,
    compressed,
    csv_rows,
    kind_of,
    ndjson_rows,
    plain_text,
    row_bytes_max,
)


@pytest.mark.parametrize(("path", "expected"), [
    ("a.ndjson", ("ndjson", False)), ("a.jsonl", ("ndjson", False)), ("A.CSV", ("csv", False)), ("x/a.csv.gz", ("csv", True)),
    ("a.ndjson.gz", ("ndjson", True)), ("a.parquet", ("parquet", False)), ("a.feather", ("arrow", False)),
])  # fmt: skip
def test_the_name_says_the_format(path: str, expected: tuple[str, bool]) -> None:
    assert kind_of(path) == expected


def test_a_given_format_counts() -> None:
    assert kind_of("-", "csv") == ("csv", False)
    assert kind_of("a.txt.gz", "ndjson") == ("ndjson", True)
    assert set(FORMATS) == {"ndjson", "csv", "parquet", "arrow"}


@pytest.mark.parametrize(("path", "kind", "says"), [
    ("a.xml", None, "does not end in one of: .ndjson"), ("-", None, "has no name"), ("a", None, "give it as one of"),
    ("a.csv", "xml", "'xml' is not one of"), ("a.parquet.gz", None, "have a compression of their own"),
])  # fmt: skip
def test_a_format_that_is_not_known_is_an_error(path: str, kind: str | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        kind_of(path, kind)


def test_compressed_files_are_gzip_and_equal_each_time() -> None:
    made = []
    for _ in range(2):
        file = io.BytesIO()
        inner = compressed(file)
        inner.write(b"some text")
        inner.close()
        made.append(file.getvalue())
    assert made[0] == made[1]
    assert gzip.decompress(made[0]) == b"some text"
    assert plain_text(io.BytesIO(made[0]), "f", is_gzip=False).read() == b"some text"


@pytest.mark.parametrize(("text", "expected"), [
    (b"", ("", "", {}, None)),
    (b"TAGS\x01a\x02KEYS\x01k l\x02x\x01y\x02", ("a", "k l", {"x": "y"}, None)),
    (b"x\x01y\x02KEYS\x01k", ("", "k", {"x": "y"}, None)),
    (b"x\x01y\x02__CRC32#\x0112\x02", ("", "", {"x": "y"}, None)),
    (b"x\x01y\x01z\x02", ("", "", {"x": "y\x01z"}, None)),
    (b"x\x01y\x02x\x01z\x02", ("", "", {"x": "z"}, b"x\x01y\x02x\x01z\x02")),
    (b"x\x01\x02", ("", "", {}, b"x\x01\x02")),
    (b"\xff\x01y\x02__CRC32#\x0112\x02", ("", "", {"�": "y"}, b"\xff\x01y\x02")),
    (b"\x02", ("", "", {}, b"\x02")),
])  # fmt: skip
def test_a_properties_text_is_in_parts_or_whole(text: bytes, expected: tuple[Any, ...]) -> None:
    assert parts_of(text) == expected


@pytest.mark.parametrize("keys", ["", "a", "a b", " a", "a  b", "a ", " "])
def test_a_list_of_keys_joins_to_the_value(keys: str) -> None:
    assert " ".join(key_list(keys)) == keys


def test_a_row_has_every_field_of_a_message(open_small: OpenStore) -> None:
    given = Message(
        "t", b"b", queue=0, tag="x", keys=["k", "l"], properties={"p": "q"}, flag=3, sys_flag=8, born_time_ms=5,
        born_host="[::1]:9", reconsume_times=2, prepared_offset=77,
    )  # fmt: skip
    with open_small(**{"log.store_host": "[fe80::1]:10911"}) as store:
        store.put_many([given])
        message = store.read("t", 0).messages[0]
        row = row_of(message)
        for name in COLUMNS:
            if name not in ("keys", "properties_text"):
                assert getattr(row, name) == getattr(message, name), name
        assert (row.keys, row.properties_text) == ("k l", None)
        change: dict[str, Any]
        put = put_of(row._asdict())
        assert is_stored_as(put, message)
        for change in (
            {"topic": "u"}, {"queue": 1}, {"body": b"c"}, {"tag": "y"}, {"keys": "k"}, {"properties": {}}, {"flag": 4}, {"sys_flag": 0},
            {"born_time_ms": 6}, {"born_host": "[::1]:8"}, {"reconsume_times": 3}, {"prepared_offset": 78},
            {"properties_text": b"z\x01z\x02z\x01\x02"},
        ):  # fmt: skip
            assert not is_stored_as(put_of({**row._asdict(), **change}), message), change


def test_a_text_that_is_not_described_is_compared_byte_by_byte(open_small: OpenStore) -> None:
    with open_small() as store:
        append_record(store, "t", b"b", b"x\x01\x02y\x01z\x02")
        message = store.read("t", 0).messages[0]
        fields = row_of(message)._asdict()
        assert fields["properties_text"] == b"x\x01\x02y\x01z\x02"
        assert is_stored_as(put_of(fields), message)
        assert not is_stored_as(put_of({**fields, "properties_text": b"x\x01\x02"}), message)
        assert not is_stored_as(put_of({**fields, "properties_text": None}), message)


@pytest.mark.parametrize(("fields", "says"), [
    ({"body": b""}, "column 'topic' is missing"), ({"topic": "t"}, "column 'body' is missing"),
    ({"queue": "1"}, "column 'queue' is '1', and must be an integer"), ({"queue": True}, "must be an integer"),
    ({"flag": 1 << 31}, "from -2147483648 to 2147483647"), ({"born_host": "x"}, "must be 'address:port'"),
    ({"sys_flag": 4}, "a message of a transaction that is not committed"), ({"sys_flag": 12}, "not committed"),
    ({"tag": "a", "properties": {"TAGS": "b"}}, "column 'tag' is 'a', but property TAGS is 'b'"),
    ({"keys": "a", "properties": {"KEYS": "b"}}, "property KEYS is 'b'"),
])  # fmt: skip
def test_a_row_that_cannot_be_stored_names_its_column(fields: dict[str, Any], says: str) -> None:
    whole = fields if "must" not in says and "missing" in says else {"topic": "t", "body": b"", **fields}  # fmt: skip
    with pytest.raises(ColumnError) as raised:
        put_of(whole)
    assert says in str(raised.value)


def test_the_parts_of_a_row_are_taken_as_they_are() -> None:
    """`put` refuses these, or stores them differently; a copy of a stored message must not."""
    put = put_of({"topic": "t", "body": b"", "properties": {"DELAY": "3"}, "tag": "a", "keys": " "})
    assert put.text == b"TAGS\x01a\x02KEYS\x01 \x02DELAY\x013\x02"
    plain = put_of({"topic": "t", "body": b"", "tag": "a", "properties": {"TAGS": "a", "p": "q"}})
    assert (plain.text, plain.message.tag, plain.message.properties) == (None, "a", {"p": "q"})
    assert put_of({"topic": "t", "body": b""}, "u").message.topic == "u"


@pytest.mark.parametrize("pairs", [{"": "v"}, {"n": ""}, {"n\x01": "v"}, {"n": "\x02"}, {"n": "\ud800"}])  # fmt: skip
def test_content_never_becomes_structure(pairs: dict[str, str]) -> None:
    with pytest.raises(PropertyError):
        text_of("", "", pairs)


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
