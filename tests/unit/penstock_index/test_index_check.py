"""The hash index against the log: headers, chains and keys."""

import os
import struct
from pathlib import Path

import pytest

from penstock.contracts import Finding, NoOptions, Trust
from penstock.files import Files
from penstock.testing import WrittenLog, make_context
from penstock_index.hash_index import HashIndexDispatcher
from penstock_index.index_check import IndexChecker
from penstock_index.index_file import Peek


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    return WrittenLog(tmp_path_factory.mktemp("log") / "s", 100)


def made(log: WrittenLog, root: Path) -> Path:
    index = HashIndexDispatcher(NoOptions(), make_context(root))
    index.load(Trust(log=log.view, durable_offset=0, is_clean=False, was_abnormal=False))
    for batch in log.batches():
        index.dispatch(batch)
    index.flush()
    index.close()
    (path,) = (root / "index").iterdir()
    return path


def findings(log: WrittenLog, root: Path) -> list[Finding]:
    checker = HashIndexDispatcher(NoOptions(), make_context(root, read_only=True)).checker()
    assert isinstance(checker, IndexChecker)
    found = list(checker.start())
    for batch in log.batches():
        found += checker.batch(batch)
    return found + list(checker.finish(log.end_offset))


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def test_an_index_as_it_should_be_has_no_finding(log: WrittenLog, tmp_path: Path) -> None:
    made(log, tmp_path)
    assert findings(log, tmp_path) == []


@pytest.mark.parametrize(
    ("position", "data", "text"),
    [
        (16, struct.pack(">q", 9), "begin offset is 9"), (24, struct.pack(">q", 9), "end offset is 9"),
        (32, struct.pack(">i", 9), "count of slots is 9"), (0, struct.pack(">q", 9), "the header's time 9"),
    ],
)  # fmt: skip
def test_a_wrong_header_is_told_by_its_field(
    log: WrittenLog, tmp_path: Path, position: int, data: bytes, text: str
) -> None:
    overwrite(made(log, tmp_path), position, data)
    assert any(text in each.text and each.position == position for each in findings(log, tmp_path))


def test_a_key_with_another_hash_is_missing_and_too_many(log: WrittenLog, tmp_path: Path) -> None:
    path = made(log, tmp_path)
    entries_at = 40 + 4 * 100
    overwrite(path, entries_at + 20, struct.pack(">i", 12_345))
    texts = [each.text for each in findings(log, tmp_path)]
    assert any("is missing from the index" in text for text in texts)
    assert any("has hash 12345, which is not of a key of the record" in text for text in texts)


def test_a_file_of_a_wrong_length_is_told(log: WrittenLog, tmp_path: Path) -> None:
    path = made(log, tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    found = findings(log, tmp_path)
    assert (found[0].path, found[0].text) == (path, "an index file of the wrong length or type")


def test_entries_that_the_header_counts_and_the_file_lacks_are_told(
    log: WrittenLog, tmp_path: Path
) -> None:
    """Such a file has the right length when it is listed: another process cuts it before it is read."""
    path = made(log, tmp_path)
    geometry = make_context(tmp_path).geometry
    entries_at = 40 + 4 * geometry.index_slots
    count = len(Peek(Files().open(path), geometry).entries())
    os.truncate(path, entries_at + 20)
    file = Files().open(path)
    try:
        checker = IndexChecker(path.parent, lambda: iter([Peek(file, geometry)]), lambda: iter([]))
        texts = [each.text for each in checker.start()]
    finally:
        file.close()
    assert f"the header counts {count} entries, but the file has 0" in texts
