"""Opening after a crash, after damage, after loss: what is found, what is done, what is refused."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from tests.conftest import OpenStore
from tests.unit.recovery.losses import LOSSES, lose_all_queues, poke

import penstock
from penstock import Message
from penstock.durability.progress import Progress, decode_slot
from penstock.errors import CorruptionError, OffsetError
from penstock.files import Files
from penstock.format.record import RecordFields, encode_record
from penstock.log import resync, scan
from penstock.store.store import Store
from penstock.testing import ManualClock, ManualWorkers, SimulatedDisk, open_store
from penstock.testing.kit import InlineWorkers, copy_files, copy_store
from penstock.testing.platter import Survival

COUNT = 1200


def filled(store: Store, count: int = COUNT) -> list[bytes]:
    bodies = [b"%d " % n + b"x" * (n % 150) for n in range(count)]
    store.put_many(
        [
            Message("t", body, queue=n % 3, tag=f"tag{n % 5}", keys=[f"k{n}"])
            for n, body in enumerate(bodies)
        ]
    )
    return bodies


def crash(store: Store, root: Path, name: str) -> Path:
    """Leave the store as a killed process would: copy its files while it is open."""
    store.topics()  # what is to be dispatched is, so that no file comes and goes during the copy
    copy = root / name
    copy_files(root / "store", copy)
    return copy


def stored(store: Store) -> list[bytes]:
    return [m.body for m in store.scan("t")]


def check(store: Store, bodies: list[bytes]) -> None:
    """All is there, once, in order; queues and index agree with the log."""
    assert stored(store) == bodies
    assert not list(store.verify())
    for number in range(0, len(bodies), 97):
        assert [m.body for m in store.find(f"k{number}", "t")] == [bodies[number]]


@pytest.fixture
def crashed(tmp_path: Path) -> tuple[Path, list[bytes]]:
    """A store that was filled, partly synced and marked, and never closed."""
    workers = ManualWorkers()
    with open_store(tmp_path / "store", spawn=workers) as store:
        bodies = filled(store)
        store.flush()
        workers.run("penstock-follow")
        workers.run("penstock-mark")
        return crash(store, tmp_path, "crashed"), bodies


@pytest.fixture
def closed(open_small: OpenStore, tmp_path: Path) -> tuple[Path, list[bytes]]:
    """A store that was filled and closed cleanly."""
    with open_small() as store:
        bodies = filled(store)
    return tmp_path / "store", bodies


@pytest.mark.slow
def test_records_larger_than_what_is_read_at_once(
    crashed: tuple[Path, list[bytes]], open_small: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, bodies = crashed
    lose_all_queues(path)
    # A window is larger than all records that a test of this speed could write.
    monkeypatch.setattr(scan, "WINDOW_BYTES", 100)
    monkeypatch.setattr(resync, "BATCH_BYTES", 100)
    with open_small(path=path) as store:
        check(store, bodies)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["closed", "crashed"])
@pytest.mark.parametrize("lose", LOSSES)
def test_whatever_was_lost_is_healed(
    lose: Callable[[Path], None], kind: str, request: pytest.FixtureRequest, open_small: OpenStore
) -> None:
    path, bodies = request.getfixturevalue(kind)
    lose(path)
    with open_small(path=path) as store:
        check(store, bodies)
        filled(store, 30)
    with open_small(path=path) as store:
        assert store.recovery is not None
        assert store.recovery.state == "clean"
        assert len(stored(store)) == COUNT + 30
        assert not list(store.verify())


def segment_files(path: Path) -> list[Path]:
    return sorted((path / "commitlog").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("keep", [0, 1, 4, 90, -1])
def test_a_torn_tail_is_cut_erased_and_reported(
    keep: int, open_small: OpenStore, tmp_path: Path
) -> None:
    # Only the CRC over the whole record sees a byte lost behind the body.
    with open_small(flush="async", **{"log.checksum": "crc32+record"}) as store:
        bodies = filled(store, 100)
        store.flush()
        last = store.put("t", b"torn " + b"y" * 100, queue=0, tag="t")
        path = crash(store, tmp_path, "torn")
    (file,) = segment_files(path)
    kept = keep if keep >= 0 else last.size - 1
    poke(file, last.log_offset + kept, bytes(last.size - kept))
    with open_small(path=path) as again:
        report = again.recovery
        assert report is not None
        assert report.log_end == last.log_offset
        assert (report.cut_bytes > 0) == (keep not in (0, 1))  # the first byte of a size is zero
        said = [done for done in report.mended if done.startswith("cut a torn tail of")]
        assert len(said) == (report.cut_bytes > 0)
        assert stored(again) == bodies
        erased = file.read_bytes()[last.log_offset :]
        assert not erased.strip(b"\0"), "the bytes behind the cut are erased"
        assert again.put("t", b"next", queue=0).log_offset == last.log_offset


@pytest.mark.slow
def test_damage_before_the_end_refuses_writing_and_keeps_every_byte(
    crashed: tuple[Path, list[bytes]], open_small: OpenStore
) -> None:
    path, bodies = crashed
    (path / "penstock" / "progress").unlink()
    file = segment_files(path)[0]
    data = bytearray(file.read_bytes())
    data[data.index(b"40 xxx") + 5] ^= 0x10
    file.write_bytes(data)
    before = {p: p.read_bytes() for p in segment_files(path)}
    with pytest.raises(CorruptionError, match=f"{file.name}.*corrupt at byte.*read_only"):
        open_small(path=path)
    assert {p: p.read_bytes() for p in segment_files(path)} == before
    with penstock.open(path, read_only=True) as store:
        left = stored(store)
        assert len(left) == len(bodies) - 1
        assert set(left) < set(bodies)
        findings = list(store.verify())
        assert any(f.part == "log" and f.path == file for f in findings)


@pytest.mark.parametrize("lacks", [("checkpoint", "penstock/progress"), ()])
@pytest.mark.parametrize("was_abnormal", [False, True])
def test_a_segment_that_is_gone_refuses_writing(
    was_abnormal: bool,
    lacks: tuple[str, ...],
    crashed: tuple[Path, list[bytes]],
    open_small: OpenStore,
) -> None:
    """The place of the damage was looked up in the segment that is missing: an assertion failed, or a
    look-up outside of the log, instead of the error that says what to do.
    """
    path, _ = crashed
    for name in (*lacks, *(() if was_abnormal else ("abort",))):
        (path / name).unlink()
    segment_files(path)[-2].unlink()
    with pytest.raises(CorruptionError, match="repair"):
        open_small(path=path)


@pytest.mark.parametrize("writer", ["penstock", "broker"])
def test_a_closed_store_whose_last_segment_is_elsewhere_is_refused_and_unchanged(
    writer: str, open_small: OpenStore, tmp_path: Path
) -> None:
    """Its entries were cut off, groups set back, and its log offsets used again: a volume that was not mounted."""
    clock = ManualClock()
    with open_small(clock=clock) as store:
        for _ in range(60):
            filled(store, 20)
            clock.now_ms += 1
    path = tmp_path / "moved"
    shutil.copytree(tmp_path / "store", path, copy_function=shutil.copyfile)
    if writer == "broker":
        shutil.rmtree(path / "penstock")
    segment_files(path)[-1].unlink()
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    with pytest.raises(CorruptionError, match="restore the"):
        open_small(path=path)
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("entries", ["gone", "stale"])
def test_a_log_that_another_program_has_cut_is_opened(
    entries: str, open_small: OpenStore, tmp_path: Path
) -> None:
    """A broker deletes segments behind a record that it does not understand, and goes on without them. It erases no
    entries of theirs; its checkpoint knows of no later message than the last that is there."""
    with open_small(clock=ManualClock()) as store:
        bodies = filled(store)
    path = tmp_path / "store"
    last = segment_files(path)[-1]
    last.unlink()
    if entries == "gone":
        lose_all_queues(path)
    os.utime(path / "lock", ns=(1, 1))
    with open_small() as store:
        kept = stored(store)
        assert kept == bodies[: len(kept)]
        assert store.put("t", b"next", queue=0).log_offset <= int(last.name)


def test_records_behind_a_page_that_was_never_written_are_cut_and_kept_aside(
    open_small: OpenStore, tmp_path: Path
) -> None:
    """A power cut may lose one page and keep a later one: neither was promised."""
    with open_small() as store:
        bodies = filled(store, 50)
        store.flush()
        end = store.stats()["log_end_offset"]
        filled(store, 300)
        path = crash(store, tmp_path, "holed")
    page = -(-end // 4096) * 4096
    poke(segment_files(path)[0], page, bytes(4096))
    with open_small(path=path) as again:
        report = again.recovery
        assert report is not None
        assert end <= report.log_end < page + 4096
        assert report.saved_to is not None
        assert b"250 x" in Path(report.saved_to).read_bytes()
        assert stored(again)[:50] == bodies
        assert not list(again.verify())


def test_a_hostile_log_makes_no_folder_outside_the_store(
    open_small: OpenStore, tmp_path: Path
) -> None:
    """The zip-slip of this format: a record whose topic is a path."""
    path = tmp_path / "hostile"
    (path / "commitlog").mkdir(parents=True)
    log = b""
    for topic in (b"good", b"../../evil", b"..", b"a\0b", b"good", b"\xff\xfe", b"good"):
        log += encode_record(RecordFields(topic=topic, body=b"x", log_offset=len(log), store_time_ms=5,
                                          queue_offset=log.count(b"good")))  # fmt: skip
    for queue in (-1, 1 << 30):
        log += encode_record(
            RecordFields(topic=b"good", body=b"x", log_offset=len(log), queue=queue)
        )
    (path / "commitlog" / f"{0:020d}").write_bytes(log.ljust(64 * 1024, b"\0"))
    with open_small(path=path) as store:
        assert store.topics() == {"good": [0]}
        assert store.max_offset("good", 0) == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hostile"]
    assert sorted(p.name for p in (path / "consumequeue").iterdir()) == ["good"]


# --- queues that lag behind a durable log


def lagging(root: Path, **settings: Any) -> tuple[Path, list[bytes]]:
    """Return a killed store whose queues are marked to its first segment's end, and whose log is durable behind it."""
    workers = ManualWorkers()
    with open_store(root / "live", spawn=workers, **settings) as store:
        sent = [Message("t", b"%d" % n, queue=n % 2) for n in range(6)]
        store.put_many(sent)
        # Too little is left for any of those that follow.
        rest = 64 * 1024 - store.stats()["log_end_offset"]
        sent += [Message("t", b"x" * size, queue=0) for size in (10_000, rest - 10_500)]
        store.put_many(sent[-2:])
        store.flush()
        workers.run("penstock-follow")
        workers.run("penstock-mark")
        more = [Message("t", b"more %d" % n + b"y" * 300, queue=n % 2) for n in range(5)]
        for message in more:
            store.put(message.topic, message.body, queue=message.queue)
            store.flush()
        # In no queue either, and not durable.
        store.put("t", b"last", queue=1)
        copy_store(root / "live", root / "s")
    return root / "s", [*(m.body for m in sent + more), b"last"]


