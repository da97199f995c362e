"""Opening after a crash, after damage, after loss: what is found, what is done, what is refused."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.conftest import OpenStore
from tests.unit.log.test_resync import chain, flip_body
from tests.unit.log.test_scan import log_of

import penstock
from penstock import Message
from penstock.durability.progress import Progress
from penstock.errors import CorruptionError
from penstock.files import Files
from penstock.log import batches, scan
from penstock.recovery.log_end import find_end
from penstock.store.store import Store
from penstock.testing import ManualWorkers
from penstock.testing.kit import copy_files, copy_store, open_store

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
        assert [m.body for m in store.find("t", f"k{number}")] == [bodies[number]]


@pytest.fixture
def crashed(open_small: OpenStore, tmp_path: Path) -> tuple[Path, list[bytes]]:
    """A store that was filled, partly synced and marked, and never closed."""
    store = open_small()
    bodies = filled(store)
    stored(store)
    store.flush()
    engine = store._engine
    assert engine is not None
    engine.follower.catch_up()
    engine.checkpoints.write()
    copy = crash(store, tmp_path, "crashed")
    store.close()
    return copy, bodies


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
    shutil.rmtree(path / "consumequeue")
    monkeypatch.setattr(scan, "WINDOW_BYTES", 100)
    monkeypatch.setattr(batches, "BATCH_BYTES", 100)
    with open_small(path=path) as store:
        check(store, bodies)


def lose_queue(path: Path) -> None:
    shutil.rmtree(path / "consumequeue" / "t" / "1")


def lose_all_queues(path: Path) -> None:
    shutil.rmtree(path / "consumequeue")


def lose_queue_file(path: Path) -> None:
    (path / "consumequeue" / "t" / "0" / f"{200 * 20:020d}").unlink()


def gap_in_queue(path: Path) -> None:
    file = path / "consumequeue" / "t" / "2" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[50 * 20 : 60 * 20] = bytes(200)
    file.write_bytes(data)


def lagging_queue(path: Path) -> None:
    file = sorted((path / "consumequeue" / "t" / "2").iterdir())[-1]
    data = bytearray(file.read_bytes())
    end = len(data.rstrip(b"\0"))
    keep = (end // 20 - 9) * 20
    data[keep:] = bytes(len(data) - keep)
    file.write_bytes(data)


def short_queue_file(path: Path) -> None:
    os.truncate(sorted((path / "consumequeue" / "t" / "1").iterdir())[-1], 333)


def queue_ahead_of_log(path: Path) -> None:
    file = sorted((path / "consumequeue" / "t" / "1").iterdir())[-1]
    data = bytearray(file.read_bytes())
    end = len(data.rstrip(b"\0"))
    end += -end % 20
    data[end : end + 20] = (1 << 40).to_bytes(8, "big") + (120).to_bytes(4, "big") + bytes(8)
    file.write_bytes(data)


def lose_index(path: Path) -> None:
    shutil.rmtree(path / "index")


def lose_middle_index_file(path: Path) -> None:
    sorted((path / "index").iterdir())[1].unlink()


def lose_newest_index_file(path: Path) -> None:
    sorted((path / "index").iterdir())[-1].unlink()


def break_index_chains(path: Path) -> None:
    file = sorted((path / "index").iterdir())[-1]
    data = bytearray(file.read_bytes())
    data[40 : 40 + 400] = b"\x7f" * 400
    file.write_bytes(data)


def lose_side_folder(path: Path) -> None:
    shutil.rmtree(path / "penstock")


def lose_all_derived(path: Path) -> None:
    lose_all_queues(path)
    lose_index(path)
    (path / "checkpoint").unlink()
    lose_side_folder(path)


LOSSES = [
    lose_queue, lose_all_queues, lose_queue_file, gap_in_queue, lagging_queue, short_queue_file,
    queue_ahead_of_log, lose_index, lose_middle_index_file, lose_newest_index_file, break_index_chains,
    lose_side_folder, lose_all_derived,
]  # fmt: skip


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


@pytest.mark.slow
def test_a_queue_whose_only_file_points_behind_the_log_ends_where_the_log_says(
    crashed: tuple[Path, list[bytes]], open_small: OpenStore
) -> None:
    # A power cut can keep a queue's last file and lose those before it, together with the log's tail.
    path, bodies = crashed
    folder = path / "consumequeue" / "t" / "0"
    shutil.rmtree(folder)
    folder.mkdir()
    entry = (1 << 40).to_bytes(8, "big") + (120).to_bytes(4, "big") + bytes(8)
    (folder / f"{600 * 20:020d}").write_bytes(entry * 5 + bytes(195 * 20))
    (path / "checkpoint").unlink()
    lose_side_folder(path)
    with open_small(path=path) as store:
        check(store, bodies)
        assert (store.min_offset("t", 0), store.max_offset("t", 0)) == (0, COUNT // 3)
        assert store.put("t", b"more", queue=0).queue_offset == COUNT // 3


def segment_files(path: Path) -> list[Path]:
    return sorted((path / "commitlog").iterdir())


def end_of_log(path: Path) -> tuple[Path, int]:
    """Return the last segment's path, and the position behind its last byte that is not zero."""
    file = segment_files(path)[-1]
    return file, len(file.read_bytes().rstrip(b"\0"))


