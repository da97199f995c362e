"""What a file's name says, and compressed files."""

import gzip
import io

import pytest

from penstock.errors import ConfigError
from penstock.exchange.formats import FORMATS, compressed, kind_of, plain_text


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
