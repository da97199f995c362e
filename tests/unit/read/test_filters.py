"""Which messages a tag expression or a key means: hash first, then text; and offsets beyond a queue."""

import numpy as np
import pytest

from penstock.format.columns import RecordColumns
from penstock.format.java_hash import java_hash
from penstock.format.record import RecordFields, encode_record
from penstock.message import StoredMessage
from penstock.read.filters import RowFilter, TagFilter, has_key, out_of_line

TEXTS = [
    b"TAGS\x01red\x02KEYS\x01a b c\x02",
    b"TAGS\x01Aa\x02UNIQ_KEY\x01u\x02",
    b"TAGS\x01BB\x02KEYS\x01ab\x02",
    b"",
]
RECORDS = [encode_record(RecordFields(topic=b"t", body=b"", properties=text)) for text in TEXTS]


def columns() -> RecordColumns:
    starts = [sum(map(len, RECORDS[:row])) for row in range(len(RECORDS))]
    return RecordColumns.parse(b"".join(RECORDS), starts, 0)


def messages() -> list[StoredMessage]:
    return [StoredMessage(record) for record in RECORDS]


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("*", [1, 1, 1, 1]), ("", [1, 1, 1, 1]), ("red", [1, 0, 0, 0]), ("red || Aa", [1, 1, 0, 0]),
        ("none", [0, 0, 0, 0]), ("red||*", [1, 1, 1, 1]),
    ],
)  # fmt: skip
def test_a_tag_expression_means_these(expression: str, wanted: list[int]) -> None:
    tags = TagFilter(expression)
    assert [tags.matches(message) for message in messages()] == [*map(bool, wanted)]


def test_equal_hashes_may_match_and_texts_decide() -> None:
    assert java_hash("Aa") == java_hash("BB")
    codes = np.array([java_hash("red"), java_hash("BB"), 0, -(1 << 62)])
    for tags in (TagFilter("Aa"), RowFilter(["Aa"])):
        assert tags.may_match(codes).tolist() == [False, True, False, True], "an address may be any"
    assert RowFilter(["Aa"]).matches(columns()).tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("key", "wanted"),
    [("a", [1, 0, 0, 0]), ("a b", [1, 0, 0, 0]), ("a c", [0, 0, 0, 0]), ("u", [0, 1, 0, 0]), ("ab", [0, 0, 1, 0])],
)  # fmt: skip
def test_a_key_is_a_word_a_phrase_or_the_unique_one(key: str, wanted: list[int]) -> None:
    assert RowFilter(keys=[key]).matches(columns()).tolist() == [*map(bool, wanted)]
    assert [has_key(message, key) for message in messages()] == [*map(bool, wanted)]


def test_an_empty_key_is_no_messages() -> None:
    assert not any(has_key(message, "") for message in messages())
    assert RowFilter().is_any
    assert RowFilter(["red"], ["u"]).matches(columns()).tolist() == [False] * 4


def test_entries_that_do_not_lie_between_their_neighbours_are_doubted() -> None:
    assert out_of_line(np.array([1, 2, 9, 3, 4])).tolist() == [True, False, True, True, True]
