"""Repair: for every kind of damage, what is found, planned, done, and left."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import unpack
from tests.lanes import rounds
from tests.unit.integrity.test_segment_digests import flip
from tests.unit.integrity.test_verification import (
    SEGMENT,
    findings,
    index_file,
    patch,
    segment,
)

import penstock
from penstock.errors import (
    CorruptionError,
    FormatVersionError,
    NotAStoreError,
    StorageError,
    StoreLockedError,
    StrayFileError,
    UnreadableError,
)
from penstock.format.record import crc32
from penstock.integrity.segment_digests import decode
from penstock.testing import FaultyFiles, KilledError, ManualClock, ManualWorkers, open_store
from penstock.testing.kit import copy_store, messages
from penstock_tools.repairs.repair import RepairReport

GOLDEN = Path(__file__).parents[2] / "golden"
Bodies = dict[tuple[str, int, int], bytes]
COUNT = 1400


def repair(path: Path, **how: Any) -> RepairReport:
    return penstock.repair(path, environ={}, **{"clock": ManualClock(), **how})


def bodies(path: Path) -> Bodies:
    """Return every message that can be read, by queue and offset."""
    with open_store(path, read_only=True) as store:
        return {
            (m.topic, m.queue, m.queue_offset): m.body
            for topic in store.topics(system=True)
            for m in store.scan(topic)
        }


def tree(path: Path) -> dict[str, tuple[bytes, int]]:
    """Return every file with its bytes and time, and every folder."""
    return {
        str(p.relative_to(path)): (p.read_bytes(), p.stat().st_mtime_ns)
        if p.is_file()
        else (b"", 0)
        for p in sorted(path.rglob("*"))
    }


def outcome(path: Path) -> dict[str, bytes]:
    """Return what a repair must always end in: all but the marks' sequence and what was saved."""
    return {
        str(p.relative_to(path)): p.read_bytes()
        for p in sorted(path.rglob("*"))
        if p.is_file()
        and "saved" not in p.parts
        and p.name not in ("holder", "clean", "progress")
        and "digests" not in p.parts  # they note the segment's time
    }


def queue_file(path: Path, number: int = 0) -> Path:
    return sorted((path / "consumequeue" / "topic-0" / "0").iterdir())[number]


def wipe(path: Path, position: int, stop: int) -> None:
    patch(path, position, bytes(stop - position))


def last_byte(path: Path) -> tuple[Path, int]:
    file = sorted((path / "commitlog").iterdir())[-1]
    return file, len(file.read_bytes().rstrip(b"\0"))


def tear(path: Path) -> None:
    file, end = last_byte(path)
    patch(file, end, b"torn" * 50)