def changed_marks(path: Path, names: list[str] | None) -> None:
    """Let the marks say how far these dispatchers are, as far as the log is durable; None leaves them."""
    progress = Progress(Files(), path)
    state = progress.read()
    if names is not None:
        progress.state = attrs.evolve(state, dispatched=dict.fromkeys(names, state.flushed_offset))
        progress.sync()
    progress.close()


@pytest.mark.parametrize("checksum", ["crc32", "crc32+record"])
@pytest.mark.parametrize("is_copy", [False, True])
def test_messages_that_no_queue_names_yet_break_no_count(
    checksum: str, is_copy: bool, tmp_path: Path
) -> None:
    """The marks point at filler, no record begins there, and the walk began behind messages that were not counted."""
    path, bodies = lagging(tmp_path, **{"log.checksum": checksum})
    dispatched = set(Progress(Files(), path).read().dispatched.values())
    assert len(dispatched) == 1
    assert dispatched < set(range(1, 64 * 1024))
    if is_copy:
        path = copy_files(path, tmp_path / "copy")
    with open_store(path, read_only=True) as reader:
        assert not [f for f in reader.verify() if f.part == "log" and not f.is_note]
    with open_store(path) as again:
        assert stored(again) == bodies
        assert not list(again.verify())


@pytest.mark.parametrize("names", [["consume-queue"], ["other"], []])
def test_marks_that_do_not_say_how_far_the_queues_are(names: list[str], tmp_path: Path) -> None:
    """Of another dispatcher, or of none: the walk begins at the flushed offset, and what lies before is not counted."""
    path, bodies = lagging(tmp_path, **{"log.checksum": "crc32"})
    changed_marks(path, names)
    with open_store(path) as again:
        assert stored(again) == bodies
        assert not list(again.verify())


