"""The note of how far a source was stored, and what the log says beyond it."""

from pathlib import Path

import pytest
from tests.conftest import OpenStore

from penstock import Message, StoredMessage
from penstock.errors import CorruptionError, StorageError
from penstock.exchange.progress import Reached, Resumed, SourceNote, stored_from
from penstock.files import Files


def test_a_note_is_read_back_(tmp_path: Path) -> None:
    note = SourceNote(tmp_path, b"a file", Files())
    assert note.read() is None
    said = Reached(
        rows=5, stored=4, skipped=1, log_offset=99, digest="ab", is_exact=True, source="a\n.csv"
    )
    note.write(said)
    assert note.read() == said
    assert SourceNote(tmp_path, b"another file", Files()).read() is None


@pytest.mark.parametrize("data", [b"", b"x", b"00000000 {}", b"not a line\n"])
def test_a_corrupt_note_is_an_error_and_never_a_start_from_the_beginning(
    tmp_path: Path, data: bytes
) -> None:
    note = SourceNote(tmp_path, b"a file", Files())
    note.write(Reached(rows=5))
    note.path.write_bytes(data)
    with pytest.raises(CorruptionError, match="find out which rows are stored"):
        note.read()


def test_every_changed_byte_of_a_note_is_noticed(tmp_path: Path) -> None:
    note = SourceNote(tmp_path, b"a file", Files())
    note.write(Reached(rows=5, log_offset=7))
    data = note.path.read_bytes()
    for at in range(len(data) - 1):
        note.path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CorruptionError):
            note.read()


def test_the_log_is_read_from_an_offset_over_segments(open_small: OpenStore) -> None:
    with open_small(**{"geometry.segment_bytes": 4096}) as store:
        receipts = [store.put("t", bytes(n * 7 % 300)) for n in range(100)]
        assert store.stats()["segments"] > 5
        for first in (0, 1, 50, 99):
            found = [m.log_offset for m in stored_from(store, receipts[first].log_offset)]
            assert found == [r.log_offset for r in receipts[first:]]
        assert list(stored_from(store, store.flush())) == []


@pytest.mark.slow
def test_a_log_that_does_not_reach_the_offset_is_an_error(open_small: OpenStore) -> None:
    with open_small(**{"geometry.segment_bytes": 4096}) as store:
        receipts = [store.put("t", bytes(300)) for _ in range(60)]
        store.flush()
        with pytest.raises(StorageError, match="not known which rows are stored"):
            list(stored_from(store, receipts[-1].log_offset + receipts[-1].size + 1))
        assert store.discard_before(log_offset=9000)
        with pytest.raises(StorageError, match="deleted or cut off"):
            list(stored_from(store, 0))


@pytest.mark.parametrize(("rows", "stored", "count", "bad", "rest"), [
    ("abc", "", 0, 0, "abc"), ("abc", "a", 1, 0, "bc"), ("abc", "abc", 3, 0, ""), ("aab", "a", 1, 0, "ab"), ("aaab", "aa", 2, 0, "ab"),
    ("abc", "xaxxbx", 2, 0, "c"), ("a!b!c", "ab", 2, 1, "!c"), ("!!a", "a", 1, 2, ""), ("!a", "", 0, 0, "!a"), ("a!", "a", 1, 0, "!"),
    ("", "a", 0, 0, ""), ("!!", "a", 0, 0, "!!"), ("abc", "bca", 1, 0, "bc"),
])  # fmt: skip
def test_rows_that_are_stored_are_separated_from_the_others(
    open_small: OpenStore, rows: str, stored: str, count: int, bad: int, rest: str
) -> None:
    def is_same(row: str, message: StoredMessage) -> bool:
        return message.body == row.encode()

    with open_small() as store:
        store.put_many([Message("t", each.encode()) for each in stored])
        seen: list[tuple[str, bool]] = []
        resumed = Resumed(
            rows, stored_from(store, 0), is_same, "!".__eq__, lambda *row: seen.append(row)
        )
        found = sum(is_stored for _, is_stored in seen)
        assert (found, len(seen) - found, "".join(resumed.rest())) == (count, bad, rest)
        assert "".join(row for row, _ in seen) + rest == rows
