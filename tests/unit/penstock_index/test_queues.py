"""Consume queues as a dispatcher: entries at their places, what it answers, generations, and the check against the log."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.unit.contracts.test_optional_methods import OneQueue

import penstock
from penstock import Store
from penstock.contracts import NO_HISTORY, Finding, QueueBounds, Trust
from penstock.files import Files
from penstock.files.file_system import Listed
from penstock.testing import ManualClock, ManualWorkers, WrittenLog, make_context, open_store
from penstock.testing.kit import SMALL
from penstock_index.consume_queue import ConsumeQueueDispatcher, ConsumeQueueOptions, entries_within
from penstock_index.queue_catalog import QueueNames
from penstock_index.queue_check import QueueChecker
from penstock_index.queue_files import ENTRY, OpenFiles, QueueExtension, QueueFolder
from penstock_index.queue_generations import Generations, Verdict, is_backed
from penstock_index.queue_lookup import QuickLook
from penstock_index.queue_state import SCHEDULE_TOPIC, Queue, Run, are_delivery_times, runs_of

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    return WrittenLog(tmp_path_factory.mktemp("log") / "s", 700)


def trust(log: WrittenLog, durable: int = 0) -> Trust:
    return Trust(log=log.view, durable_offset=durable, is_clean=False, was_abnormal=False)


def filled(
    log: WrittenLog, root: Path, *, durable: int = 0, stop: int | None = None
) -> ConsumeQueueDispatcher:
    """Open the queues of a folder, and dispatch what they lack, up to `stop`."""
    made = ConsumeQueueDispatcher(ConsumeQueueOptions(), make_context(root))
    made.load(trust(log, durable))
    for batch in log.batches(made.progress, stop or log.end_offset):
        made.dispatch(batch)
    return made


def reader(root: Path, files: Files | None = None) -> ConsumeQueueDispatcher:
    context = make_context(root, read_only=True, files=files or Files())
    return ConsumeQueueDispatcher(ConsumeQueueOptions(), context)


def test_a_file_of_a_wrong_length_is_made_again_though_the_close_was_clean(
    log: WrittenLog, tmp_path: Path
) -> None:
    """A repair had vouched for a file without the zeros at its end: the queue was empty, and offsets were used again."""
    made = filled(log, tmp_path)
    ends = {key: made.max_offset(*key) for key in made.queues()}
    made.flush()
    made.close()
    for path in (tmp_path / "consumequeue" / "topic-0").rglob("0*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-20])
    heir = ConsumeQueueDispatcher(ConsumeQueueOptions(), make_context(tmp_path))
    heir.load(Trust(log=log.view, durable_offset=log.end_offset, is_clean=True, was_abnormal=False))
    for batch in log.batches(heir.progress):
        heir.dispatch(batch)
    assert {key: heir.max_offset(*key) for key in heir.queues()} == ends


def test_files_of_a_wrong_length_are_those_that_stay_so(log: WrittenLog, tmp_path: Path) -> None:
    """Of a queue that is removed, or made in two steps, while a check looks, nothing is said."""
    filled(log, tmp_path).flush()
    (path, *_) = sorted((tmp_path / "consumequeue" / "topic-0" / "0").iterdir())
    whole = path.read_bytes()

    class Growing(Files):
        def listing(self, folder: str) -> list[Listed]:
            found = super().listing(folder)
            path.write_bytes(whole)
            return found

    def wrong(files: Files, topic: str = "topic-0") -> list[str]:
        names = QueueNames(files, tmp_path / "consumequeue", read_only=True)
        return [each.name for each in names.of_wrong_length(topic, 0, len(whole))]

    path.write_bytes(b"")
    assert wrong(Files()) == [path.name]
    assert wrong(Growing()) == []
    assert wrong(Files(), "gone") == []


# --- what a writer and a reader elsewhere answer


def test_a_reader_elsewhere_answers_as_the_writer(log: WrittenLog, tmp_path: Path) -> None:
    writer = filled(log, tmp_path)
    other = reader(tmp_path)
    assert other.queues() == writer.queues()
    assert other.end_log_offset() == writer.end_log_offset()
    for key in writer.queues():
        assert other.bounds_of(*key, None) == writer.bounds_of(*key, None)
        ours, theirs = (each.entries(*key, 3, 20) for each in (writer, other))
        assert [column.tolist() for column in ours] == [column.tolist() for column in theirs]
    assert list(other.bounds(lambda _: True, 9999)) == list(writer.bounds(lambda _: True, 9999))
    assert list(other.compare_summary(b"?")) == ["the part about queues cannot be decoded"]


@pytest.mark.parametrize("has_read", [False, True])
def test_a_folder_that_goes_while_a_reader_looks_is_a_queue_that_is_not_there(
    log: WrittenLog, tmp_path: Path, has_read: bool
) -> None:
    class GoesRightAfter(Files):
        def is_folder(self, path: Path) -> bool:
            return True

    filled(log, tmp_path).flush()
    plain, other = reader(tmp_path), reader(tmp_path, GoesRightAfter())
    if has_read:
        assert plain.max_offset("topic-0", 0) == other.max_offset("topic-0", 0) > 0
    shutil.rmtree(tmp_path / "consumequeue" / "topic-0")
    for each in (plain, other):
        assert (each.ends("topic-0", 0), each.max_offset("topic-0", 0)) == ((0, 0), 0)
        assert len(each.entries("topic-0", 0, 0, 10).sizes) == 0


def no_long_way(topic: str, queue: int, below: int | None) -> QueueBounds:
    raise AssertionError("every queue is as usual")


def test_the_quick_look_at_bounds_says_what_the_long_way_says(
    log: WrittenLog, tmp_path: Path
) -> None:
    writer = filled(log, tmp_path)
    writer.flush()
    expected = [writer.bounds_of(*key, None)[:6] for key in writer.queues()]
    context, folder = make_context(tmp_path, read_only=True), tmp_path / "consumequeue"
    for below in (None, 1 << 40):
        found = QuickLook(context, below).all_bounds(folder, lambda _: True, no_long_way)
        assert [each[:6] for each in found] == expected
    look = QuickLook(context, None)
    wanted = look.all_bounds(folder, lambda topic: topic == "topic-1", no_long_way)
    assert {each.topic for each in wanted} == {"topic-1"}
    assert not list(look.all_bounds(tmp_path / "none", lambda _: True, no_long_way))


def test_what_is_not_as_usual_is_left_to_the_long_way(log: WrittenLog, tmp_path: Path) -> None:
    filled(log, tmp_path).flush()
    root = tmp_path / "consumequeue"
    path = next((root / "topic-0" / "0").iterdir())
    path.write_bytes(path.read_bytes()[:-1])
    (root / "topic-2" / "0").mkdir(parents=True)
    moved = QuickLook(make_context(tmp_path, read_only=True, log_min_offset=lambda: 5), None)
    assert moved.bounds("topic-0", 0, str(root / "topic-0" / "0")) is None
    assert moved.bounds("topic-0", 1, str(root / "topic-0" / "1")) is not None
    assert moved.bounds("topic-2", 0, str(root / "topic-2" / "0")) == QueueBounds("topic-2", 0, 0, 0)  # fmt: skip


# --- which records belong to the present generation of their queue


def judged(log: WrittenLog, root: Path, run: Run) -> Verdict:
    """Judge a run of the queue whose files are in the folder."""
    assert run.topic is not None
    files, key = Files(), (run.topic, run.queue)
    pool, path = OpenFiles(files, 4), root / "consumequeue" / run.topic / str(run.queue)
    extension = QueueExtension(files, pool, root / "none")
    queue = Queue(QueueFolder(files, pool, path, SMALL.queue_entries), extension, 0, 0)
    list(queue.folder.scan(cut_too=False))
    queue.find_bounds(0)
    return Generations(trust(log), {key: queue}).judge(key, queue, run)


@pytest.fixture
def run(log: WrittenLog) -> Run:
    return next(iter(runs_of(log.batches()[0])))


def test_a_restart_at_0_after_all_entries_is_a_new_generation(
    log: WrittenLog, tmp_path: Path, run: Run
) -> None:
    filled(log, tmp_path).flush()
    later = log.end_offset + 1000
    data = later.to_bytes(8, "big") + run.data[8:20]
    restart = run._replace(ordinal=0, data=data, log_offset=later, packed_times=run.packed_times[:8])  # fmt: skip
    verdict = judged(log, tmp_path, restart)
    assert (verdict.keep.tolist(), verdict.cut) == ([True], 0)


@pytest.mark.parametrize(("rows", "expected"), [(1, ([False], None)), (2, ([True, True], 0))])
def test_a_record_in_the_middle_with_offset_0_begins_no_generation_unless_others_follow_it(
    log: WrittenLog, tmp_path: Path, run: Run, rows: int, expected: tuple[list[bool], int | None]
) -> None:
    """What follows it tells its offset from a corrupt one: no checksum need cover that."""
    at = len(run.store_times) // 2
    entries = np.frombuffer(run.data, ENTRY)
    middle = int(entries["log_offset"][at])
    filled(log, tmp_path, stop=middle).flush()
    again = run._replace(
        ordinal=0, data=entries[at : at + rows].tobytes(), log_offset=middle,
        packed_times=run.packed_times[8 * at : 8 * (at + rows)],
    )  # fmt: skip
    verdict = judged(log, tmp_path, again)
    assert (verdict.keep.tolist(), verdict.cut) == expected


def test_a_record_backs_its_own_place_only(log: WrittenLog) -> None:
    at = log.offsets()[7]
    assert is_backed(log.view, ("topic-1", 1), 1, at)
    for key, ordinal in ((("topic-0", 1), 1), (("topic-1", 2), 1), (("topic-1", 1), 2), (("topic-", 1), 1), (("topic-11", 1), 1)):  # fmt: skip
        assert not is_backed(log.view, key, ordinal, at)
    for elsewhere in (at + 1, log.end_offset, 1 << 40, -1):
        assert not is_backed(log.view, ("topic-1", 1), 1, elsewhere)


def test_entries_within_damage_are_kept(tmp_path: Path) -> None:
    index = OneQueue(tmp_path, [(0, 100), (100, 100), (200, 100)])
    ((topic, queue, at, entry),) = entries_within(index, [(100, 250)])
    assert (topic, queue, at, len(entry)) == ("t", 0, 1, ENTRY.itemsize)


# --- the check against the log


def checker(root: Path) -> QueueChecker:
    names = QueueNames(Files(), root / "consumequeue", read_only=True)
    return QueueChecker(reader(root), names, NO_HISTORY)


def flip(*positions: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        for position in positions:
            data[position] ^= 1

    return change


def lose_the_end(data: bytearray) -> None:
    data[20 * 98 :] = bytes(len(data) - 20 * 98)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (flip(), []),
        (flip(20 * 3 + 19, 20 * 5 + 11), [
            (60, "queue topic-0/0 offset 3: the entry has another tag code"),
            (100, "queue topic-0/0 offset 5: the entry has another record, or none")]),
        (flip(20 * 3 + 7), [(60, "queue topic-0/0 offset 3: the entry has another record, or none")]),
        (lose_the_end, [(20 * 98, "entries are missing from here on")]),
    ],
)  # fmt: skip
def test_each_difference_is_a_finding_at_its_entry_and_nothing_else_is(
    log: WrittenLog,
    tmp_path: Path,
    change: Callable[[bytearray], None],
    expected: list[tuple[int, str]],
) -> None:
    filled(log, tmp_path).flush()
    path = next((tmp_path / "consumequeue" / "topic-0" / "0").iterdir())
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)

    def found() -> Iterator[Finding]:
        check = checker(tmp_path)
        yield from check.start()
        for batch in log.batches():
            yield from check.batch(batch)
        yield from check.finish(log.end_offset)

    told = list(found())
    assert [each.position for each in told] == [at for at, _ in expected]
    assert all(text in each.text for each, (_, text) in zip(told, expected, strict=True))


def test_what_a_part_has_seen_goes_to_the_one_that_ends(log: WrittenLog, tmp_path: Path) -> None:
    filled(log, tmp_path).flush()
    part, whole = checker(tmp_path), checker(tmp_path)
    for batch in log.batches():
        assert list(part.batch(batch)) == []
    whole.take(part.seen())
    assert list(whole.finish(log.end_offset)) == []


# --- delivery times of delay levels that only a broker knows: kept, and no findings


def test_whole_seconds_up_to_a_year_can_be_a_level_and_no_flipped_bit_makes_one() -> None:
    stored = 1_700_000_000_123
    times = [stored + delay for delay in (0, 1000, 3 * HOUR_MS, 366 * 24 * HOUR_MS)]
    assert are_delivery_times(np.array(times), np.full(len(times), stored)).all()
    bad = [stored + delay for delay in (-1000, 1, 999, 1001, 367 * 24 * HOUR_MS, -(1 << 62))]
    bad += [int(np.int64(np.uint64(stored + 30_000) ^ np.uint64(1 << bit))) for bit in range(64)]
    assert not are_delivery_times(np.array(bad), np.full(len(bad), stored)).any()


def opened(root: Path) -> Store:
    return open_store(root, clock=ManualClock(1_700_000_000_000), spawn=ManualWorkers())


def moved_time(root: Path, row: int, by_ms: int) -> tuple[bytes, bytes]:
    """Change the time of one entry of the fourth level; returns the bytes of three before and after."""
    (path,) = (root / "consumequeue" / SCHEDULE_TOPIC / "3").iterdir()
    before = path.read_bytes()
    data, at = bytearray(before), slice(row * 20 + 12, row * 20 + 20)
    data[at] = (int.from_bytes(data[at], "big") + by_ms).to_bytes(8, "big")
    path.write_bytes(data)
    return before[:60], bytes(data[:60])


def test_an_opening_keeps_the_time_of_a_brokers_level_and_makes_a_corrupt_one_again(
    tmp_path: Path,
) -> None:
    def texts() -> list[str]:
        with penstock.open(tmp_path, environ={}, read_only=True) as store:
            return [finding.text for finding in store.verify(deep=True) if not finding.is_note]

    with opened(tmp_path) as store:
        for number in range(3):
            store.put("orders", b"%d" % number, queue=0, delay_level=4)
    _, kept = moved_time(tmp_path, 1, HOUR_MS)
    assert texts() == []
    for by_ms in (0, 1):
        moved_time(tmp_path, 2, by_ms)
        # As if a broker had written since: everything is dispatched again.
        (tmp_path / "penstock" / "clean").unlink()
        with opened(tmp_path) as store:
            store.put("orders", b"more", queue=0, delay_level=4)
        assert moved_time(tmp_path, 2, 0)[0] == kept
    moved_time(tmp_path, 2, HOUR_MS + 1)
    assert texts() == [f"queue {SCHEDULE_TOPIC}/3 offset 2: the entry has another tag code"]
