"""The journal of a queue: what its owner appends is read, by itself and by others, and nothing is guessed about torn or foreign bytes."""

from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lanes import examples

from penstock.errors import CorruptionError, LostQueueError, StorageError
from penstock.files import Files
from penstock.format.hashes import crc32c
from penstock.testing import FaultyFiles
from penstock_messaging.groups import journal
from penstock_messaging.groups.entries import (
    ENTRY_BYTES,
    NUMBER_MAX,
    Entries,
    EntryKind,
    encode,
    valid_entries,
)
from penstock_messaging.groups.fold import Fold, Position
from penstock_messaging.groups.journal import Head, Journal
from penstock_messaging.groups.journal_cursor import JournalCursor
from penstock_messaging.groups.marks import Mark, read_marks, usable_marks, write_marks
from penstock_messaging.groups.paths import GroupPaths
from penstock_messaging.groups.position import (
    GroupProgress,
    read_journal,
    resolve_position,
)

ACK, NACK, RETRY = EntryKind.ACK, EntryKind.NACK, EntryKind.RETRY
OWN: dict[str, Any] = {"store": 7, "generation": 0, "epoch": 3}


# --- entries


def made(count: int, first: int = 1) -> bytes:
    """Return a file of a CLAIM and acknowledgements."""
    own = {**OWN, "base": 0}
    parts = [encode(EntryKind.CLAIM, sequence=first, **own)]
    parts += [encode(ACK, sequence=first + n, offset=n, count=1, **own) for n in range(1, count)]
    return b"".join(parts)


WRONG: list[dict[str, int]] = [
    {"store": 8}, {"generation": 1}, {"epoch": 2}, {"epoch": 4},
    {"base": -1}, {"base": NUMBER_MAX + 1}, {"offset": -2}, {"offset": NUMBER_MAX + 1}, {"number": -1},
]  # fmt: skip


def test_what_is_torn_or_of_another_owner_ends_the_file() -> None:
    whole = made(5)
    for cut in range(1, ENTRY_BYTES):
        assert len(valid_entries(whole[:-cut].ljust(4096, b"\0"))) == 4
    assert len(valid_entries(whole.ljust(4096, b"\0"))) == 5
    torn = bytearray(made(6))
    torn[3 * ENTRY_BYTES + 20] ^= 1
    assert len(valid_entries(bytes(torn))) == 3
    # What an earlier owner left at the same place has other sequence numbers.
    assert len(valid_entries(made(3, first=10) + made(6)[3 * ENTRY_BYTES :])) == 3
    given = {**OWN, "base": 0, "count": 1, "offset": 3, "sequence": 4}
    assert len(valid_entries(made(3) + encode(ACK, **given))) == 4
    for wrong in WRONG:
        assert len(valid_entries(made(3) + encode(ACK, **{**given, **wrong}))) == 3, wrong
    # A file begins with a claim; a later part follows the last entry that is known.
    assert len(valid_entries(whole[ENTRY_BYTES:])) == 0
    head = valid_entries(whole[: 2 * ENTRY_BYTES])
    assert len(valid_entries(whole[2 * ENTRY_BYTES :], head[-1:])) == 3
    assert len(valid_entries(whole[3 * ENTRY_BYTES :], head[-1:])) == 0
    assert len(valid_entries(b"", head[-1:])) == 0


# --- what they amount to


def fold_of(*entries: dict[str, Any]) -> Fold:
    """Return the state after a CLAIM and these entries."""
    raw = encode(EntryKind.CLAIM, sequence=1, base=0, **OWN)
    raw += b"".join(encode(sequence=n, **{**OWN, "base": 0, **e}) for n, e in enumerate(entries, 2))
    made = Fold.of(valid_entries(raw))
    assert made is not None
    return made


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 5)), max_size=30), st.integers(0, 5))
def test_acknowledged_ranges_merge_as_in_a_set(ranges: list[tuple[int, int]], base: int) -> None:
    entries = [{"kind": ACK, "offset": o, "count": c, "base": base} for o, c in ranges]
    position = fold_of({"kind": EntryKind.BASE, "base": base}, *entries).position()
    known = set(range(base)).union(*(range(o, o + c) for o, c in ranges))
    assert {o for o in range(50) if position.is_done(o)} == known
    ends = [position.base, *(stop for _, stop in position.acked)]
    assert all(first > end for end, (first, _) in zip(ends, position.acked, strict=False))


# --- the owner's file


HEAD = Head(7, 0, 3, None)


def begin(
    path: Path, files: Files | None = None, state: Fold | None = None, taken: int = 0
) -> Journal:
    """Begin a journal in a file."""
    state = state or Fold(7, 0, 3, None)
    return Journal(files or Files(), path, ("t", 0), HEAD, state, lambda: taken)


def fold_in(path: Path) -> Fold:
    """Return what a file describes."""
    fold = read_journal(Files(), path)
    assert fold is not None
    return fold


