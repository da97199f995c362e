"""Java's string hash, of one text and of many pieces."""

import pytest

from penstock.format.java_hash import index_hash, java_hash


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
