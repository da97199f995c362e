"""Work on a store in pieces: verification and reindex give what one process gives, and survive being killed."""

import hashlib
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import make_restarted
from tests.lanes import rounds

import penstock
from penstock import Message
from penstock.errors import ConfigError, NotAStoreError, StorageError, StoreLockedError
from penstock.files import Files
from penstock.store.open import make_opener
from penstock.testing.faults import FaultyFiles, KilledError
from penstock_tools.segmentwise import (
    DERIVED,
    KEYS,
    Checkup,
    Reindex,
    ReindexReport,
    messages_before,
    start_reindex,
)
from penstock_tools.segmentwise.checkup import recipe_of

SIZES: dict[str, Any] = {
    "geometry.segment_bytes": 64 * 1024, "geometry.queue_entries": 100,
    "geometry.index_slots": 50, "geometry.index_entries": 400,
}  # fmt: skip
COUNT = 1500


def messages(count: int = COUNT, first: int = 0) -> list[Message]:
    return [
        Message(
            f"topic{n % 3}", b"body %d" % n * (n % 9), queue=n % 4, tag=f"tag{n % 5}" if n % 3 else "",
            keys=[f"k{n % 50}", f"j{n}"] if n % 2 else [],
        )
        for n in range(first, first + count)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("segmentwise") / "store"
    with penstock.open(root, environ={}, **SIZES) as store:
        store.put_many(messages())
    return root


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "store"))


def spoil(path: Path, position: int, data: bytes = b"\xa5\x5a") -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def spoil_body(root: Path) -> None:
    """Spoil the body of some record in the second segment."""
    with penstock.open(root, read_only=True, environ={}) as store:
        everything = [m for topic in store.topics(system=True) for m in store.scan(topic)]
    victim = next(m for m in everything if m.log_offset > 80_000 and len(m.body) > 40)
    segment = sorted((root / "commitlog").iterdir())[1]
    spoil(segment, segment.read_bytes().index(victim.body) + 5)


def in_one_process(root: Path, *, deep: bool) -> list[Any]:
    with penstock.open(root, read_only=True, environ={}) as store:
        return list(store.verify(deep=deep))


def in_pieces(root: Path, *, deep: bool) -> list[Any]:
    checkup = Checkup(root, deep=deep)
    # A worker each, in an order of its own: nothing may hang on which process had which.
    checked = {piece: checkup.task.worker().check(piece) for piece in reversed(checkup.pieces)}
    return list(checkup.gather(checked))


@pytest.mark.slow
@pytest.mark.parametrize("deep", [True, False])
def test_a_sound_store_has_no_findings(original: Path, deep: bool) -> None:
    checkup = Checkup(original, deep=deep)
    assert checkup.pieces[0] == DERIVED
    assert len(checkup.pieces) > 3
    assert in_pieces(original, deep=deep) == in_one_process(original, deep=deep)


@pytest.mark.parametrize(
    "damage", ["record", "queue entry", "index", "missing segment", "checkpoint", "torn queue"]
)
def test_pieces_find_what_one_process_finds(root: Path, damage: str) -> None:
    segments = sorted((root / "commitlog").iterdir())
    queue = sorted((root / "consumequeue" / "topic1" / "2").iterdir())
    if damage == "record":
        spoil_body(root)
    elif damage == "queue entry":
        spoil(queue[0], 20 * 7 + 3)
    elif damage == "index":
        for path in (root / "index").iterdir():
            spoil(path, 300, b"\xff" * 60)
    elif damage == "missing segment":
        segments[1].unlink()
    elif damage == "checkpoint":
        spoil(root / "checkpoint", 0, b"\x01" * 24)
    else:
        queue[0].unlink()
    expected = in_one_process(root, deep=True)
    assert expected
    assert in_pieces(root, deep=True) == expected