def trim(path: Path) -> None:
    """Take the zeros behind the last entry, as some copiers do."""
    os.truncate(path, -(-len(path.read_bytes().rstrip(b"\0")) // 20) * 20)


def append(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


def newer_slot(path: Path) -> int:
    """Return where the slot of the progress file begins that was written last."""
    data = (path / "penstock" / "progress").read_bytes()
    return 0 if data[8:16] > data[520:528] else 512


# Damage that a repair puts right without a loss, with what it must have done.
MENDED: dict[str, tuple[str, Callable[[Path], object]]] = {
    "bit of a header": ("turn-back", lambda p: flip(segment(p, 1), 27)),
    "bit of a size": ("turn-back", lambda p: flip(segment(p, 1), 2)),
    "bit of a body": ("turn-back", lambda p: flip(segment(p, 1), 95)),
    "bit of a blank record": ("turn-back", lambda p: flip(segment(p, 1), SEGMENT - 1)),
    "bits in two segments": (
        "turn-back",
        lambda p: both(lambda: flip(segment(p, 0), 3000), lambda: flip(segment(p, 3), 5000)),
    ),
    "queues lost": ("rebuild", lambda p: shutil.rmtree(p / "consumequeue")),
    "queue lost": ("rebuild", lambda p: shutil.rmtree(p / "consumequeue" / "topic-0" / "0")),
    "queue file lost": ("rebuild", lambda p: queue_file(p).unlink()),
    "queue file short": ("rebuild", lambda p: os.truncate(queue_file(p), 77)),
    "queue file without its zeros": ("rebuild", lambda p: trim(queue_file(p, -1))),
    "queue entry wrong": ("rebuild", lambda p: flip(queue_file(p), 20 * 30 + 6)),
    "tag code wrong": ("rebuild", lambda p: flip(queue_file(p), 20 * 30 + 15)),
    "queue ahead": ("rebuild", lambda p: queue_ahead(p)),  # noqa: PLW0108 - defined below
    "queue of nothing": (
        "rebuild",
        lambda p: shutil.copytree(p / "consumequeue" / "topic-0", p / "consumequeue" / "none"),
    ),
    "index lost": ("rebuild", lambda p: shutil.rmtree(p / "index")),
    "index file lost": ("rebuild", lambda p: index_file(p, 1).unlink()),
    "index entry wrong": ("rebuild", lambda p: flip(index_file(p, 0), 40 + 400 + 20 * 7 + 2)),
    "index chain looped": ("rebuild", lambda p: patch(index_file(p, 0), 40, b"\x01" * 400)),
    "index hostile": ("rebuild", lambda p: index_file(p, 1).write_bytes(b"\xff" * 8440)),
    "index file short": ("rebuild", lambda p: os.truncate(index_file(p, 0), 3)),
    "checkpoint lost": ("marks", lambda p: (p / "checkpoint").unlink()),
    "checkpoint long": ("marks", lambda p: os.truncate(p / "checkpoint", 5000)),
    "checkpoint wrong": ("marks", lambda p: patch(p / "checkpoint", 0, b"\x7f" * 24)),
    "progress lost": ("marks", lambda p: (p / "penstock" / "progress").unlink()),
    "newer slot lost": ("marks", lambda p: flip(p / "penstock" / "progress", newer_slot(p) + 100)),
    "progress hostile": ("marks", lambda p: (p / "penstock" / "progress").write_bytes(b"\xff" * 99)),
    "clean mark hostile": ("marks", lambda p: (p / "penstock" / "clean").write_bytes(b"[" * 9999)),
    "digest hostile": (
        "forget-digest",
        lambda p: (p / "penstock" / "digests" / f"{SEGMENT:020d}").write_bytes(b"PSTKDIG1" * 9),
    ),
    "digest of nothing": (
        "forget-digest", lambda p: (p / "penstock" / "digests" / "7").write_bytes(b"")
    ),
    "torn tail": ("cut", tear),
    "segment long": ("shorten", lambda p: append(segment(p, 1), b"x")),
    "first and last segment long, and a bit": (
        "shorten",
        lambda p: both(
            lambda: append(segment(p, 0), b"x" * 5000), lambda: append(last_byte(p)[0], bytes(4096)),
            lambda: flip(segment(p, 0), 95),
        ),
    ),
    "everything derived": (
        "rebuild",
        lambda p: both(
            lambda: shutil.rmtree(p / "consumequeue"), lambda: shutil.rmtree(p / "index"),
            lambda: (p / "checkpoint").write_bytes(b"?"), lambda: flip(segment(p, 2), 60),
        ),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", MENDED)
def test_what_can_be_put_right_is(kind: str, place: Path, sound: Bodies) -> None:
    action, damage = MENDED[kind]
    damage(place)
    assert findings(place, deep=True)
    before = tree(place)
    planned = repair(place)
    assert tree(place) == before, "without --apply nothing changes"
    assert not planned.applied
    assert not planned.standing
    assert action in {step.action for step in planned.steps}
    done = repair(place, apply=True)
    assert (done.applied, done.steps) == (True, planned.steps)
    assert findings(place, deep=True) == []
    assert bodies(place) == sound
    assert repair(place, apply=True).steps == ()
    with open_store(place, spawn=ManualWorkers()) as store:
        assert store.recovery is not None
        assert (store.recovery.state, store.recovery.mended) == ("clean", ())
        store.put("topic-0", b"goes on", queue=0, keys=["new"])
        assert len(store.find("new", "topic-0")) == 1
    assert findings(place, deep=True) == []


def queue_ahead(path: Path) -> None:
    file = queue_file(path, 1)
    end = -(-len(file.read_bytes().rstrip(b"\0")) // 20) * 20
    patch(file, end, b"\0" * 5 + b"\x09" * 15)


def both(*steps: Callable[[], object]) -> None:
    for step in steps:
        step()


def two_bytes(path: Path, position: int) -> None:
    patch(path, position, b"\xa5\x5a")


# Damage in the log that no bit explains, and how many messages it hits.
STANDING: dict[str, tuple[int, Callable[[Path], object]]] = {
    "header": (1, lambda p: two_bytes(segment(p, 1), 30)),
    "body": (1, lambda p: two_bytes(segment(p, 1), 95)),
    "page zero": (99, lambda p: wipe(segment(p, 2), 4096, 8192)),
    "head of the log": (1, lambda p: two_bytes(segment(p, 0), 0)),
    "segment short": (9999, lambda p: os.truncate(segment(p, 2), 20000)),
    "segment lost": (9999, lambda p: segment(p, 2).unlink()),
    "blank record": (0, lambda p: wipe_blank(p)),  # noqa: PLW0108 - defined below
    "size of a blank record": (0, lambda p: two_bytes(segment(p, 1), last_record(p)[1] + 2)),
    "last record of a segment": (1, lambda p: break_last(p)),  # noqa: PLW0108 - defined below
}  # fmt: skip


def last_record(path: Path) -> tuple[int, int]:
    """Return the positions of the last record and of the blank record of segment 1."""
    with open_store(path, read_only=True) as store:
        offsets = sorted(
            (m.log_offset, m.size) for t in store.topics(system=True) for m in store.scan(t)
            if SEGMENT <= m.log_offset < 2 * SEGMENT
        )  # fmt: skip
    return offsets[-1][0] - SEGMENT, sum(offsets[-1]) - SEGMENT


def wipe_blank(path: Path) -> None:
    two_bytes(segment(path, 1), last_record(path)[1] + 4)


def break_last(path: Path) -> None:
    start, stop = last_record(path)
    two_bytes(segment(path, 1), start + 90)
    two_bytes(segment(path, 1), stop + 4)


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("lose", ["nothing", "queues", "index", "marks"])
@pytest.mark.parametrize("kind", STANDING)
def test_damage_stands_and_costs_no_sound_message(
    kind: str, lose: str, place: Path, sound: Bodies
) -> None:
    hit, damage = STANDING[kind]
    damage(place)
    if lose == "queues":
        shutil.rmtree(place / "consumequeue")
    elif lose == "index":
        shutil.rmtree(place / "index")
    elif lose == "marks":
        shutil.rmtree(place / "penstock" / "digests")
        (place / "checkpoint").unlink()
    log_before = {p.name: p.read_bytes() for p in (place / "commitlog").iterdir()}
    before = tree(place)
    planned = repair(place)
    assert tree(place) == before
    assert planned.standing
    done = repair(place, apply=True)
    assert [f.log_offset for f in done.standing] == [f.log_offset for f in planned.standing]
    for name, data in log_before.items():
        now = (place / "commitlog" / name).read_bytes()
        assert now == data.ljust(SEGMENT, b"\0"), "not a byte of the log changes without --cut"
    left = bodies(place)
    assert left.items() <= sound.items()
    assert len(left) >= len(sound) - hit
    assert {f.part for f in findings(place, deep=True)} <= {"log", "digest"}
    assert repair(place, apply=True).steps == (), "the second time there is nothing to do"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("body", "320 bytes are not a valid record (topic-0, queue 1, offset 47)"),
        (
            "segment short",
            "the records end here, although later segments have more (topic-0, queue 0, offset 110; topic-0, queue 0, offset 111; topic-0, queue 0, offset 112; and others)",
        ),
        ("segment lost", "65536 bytes of log are missing before this segment"),
    ],
)
def test_what_stands_is_described(kind: str, text: str, place: Path) -> None:
    STANDING[kind][1](place)
    assert [f.text for f in repair(place).standing if f.part == "log"] == [text]


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", STANDING)
def test_cut_ends_in_a_sound_store_and_keeps_what_it_took(
    kind: str, place: Path, sound: Bodies
) -> None:
    _, damage = STANDING[kind]
    damage(place)
    log_before = {p.name: p.read_bytes() for p in (place / "commitlog").iterdir()}
    planned = repair(place, cut=True)
    lost = sum(step.messages for step in planned.steps if step.action == "cut")
    readable = len(bodies(place))
    done = repair(place, cut=True, apply=True)
    assert done.steps == planned.steps
    assert not planned.standing, "the cut removes the corruption, and the digests that show it"
    assert findings(place, deep=True) == []
    left = bodies(place)
    assert left.items() <= sound.items()
    assert len(left) >= readable - lost, "no more is lost than was said"
    assert done.saved_to is not None or kind == "segment lost"
    for name, data in log_before.items():
        kept = place / "commitlog" / name
        if done.saved_to is not None and (done.saved_to / "commitlog" / name).exists():
            assert (done.saved_to / "commitlog" / name).read_bytes() == data
        elif kept.exists() and kept.read_bytes() != data:
            assert done.saved_to is not None
            pieces = list(done.saved_to.glob(f"{name}-*"))
            for piece in pieces:
                position = int(piece.name.rpartition("-")[2])
                saved = piece.read_bytes()
                assert data[position : position + len(saved)].ljust(len(saved), b"\0") == saved
            assert pieces or "short" in kind
    with open_store(place, spawn=ManualWorkers()) as store:
        store.put("topic-0", b"goes on", queue=0)
    assert findings(place, deep=True) == []


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", STANDING)
def test_a_store_with_damage_left_is_refused_or_loses_nothing_by_being_written(
    kind: str, place: Path
) -> None:
    STANDING[kind][1](place)
    repair(place, apply=True)
    left = bodies(place)
    try:
        with open_store(place, spawn=ManualWorkers()) as store:
            for queue in range(3):
                store.put("topic-0", b"goes on", queue=queue)
                store.put("topic-1", b"goes on", queue=queue)
    except CorruptionError:
        assert bodies(place) == left
    else:
        now = bodies(place)
        assert left.items() <= now.items()
        assert len(now) == len(left) + 6


def test_damage_up_to_a_segments_end_is_covered_and_loses_nothing_behind(
    place: Path, sound: Bodies
) -> None:
    break_last(place)
    before = {p.name: p.read_bytes() for p in (place / "commitlog").iterdir()}
    done = repair(place, cut=True, apply=True)
    (fill,) = [s for s in done.steps if s.action in ("fill", "cut")]
    assert fill.action == "fill"
    assert len(bodies(place)) == len(sound) - 1
    assert done.saved_to is not None
    (saved,) = done.saved_to.rglob(f"{fill.path.name}-{fill.position}")
    assert saved.read_bytes() == before[fill.path.name][fill.position :], "all that is covered"


def test_of_a_bit_that_is_turned_back_its_byte_is_saved_and_the_digest_stays_that_of_the_file(
    place: Path,
) -> None:
    flip(segment(place, 1), 95)
    before = segment(place, 1).read_bytes()
    done = repair(place, apply=True)
    (step,) = [s for s in done.steps if s.action == "turn-back"]
    assert done.saved_to is not None
    (saved,) = done.saved_to.rglob(f"{step.path.name}-*")
    at = int(saved.name.rpartition("-")[2])
    assert saved.read_bytes() == before[at : at + saved.stat().st_size]
    assert saved.stat().st_size < 16, "no more than was changed"
    digest = decode((place / "penstock" / "digests" / f"{SEGMENT:020d}").read_bytes())
    assert digest is not None
    assert digest.mtime_ns == segment(place, 1).stat().st_mtime_ns


def test_entries_of_damaged_records_stay_in_queues_made_anew(place: Path) -> None:
    """RocketMQ reads a record by its entry and checks nothing: what it could read it still can."""
    two_bytes(segment(place, 1), 95)
    before = queue_entries(place)
    flip(queue_file(place), 20 * 30 + 6)
    repair(place, apply=True)
    assert queue_entries(place) == before


def queue_entries(path: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(path)): p.read_bytes()
        for p in sorted((path / "consumequeue").rglob("*")) if p.is_file()
    }  # fmt: skip


def test_queues_made_anew_go_on_behind_damage(place: Path, sound: Bodies) -> None:
    """Recovery once stopped silently at damage in the middle: the store opened, queues ended there, and
    new messages got queue offsets that older ones behind the damage had.
    """
    two_bytes(segment(place, 1), 0)
    shutil.rmtree(place / "consumequeue")
    (place / "lock").write_bytes(b"lock")
    with open_store(place, spawn=ManualWorkers()) as store:
        topic = next(iter(store.topics(system=True)))
        queue = store.topics(system=True)[topic][0]
        offset = store.max_offset(topic, queue)
        assert store.put(topic, b"new", queue=queue).queue_offset == offset
    assert (topic, queue, offset) not in sound
    found = bodies(place)
    assert len(found) == len(sound)
    assert len(found.items() - sound.items()) == 1, "the new one; only the damaged one is missing"
    repair(place, apply=True, cut=True)
    open_store(place, spawn=ManualWorkers()).close()


@pytest.mark.slow
def test_many_flips_in_one_block_are_left_until_accepted(place: Path, sound: Bodies) -> None:
    two_bytes(segment(place, 1), 16)  # the flag: no record check sees it
    report = repair(place, apply=True)
    assert [f.part for f in report.standing] == ["digest"]
    assert repair(place, apply=True, cut=True).standing, "a cut would not help, so none is made"
    accepted = repair(place, apply=True, accept=True)
    assert [step.action for step in accepted.steps] == ["forget-digest"]
    assert findings(place, deep=True) == []
    assert bodies(place) == sound


def test_a_digest_of_a_short_segment_is_accepted_in_the_same_run(place: Path) -> None:
    os.truncate(segment(place, 2), 20000)
    done = repair(place, apply=True, accept=True)
    assert {"lengthen", "forget-digest"} <= {step.action for step in done.steps}
    assert [f.part for f in done.standing] == ["log"]
    assert repair(place, apply=True, accept=True).steps == ()


@pytest.mark.parametrize("position", [12, 20, 24])
def test_queues_are_not_made_to_agree_with_a_header_that_a_digest_calls_wrong(
    position: int, place: Path
) -> None:
    """A queue number, a queue offset: nothing but the digest, and the queue, knows what they were."""
    before = queue_entries(place)
    two_bytes(segment(place, 1), position)
    done = repair(place, apply=True)
    assert "digest" in {f.part for f in done.standing}
    assert queue_entries(place) == before
    repair(place, apply=True, accept=True)
    # The digest is forgotten; what the queue's count says of the record still stands, and its entry with it.
    left = findings(place, deep=True)
    assert {f.part for f in left} == {"log"}
    assert all("the record is corrupt: " in f.text for f in left)
    assert queue_entries(place) == before


def test_a_store_in_use_is_not_repaired(place: Path) -> None:
    with open_store(place, spawn=ManualWorkers()):
        for apply in (False, True):
            with pytest.raises(StoreLockedError):
                repair(place, apply=apply)


@pytest.mark.slow
def test_a_sound_store_and_a_crashed_one_need_nothing(place: Path, tmp_path: Path) -> None:
    before = tree(place)
    assert repair(place, apply=True).steps == ()
    assert {k: v[0] for k, v in tree(place).items() if k != "lock"} == {
        k: v[0] for k, v in before.items() if k != "lock"
    }
    store = open_store(place, spawn=ManualWorkers())
    store.put("topic-0", b"x", queue=0, keys=["k"])
    store.flush()
    shutil.copytree(place, tmp_path / "crashed", copy_function=shutil.copy2)
    store.close()
    done = repair(tmp_path / "crashed", apply=True)
    assert not done.standing
    assert findings(tmp_path / "crashed", deep=True) == []
    assert len(bodies(tmp_path / "crashed")) == COUNT + 1


def test_torn_filler_is_whole_after_a_repair(tmp_path: Path) -> None:
    """Without the abort marker, which a repair removes, the next opening took it for corruption."""
    store = open_store(tmp_path / "s", spawn=ManualWorkers())
    size = store.put("t", b"w" * 63_000).size
    store.put("t", b"x" * (SEGMENT - 12 - 2 * size + 63_000))
    store.put("t", b"y" * 99)
    before = tree(copy_store(tmp_path / "s", tmp_path / "whole") / "commitlog")
    killed = copy_store(tmp_path / "s", tmp_path / "killed")
    store.close()
    patch(killed / "commitlog" / f"{0:020d}", SEGMENT - 12 + 6, bytes(2))
    done = repair(killed, apply=True)
    assert done.steps[0].action == "fill"
    assert done.standing == ()
    assert {k: v[0] for k, v in tree(killed / "commitlog").items()} == {k: v[0] for k, v in before.items()}  # fmt: skip
    assert len(bodies(killed)) == 3
    with open_store(killed, spawn=ManualWorkers()) as again:
        assert again.recovery is not None
        assert again.recovery.mended == ()


def test_a_brokers_store_is_changed_only_where_it_must_be(tmp_path: Path) -> None:
    """`--apply` made a folder of its own first, and then missed the rest in it: a sound store was changed."""
    unpack(GOLDEN / "java-5.3.3-killed.tar.gz", tmp_path)
    root = tmp_path / "store"
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert repair(root, apply=True) == repair(root)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    # A queue that is made anew, of a log that is cut before a segment that goes: that one was read once more.
    with penstock.open(root, read_only=True, environ={}) as store:
        halfway = [message.log_offset for message in store.scan("topic1")][20]
    patch(root / "commitlog" / f"{0:020d}", halfway + 90, b"\x12\x34")
    (root / "consumequeue" / "topic1" / "0" / f"{0:020d}").unlink()
    with pytest.raises(StorageError, match="another program opened the store last"):
        repair(root, quarantine=True)
    assert repair(root, cut=True, apply=True).standing == ()
    with penstock.open(root, read_only=True, environ={}) as store:
        assert list(store.verify(deep=True)) == []


@pytest.mark.slow
def test_segments_made_ahead_go_with_a_repair_and_are_no_reason_for_one(
    place: Path, sound: Bodies
) -> None:
    """The mark of a clean close promises that nothing lies behind the log's end."""
    base = len(list((place / "commitlog").iterdir())) * SEGMENT
    (place / "commitlog" / f"{base:020d}").write_bytes(bytes(SEGMENT))
    assert repair(place).steps == ()
    shutil.rmtree(place / "index")
    repair(place, apply=True)
    assert findings(place, deep=True) == []
    with open_store(place, spawn=ManualWorkers()) as store:
        store.put_many(messages(400, first=COUNT))
    assert findings(place, deep=True) == []
    assert len(bodies(place)) == len(sound) + 400


def test_what_is_no_segment_is_left_to_people(place: Path) -> None:
    (place / "commitlog" / "notes").write_bytes(b"mine")
    (place / "checkpoint").unlink()
    before = tree(place)
    with pytest.raises(StrayFileError):
        repair(place)
    assert tree(place) == before


def test_what_is_after_a_segments_length_is_saved_and_a_record_there_is_left(
    place: Path, sound: Bodies
) -> None:
    """Every call advised something else; to move the segment out, as `repair` did, lost its messages."""
    append(segment(place, 1), b"more")
    (found,) = findings(place)
    assert "`penstock repair PATH --apply` shortens it" in found.what_now
    with pytest.raises(CorruptionError, match="`penstock repair PATH` shows what can be done"):
        open_store(place, spawn=ManualWorkers())
    done = repair(place, apply=True)
    assert done.saved_to is not None
    assert (done.saved_to / f"{segment(place, 1).name}-{SEGMENT}").read_bytes() == b"more"
    assert bodies(place) == sound
    append(segment(place, 1), segment(place, 2).read_bytes())
    before = tree(place)
    for how in ({}, {"cut": True}, {"quarantine": True}, {"accept": True}):
        with pytest.raises(CorruptionError, match=r"found a record at log offset .* or export the"):
            repair(place, **how)
    assert tree(place) == before
    assert bodies(place) == sound


def test_marks_of_a_later_version_are_not_overwritten(place: Path) -> None:
    progress = place / "penstock" / "progress"
    slots = bytearray(progress.read_bytes())
    for at in (0, 512):
        slots[at : at + 8] = b"PSTKPRG9"
        slots[at + 508 : at + 512] = crc32(bytes(slots[at : at + 508])).to_bytes(4, "big")
    progress.write_bytes(slots)
    (place / "checkpoint").unlink()
    with pytest.raises(FormatVersionError):
        repair(place, apply=True)
    assert progress.read_bytes() == slots


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ready", "saved"),
    [
        (b"", "repair-/../../.."), (b"[1]", "repair-\0"), (b'{"made": 5, "gone": {}}', "repair-\ud800"),
        (b"{" * 5000, "repair-" + "x" * 300), (b"outside", "repair-/../../.."),
    ],
)  # fmt: skip
def test_a_hostile_journal_is_begun_anew(
    ready: bytes, saved: str, place: Path, sound: Bodies
) -> None:
    folder = place / "penstock" / "repair"
    (folder / "new" / "consumequeue").mkdir(parents=True)
    (folder / "journal").write_text(json.dumps({"saved": saved}))
    if ready == b"outside":
        time_ns = (place / "lock").stat().st_mtime_ns
        names = ["../outside", "..", ".", "", 7, "/outside", "penstock"]
        ready = json.dumps({"made": names, "gone": names, "lock_mtime_ns": time_ns}).encode()
        (place.parent / "outside").touch()
    (folder / "ready").write_bytes(ready)
    repair(place, apply=True)
    assert not list((place / "penstock").glob("saved/*/outside"))
    assert not folder.exists()
    assert findings(place, deep=True) == []
    assert bodies(place) == sound


@pytest.mark.slow
def test_what_was_made_before_the_store_was_opened_again_is_not_swapped_in(
    place: Path, sound: Bodies
) -> None:
    shutil.rmtree(place / "index")
    files = FaultyFiles()
    files.plan.fail("rename", path="new/index")
    with pytest.raises(
        StorageError, match=r"the repair of .* stopped .*Input/output.* run the repair again"
    ):
        repair(place, apply=True, files=files)
    assert (place / "penstock" / "repair" / "ready").exists()
    with open_store(place, spawn=ManualWorkers()) as store:
        store.put("topic-0", b"later", queue=0, keys=["later"])
    repair(place, apply=True)
    assert findings(place, deep=True) == []
    assert len(bodies(place)) == len(sound) + 1


KILLED: dict[str, tuple[dict[str, bool], Callable[[Path], object]]] = {
    "flip": ({}, lambda p: flip(segment(p, 1), 95)),
    "derived": ({}, MENDED["everything derived"][1]),
    "around damage": (
        {}, lambda p: both(lambda: two_bytes(segment(p, 1), 95), lambda: shutil.rmtree(p / "index"),
                           lambda: flip(queue_file(p), 20 * 30 + 6)),
    ),
    "cut": ({"cut": True}, lambda p: two_bytes(segment(p, 1), 95)),
    "fill": ({"cut": True}, break_last),
    "short": ({"cut": True}, lambda p: os.truncate(segment(p, 2), 20000)),
    "long": ({}, lambda p: append(segment(p, 1), b"x" * 99)),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KILLED)
def test_killed_at_any_call_and_run_again_it_ends_the_same(
    kind: str, place: Path, tmp_path: Path
) -> None:
    how, damage = KILLED[kind]
    damage(place)
    whole = tmp_path / "whole"
    shutil.copytree(place, whole, copy_function=shutil.copy2)
    files = FaultyFiles()
    repair(whole, apply=True, files=files, **how)
    expected, calls = outcome(whole), files.plan.total
    assert calls > 10
    step = max(calls // rounds(gate=12, night=40), 1)
    for count in range(1, calls + 1, step):
        again = tmp_path / f"at-{count}"
        shutil.copytree(place, again, copy_function=shutil.copy2)
        files = FaultyFiles()
        files.plan.die_at(count)
        with pytest.raises(KilledError):
            repair(again, apply=True, files=files, **how)
        files.abandon()
        repair(again, apply=True, **how)
        assert outcome(again) == expected, (count, files.plan.died_in)
        shutil.rmtree(again)


@pytest.mark.parametrize("apply", [False, True])
def test_a_segment_that_cannot_be_read_stops_a_repair_with_its_name_before_any_change(
    place: Path, apply: bool
) -> None:
    """A failing disk ended a repair with a bare `OSError`, which named neither the file nor what to do."""
    two_bytes(segment(place, 1), 95)
    before = segment(place, 1).read_bytes()
    files = FaultyFiles()
    files.plan.fail("pread", errno.EIO, path=segment(place, 2).name)
    with pytest.raises(
        UnreadableError, match=r"cannot be read .* nothing was repaired. Check the disk"
    ) as refused:
        repair(place, files=files, apply=apply)
    assert refused.value.path == segment(place, 2)
    assert segment(place, 1).read_bytes() == before
    assert not (place / "penstock" / "repair" / "journal").exists()


def test_an_error_of_the_callback_is_not_taken_for_one_of_the_disk(place: Path) -> None:
    def on_progress(_tally: object) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        repair(place, on_progress=on_progress)


def test_a_folder_that_does_not_exist_is_not_repaired(tmp_path: Path) -> None:
    with pytest.raises(
        NotAStoreError, match="/none is not a message store: it does not exist; check the path"
    ):
        repair(tmp_path / "none")


def test_an_entry_past_the_log_is_rebuilt_beside_corruption(tmp_path: Path) -> None:
    """The rebuild took the log to end where the entry points, and ended with an `OffsetError`."""
    root = tmp_path / "s"
    with open_store(root, spawn=ManualWorkers()) as store:
        puts = [store.put("t", b"body %d" % n * 9, queue=0) for n in range(5)]
    two_bytes(root / "commitlog" / f"{0:020d}", puts[3].log_offset + 95)
    patch(next((root / "consumequeue" / "t" / "0").iterdir()), 2, b"\x07")
    assert [step.action for step in repair(root, apply=True).steps] == ["rebuild"]
