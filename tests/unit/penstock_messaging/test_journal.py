"""An owner's journal: what it appends is read, also from a new file, and nothing is appended after a failure."""

import os
import threading
from pathlib import Path

import pytest

from penstock.errors import LostQueueError, StorageError
from penstock.files import Files
from penstock.testing import FaultyFiles
from penstock_messaging.consuming.in_flight import SPAN_MAX
from penstock_messaging.groups import journal
from penstock_messaging.groups.entries import ENTRY_BYTES, Entries, EntryKind, valid_entries
from penstock_messaging.groups.fold import Fold, Nack, Position
from penstock_messaging.groups.journal import Head, Journal
from penstock_messaging.groups.position import JOURNAL_BYTES_MAX, read_journal

HEAD = Head(7, 0, 3, None)


def begin(
    path: Path, files: Files | None = None, state: Fold | None = None, taken: int = 0
) -> Journal:
    """Begin a journal in a file."""
    return Journal(files or Files(), path, ("t", 0), HEAD, state or Fold(7, 0, 3, None), lambda: taken)  # fmt: skip


def position_in(path: Path) -> Position:
    """Return the position that a file describes."""
    fold = read_journal(Files(), path)
    assert fold is not None
    return fold.position()


def test_a_state_is_the_same_after_it_was_written(tmp_path: Path) -> None:
    state = Fold(
        7, 0, 3, 9, moved=True, base=5, acked=[(7, 9), (20, 1 << 33)], tries={6: 2}, number=4, reset=2,
        nacks={1: Nack(1, 3, -1, 5), 3: Nack(3, 11, 4, 0xFFFF)},
    )  # fmt: skip
    path = tmp_path / "j"
    Journal(Files(), path, ("t", 0), Head(7, 0, 3, 9, moved=True), state, lambda: 0)
    assert read_journal(Files(), path) == state


def test_appended_entries_are_read_before_they_are_synced(tmp_path: Path) -> None:
    path = tmp_path / "j"
    made = begin(path)
    made.append(EntryKind.ACK, 0, 2, 0)
    made.append_ranges([(4, 5), (8, 10)], 2)
    assert position_in(path) == Position(2, ((4, 5), (8, 10)))


def test_a_sync_writes_no_metadata_and_covers_everything_before_it(tmp_path: Path) -> None:
    files = FaultyFiles()
    made = begin(tmp_path / "j", files)
    size = (tmp_path / "j").stat().st_size
    last = 0
    for number in range(100):
        last = made.append(EntryKind.ACK, number, 1, 0)
    made.sync(last)
    syncs = files.plan.counts["sync"]
    made.sync(last)
    made.sync(1)
    assert files.plan.counts["sync"] == syncs
    assert (tmp_path / "j").stat().st_size == size


def test_threads_share_syncs(tmp_path: Path) -> None:
    files = FaultyFiles()
    made = begin(tmp_path / "j", files)
    syncs = files.plan.counts["sync"]
    tickets = [made.append(EntryKind.ACK, n, 1, 0) for n in range(20)]
    made._syncs.acquire()
    threads = [threading.Thread(target=made.sync, args=[ticket]) for ticket in tickets]
    for thread in threads:
        thread.start()
    made._syncs.release()
    for thread in threads:
        thread.join()
    assert files.plan.counts["sync"] == syncs + 1


def test_a_full_file_is_replaced_by_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "BYTES_MAX", 16 << 10)
    path = tmp_path / "j"
    made = begin(path, taken=1)
    made.append(EntryKind.NACK, 0, 1, 0)
    made.append(EntryKind.NACK, 1, 1, 0)
    inode = path.stat().st_ino
    last = 0
    for number in range(2, 2000):
        last = made.append(EntryKind.ACK, number, 1, 0)
    assert path.stat().st_ino != inode
    assert path.stat().st_size <= 32 << 10
    made.sync(last)
    # The first refusal was taken in, the second keeps its number.
    fold = read_journal(Files(), path)
    assert fold is not None
    assert fold.position() == Position(1, ((2, 2000),), frozenset({1}))
    assert list(fold.nacks) == [2]
    made.append(EntryKind.NACK, 5000, 1, 0)
    assert list((read_journal(Files(), path) or fold).nacks) == [2, 3]


def test_a_batch_larger_than_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "j"
    made = begin(path)
    made.append_ranges([(2 * n, 2 * n + 1) for n in range(1, 2000)], 0)
    made.close()
    assert len(position_in(path).acked) == 1999
    assert path.stat().st_size % ENTRY_BYTES == 0


@pytest.mark.parametrize("call", ["pwrite", "sync"])
def test_after_a_failure_nothing_is_appended(call: str, tmp_path: Path) -> None:
    files = FaultyFiles()
    made = begin(tmp_path / "j", files)
    files.plan.fail(call, 1)
    with pytest.raises(StorageError, match="could not be written"):
        made.sync(made.append(EntryKind.ACK, 0, 1, 0))
    files.plan.heal()
    with pytest.raises(StorageError, match="could not be written"):
        made.append(EntryKind.ACK, 0, 1, 0)


def test_a_file_that_cannot_grow_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "j"
    files = FaultyFiles()
    made = begin(path, files)
    # Without the room of the last entry.
    count = (16 << 10) // ENTRY_BYTES - 3
    for number in range(count):
        made.append(EntryKind.ACK, number, 1, 0)
    files.plan.fail("pwrite", 1)
    with pytest.raises(StorageError, match="cannot grow"):
        made.append(EntryKind.ACK, count, 1, 0)
    files.plan.heal()
    made.sync(made.append(EntryKind.ACK, count, 1, 0))
    assert position_in(path) == Position(count + 1)