def test_appended_entries_are_read_at_once_and_a_sync_writes_no_metadata(tmp_path: Path) -> None:
    path, files = tmp_path / "j", FaultyFiles()
    made = begin(path, files)
    size = path.stat().st_size
    made.append(ACK, 0, 2, 0)
    last = made.append_ranges([(4, 5), (8, 10)], 2)
    assert fold_in(path).position() == Position(2, ((4, 5), (8, 10)))
    for number in range(100):
        last = made.append(ACK, 20 + number, 1, 2)
    made.sync(last)
    syncs = files.plan.counts["sync"]
    # It covers everything before it.
    made.sync(last)
    made.sync(1)
    assert files.plan.counts["sync"] == syncs
    assert path.stat().st_size == size
    # A batch larger than a file is written whole.
    made.append_ranges([(2 * n, 2 * n + 1) for n in range(100, 2100)], 2)
    made.close()
    made.close()
    # What is durable needs no sync.
    made.sync(last)
    with pytest.raises(LostQueueError, match="handed back"):
        made.append(ACK, 0, 1, 0)
    assert len(fold_in(path).acked) == 2003
    assert path.stat().st_size == len(valid_entries(path.read_bytes())) * ENTRY_BYTES


def test_after_a_failure_nothing_is_appended_and_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    path, files = tmp_path / "j", FaultyFiles()
    for call in ("pwrite", "sync"):
        made = begin(path, files)
        files.plan.fail(call, 1)
        with pytest.raises(StorageError, match="could not be written"):
            made.sync(made.append(ACK, 0, 1, 0))
        files.plan.heal()
        with pytest.raises(StorageError, match="could not be written"):
            made.append(ACK, 0, 1, 0)
    made = begin(path, files)
    # Without the room of the last entry.
    count = (16 << 10) // ENTRY_BYTES - 3
    for number in range(count):
        made.append(ACK, number, 1, 0)
    files.plan.fail("pwrite", 1)
    with pytest.raises(StorageError, match="cannot grow"):
        made.append(ACK, count, 1, 0)
    files.plan.heal()
    made.sync(made.append(ACK, count, 1, 0))
    assert fold_in(path).position() == Position(count + 1)


def test_an_owner_whose_journal_was_replaced_is_told_and_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody had removed the lock's file while the first owner was stopped; when it went on, its file was full."""
    monkeypatch.setattr(journal, "BYTES_MAX", 16 << 10)
    path = tmp_path / "j"
    old, full = begin(path), begin(path)
    begin(path).append(ACK, 0, 3, 0)
    ticket = old.append(ACK, 0, 1, 0)
    with pytest.raises(LostQueueError, match="another owner"):
        old.sync(ticket)
    with pytest.raises(LostQueueError, match="another owner"):
        old.append(ACK, 0, 1, 0)
    with pytest.raises(LostQueueError, match="another owner"):
        for number in range(1000):
            full.append(ACK, 10 * number + 20, 1, 0)
    assert fold_in(path).position() == Position(3)
    assert [each.name for each in tmp_path.iterdir()] == ["j"]


def test_too_many_refusals_without_a_writer_are_refused_and_all_else_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a million, a journal was larger than what is read of one: the answers at its end were lost."""
    monkeypatch.setattr(journal, "REFUSALS_MAX", 100)
    path, taken = tmp_path / "j", 0
    made = Journal(Files(), path, ("t", 0), HEAD, Fold(7, 0, 3, None), lambda: taken)
    for number in range(100):
        made.append(NACK, number, 1, 0)
    for _ in range(2):
        with pytest.raises(StorageError, match="open the store for writing"):
            made.append(NACK, 100, 1, 0)
    made.sync(made.append(ACK, 100, 1, 0))
    made.append(EntryKind.RESET, 0, 0, 0)
    # The next owner has the same limit.
    state = read_journal(Files(), path)
    assert state is not None
    assert (len(state.nacks), state.number) == (100, 101)
    made = Journal(Files(), path, ("t", 0), HEAD, state, lambda: taken)
    with pytest.raises(StorageError, match="100 refused messages"):
        made.append(NACK, 101, 1, 0)
    # The writer has taken some in.
    taken = 40
    for number in range(40):
        made.append(NACK, 200 + number, 1, 0)
    with pytest.raises(StorageError, match="100 refused messages"):
        made.append(NACK, 300, 1, 0)
    assert len(fold_in(path).position().nacked) == 40


def test_a_new_file_reads_back_only_what_no_sync_has_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read back all 65,536 entries while the consumer was locked: a poll waited for 165 ms."""
    monkeypatch.setattr(journal, "BYTES_MAX", 128 << 10)
    read = []

    def checked(raw: bytes, before: Entries | None = None) -> Entries:
        read.append(len(raw))
        return valid_entries(raw, before)

    # No plan of `FaultyFiles` counts bytes that are read.
    monkeypatch.setattr(journal, "valid_entries", checked)
    path = tmp_path / "j"
    made = begin(path)
    names = set()
    for number in range(5000):
        kind = NACK if number % 100 == 0 else ACK
        ticket = made.append(kind, number, 1, number)
        if number % 10 == 0:
            made.sync(ticket)
        names.add(path.stat().st_ino)
    assert len(names) > 1
    assert max(read) <= (16 << 10) + 10 * ENTRY_BYTES
    found = fold_in(path).position()
    assert (found.base, found.acked) == (5000, ())
    assert found.nacked == set(range(0, 5000, 100))


