"""Files from elsewhere, as `ingest` and `import` read them: every value arrives, or an error says which one does not."""

import bz2
import datetime
import decimal
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.commands import run

import penstock
from penstock.message import StoredMessage

NDJSON = b'{"id":"a"}\n{"id":"b"}\n'
BODIES = [b'{"id":"a"}', b'{"id":"b"}']


Load = Callable[..., tuple[int, list[StoredMessage], str]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a file; returns the exit code, what is stored, and what was said."""

    def loaded(
        name: str, data: bytes, *words: str, verb: str = "ingest"
    ) -> tuple[int, list[StoredMessage], str]:
        (tmp_path / name).write_bytes(data)
        store = tmp_path / "s"
        done = run(verb, store, tmp_path / name, "--topic", "t", *words)
        with penstock.open(store, read_only=True, environ={}) as opened:
            there = list(opened.scan("t")) if "t" in opened.topics() else []
            return done.code, there, done.err

    return loaded


def bodies(found: list[StoredMessage]) -> list[bytes]:
    return [message.body for message in found]


def parquet(table: pa.Table, **options: int) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("name", ["x.ndjson.gz", "x.ndjson", "x.jsonl"])
def test_gzip_is_read_whatever_the_name_says(load: Load, name: str) -> None:
    """`ingest x.ndjson.gz` stored the compressed bytes as lines, with exit code 0."""
    code, found, _ = load(name, gzip.compress(NDJSON), "--key-field", "id")
    assert (code, bodies(found)) == (0, BODIES)
    assert [message.keys for message in found] == [("a",), ("b",)]


@pytest.mark.parametrize("verb", ["ingest", "import"])
@pytest.mark.parametrize(
    ("ending", "data"),
    [
        ("zst", b"\x28\xb5\x2f\xfd" + b"x" * 20),
        ("bz2", bz2.compress(NDJSON)),
        ("xz", lzma.compress(NDJSON)),
        ("zip", b"PK\x03\x04" + b"x" * 20),
    ],
)
def test_another_compression_is_refused_by_its_first_bytes(
    load: Load, verb: str, ending: str, data: bytes
) -> None:
    code, found, said = load(f"x.ndjson.{ending}", data, verb=verb)
    assert (code, found) == (2, [])
    assert "is compressed with" in said
    assert "standard input" in said


@pytest.mark.parametrize(
    "data",
    [gzip.compress(NDJSON * 400)[:-9], gzip.compress(NDJSON)[:12] + b"x" * 20],
    ids=["cut", "overwritten"],
)
def test_a_damaged_gzip_file_is_an_error_and_the_rows_before_are_stored(
    load: Load, data: bytes
) -> None:
    code, found, said = load("x.ndjson.gz", data)
    assert code == 2
    assert "truncated or corrupt" in said
    assert bodies(found) == (BODIES * 400)[: len(found)]


@pytest.mark.parametrize("name", ["x.ndjson", "x.csv", "x.txt"])
def test_wide_text_is_refused_and_a_mark_of_utf_8_is_no_content(load: Load, name: str) -> None:
    code, found, said = load(name, "id\na\n".encode("utf-16"))
    assert (code, found) == (2, [])
    assert "UTF-16" in said
    text = b'{"id":"a"}\n' if name == "x.ndjson" else b'"id"\na\n'
    code, found, _ = load(name, b"\xef\xbb\xbf" + text)
    expected = {"x.ndjson": [b'{"id":"a"}'], "x.csv": [b'{"id": "a"}'], "x.txt": [b'"id"', b"a"]}
    assert (code, bodies(found)) == (0, expected[name])


@pytest.mark.parametrize(
    ("name", "data", "where"),
    [
        ("x.ndjson", b'{"id":"a"}\n{"id":"\xff"}\n{"id":"c"}\n', "line 2"),
        ("x.ndjson", b'{"id":"a"}\n{"id":"b","id":"B"}\n{"id":"c"}\n', "line 2"),
        ("x.ndjson", b'{"id":"a"}\nnothing\n{"id":"c"}\n', "line 2"),
        ("x.csv", b"id\na\n\xff\nc\n", "line 3"),
        ("x.csv", b"id,b\na,1\nb\nc,1\n", "line 3"),
        ("x.csv", b"id,b\na,1\nb,1,2\nc,1\n", "line 3"),
    ],
)
def test_a_bad_row_is_named_and_those_around_it_are_stored_if_it_is_skipped(
    load: Load, name: str, data: bytes, where: str
) -> None:
    code, found, said = load(name, data)
    assert (code, len(found)) == (2, 1)
    assert where in said
    code, found, said = load(name, data, "--skip-bad")
    assert (code, [json.loads(body)["id"] for body in bodies(found)]) == (0, ["a", "c"])
    assert f"skipped {where}:" in said


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"id,id\na,b\n", "column 'id' is there twice"),
        (b'id,b\na,1\nb,"open\nc,1\n', "line 3: it is not valid CSV"),
    ],
)
def test_a_csv_file_that_is_not_one_is_refused(load: Load, data: bytes, reason: str) -> None:
    code, found, said = load("x.csv", data, "--skip-bad")
    assert code == 2
    assert reason in said
    assert bodies(found) == [b'{"id": "a", "b": "1"}'] * (b"open" in data)


def test_a_field_of_csv_may_be_as_long_as_a_body(load: Load) -> None:
    """The csv module's own limit ended the load with a traceback, and nothing was stored."""
    code, found, _ = load("x.csv", b"id,text\nA,1\nB," + b"x" * 140_000 + b"\nC,3\n")
    assert (code, [len(body) for body in bodies(found)]) == (0, [24, 140_023, 24])


def test_each_value_of_a_list_is_a_key(load: Load) -> None:
    """A list became one text, which was split at its spaces: none of its keys was found."""
    rows = b'{"k":["A-17","A-18"]}\n{"k":["x",null,7]}\n{"k":"two words"}\n'
    _, found, _ = load("x.ndjson", rows, "--key-field", "k")
    assert [message.keys for message in found] == [("A-17", "A-18"), ("x", "7"), ("two", "words")]


@pytest.mark.parametrize("option", ["--key-field", "--tag-field", "--topic-field", "--queue-by"])
@pytest.mark.parametrize("value", ['{"a":1}', '["a b","c"]', '[["a"],["b"]]'])
def test_what_is_no_key_tag_topic_or_queue_is_refused(load: Load, option: str, value: str) -> None:
    code, found, said = load("x.ndjson", f'{{"k":{value}}}\n'.encode(), option, "k")
    assert (code, found) == (2, [])
    assert "line 1: column 'k'" in said


def test_half_a_surrogate_pair_picks_a_queue_as_any_text(load: Load) -> None:
    code, found, _ = load("x.ndjson", b'{"k":"\\ud800"}\n', "--queue-by", "k")
    assert (code, len(found)) == (0, 1)


def test_a_key_of_an_imported_list_has_no_spaces(load: Load) -> None:
    rows = b'{"body":"x","keys":["a b","c"]}\n{"body":"y","keys":["a","c"]}\n'
    code, found, said = load("x.ndjson", rows, "--skip-bad", verb="import")
    assert (code, [message.keys for message in found]) == (0, [("a", "c")])
    assert "line 1: column 'keys' has the key 'a b'" in said


def test_values_that_json_does_not_have_arrive_as_text_or_not_at_all(load: Load) -> None:
    table = pa.table({
        "time": pa.array([1_000, 2_000], pa.timestamp("us", "UTC")),
        "cost": pa.array([decimal.Decimal("1.10"), None], pa.decimal128(10, 2)),
        "day": [datetime.date(2026, 1, 2)] * 2,
        "text": pa.array([b"of bytes", b"\xff"], pa.binary()),
        "keys": [["a", "b"], ["c"]],
    })  # fmt: skip
    code, found, said = load("x.parquet", parquet(table), "--skip-bad", "--key-field", "keys", "--tag-field", "cost")  # fmt: skip
    (message,) = found
    assert (code, message.keys, message.tag) == (0, ("a", "b"), "1.10")
    assert json.loads(message.body) == {
        "time": "1970-01-01T00:00:00.001000+00:00", "cost": "1.10", "day": "2026-01-02", "text": "of bytes", "keys": ["a", "b"],
    }  # fmt: skip
    assert "skipped row 2:" in said


@pytest.mark.parametrize("values", [pa.array([0, 1 << 62], pa.timestamp("us")), pa.array([0.0, float("nan")])])  # fmt: skip
def test_a_value_that_has_no_text_is_an_error_of_its_row(load: Load, values: pa.Array) -> None:
    code, found, said = load("x.parquet", parquet(pa.table({"v": values})))
    assert (code, len(found)) == (2, 1)
    assert "row 2: " in said


def test_a_damaged_parquet_file_is_an_error_and_the_rows_before_are_stored(load: Load) -> None:
    data = bytearray(parquet(pa.table({"n": list(range(5000))}), row_group_size=1000))
    middle = len(data) // 2
    data[middle : middle + 200] = b"\xff" * 200
    code, found, said = load("x.parquet", bytes(data))
    assert code == 2
    assert [json.loads(body)["n"] for body in bodies(found)] == list(range(len(found)))
    assert f"after row {len(found)}" in said
    code, found, said = load("y.parquet", bytes(data[: len(data) // 3]))
    assert code == 2
    assert "not a Parquet file" in said


def test_an_arrow_file_is_ingested_like_parquet(load: Load) -> None:
    table = pa.table({"id": ["a", "b"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    code, found, _ = load("x.arrow", bytes(sink.getvalue()), "--key-field", "id")
    assert (code, bodies(found)) == (0, [b'{"id": "a"}', b'{"id": "b"}'])
    assert [message.keys for message in found] == [("a",), ("b",)]