# --- an atomic batch in part


def test_a_lost_record_right_where_the_queues_end_is_not_scanned_over(tmp_path: Path) -> None:
    """The scan began after it, and its queue offset was given again: the queues end before it, the synced log after it."""
    path = tmp_path / "s"
    with open_store(path) as store:
        puts = [store.put("t", b"%d" % n * 50, queue=0) for n in range(4)]
    (path / "abort").write_text("")
    (path / "penstock" / "clean").unlink()
    progress = Progress(Files(), path)
    names = progress.read().dispatched
    progress.state = attrs.evolve(
        progress.read(), dispatched=dict.fromkeys(names, puts[3].log_offset)
    )
    progress.sync()
    progress.close()
    poke(segment_files(path)[0], puts[3].log_offset, bytes(puts[3].size))
    with pytest.raises(CorruptionError):
        open_store(path)


def test_a_batch_whose_last_record_its_queue_rejects_is_cut_from_its_begin(tmp_path: Path) -> None:
    """Without a CRC over the record, only its queue tells that a record is not the one: the records before it were kept."""
    given: dict[str, Any] = {"log.checksum": "crc32"}
    with open_store(tmp_path / "store", flush="none", **given) as store:
        store.put("t", b"before", queue=0)
        store.flush()
        receipts = store.put_many([Message("t", b"%d" % n, queue=0) for n in range(3)], atomic=True)
        copy = crash(store, tmp_path, "crashed")
    poke(segment_files(copy)[0], receipts[-1].log_offset + 20, (77).to_bytes(8, "big"))
    with open_store(copy, **given) as again:
        assert stored(again) == [b"before"]
        assert again.recovery is not None
        assert again.recovery.log_end == receipts[0].log_offset


