"""Reading a journal while its owner writes it."""

from pathlib import Path

from penstock.files import Files
from penstock.testing import FaultyFiles
from penstock_messaging.groups.entries import EntryKind
from penstock_messaging.groups.fold import Fold, Position
from penstock_messaging.groups.journal import Head, Journal
from penstock_messaging.groups.journal_cursor import JournalCursor


def begin(path: Path) -> Journal:
    """Begin a journal in a file."""
    return Journal(Files(), path, ("t", 0), Head(7, 0, 3, None), Fold(7, 0, 3, None), lambda: 0)


def seen(cursor: JournalCursor) -> Position:
    """Return the position that the cursor sees now."""
    fold = cursor.refresh()
    assert fold is not None
    return fold.position()


def test_only_new_entries_are_read(tmp_path: Path) -> None:
    files = FaultyFiles()
    cursor = JournalCursor(files, tmp_path / "j")
    assert cursor.refresh() is None
    made = begin(tmp_path / "j")
    for number in range(10_000):
        made.append(EntryKind.ACK, number, 1, 0)
        if number % 3000 == 0:
            assert seen(cursor) == Position(number + 1)
    assert seen(cursor) == Position(10_000)
    files.plan.counts.clear()
    assert seen(cursor) == Position(10_000)
    assert files.plan.counts["pread"] == 3
    cursor.sync()


def test_a_new_file_and_no_file_are_noticed(tmp_path: Path) -> None:
    cursor = JournalCursor(Files(), tmp_path / "j")
    made = begin(tmp_path / "j")
    made.append(EntryKind.ACK, 0, 5, 0)
    assert seen(cursor) == Position(5)
    begin(tmp_path / "j")
    assert seen(cursor) == Position(0)
    (tmp_path / "j").unlink()
    assert cursor.refresh() is None