@pytest.mark.slow
@pytest.mark.parametrize("keep", [0, 1, 4, 8, 50, 90, -1])
def test_a_torn_tail_is_cut_erased_and_reported(
    keep: int, open_small: OpenStore, tmp_path: Path
) -> None:
    # Only the CRC over the whole record sees a byte lost behind the body.
    store = open_small(flush="async", **{"log.checksum": "crc32+record"})
    bodies = filled(store, 100)
    store.flush()
    last = store.put("t", b"torn " + b"y" * 100, tag="t")
    path = crash(store, tmp_path, "torn")
    store.close()
    file, _ = end_of_log(path)
    start = last.log_offset % (64 * 1024)
    data = bytearray(file.read_bytes())
    stop = start + (keep if keep >= 0 else last.size - 1)
    data[stop : start + last.size] = bytes(start + last.size - stop)
    file.write_bytes(data)
    with open_small(path=path) as again:
        report = again.recovery
        assert report is not None
        assert report.log_end == last.log_offset
        assert (report.cut_bytes > 0) == (keep not in (0, 1))  # the first byte of a size is zero
        said = [done for done in report.mended if done.startswith("cut a torn tail of")]
        assert len(said) == (report.cut_bytes > 0)
        assert stored(again) == bodies
        assert not bytes(file.read_bytes()[start:]).strip(b"\0"), (
            "the bytes behind the cut are erased"
        )
        assert again.put("t", b"next").log_offset == last.log_offset


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


@pytest.mark.parametrize("was_abnormal", [False, True])
def test_a_segment_that_is_gone_refuses_writing(
    was_abnormal: bool, crashed: tuple[Path, list[bytes]], open_small: OpenStore
) -> None:
    """The place of the damage was looked up in the segment that is missing: an assertion failed, or a
    look-up outside of the log, instead of the error that says what to do.
    """
    path, _ = crashed
    (path / "penstock" / "progress").unlink()
    (path / "checkpoint").unlink()
    if not was_abnormal:
        (path / "abort").unlink()
    segment_files(path)[-2].unlink()
    with pytest.raises(CorruptionError, match="repair"):
        open_small(path=path)


@pytest.mark.slow
def test_random_damage_costs_a_reader_only_the_records_it_hit(
    closed: tuple[Path, list[bytes]], tmp_path: Path
) -> None:
    path, bodies = closed
    chance = random.Random(7)
    files = segment_files(path)
    for turn in range(20):
        file = chance.choice(files[:-1])
        clean = file.read_bytes()
        data = bytearray(clean)
        position = chance.randrange(len(data.rstrip(b"\0")))
        data[position] ^= 1 << chance.randrange(8)
        file.write_bytes(data)
        with penstock.open(path, read_only=True) as store:
            left = stored(store)
            assert len(left) >= len(bodies) - 1, turn
            assert set(left) <= set(bodies), "no message comes back altered"
            list(store.verify())
        file.write_bytes(clean)