def test_pieces_know_what_the_counts_of_queues_show(tmp_path: Path) -> None:
    """No segment tells by itself which queue offsets are corrupt, nor where a queue began a new generation."""
    root = make_restarted(tmp_path / "store", "t", **SIZES)
    with penstock.open(root, environ={}) as store:
        store.put_many(Message("t", b"x" * 2000, queue=0) for _ in range(60))
        victim = next(m for m in store.scan("t") if m.queue_offset == 77)
    segment = sorted((root / "commitlog").iterdir())[victim.log_offset // 65536]
    # A queue offset that no record has, in a record without a CRC over the whole of it.
    spoil(segment, victim.log_offset % 65536 + 20, b"\x00\x10")
    expected = in_one_process(root, deep=False)
    assert [f.is_note for f in expected].count(True) == 1
    assert any(f.log_offset == victim.log_offset and not f.is_note for f in expected)
    assert in_pieces(root, deep=False) == expected


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(NotAStoreError):
        Checkup(tmp_path / "other")
    with pytest.raises(NotAStoreError):
        start_reindex(tmp_path / "nothing")


@pytest.mark.slow
def test_messages_before_a_log_offset(original: Path) -> None:
    with penstock.open(original, read_only=True, environ={}) as store:
        everything = [m for topic in store.topics(system=True) for m in store.scan(topic)]
        for bound in (0, 64 * 1024, 100_000, 1 << 40):
            ranges = list(messages_before(store, bound))
            assert len(ranges) == 12
            count = sum(each.stop - each.start for each in ranges)
            assert count == sum(m.log_offset < bound for m in everything)


# --- reindex


def reindex(root: Path, shards: int = 3, *, keep: bool = True) -> ReindexReport:
    with start_reindex(root, shards=shards) as work:
        return work_through(work, keep=keep)


def work_through(work: Reindex, *, keep: bool = True) -> ReindexReport:
    stretches = [work.task.condense(base) for base in reversed(work.bases)]
    # As where a task was lost and tried again.
    work.task.condense(work.bases[0])
    work.task.make(work.parts[0])
    return work.finish(stretches, {part: work.task.make(part) for part in work.parts}, keep=keep)


def hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def found_by_key(root: Path) -> dict[str, list[int]]:
    with penstock.open(root, read_only=True, environ={}) as store:
        keys = [f"{kind}{n}" for n in range(0, 50, 7) for kind in "kj"]
        return {
            f"{topic}#{key}": [m.log_offset for m in store.find(key, topic)]
            for topic in store.topics(system=True)
            for key in keys
        }


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 5])
def test_a_reindex_makes_the_files_that_dispatching_makes(root: Path, shards: int) -> None:
    before, found = hashes(root / "consumequeue"), found_by_key(root)
    index = [path.read_bytes() for path in sorted((root / "index").iterdir())]
    assert len(index) > 2
    done = reindex(root, shards)
    assert hashes(root / "consumequeue") == before
    assert [path.read_bytes() for path in sorted((root / "index").iterdir())] == index
    assert found_by_key(root) == found
    assert (done.records, done.queues, done.damages, done.left) == (COUNT, 12, (), ())
    assert done.saved_to is not None
    assert {path.name for path in done.saved_to.iterdir()} == {"consumequeue", "index"}
    assert not (root / "penstock" / "repair").exists()
    assert not in_one_process(root, deep=True)
    with penstock.open(root, environ={}) as store:
        assert store.recovery is not None
        assert store.recovery.state == "clean"


@pytest.mark.slow
def test_lost_queues_and_index_come_back(root: Path) -> None:
    before, found = hashes(root / "consumequeue"), found_by_key(root)
    shutil.rmtree(root / "index")
    for path in (root / "consumequeue" / "topic0").iterdir():
        shutil.rmtree(path)
    spoil(sorted((root / "consumequeue" / "topic1" / "2").iterdir())[0], 20, b"\xff" * 100)
    reindex(root, keep=False)
    assert hashes(root / "consumequeue") == before
    assert found_by_key(root) == found
    assert not list((root / "penstock").rglob("saved/repair-*"))
    with penstock.open(root, environ={}) as store:
        store.put_many(messages(10, COUNT))
        assert not list(store.verify(deep=True))


@pytest.mark.slow
@pytest.mark.parametrize("keep", [False, True])
def test_a_reindex_leaves_what_belongs_to_no_queue_where_it_is(root: Path, keep: bool) -> None:
    """It went with the old queues, and away for good where nothing was to be kept."""
    strays = [root / "consumequeue" / "a\x1b\nb", root / "consumequeue" / "topic0" / "007"]
    for stray in strays:
        stray.mkdir()
        (stray / "mine").write_bytes(b"not yours")
    reindex(root, keep=keep)
    assert [(stray / "mine").read_bytes() for stray in strays] == [b"not yours"] * 2
    with penstock.open(root, environ={}, read_only=True) as reader:
        assert {finding.part for finding in reader.verify()} == {"stray"}