ROOT = Path("/s")


SEGMENT = ROOT / "commitlog" / f"{0:020d}"


def opened(disk: SimulatedDisk, *, read_only: bool = False) -> Store:
    if read_only:
        return open_store(ROOT, files=disk, read_only=True)
    return open_store(ROOT, files=disk, spawn=InlineWorkers(), flush="none")


def killed(*, missing: str) -> tuple[SimulatedDisk, int]:
    """Return the disk of a killed writer, with a batch whose last record or entry is missing, and where it begins."""
    disk = SimulatedDisk()
    store = opened(disk)
    store.put("a", b"before", queue=0, keys=["k"])
    first, *_, last = store.put_many(
        [Message("a", b"1", queue=0, keys=["k"]), Message("b", b"2", queue=0, keys=["k"])],
        atomic=True,
    )
    store.max_offset("a", 0)
    assert [m.body for m in store.find("k", "a")] == [b"before", b"1"]
    after = SimulatedDisk.after(disk.image(), Survival.PROCESS, Random(1))
    at = last.log_offset if missing == "record" else 0
    path = SEGMENT if missing == "record" else ROOT / "consumequeue" / "b" / "0" / f"{0:020d}"
    file = after.open(path, writable=True)
    file.pwrite(bytes(20 if missing == "entry" else last.size), at)
    file.close()
    return after, first.log_offset


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["record", "entry"])
def test_nothing_of_a_batch_in_part_is_shown(missing: str) -> None:
    disk, begin = killed(missing=missing)
    with opened(disk, read_only=True) as reader:
        assert [m.body for m in reader.scan("a", queue=0)] == [b"before"]
        assert [m.body for m in reader.scan("b", queue=0)] == []
        assert (reader.max_offset("a", 0), reader.max_offset("b", 0)) == (1, 0)
        assert reader.read("a", 0, offset=1).messages == []
        assert reader.to_arrow("a").num_rows == 1
        assert [m.body for m in reader.find("k", "a")] == [b"before"]
        assert [(b.topic, b.max_offset) for b in reader.lowlevel.bounds() if b.max_offset] == [
            ("a", 1)
        ]
        with pytest.raises(OffsetError):
            reader.at(begin)
        with opened(disk) as store:
            kept = missing == "entry"
            assert store.recovery is not None
            assert store.recovery.log_end >= begin
            assert store.max_offset("a", 0) == 1 + kept
            store.put("a", b"after", queue=0)
            store.max_offset("a", 0)
            # Another writer has opened it: nothing is hidden any more.
            assert reader.max_offset("a", 0) == 2 + kept
            assert [m.body for m in reader.scan("a", queue=0)][-1] == b"after"