# --- read by others while it is written


def test_a_cursor_reads_new_entries_only_and_notices_a_new_file(tmp_path: Path) -> None:
    files, path = FaultyFiles(), tmp_path / "j"
    cursor = JournalCursor(files, path)
    assert cursor.refresh() is None

    def seen() -> Position:
        fold = cursor.refresh()
        assert fold is not None
        return fold.position()

    made = begin(path)
    for number in range(10_000):
        made.append(ACK, number, 1, 0)
        if number % 3000 == 0:
            assert seen() == Position(number + 1)
    assert seen() == Position(10_000)
    files.plan.counts.clear()
    assert seen() == Position(10_000)
    assert files.plan.counts["pread"] == 3
    begin(path)
    assert seen() == Position(0)
    cursor.sync()
    path.unlink()
    assert cursor.refresh() is None


# --- the writer's marks


HOSTILE = [
    b"[]", b"{", b'{"a":5}', b'{"a":{"x":{}}}', b'{"a":{"0":{"generation":true}}}', b"[" * 100_000,
    b'{"a":{"0":{"generation":-1,"epoch":0,"taken":0,"pending":0,"log_end":0,"old":0,"new":0}}}',
]  # fmt: skip


# --- what a journal, a mark and a committed offset mean together


JOURNAL = Fold(7, 0, 3, 10, base=20, acked=[(25, 30)], number=2)
HERE = Position(20, ((25, 30),))


def resolved(
    fold: Fold | None = JOURNAL, mark: Mark | None = None, committed: int | None = 10, **given: int
) -> GroupProgress:
    """Settle a copy of the journal."""
    own = None if fold is None else attrs.evolve(fold, acked=list(fold.acked), nacks=dict(fold.nacks))  # fmt: skip
    return resolve_position(own, mark, committed, **{"store_id": 7, "topic_generation": 0, **given})


def test_only_the_offsets_of_the_mark_are_the_writers_own() -> None:
    mark = Mark(0, 3, old=12, new=20)
    for own in (12, 20):
        assert resolved(mark=mark, committed=own).position() == HERE
    for other in (None, 0, 11, 15, 21):
        for known in (None, mark):
            found = resolved(mark=known, committed=other)
            assert found.position() == (None if other is None else Position(other))
            assert found.moved
            assert "moved" in found.note
    # One that the opening set back to the queue's end is nobody else's.
    back = Mark(0, 3, old=18, new=20)
    assert resolved(mark=back, committed=15, end=15).fold is not None
    assert resolved(mark=back, committed=15, end=15).moved
    assert resolved(mark=back, committed=15, end=16).fold is None


def test_a_slow_owner_that_saw_an_older_offset_keeps_its_journal() -> None:
    """A taker that was stopped while the writer moved the offset twice lost its acknowledged ranges (found by a review)."""
    assert resolved(mark=Mark(0, 2, old=15, new=18), committed=18).position() == HERE
    # One that found an offset of somebody else keeps it.
    fold, mark = attrs.evolve(JOURNAL, moved=True), Mark(0, 2, old=50, new=60)
    assert resolved(fold, mark).position() == HERE
    assert resolved(fold, mark, committed=60).moved
    # Once the writer has taken it in, the mark counts again.
    assert not resolved(fold, Mark(0, 3, old=10, new=20), committed=20).moved


def test_marks_are_read_as_written_and_neither_flipped_bits_nor_hostile_ones_are_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    marks = {("a", 0): Mark(1, 2, 3, 4, 5, -1, 7), ("a", 12): Mark(0), ("ä", 3): Mark(1 << 40)}
    paths = GroupPaths(tmp_path, "g")
    paths.folder.mkdir(parents=True)
    assert read_marks(Files(), paths) == {}
    write_marks(Files(), paths, marks)
    assert read_marks(Files(), paths) == marks
    raw = paths.marks.read_bytes()
    for position in range(0, len(raw), 7):
        changed = bytearray(raw)
        changed[position] ^= 1 << position % 8
        paths.marks.write_bytes(changed)
        try:
            assert read_marks(Files(), paths) == marks
        except CorruptionError:
            continue
        # Only the line break after the CRC is not covered by it.
        assert position == 8
    for text in HOSTILE:
        caplog.clear()
        paths.marks.write_bytes(b"%08x\n" % crc32c(text) + text)
        assert usable_marks(Files(), paths) == {}
        assert "marks" in caplog.text
