"""An owner's journal: what it appends is read, also from a new file, and nothing is appended after a failure."""

import os
import threading
from pathlib import Path

import pytest

from penstock.errors import LostQueueError, StorageError
from penstock.files import Files
from penstock.testing import FaultyFiles
from penstock_messaging.groups import journal
from penstock_messaging.groups.entries import ENTRY_BYTES, EntryKind, valid_entries
from penstock_messaging.groups.fold import Fold, Nack, Position
from penstock_messaging.groups.journal import Head, Journal
from penstock_messaging.groups.position import read_journal

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
    count = (16 << 10) // ENTRY_BYTES - 2
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


def test_refusals_that_nobody_takes_in_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million of them made a file of which its readers read a part: acknowledged messages came again."""
    monkeypatch.setattr(journal, "BYTES_MAX", 16 << 10)
    monkeypatch.setattr(journal, "STATE_BYTES_MAX", 32 << 10)
    path, taken = tmp_path / "j", [0]
    made = Journal(Files(), path, ("t", 0), HEAD, Fold(7, 0, 3, None), lambda: taken[0])
    count = 0
    with pytest.raises(StorageError, match="open the store for writing"):
        while count < 10_000:
            made.append(EntryKind.NACK, count, 1, 0)
            count += 1
    assert 512 < count < 2048
    fold = read_journal(Files(), path)
    assert fold is not None
    assert len(fold.nacks) == count
    # Acknowledgements are taken, and so are refusals once the writer has taken in those before.
    for number in range(2000):
        made.append(EntryKind.ACK, count + number, 1, 0)
    with pytest.raises(StorageError, match="this one was not recorded"):
        made.append(EntryKind.NACK, 9999, 1, 0)
    taken[0] = count
    made.append(EntryKind.NACK, 9999, 1, 0)
    assert path.stat().st_size <= 128 << 10
    assert position_in(path) == Position(count + 2000, (), frozenset({9999}))


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
