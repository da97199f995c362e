"""A message as a row, a row as a message: nothing is lost, nothing is guessed."""

from typing import Any

import pytest
from tests.conftest import OpenStore, append_record

from penstock import Message
from penstock.errors import PropertyError
from penstock.exchange.rows import (
    COLUMNS,
    ColumnError,
    is_stored_as,
    key_list,
    parts_of,
    put_of,
    row_of,
    text_of,
)


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
        "t", b"b", tag="x", keys=["k", "l"], properties={"p": "q"}, flag=3, sys_flag=8, born_time_ms=5,
        born_host="[::1]:9", reconsume_times=2, prepared_offset=77,
    )  # fmt: skip
    with open_small(**{"log.store_host": "[fe80::1]:10911"}) as store:
        store.put_many([given])
        message = store.read("t").messages[0]
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
        message = store.read("t").messages[0]
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