@pytest.mark.parametrize("copy_file", [shutil.copyfile, shutil.copy2])
def test_a_copy_of_a_store_in_use_shows_nothing_of_a_batch_in_part(
    copy_file: Callable[[str, str], object], tmp_path: Path
) -> None:
    """The log is copied before the queues. A copy without the times of files looked like a broker's, and showed a part."""
    with open_store(tmp_path / "store", flush="none") as store:
        store.put("a", b"before", queue=0)
        receipts = store.put_many(
            [Message("a", b"1", queue=0), Message("a", b"2", queue=0)], atomic=True
        )
        store.max_offset("a", 0)
        copy = shutil.copytree(tmp_path / "store", tmp_path / "copy", copy_function=copy_file)
    last = receipts[-1]
    poke(segment_files(copy)[0], last.log_offset, bytes(last.size))
    with open_store(copy, read_only=True) as reader:
        assert [m.body for m in reader.scan("a")] == [b"before"]
    with open_store(copy) as again:
        assert [m.body for m in again.scan("a")] == [b"before"]


def test_what_was_on_disk_is_no_torn_tail_for_verify_either(tmp_path: Path) -> None:
    """Right after a kill no queue knew of it: `verify` said that no action was needed, and the opening was refused."""
    root = tmp_path / "s"
    with open_store(root, spawn=ManualWorkers()) as store:
        last = [store.put("t", b"body" * 50, queue=0) for _ in range(5)][-1]
    (root / "abort").write_text("1")
    (root / "penstock" / "clean").unlink()
    shutil.rmtree(root / "consumequeue")
    progress = Progress(Files(), root)
    state = progress.read()
    state.dispatched = dict.fromkeys(state.dispatched, 0)
    progress.replace(state)
    poke(next((root / "commitlog").iterdir()), last.log_offset + 95, b"\0")
    with open_store(root, read_only=True) as reader:
        (found,) = [each for each in reader.verify() if each.part == "log" and not each.is_note]
    assert found.log_offset == last.log_offset
    assert "the progress file have more" in found.text
    (cut,) = [each for each in penstock.repair(root, environ={}).steps if each.action == "cut"]
    assert f"given up (up to log offset {last.log_offset + last.size})" in cut.text
    with pytest.raises(CorruptionError, match="were durable"):
        open_store(root, spawn=ManualWorkers())


def test_a_record_that_its_queue_contradicts_after_corruption_is_not_the_end_of_the_log(tmp_path: Path) -> None:  # fmt: skip
    """Everything from it on was cut as a torn tail of -438 bytes, and its queue offsets were given again."""
    root, settings = tmp_path / "s", dict[str, Any]({"log.checksum": "crc32"})
    with open_store(root, spawn=ManualWorkers(), **settings) as store:
        puts = [store.put("t", b"body %d" % n * 9, queue=0) for n in range(10)]
    # As after a kill, with nothing known to be on disk.
    (root / "abort").write_text("1")
    (root / "penstock" / "clean").unlink()
    progress = Progress(Files(), root)
    state = progress.read()
    state.flushed_offset = 0
    progress.replace(state)
    with next((root / "commitlog").iterdir()).open("r+b") as log:
        # The body of one record, and the queue offset of a later one, which no checksum covers.
        for place, data in ((puts[3].log_offset + 95, b"?!"), (puts[6].log_offset + 20, (7).to_bytes(8, "big"))):  # fmt: skip
            log.seek(place)
            log.write(data)
    with pytest.raises(CorruptionError):
        open_store(root, spawn=ManualWorkers())