@pytest.mark.slow
def test_entries_of_damaged_records_stay(root: Path) -> None:
    before = hashes(root / "consumequeue")
    spoil_body(root)
    done = reindex(root)
    assert len(done.damages) == 1
    assert hashes(root / "consumequeue") == before


@pytest.mark.slow
def test_a_queue_with_no_record_left_goes_on_from_its_end(tmp_path: Path) -> None:
    """Made anew from the log alone its offsets would begin at 0 again, behind its consumers' backs."""
    root = tmp_path / "store"
    with penstock.open(root, environ={}, **SIZES) as store:
        store.put_many([Message("idle", b"x", queue=0) for _ in range(150)])
        store.put_many([Message("busy", bytes(1000), queue=0) for _ in range(150)])
        store.flush()
        assert store.discard_before(log_offset=100_000)
        assert store.min_offset("idle", 0) == store.max_offset("idle", 0) == 150
    reindex(root)
    with penstock.open(root, environ={}) as store:
        assert store.min_offset("idle", 0) == store.max_offset("idle", 0) == 150
        assert not list(store.verify(deep=True))
        store.put("idle", b"next", queue=0)
    # And so it is when a repair makes them anew.
    shutil.rmtree(root / "consumequeue" / "busy")
    assert penstock.repair(root, apply=True, environ={}).applied
    with penstock.open(root, environ={}) as store:
        assert store.max_offset("idle", 0) == 151
        assert store.read("idle", 0, 150).messages[0].body == b"next"


@pytest.mark.slow
def test_the_store_is_locked_meanwhile(root: Path) -> None:
    with start_reindex(root), pytest.raises(StoreLockedError):
        penstock.open(root, environ={})
    with penstock.open(root, environ={}), pytest.raises(StoreLockedError):
        start_reindex(root)
    with pytest.raises(ConfigError, match="shards"):
        start_reindex(root, shards=0)
    penstock.open(root, environ={}).close()


class _KilledError(BaseException):
    """Stands for the end of the process."""


CHANGES = ("rename", "remove", "remove_folder", "write_whole", "sync_folder")


def steps(monkeypatch: pytest.MonkeyPatch, last: int) -> Iterator[int]:
    """Let the process die at its change number `last` to the disk."""
    counter = itertools.count()

    def dying(name: str) -> Any:
        real = getattr(Files, name)

        def change(self: Files, *arguments: Any, **more: Any) -> Any:
            if next(counter) == last:
                raise _KilledError
            return real(self, *arguments, **more)

        return change

    for name in CHANGES:
        monkeypatch.setattr(Files, name, dying(name))
    return counter


@pytest.mark.slow
def test_killed_anywhere_it_is_finished_by_the_next(original: Path, tmp_path: Path) -> None:
    """Old or new, nothing between, for whoever opens the store; and the next reindex ends in the same state."""
    expected, found = hashes(original / "consumequeue"), found_by_key(original)
    killed = 0
    for last in itertools.count(3, rounds(gate=37, night=19)):
        root = Path(shutil.copytree(original, tmp_path / f"store{last}"))
        if last % 3:
            shutil.rmtree(root / "consumequeue" / "topic0")
        with pytest.MonkeyPatch.context() as patch:
            steps(patch, last)
            try:
                reindex(root)
                is_whole = True
            except _KilledError:
                is_whole = False
                killed += 1
        if last % 2:
            other = Path(shutil.copytree(root, tmp_path / "other"))
            with penstock.open(other, environ={}) as store:
                assert not list(store.verify())
            assert hashes(other / "consumequeue") == expected
            shutil.rmtree(other)
        reindex(root)
        assert hashes(root / "consumequeue") == expected
        assert found_by_key(root) == found
        assert not in_one_process(root, deep=False)
        shutil.rmtree(root)
        if is_whole:
            break
    assert killed > 4


def with_an_expired_queue(root: Path, *, is_abnormal: bool) -> Path:
    """Make a store with a queue of which the log has no record left, only its end is known."""
    # A segment that is being summed up cannot go.
    settings: dict[str, Any] = {**SIZES, "scrub.digests": False}
    with penstock.open(root, environ={}, **settings) as store:
        store.put_many(
            [Message("old", b"x" * 500, queue=0)] * 5 + [Message("new", b"y" * 500, queue=0)] * 300
        )
        store.topics(system=True)
        assert store.discard_before(log_offset=64 * 1024)
        assert (store.min_offset("old", 0), store.max_offset("old", 0)) == (5, 5)
    if is_abnormal:
        (root / "abort").touch()
    return root