def test_an_owner_whose_journal_was_replaced_is_told(tmp_path: Path) -> None:
    path = tmp_path / "j"
    old = begin(path)
    begin(path)
    ticket = old.append(EntryKind.ACK, 0, 1, 0)
    with pytest.raises(LostQueueError, match="another owner"):
        old.sync(ticket)
    with pytest.raises(LostQueueError, match="another owner"):
        old.append(EntryKind.ACK, 0, 1, 0)


def test_a_new_file_is_not_put_in_place_of_another_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody had removed the lock's file while the first owner was stopped; when it went on, its file was full."""
    monkeypatch.setattr(journal, "BYTES_MAX", 16 << 10)
    path = tmp_path / "j"
    old = begin(path)
    new = begin(path)
    new.append(EntryKind.ACK, 0, 3, 0)
    with pytest.raises(LostQueueError, match="another owner"):
        for number in range(1000):
            old.append(EntryKind.ACK, 10 * number + 20, 1, 0)
    assert position_in(path) == Position(3)
    assert [each.name for each in tmp_path.iterdir()] == ["j"]


def test_a_sync_of_what_is_durable_returns_after_the_close(tmp_path: Path) -> None:
    made = begin(tmp_path / "j")
    ticket = made.append(EntryKind.ACK, 0, 1, 0)
    made.close()
    made.close()
    made.sync(ticket)
    with pytest.raises(LostQueueError, match="handed back"):
        made.append(EntryKind.ACK, 0, 1, 0)
    assert (tmp_path / "j").stat().st_size == len(valid_entries((tmp_path / "j").read_bytes())) * ENTRY_BYTES  # fmt: skip


def test_a_forked_child_loses_the_file(tmp_path: Path) -> None:
    made = begin(tmp_path / "j")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            made.append(EntryKind.ACK, 0, 1, 0)
        except LostQueueError as error:
            code = 0 if "forked" in str(error) and made._file.descriptor is None else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    made.sync(made.append(EntryKind.ACK, 0, 1, 0))


def test_too_many_refusals_without_a_writer_are_refused_and_all_else_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a million, a journal was larger than what is read of one: the answers at its end were lost."""
    monkeypatch.setattr(journal, "REFUSALS_MAX", 100)
    path, taken = tmp_path / "j", 0
    made = Journal(Files(), path, ("t", 0), HEAD, Fold(7, 0, 3, None), lambda: taken)
    for number in range(100):
        made.append(EntryKind.NACK, number, 1, 0)
    for _ in range(2):
        with pytest.raises(StorageError, match="open the store for writing"):
            made.append(EntryKind.NACK, 100, 1, 0)
    made.sync(made.append(EntryKind.ACK, 100, 1, 0))
    made.append(EntryKind.RESET, 0, 0, 0)
    # The next owner has the same limit.
    state = read_journal(Files(), path)
    assert state is not None
    assert (len(state.nacks), state.number) == (100, 101)
    made = Journal(Files(), path, ("t", 0), HEAD, state, lambda: taken)
    with pytest.raises(StorageError, match="100 refused messages"):
        made.append(EntryKind.NACK, 101, 1, 0)
    # The writer has taken some in.
    taken = 40
    for number in range(40):
        made.append(EntryKind.NACK, 200 + number, 1, 0)
    with pytest.raises(StorageError, match="100 refused messages"):
        made.append(EntryKind.NACK, 300, 1, 0)
    assert len(position_in(path).nacked) == 40


def test_a_large_state_is_not_written_with_every_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "BYTES_MAX", 4096)
    files = FaultyFiles()
    made = begin(tmp_path / "j", files)
    for number in range(1000):
        made.append(EntryKind.NACK, number, 1, 0)
    # Each file is twice as large as the last one.
    assert files.plan.counts["rename"] <= 6
    assert len(position_in(tmp_path / "j").nacked) == 1000


def test_the_largest_journal_is_read_whole() -> None:
    # Besides refusals, a state has what a consumer may have in flight beyond its base.
    largest = 2 * (journal.REFUSALS_MAX + 10 * SPAN_MAX) * ENTRY_BYTES
    assert largest <= JOURNAL_BYTES_MAX


def test_a_new_file_reads_back_only_what_no_sync_has_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read back all 65,536 entries while the consumer was locked: a poll waited for 165 ms."""
    monkeypatch.setattr(journal, "BYTES_MAX", 128 << 10)
    read = []

    def checked(raw: bytes, before: Entries | None = None) -> Entries:
        read.append(len(raw))
        return valid_entries(raw, before)

    monkeypatch.setattr(journal, "valid_entries", checked)
    path = tmp_path / "j"
    made = begin(path)
    names = set()
    for number in range(5000):
        kind = EntryKind.NACK if number % 100 == 0 else EntryKind.ACK
        ticket = made.append(kind, number, 1, number)
        if number % 10 == 0:
            made.sync(ticket)
        names.add(path.stat().st_ino)
    assert len(names) > 1
    assert max(read) <= (16 << 10) + 10 * ENTRY_BYTES
    found = position_in(path)
    assert (found.base, found.acked) == (5000, ())
    assert found.nacked == set(range(0, 5000, 100))


def test_a_failing_read_ahead_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    path = tmp_path / "j"
    made = begin(path)
    last = 0
    for number in range(600):
        last = made.append(EntryKind.ACK, 2 * number, 1, 0)
    with monkeypatch.context() as broken:
        broken.setattr(made, "_fold", _fails)
        made.sync(last)
    made._begin_anew()
    assert len(position_in(path).acked) == 599
    # An interrupt came between two assignments.
    made._fold_ahead()
    made._last = None
    made.append(EntryKind.ACK, 1200, 1, 0)
    made._begin_anew()
    assert len(position_in(path).acked) == 600


def _fails(end: int) -> None:
    raise OSError("the disk")
