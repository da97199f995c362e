"""Java's string hash, of one text and of many pieces."""

import numpy as np
import pytest

from penstock.format.java_hash import distinct_of, hash_pieces, index_hash, java_hash


@pytest.mark.parametrize(
    ("text", "java", "index"),
    [("", 0, 0), ("a", 97, 97), ("TagA", 2598919, 2598919), ("Hello", 69609650, 69609650),
     ("TopicTest", -1902610879, 1902610879), ("TagA || TagB", 1359775119, 1359775119),
     ("polygenelubricants", -(1 << 31), 0), ("中文标签", 622041809, 622041809),
     ("\U0001f600", 1772899, 1772899), ("TopicTest#k0", 2746023, 2746023),
     ("TopicTest#common", 1811706477, 1811706477),
     ("TopicTest#7F000001000100000000000000000000", 352739635, 352739635)],
)  # fmt: skip
def test_java_hashes(text: str, java: int, index: int) -> None:
    assert java_hash(text) == java
    assert index_hash(text) == index


def test_the_index_form_is_never_negative_and_0_where_java_overflows() -> None:
    """`Math.abs(Integer.MIN_VALUE)` is negative in Java, which then takes 0."""
    assert java_hash("polygenelubricants") == -(1 << 31)
    assert index_hash("polygenelubricants") == 0
    assert index_hash("AaAa") == java_hash("AaAa")
    assert all(index_hash(str(number)) >= 0 for number in range(300))


def test_a_character_beyond_16_bits_counts_as_two() -> None:
    assert java_hash("🙂") == 31 * 0xD83D + 0xDE42


def test_pieces_have_the_hashes_of_their_texts() -> None:
    texts = ["", "a", "größe", "🙂x"]
    raw = [text.encode() for text in texts]
    starts = np.cumsum([0, *map(len, raw[:-1])])
    found = hash_pieces(np.frombuffer(b"".join(raw), np.uint8), starts, np.array([*map(len, raw)]))
    assert found.tolist() == [*map(java_hash, texts)]


def test_distinct_values_ascend_whether_they_are_small_or_large() -> None:
    assert distinct_of(np.array([5, 1, 5, 0])) == [0, 1, 5]
    assert distinct_of(np.array([1 << 40, 3, 1 << 40])) == [3, 1 << 40]
    assert distinct_of(np.zeros(0, np.int64)) == []