def reindex_with(root: Path, files: Files) -> None:
    opener = make_opener(root, None, files, None, None, {}, SIZES)
    with Reindex(opener, recipe_of(opener), shards=2) as work:
        stretches = [work.task.condense(base) for base in work.bases]
        work.finish(stretches, {part: work.task.make(part) for part in work.parts})


@pytest.mark.slow
@pytest.mark.parametrize("is_abnormal", [False, True])
def test_an_opening_finishes_a_swap_that_was_begun(tmp_path: Path, is_abnormal: bool) -> None:
    """Killed between the two renames, an opening for writing made the queues from the log alone.

    So a queue whose messages had all gone began at 0 again. And of a store with an abort marker, which an
    opening takes for its own without touching the lock file, what was ready stayed ready: for a later reindex
    to swap in, whatever had been put meanwhile.
    """
    counting, calls = FaultyFiles(), []
    counting.plan.watch = lambda _call, path: calls.append(path.name)
    reindex_with(with_an_expired_queue(tmp_path / "whole", is_abnormal=is_abnormal), counting)
    was_ready = 0
    for call in range(calls.index("ready.new"), counting.plan.total + 1, rounds(gate=3, night=1)):
        # Not a copy: that would be a stranger's, by the time its lock file was made.
        root = with_an_expired_queue(tmp_path / "store", is_abnormal=is_abnormal)
        dying = FaultyFiles()
        dying.plan.die_at(call)
        with pytest.raises(KilledError):
            reindex_with(root, dying)
        dying.abandon()
        ready = root / "penstock" / "repair" / "ready"
        was_ready += ready.exists()
        with penstock.open(root, environ={}, **SIZES) as store:
            assert not ready.exists(), dying.plan.died_in
            assert store.put("old", b"z", queue=0).queue_offset == 5, dying.plan.died_in
            assert store.max_offset("new", 0) == 300
            assert not list(store.verify())
        shutil.rmtree(root)
    assert was_ready > 1


@pytest.mark.slow
def test_tasks_that_outlive_their_run_change_nothing_of_the_next(root: Path) -> None:
    """Parts of all runs lay in one folder: a task of a dead one could write into that of the next."""
    first = start_reindex(root, shards=2)
    straggler = first.task
    base = first.bases[0]
    straggler.condense(base)
    first.close()
    before, found = hashes(root / "consumequeue"), found_by_key(root)
    with start_reindex(root, shards=2) as work:
        assert work.task.folder != straggler.folder
        with pytest.raises(StorageError, match="has ended"):
            straggler.condense(base)
        with pytest.raises(StorageError, match="has ended"):
            straggler.make(0)
        work_through(work)
    assert hashes(root / "consumequeue") == before
    assert found_by_key(root) == found
    assert not (root / "penstock" / "repair").exists()


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["rows of a queue", "rows of keys", "a segment"])
def test_parts_that_lack_something_are_not_swapped_in(root: Path, lost: str) -> None:
    before = hashes(root / "consumequeue")
    with start_reindex(root, shards=2) as work:
        stretches = [work.task.condense(base) for base in work.bases]
        if lost == "a segment":
            stretches.pop()
        else:
            part = 0 if lost == "rows of a queue" else KEYS
            next((work.task.folder / f"rows{part}").iterdir()).unlink()
        made = {part: work.task.make(part) for part in work.parts}
        with pytest.raises(StorageError, match="nothing was changed"):
            work.finish(stretches, made)
    assert hashes(root / "consumequeue") == before
    assert not in_one_process(root, deep=True)


@pytest.mark.slow
def test_a_reindex_that_cannot_tidy_up_is_done_all_the_same(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = hashes(root / "consumequeue")
    files = FaultyFiles()
    files.plan.fail("remove", path="/parts/")
    files.plan.fail("remove", path="/saved/")
    opener = make_opener(root, None, files, None, None, {}, SIZES)
    with Reindex(opener, recipe_of(opener), shards=2) as work:
        work_through(work, keep=False)
    assert "could not be deleted yet" in caplog.text
    assert "its temporary files could not be deleted" in caplog.text
    assert hashes(root / "consumequeue") == before
    assert not in_one_process(root, deep=True)
    with penstock.open(root, environ={}) as store:
        assert store.recovery is not None
        assert store.recovery.state == "clean"