@pytest.mark.parametrize(("at", "size"), [(95, 1), (95, 200), (0, 400)])
def test_a_last_record_that_was_changed_after_a_clean_close_is_not_cut_off(tmp_path: Path, at: int, size: int) -> None:  # fmt: skip
    """It was cut as a torn tail, as after a broker, and its queue offset was assigned again; the warning named no message."""
    root = tmp_path / "s"
    with open_store(root, spawn=ManualWorkers()) as store:
        last = [store.put("t", b"body" * 50, queue=0) for _ in range(5)][-1]
    poke(next((root / "commitlog").iterdir()), last.log_offset + at, bytes(size))
    with pytest.raises(
        CorruptionError, match=r"\(t, queue 0, offset 4\).*were durable.*repair PATH"
    ):
        open_store(root, spawn=ManualWorkers())
    (named,) = [
        s for s in penstock.repair(root, environ={}).steps if "(t, queue 0, offset 4)" in s.text
    ]
    assert "is given up" in named.text
    penstock.repair(root, apply=True, environ={})
    with open_store(root, spawn=ManualWorkers()) as store:
        assert [m.queue_offset for m in store.scan("t")] == [0, 1, 2, 3]


def test_filler_whose_size_a_crash_has_torn_off_is_whole_again() -> None:
    """Its head is on two sectors. Readers went on at the next segment, and no copy of the log took the filler."""
    disk = SimulatedDisk()
    store = opened(disk)
    bodies = [b"x" * 63_900, b"y" * 1500]
    first, _ = [store.put("t", body) for body in bodies]
    after = SimulatedDisk.after(disk.image(), Survival.PROCESS, Random(1))
    whole = after.read_whole(SEGMENT)
    file = after.open(SEGMENT, writable=True)
    file.pwrite(bytes(4), first.size)
    file.close()
    with opened(after) as again:
        assert stored(again) == bodies
        assert again.recovery is not None
        assert again.recovery.mended == (f"wrote the head of the filler at log offset {first.size} again: it was torn",)  # fmt: skip
    assert after.read_whole(SEGMENT) == whole


@pytest.mark.parametrize("is_copy", [False, True])
@pytest.mark.parametrize("kept", range(4, 8))
@pytest.mark.parametrize("room", [8, 12, 15])
def test_filler_whose_magic_a_crash_has_torn_is_whole_again(room: int, kept: int, *, is_copy: bool) -> None:  # fmt: skip
    """So near the segment's end no zeros tell that the rest was not written: the store was not opened any more.

    Nor was a copy of it that has not the times of the files, in which nothing tells what was synced.
    """
    disk, clock = SimulatedDisk(), ManualClock()
    store = opened(disk)
    size = store.put("t", b"w" * 63_000).size
    left = 65_536 - room - 2 * size + 63_000
    bodies = [b"w" * 63_000, b"x" * left, b"y" * 99]
    places = [store.put("t", body).log_offset for body in bodies[1:]]
    assert places == [size, 65_536]
    after = SimulatedDisk.after(disk.image(), Survival.PROCESS, Random(1), clock=clock)
    whole = after.read_whole(SEGMENT)
    file = after.open(SEGMENT, writable=True)
    file.pwrite(bytes(8 - kept), 65_536 - room + kept)
    file.close()
    if is_copy:
        clock.now_ms += 1
        after.write_whole(ROOT / "lock", b"lock")
    with opened(after) as again:
        assert stored(again) == bodies
        assert again.recovery is not None
        assert "wrote the head of the filler" in again.recovery.mended[0]
    assert after.read_whole(SEGMENT) == whole


def test_both_slots_of_the_progress_file_say_what_is_left_after_a_cut() -> None:
    """Of a write that tears one of them the other was left, from before the cut: entries of later records were missing."""
    disk, workers = SimulatedDisk(), ManualWorkers()
    store = open_store(ROOT, files=disk, spawn=workers, flush="none")
    store.put("t", b"kept")
    store.flush()
    store.put("t", b"lost")
    for _ in range(2):
        workers.run_all()
    after = SimulatedDisk.after(disk.image(), Survival.NONE, Random(1))
    path = ROOT / "penstock" / "progress"
    with opened(after) as again:
        assert again.recovery is not None
        end = again.recovery.log_end
        data = SimulatedDisk.after(after.image(), Survival.NONE, Random(1)).read_whole(path)
    slots = [decode_slot(data[at : at + 512], path) for at in (0, 512)]
    assert [max(state.dispatched.values()) for _, state in filter(None, slots)] == [end, end]
