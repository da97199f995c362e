"""The parts of the consume queues: files of entries, what is noted of each queue, runs, strays and syncs.

How they work together is tested in `test_queues.py`, in the contract's suite and in `tests/property/test_generations.py`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import power_cut

from penstock.contracts import DispatchBatch
from penstock.errors import StrayFileError
from penstock.files import Files
from penstock.format.columns import RecordColumns
from penstock.format.record import RecordFields, encode_record
from penstock.testing import SimulatedDisk
from penstock_index.queue_catalog import (
    UNKNOWN,
    ClosedQueue,
    QueueNames,
    decode_summary,
    differences,
    encode_summary,
    queue_problem,
    topic_problem,
)
from penstock_index.queue_check import Strays
from penstock_index.queue_files import (
    ENTRY,
    PRE_BLANK,
    OpenFiles,
    QueueExtension,
    QueueFolder,
    Syncs,
    effective,
    is_whole_name,
)
from penstock_index.queue_state import Queue, QueueTable, runs_of

PER_FILE, LOG_END = 10, 1000
FOLDER, PATH = Path("/q"), Path("/q/t/0")
A, B = ("a", 0), ("b", 0)


def folder_of(disk: SimulatedDisk, *numbers: int) -> QueueFolder:
    """Return a queue's folder with entries of 100 bytes of log each, in files of 10."""
    disk.make_folder_durably(PATH)
    for base in sorted({number // PER_FILE * PER_FILE for number in numbers}):
        rows = np.zeros(PER_FILE, ENTRY)
        at = np.array([number for number in numbers if base <= number < base + PER_FILE])
        rows["log_offset"][at - base], rows["size"][at - base] = at * 100, 100
        disk.write_whole(PATH / f"{20 * base:020d}", rows.tobytes())
    made = QueueFolder(disk, OpenFiles(disk, 4), PATH, PER_FILE)
    list(made.scan(cut_too=False))
    return made


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def folder(disk: SimulatedDisk) -> QueueFolder:
    return folder_of(disk, *range(20), *range(30, 35))


@pytest.fixture
def queue(disk: SimulatedDisk) -> Queue:
    """Return a queue of 15 entries in two files."""
    extension = QueueExtension(disk, OpenFiles(disk, 4), Path("/e"))
    made = Queue(folder_of(disk, *range(15)), extension, 0, 0)
    made.find_bounds(0)
    return made


def test_entries_are_read_across_files_up_to_a_missing_one(folder: QueueFolder) -> None:
    assert list(folder.bases) == [0, 10, 30]
    assert folder.read(8, 13)["log_offset"].tolist() == [800, 900, 1000, 1100, 1200]
    assert [len(folder.read(*span)) for span in ((18, 25), (22, 25))] == [2, 0]
    padded = effective(folder.read_padded(8, 32))
    assert padded.tolist() == [*range(800, 2000, 100), *[-1] * 10, 3000, 3100]
    assert len(folder.read_padded(19, 20)) == 1
    assert (folder.scan_end(), folder.is_absent(35), folder.is_absent(34)) == (35, True, False)
    assert (folder.place(34), folder.place(35)) == (3400, -1)
    assert [folder.first_from(at, 0, 20) for at in (0, 1, 950, 1000, 99_999)] == [0, 1, 10, 10, 20]


def test_a_file_that_ends_within_an_entry_is_read_up_to_it(
    disk: SimulatedDisk, folder: QueueFolder
) -> None:
    """Another process may be making it, or a copy of it was cut short."""
    path = PATH / f"{20 * 10:020d}"
    disk.write_whole(path, disk.read_whole(path)[: 20 * 2 + 7])
    assert folder.read(10, 13)["log_offset"].tolist() == [1000, 1100]
    assert len(folder.read(12, 13)) == 0


def test_what_stands_for_a_record_that_is_gone_leads_nowhere() -> None:
    rows = np.concatenate([np.array([(7, 100, 0), (0, 0, 0)], ENTRY), np.frombuffer(PRE_BLANK, ENTRY)])  # fmt: skip
    assert effective(rows).tolist() == [7, -1, -1]


@pytest.mark.parametrize(
    ("name", "is_right"),
    [
        ("0", True), (f"{200:020d}", True), (f"{201:020d}", False), ("", False), ("-200", False), ("\u0662", False),
        ("x", False), (str((1 << 63) - 1 - ((1 << 63) - 1) % 200), True), (str(200 << 61), False),
    ],
)  # fmt: skip
def test_a_queue_file_has_a_number_that_is_a_multiple_of_its_size(
    name: str, is_right: bool
) -> None:
    assert is_whole_name(name, 200) == is_right
    assert is_whole_name(str((1 << 63) - 1), 1)
    assert not is_whole_name(str(1 << 63), 1)


@pytest.mark.parametrize(
    ("ordinal", "bases", "left", "touched"),
    [
        (35, [0, 10, 30], list(range(30, 35)), [30]), (30, [0, 10], [], [30]), (31, [0, 10, 30], [30], [30]),
        (10, [0], [], [10, 30]), (9, [0], [], [0, 10, 30]), (0, [0], [], [0, 10, 30]), (20, [0, 10], [], [30]),
        (40, [0, 10, 30], list(range(30, 35)), []),
    ],
)  # fmt: skip
def test_a_cut_erases_the_entries_after_it_and_removes_files_but_the_first(
    folder: QueueFolder, ordinal: int, bases: list[int], left: list[int], touched: list[int]
) -> None:
    assert [int(path.name) // 20 for path in folder.cut(ordinal)] == touched
    assert list(folder.bases) == bases
    present = effective(folder.read_padded(0, 40))
    assert [n for n in range(40) if n >= 30 and present[n] >= 0] == left
    assert [n for n in range(20) if present[n] >= 0] == list(range(min(ordinal, 20)))


# --- one queue: where it begins and ends


def test_leading_files_go_when_their_records_have_gone(queue: Queue) -> None:
    assert not queue.trim(900)
    assert queue.trim(1000)
    assert (queue.min_offset, list(queue.folder.bases)) == (10, [10])
    assert not queue.trim(1 << 40)
    assert list(queue.folder.bases) == [10], "the last file stays"


def test_what_was_noted_is_confirmed_by_files_that_say_nothing_else(queue: Queue) -> None:
    noted = queue.known()
    assert noted == ClosedQueue((0, 10), 0, 15, 1400)
    assert queue.confirm(noted, 0)
    for wrong in (noted._replace(max_offset=14), noted._replace(max_offset=16), noted._replace(last=1300), noted._replace(min_offset=1)):  # fmt: skip
        assert not queue.confirm(wrong, 0)


def test_entries_that_were_added_are_taken_in_without_listing_the_folder(queue: Queue) -> None:
    rows = np.array([(1500, 100, 0), (1600, 100, 0)], ENTRY)
    list(queue.folder.write(15, rows.tobytes()))
    assert queue.add_appended(0)
    assert queue.max_offset == 17
    assert not queue.add_appended(99_999), "its head has gone: look again"


# --- the queues of a store, each looked at when it is first asked for


class Looks:
    """Counts the looks at queues, which have no files."""

    bases: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.keys: list[tuple[str, int]] = []

    def queue(self, end: int) -> Queue:
        folder: Any = self
        made = Queue(folder, folder, 0, end)
        made.reached = -1
        return made

    def __call__(self, key: tuple[str, int], known: ClosedQueue) -> Queue:
        self.keys.append(key)
        return self.queue(5)


@pytest.fixture
def looks() -> Looks:
    return Looks()


@pytest.fixture
def table(looks: Looks) -> QueueTable:
    made = QueueTable()
    made.add_unopened(looks, {A: ClosedQueue((0, 10), 0, 15, 7), B: ClosedQueue((0,))})
    return made


def test_keys_are_listed_without_a_look_and_each_queue_is_looked_at_once(
    table: QueueTable, looks: Looks
) -> None:
    assert (sorted(table), len(table), A in table, ("c", 0) in table) == ([A, B], 2, True, False)
    assert table.unopened(A) == ClosedQueue((0, 10), 0, 15, 7)
    assert (list(table.opened()), looks.keys) == ([], [])
    found = table[A]
    assert table.get(A) is found
    assert (looks.keys, table.unopened(A), list(table.opened())) == ([A], None, [found])
    assert table.get(("c", 0)) is None
    with pytest.raises(KeyError):
        table["c", 0]


def test_one_that_cannot_be_looked_at_stays_unknown() -> None:
    table = QueueTable()

    def fails(key: tuple[str, int], known: ClosedQueue) -> Queue:
        raise OSError("no")

    table.add_unopened(fails, [(A, ClosedQueue((0,)))])
    for _ in range(2):
        with pytest.raises(OSError, match="no"):
            table[A]
    assert table.unopened(A) == ClosedQueue((0,))


def test_queues_of_many_files_are_looked_at_for_trimming(table: QueueTable, looks: Looks) -> None:
    assert len(list(table.opened_or_with_files(2))) == 1
    assert looks.keys == [A]


def test_what_was_noted_counts_only_while_the_log_begins_where_it_did(
    table: QueueTable, looks: Looks
) -> None:
    table[B] = looks.queue(0)
    assert dict(table.known(has_moved=False)) == {A: ClosedQueue((0, 10), 0, 15, 7), B: ClosedQueue((), 0, 0, -1)}  # fmt: skip
    assert dict(table.known(has_moved=True))[A] == ClosedQueue((0, 10))


# --- the summary at a clean close: read back exactly, or not at all


QUEUES = {
    ("a", 0): ClosedQueue((0, 10), 3, 15, 900), ("a", 7): ClosedQueue((20,), 0, UNKNOWN, -1), ("größe", 1): ClosedQueue((), 0, 0, -1),
}  # fmt: skip


def test_of_other_sizes_or_a_shorter_log_or_cut_short_it_says_nothing() -> None:
    data = encode_summary(PER_FILE, QUEUES.items())
    assert decode_summary(data, PER_FILE + 1, LOG_END) is None
    assert decode_summary(data, PER_FILE, 900) is None
    for changed in (data[:0], data[:5], data[:30], data[:60], data[:-1], data + b"\0"):
        assert decode_summary(changed, PER_FILE, LOG_END) is None


@pytest.mark.parametrize(
    "known", [ClosedQueue((10, 0), 3, 15, 9), ClosedQueue((5,), 5, 9, 9), ClosedQueue((0,), 3, 11, 9), ClosedQueue((0,), 5, 3, 9), ClosedQueue((0,), 0, 5, -1), ClosedQueue((0,), 0, 5, LOG_END)]
)  # fmt: skip
def test_what_no_store_has_is_not_believed(known: ClosedQueue) -> None:
    data = encode_summary(PER_FILE, [(("t", 0), known)])
    assert decode_summary(data, PER_FILE, LOG_END) is None


def test_what_differs_is_said_of_each_queue() -> None:
    found = {("a", 0): ClosedQueue((0, 10), 3, 16, 900), ("a", 7): ClosedQueue((20,), 0, 25, 5), ("new", 0): ClosedQueue(())}  # fmt: skip
    texts = list(differences(QUEUES, iter(found.items())))
    assert texts == ["queue a/0 ends at 16, not at 15", "queue new/0 is not in the summary", "queue größe/1 does not exist"]  # fmt: skip
    others = {
        **QUEUES,
        ("a", 0): ClosedQueue((0,), 3, 15, 900),
        ("größe", 1): ClosedQueue((), 0, 0, 5),
    }
    assert list(differences(QUEUES, iter(others.items()))) == [
        "queue a/0 has other files than the summary states",
        "queue größe/1 begins at 0 with other records than the summary states",
    ]
    assert list(differences(QUEUES, iter(QUEUES.items()))) == []


# --- which folders are queues


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("t/0", "t/12", "t/007", "t/x", "bad\n/0"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "t" / "5").write_bytes(b"")
    return tmp_path


def test_folders_of_queues_are_found_and_strangers_named_once(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = QueueNames(Files(), root, read_only=False)
    for _ in range(2):
        assert sorted(names.folders()) == [("t", 0), ("t", 12)]
    assert len(caplog.records) == 5
    assert len(list(names.findings())) == 5
    assert all(each.what_now for each in names.findings())


def test_where_a_stranger_stands_no_queue_can_be(root: Path) -> None:
    names = QueueNames(Files(), root, read_only=False)
    list(names.folders())
    names.check_free("t", 0)
    for topic, number in (("t", 5), ("file", 0)):
        with pytest.raises(StrayFileError, match="needs this name"):
            names.check_free(topic, number)


def test_a_link_is_refused_to_a_writer_and_not_followed_by_a_reader(root: Path) -> None:
    (root / "link").symlink_to(root / "t")
    with pytest.raises(StrayFileError, match="a link"):
        list(QueueNames(Files(), root, read_only=False).folders())
    assert sorted(QueueNames(Files(), root, read_only=True).folders()) == [("t", 0), ("t", 12)]
    assert list(QueueNames(Files(), root / "none", read_only=False).folders()) == []


@pytest.mark.parametrize(
    ("problem", "right", "wrong"),
    [
        (topic_problem, ["t", "größe"], ["", "..", "a\n"]),
        (queue_problem, ["0", "65535"], ["65536", "00", "-1", "٣", ""]),
    ],
)  # fmt: skip
def test_a_topic_is_what_could_be_put_to_and_a_queue_a_number_as_the_store_writes_it(
    problem: Callable[[str], str], right: list[str], wrong: list[str]
) -> None:
    assert not any(map(problem, right))
    assert all(map(problem, wrong))


# --- runs of entries


def test_what_can_have_no_folder_is_named_by_its_log_offset() -> None:
    places = [(b"a/b", 0, 0), (b"t", 70_000, 0), (b"t", 0, -1), (b"t", 0, 1 << 62)]
    records = [encode_record(RecordFields(topic=t, body=b"", queue=q, queue_offset=n)) for t, q, n in places]  # fmt: skip
    starts = np.cumsum([0, *map(len, records)])
    columns = RecordColumns.parse(b"".join(records), starts[:-1], 0)
    found = list(runs_of(DispatchBatch(columns, 0, int(starts[-1]))))
    assert [run.topic for run in found] == [None] * 4
    assert sorted(run.log_offset for run in found) == starts[:-1].tolist()


# --- strays: records that were found without an entry of their own


KEY = ("t", 0)


def strays_of(matched: dict[int, list[int]], added: dict[int, list[int]] | None = None, *, is_beyond: bool = False) -> Strays:  # fmt: skip
    """Return what was seen: log offsets of records with an entry and of records without, by the first one's ordinal."""
    made = Strays()
    for ordinal, offsets in (added or {}).items():
        made.add(KEY, ordinal, np.array(offsets), np.ones(len(offsets), np.bool_), is_beyond=is_beyond)  # fmt: skip
    for ordinal, offsets in matched.items():
        made.match(KEY, ordinal, np.array(offsets), np.ones(len(offsets), np.bool_))
    return made


def test_gaps_are_what_no_record_matched_and_descents_what_was_stored_before_its_predecessor() -> None:  # fmt: skip
    strays = strays_of({2: [20, 30], 6: [60]})
    assert list(strays.gaps(KEY, 0, 10)) == [(0, 2), (4, 6), (7, 10)]
    assert list(strays.gaps(("u", 0), 0, 3)) == [(0, 3)]
    assert list(strays_of({0: [50], 1: [20]}).descents(KEY)) == [(1, 20)]


def test_what_two_have_seen_is_what_one_would() -> None:
    first, second = strays_of({0: [100]}), strays_of({1: [110]}, {2: [120]}, is_beyond=True)
    first.take(second.plain())
    assert first.plain() == strays_of({0: [100], 1: [110]}, {2: [120]}, is_beyond=True).plain()
    assert list(first.gaps(KEY, 0, 2)) == []


# --- files and folders made durable: one by one, or all of a file system at once


@pytest.fixture
def paths(disk: SimulatedDisk) -> list[Path]:
    disk.make_folder_durably(FOLDER)
    made = [FOLDER / str(number) for number in range(3)]
    for path in made:
        disk.create(path).pwrite(b"x", 0)
    return made


def syncs(disk: SimulatedDisk, volume_from: int) -> Syncs:
    made = Syncs(disk, OpenFiles(disk, 10), volume_from)
    made.begin(FOLDER)
    return made


@pytest.mark.parametrize(("volume_from", "together"), [(0, 0), (4, 1), (5, 0)])
def test_so_many_are_synced_together_and_all_are_durable(
    disk: SimulatedDisk, paths: list[Path], volume_from: int, together: int
) -> None:
    syncs(disk, volume_from).sync(paths, [FOLDER])
    assert disk.plan.counts.get("sync_volume", 0) == together
    assert all(power_cut(disk).read_whole(path) == b"x" for path in paths)


def test_the_last_file_is_synced_by_itself_for_the_disks_own_cache(
    disk: SimulatedDisk, paths: list[Path]
) -> None:
    before = disk.plan.counts.get("sync", 0)
    syncs(disk, 1).sync(paths, [FOLDER])
    assert disk.plan.counts["sync"] == before + 1


@pytest.mark.parametrize("volume_from", [0, 1])
def test_a_file_or_folder_that_is_gone_needs_no_sync(
    disk: SimulatedDisk, paths: list[Path], volume_from: int
) -> None:
    gone = FOLDER / "topic"
    disk.make_folder(gone)
    disk.create(gone / "0").pwrite(b"x", 0)
    made = syncs(disk, volume_from)
    disk.remove(gone / "0")
    disk.remove_folder(gone)
    disk.remove(paths[0])
    made.sync([*paths, gone / "0"], [gone, FOLDER])


@pytest.mark.parametrize(("call", "volume_from"), [("sync", 0), ("sync_volume", 1), ("sync_folder", 0)])  # fmt: skip
def test_what_fails_is_an_error(
    disk: SimulatedDisk, paths: list[Path], call: str, volume_from: int
) -> None:
    made = syncs(disk, volume_from)
    disk.plan.fail(call, times=1)
    with pytest.raises(OSError, match="Input/output error"):
        made.sync(paths, [FOLDER])
    made.close()
