"""Texts within many records: pieces by row, and what dispatchers index of them."""

import numpy as np

from penstock.format.columns import RecordColumns
from penstock.format.java_hash import index_hash, java_hash
from penstock.format.record import RecordFields, encode_record
from penstock.format.text_columns import RowPieces

TEXTS = [
    b"TAGS\x01red\x02KEYS\x01a b\x02UNIQ_KEY\x01u\x02",
    b"",
    b"n\x011\x02n\x012\x02",
    b"KEYS\x01 c  d \x02TAGS\x01blue",
]


def columns() -> RecordColumns:
    records = [encode_record(RecordFields(topic=b"t", body=b"", properties=text)) for text in TEXTS]
    starts = [sum(map(len, records[:row])) for row in range(len(records))]
    return RecordColumns.parse(b"".join(records), starts, 0)


def test_values_of_a_name_come_by_row_and_the_last_one_counts() -> None:
    found = columns().properties.named(b"n")
    assert (found.rows.tolist(), found.texts()) == ([2], [b"2"])
    tags = columns().properties.named(b"TAGS")
    assert (tags.rows.tolist(), tags.texts()) == ([0, 3], [b"red", b"blue"])
    assert columns().properties.named(b"TAG").texts() == []


def test_a_rows_code_is_its_tags_hash() -> None:
    codes = columns().properties.indexed().tag_codes
    assert codes.tolist() == [java_hash("red"), 0, 0, java_hash("blue")]


def test_the_unique_key_is_indexed_first_and_no_empty_one_at_all() -> None:
    keys = columns().properties.indexed().keys
    expected = [index_hash(f"t#{key}") for key in ("u", "a", "b", "c", "d")]
    assert keys.rows.tolist() == [0, 0, 0, 3, 3]
    assert [abs(hashed) for hashed in keys.hashes.tolist()] == expected


def test_tags_are_hashed_as_newer_brokers_index_them() -> None:
    found = columns().properties.tag_keys()
    assert found.rows.tolist() == [0, 3]
    assert found.hashes.tolist() == [index_hash(f"t#T#{tag}") for tag in ("red", "blue")]


def test_pieces_are_where_they_stand() -> None:
    pieces = RowPieces(b"abcdef", np.array([0, 2]), np.array([1, 4]), np.array([2, 0]))
    assert pieces.texts() == [b"bc", b""]