def test_records_behind_a_page_that_was_never_written_are_cut_and_kept_aside(
    open_small: OpenStore, tmp_path: Path
) -> None:
    """A power cut may lose one page and keep a later one: neither was promised."""
    store = open_small()
    bodies = filled(store, 50)
    store.flush()
    end = store.stats()["log_end_offset"]
    filled(store, 300)
    path = crash(store, tmp_path, "holed")
    store.close()
    file = segment_files(path)[0]
    data = bytearray(file.read_bytes())
    page = -(-end // 4096) * 4096
    data[page : page + 4096] = bytes(4096)
    file.write_bytes(data)
    with open_small(path=path) as again:
        report = again.recovery
        assert report is not None
        assert end <= report.log_end < page + 4096
        assert report.saved_to is not None
        assert b"250 x" in Path(report.saved_to).read_bytes()
        kept = stored(again)
        assert kept[:50] == bodies
        assert not list(again.verify())


def test_an_unused_segment_made_ahead_is_tolerated(
    crashed: tuple[Path, list[bytes]], open_small: OpenStore
) -> None:
    path, bodies = crashed
    base = len(segment_files(path)) * 64 * 1024
    (path / "commitlog" / f"{base:020d}").write_bytes(bytes(64 * 1024))
    with open_small(path=path) as store:
        check(store, bodies)


def test_a_hostile_log_makes_no_folder_outside_the_store(
    open_small: OpenStore, tmp_path: Path
) -> None:
    """The zip-slip of this format: a record whose topic is a path."""
    from penstock.format.record import RecordFields, encode_record  # noqa: PLC0415 - only here

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
        assert store.max_offset("good") == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hostile"]
    assert sorted(p.name for p in (path / "consumequeue").iterdir()) == ["good"]


# --- queues that lag behind a durable log


def lagging(live: Path, **settings: Any) -> tuple[Store, list[bytes]]:
    """Return an open store whose queues are marked to the end of its first segment, and whose log is durable behind it."""
    store = open_store(live, spawn=ManualWorkers(), **settings)
    engine = store._engine
    assert engine is not None
    sent = [Message("t", b"%d" % n, queue=n % 2) for n in range(6)]
    store.put_many(sent)
    # Too little is left for any of those that follow.
    rest = 64 * 1024 - int(str(store.stats()["log_end_offset"]))
    sent += [Message("t", b"x" * size) for size in (10_000, rest - 10_500)]
    store.put_many(sent[-2:])
    store.flush()
    engine.follower.catch_up()
    engine.checkpoints.write()
    more = [Message("t", b"more %d" % n + b"y" * 300, queue=n % 2) for n in range(5)]
    for message in more:
        store.put(message.topic, message.body, queue=message.queue)
        store.flush()
    # In no queue either, and not durable.
    store.put("t", b"last", queue=1)
    return store, [*(m.body for m in sent + more), b"last"]


@pytest.mark.parametrize("checksum", ["crc32", "crc32+record"])
@pytest.mark.parametrize("is_copy", [False, True])
def test_messages_that_no_queue_names_yet_break_no_count(
    checksum: str, is_copy: bool, tmp_path: Path
) -> None:
    """The marks point at filler, no record begins there, and the walk began behind messages that were not counted."""
    store, bodies = lagging(tmp_path / "live", **{"log.checksum": checksum})
    dispatched = store._engine.progress.state.dispatched  # type: ignore[union-attr] # it is open
    assert set(dispatched.values()) == {next(iter(dispatched.values()))} < set(range(1, 64 * 1024))
    (copy_files if is_copy else copy_store)(tmp_path / "live", tmp_path / "s")
    store.close()
    with open_store(tmp_path / "s", read_only=True) as reader:
        assert not [f for f in reader.verify() if f.part == "log" and not f.is_note]
    with open_store(tmp_path / "s") as again:
        assert stored(again) == bodies
        assert not list(again.verify())


@pytest.mark.parametrize("names", [["consume-queue"], ["other"], []])
def test_marks_that_do_not_say_how_far_the_queues_are(names: list[str], tmp_path: Path) -> None:
    """Of another dispatcher, or of none: the walk begins at the flushed offset, and what lies before is not counted."""
    store, bodies = lagging(tmp_path / "live", **{"log.checksum": "crc32"})
    copy_store(tmp_path / "live", tmp_path / "s")
    store.close()
    progress = Progress(Files(), tmp_path / "s")
    state = progress.read()
    progress.state = attrs.evolve(state, dispatched=dict.fromkeys(names, state.flushed_offset))
    progress.sync()
    progress.close()
    with open_store(tmp_path / "s") as again:
        assert stored(again) == bodies
        assert not list(again.verify())


def test_the_end_is_after_the_last_valid_record_and_a_survivor_is_named(tmp_path: Path) -> None:
    data, (first, second, third) = chain(b"a" * 50, b"b" * 60, b"c")
    whole = find_end(log_of(tmp_path, data), first, 0)
    assert (whole.offset, whole.dirty_bytes, whole.survivor) == (len(data), 0, None)
    spoilt = bytearray(data)
    flip_body(spoilt, second)
    damaged = find_end(log_of(tmp_path, bytes(spoilt)), first, 0)
    assert (damaged.offset, damaged.survivor) == (second, third)
    torn = find_end(log_of(tmp_path, data[:-5] + b"?????"), first, 0)
    assert (torn.offset, torn.dirty_bytes, torn.survivor) == (third, len(data) - third, None)


def test_a_batch_whose_last_record_its_queue_rejects_is_cut_from_its_begin(tmp_path: Path) -> None:
    """Without a CRC over the record, only its queue tells that a record is not the one: the records before it were kept."""
    given: dict[str, Any] = {"log.checksum": "crc32"}
    with open_store(tmp_path / "store", flush="none", **given) as store:
        store.put("t", b"before")
        store.flush()
        receipts = store.put_many([Message("t", b"%d" % n) for n in range(3)], atomic=True)
        copy = crash(store, tmp_path, "crashed")
    with (copy / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(receipts[-1].log_offset + 20)
        file.write((77).to_bytes(8, "big"))
    with open_store(copy, **given) as again:
        assert stored(again) == [b"before"]
        assert again.recovery is not None
        assert again.recovery.log_end == receipts[0].log_offset
