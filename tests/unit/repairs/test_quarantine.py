"""Corruption that a repair quarantines: it stops nobody, costs no other message, and no note hides a valid record."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.lanes import cases
from tests.unit.integrity.test_verification import SEGMENT, findings, patch, segment
from tests.unit.repairs.test_repair import (
    STANDING,
    Bodies,
    bodies,
    both,
    queue_entries,
    repair,
    tree,
    two_bytes,
    wipe,
)  # fmt: skip

from penstock.durability.progress import Progress
from penstock.durability.written_ranges import Ranges, read_ranges, write_ranges
from penstock.errors import ArgumentError, CorruptionError, StorageError
from penstock.files import Files
from penstock.message import Message, Receipt
from penstock.read.spans import QueueSpan
from penstock.testing import FaultyFiles, KilledError, ManualWorkers, open_store


def written_by_another(path: Path) -> None:
    os.utime(path / "lock", ns=(1, 1))


def killed(path: Path) -> None:
    """Leave what a writer leaves that was killed before it knew anything durable."""
    (path / "abort").write_text("1")
    (path / "penstock" / "clean").unlink(missing_ok=True)
    progress = Progress(Files(), path)
    state = progress.read()
    state.flushed_offset, state.dispatched = 0, {}
    progress.replace(state)


def quarantine(path: Path) -> list[str]:
    """Quarantine what is corrupt; returns the actions."""
    done = repair(path, quarantine=True, apply=True)
    assert done.standing == ()
    return [step.action for step in done.steps]


def refused(path: Path, why: str) -> None:
    before = tree(path)
    with pytest.raises(StorageError, match=f"is refused, and nothing was changed: .*{why}"):
        repair(path, quarantine=True, apply=True)
    now = tree(path)
    assert {name: now[name] for name in before} == before


def notes(path: Path) -> list[bool]:
    return [finding.is_note for finding in findings(path, deep=True)]


def offsets(path: Path) -> list[int]:
    """Open the store for writing; returns the queue offsets of its messages, and last that of a new one."""
    with open_store(path, spawn=ManualWorkers()) as store:
        return [*(m.queue_offset for m in store.scan("t")), store.put("t", b"new").queue_offset]


def ten(path: Path, size: int = 9, checksum: str = "crc32+record") -> tuple[Path, list[Receipt]]:
    """Make a store with ten messages in one queue; returns its log's file, and the receipts."""
    how: dict[str, Any] = {"log.checksum": checksum}
    with open_store(path, spawn=ManualWorkers(), **how) as store:
        store.create_topic("t", queues=1)
        puts = [store.put("t", b"body %d" % n * size) for n in range(10)]
    return path / "commitlog" / f"{0:020d}", puts


def break_messages(log: Path, *broken: Receipt) -> None:
    for each in broken:
        two_bytes(log, each.log_offset + 95)


HARM: dict[str, tuple[int, Callable[[Path], object]]] = {
    **{kind: harm for kind, harm in STANDING.items() if kind != "segment lost"},
    "size": (1, lambda p: two_bytes(segment(p, 1), 2)),
    "CRC": (1, lambda p: two_bytes(segment(p, 1), 8)),
    "two": (2, lambda p: both(lambda: two_bytes(segment(p, 3), 95), lambda: two_bytes(segment(p, 3), 9000))),
    "across a border": (99, lambda p: both(lambda: wipe(segment(p, 1), SEGMENT - 3000, SEGMENT), lambda: patch(segment(p, 2), 0, b"\xa5" * 3000))),
    "two borders": (9999, lambda p: both(
        lambda: patch(segment(p, 1), SEGMENT - 3000, b"\xa5" * 3000), lambda: wipe(segment(p, 2), 0, SEGMENT),
        lambda: patch(segment(p, 3), 0, b"\xa5" * 3000),
    )),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("kind", HARM)
def test_quarantined_corruption_stops_nobody(
    kind: str, place: Path, sound: Bodies, *, is_killed: bool
) -> None:
    hit, harm = HARM[kind]
    harm(place)
    log = {p.name: p.read_bytes().ljust(SEGMENT, b"\0") for p in (place / "commitlog").iterdir()}
    before, entries = tree(place), queue_entries(place)
    planned = {step.action for step in repair(place, quarantine=True).steps}
    assert tree(place) == before, "without --apply nothing changes"
    assert "quarantine" in planned <= {"quarantine", "forget-digest", "lengthen", "marks"}
    quarantine(place)
    assert {p.name: p.read_bytes() for p in (place / "commitlog").iterdir()} == log
    assert queue_entries(place) == entries, "no queue offset moves"
    assert all(notes(place))
    texts = [f.text for f in findings(place)]
    assert not [t for t in texts for n in range(1, 9) if t.endswith(f" one is at {n * SEGMENT}")]
    assert quarantine(place) == []
    if is_killed:
        killed(place)
    found: Bodies = {}
    with open_store(place, spawn=ManualWorkers(), extensions=["messaging"]) as store:
        assert store.recovery is not None
        assert (store.recovery.cut_bytes, store.recovery.mended) == (0, ())
        for topic in sorted(store.topics()):
            left = {(m.topic, m.queue, m.queue_offset): m.body for m in store.scan(topic)}
            rows = store.to_arrow(topic, columns=["queue", "queue_offset"]).to_pydict()
            assert {*zip(rows["queue"], rows["queue_offset"], strict=True)} == {k[1:] for k in left}
            with store.consumer("all", topic) as consumer:
                seen = 0
                while some := consumer.poll(limit=100, timeout=0):
                    seen += len(some)
                    for message in some:
                        message.ack()
                assert seen == len(left), "a consumer steps over the lost messages"
            found |= left
        assert found.items() <= sound.items()
        assert len(found) >= len(sound) - hit
        ends = {queue: store.max_offset("topic-0", queue) for queue in store.topics()["topic-0"]}
        put = {queue: store.put("topic-0", b"goes on", queue=queue).queue_offset for queue in ends}
        assert put == ends, "no queue offset is assigned twice"
    killed(place)
    open_store(place, spawn=ManualWorkers()).close()
    assert all(notes(place))
    assert len(bodies(place)) == len(found) + len(put)


@pytest.mark.parametrize("position", [12, 24, 90, 100])
def test_a_finding_names_the_message_as_its_queue_entry_does(
    position: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The segment is open, so it has no digest: the record's own CRC tells of the bit. The topic is at 100."""
    log, puts = ten(tmp_path / "s", 1)
    at = puts[4].log_offset + position
    patch(log, at, bytes([log.read_bytes()[at] ^ 1]))
    (found,) = findings(tmp_path / "s")
    assert "(t, queue 0, offset 4)" in found.text
    assert "`penstock repair PATH --apply --quarantine`" in found.what_now
    with open_store(tmp_path / "s", read_only=True) as reader:
        assert len([*reader.scan("t")]) == 9
    assert "(t, queue 0, offset 4)" in caplog.text, "as what skips it says"
    killed(tmp_path / "s")
    with pytest.raises(
        CorruptionError, match=r"\(t, queue 0, offset 4\).*repair PATH --apply --quara"
    ):
        open_store(tmp_path / "s", spawn=ManualWorkers())
    steps = repair(tmp_path / "s", quarantine=True).steps
    assert [step.messages for step in steps if step.action == "quarantine"] == [1]
    quarantine(tmp_path / "s")
    (found,) = findings(tmp_path / "s", deep=True)
    assert found.is_note
    assert "quarantined: " in found.text
    assert "(t, queue 0, offset 4)" in found.text


def test_the_end_of_the_log_is_not_quarantined(tmp_path: Path) -> None:
    log, puts = ten(tmp_path / "s")
    for number in (9, 5):
        break_messages(log, puts[number])
        refused(
            tmp_path / "s", "is corrupt from .*`penstock repair PATH --apply` cuts the log there"
        )
    repair(tmp_path / "s", apply=True)
    quarantine(tmp_path / "s")
    assert offsets(tmp_path / "s") == [0, 1, 2, 3, 4, 6, 7, 8, 9]


def test_a_size_that_includes_the_next_record_costs_one_message(tmp_path: Path) -> None:
    """A flipped bit makes it where the next record has 128 bytes. That one counted as content, so it could not be quarantined."""
    log, puts = ten(tmp_path / "s")
    patch(log, puts[3].log_offset, (puts[3].size + puts[4].size).to_bytes(4, "big"))
    quarantine(tmp_path / "s")
    assert offsets(tmp_path / "s") == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10]


def test_what_is_not_certainly_our_own_is_not_quarantined(place: Path) -> None:
    two_bytes(segment(place, 1), 95)
    (place / "abort").write_text("1")
    refused(place, "the store is a copy, made while the original was open")
    written_by_another(place)
    refused(place, "another program")
    with pytest.raises(ArgumentError, match="cut"):
        repair(place, quarantine=True, cut=True)


def test_what_no_scan_can_step_over_stands(place: Path, tmp_path: Path) -> None:
    segment(place, 2).unlink()
    (left,) = repair(place, quarantine=True, apply=True).standing
    assert "`penstock repair PATH --apply --cut`" in left.what_now
    log, puts = ten(tmp_path / "without queues")
    for put in (puts[2], puts[6]):
        wipe(log, put.log_offset, put.log_offset + 60)
    shutil.rmtree(tmp_path / "without queues" / "consumequeue")
    (left,) = repair(tmp_path / "without queues", quarantine=True, apply=True).standing
    assert "complete records within it" in left.text


@pytest.mark.slow
@pytest.mark.parametrize("then", ["open", "repair"])
def test_a_repair_killed_at_any_moment_loses_nothing(then: str, tmp_path: Path) -> None:
    log, puts = ten(tmp_path / "s")
    break_messages(log, puts[3])
    shutil.copytree(tmp_path / "s", tmp_path / "whole", copy_function=shutil.copy2)
    files, seen = FaultyFiles(), set[bool]()
    repair(tmp_path / "whole", quarantine=True, apply=True, files=files)
    for count in cases(range(1, files.plan.total + 1), then, of_so_many=4):
        again, dying = tmp_path / f"at-{count}", FaultyFiles()
        shutil.copytree(tmp_path / "s", again, copy_function=shutil.copy2)
        dying.plan.die_at(count)
        with pytest.raises(KilledError):
            repair(again, quarantine=True, apply=True, files=dying)
        dying.abandon()
        is_noted = bool((read_ranges(Files(), again) or Ranges()).quarantined)
        seen.add(is_noted)
        if then == "repair" or not is_noted:
            assert repair(again, quarantine=not is_noted, apply=True).standing == ()
        assert offsets(again) == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10]
        assert all(notes(again))
    assert seen == {False, True}


def with_quarantined(root: Path) -> tuple[Path, list[Receipt]]:
    log, puts = ten(root)
    break_messages(log, puts[3])
    quarantine(root)
    return log, puts


@pytest.mark.parametrize(("hit", "names"), [(3, [3]), (4, [3, 4]), (2, [2, 3])])
def test_what_changed_since_is_found_and_can_be_quarantined_again(
    hit: int, names: list[int], tmp_path: Path
) -> None:
    log, puts = with_quarantined(tmp_path / "s")
    two_bytes(log, puts[hit].log_offset + 100)
    (found,) = findings(tmp_path / "s")
    assert not found.is_note
    assert "; ".join(f"t, queue 0, offset {n}" for n in names) in found.text
    killed(tmp_path / "s")
    with pytest.raises(CorruptionError):
        open_store(tmp_path / "s", spawn=ManualWorkers())
    quarantine(tmp_path / "s")
    assert notes(tmp_path / "s") == [True]
    assert offsets(tmp_path / "s")[-1] == 10


def test_no_note_hides_a_valid_record_or_moves_the_end(tmp_path: Path) -> None:
    log, puts = with_quarantined(tmp_path / "s")
    known = read_ranges(Files(), tmp_path / "s")
    assert known is not None
    (note,) = known.quarantined.values()
    ranges = [(-9, note.stop), (note.start, note.stop - 1), (note.start, puts[7].log_offset)]
    for start, stop in [*ranges, (note.start, 1 << 70), (puts[5].log_offset, 1 << 70)]:
        each = note._replace(start=start, stop=stop)
        write_ranges(Files(), tmp_path / "s", attrs.evolve(known, quarantined={each.start: each}))
        assert len(bodies(tmp_path / "s")) == 9
        assert notes(tmp_path / "s") == [False]
    overlapping = {note.start: note, note.start + 1: note._replace(start=note.start + 1)}
    write_ranges(Files(), tmp_path / "s", attrs.evolve(known, quarantined=overlapping))
    assert read_ranges(Files(), tmp_path / "s") is None
    write_ranges(Files(), tmp_path / "s", known)
    wipe(log, note.stop, log.stat().st_size)
    with pytest.raises(CorruptionError, match="were durable"):
        offsets(tmp_path / "s")
    written_by_another(tmp_path / "s")
    assert offsets(tmp_path / "s") == [0, 1, 2, 3]


def test_a_note_counts_by_its_bytes_whoever_wrote_last_and_in_any_copy(tmp_path: Path) -> None:
    with_quarantined(tmp_path / "s")
    shutil.copytree(tmp_path / "s", tmp_path / "with times", copy_function=shutil.copy2)
    shutil.copytree(tmp_path / "s", tmp_path / "without", copy_function=shutil.copyfile)
    written_by_another(tmp_path / "s")
    for name in ("s", "with times", "without"):
        assert notes(tmp_path / name) == [True]
        assert offsets(tmp_path / name) == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10]
        assert notes(tmp_path / name) == [True]


def test_a_cut_after_a_quarantine_keeps_what_is_before_it(tmp_path: Path) -> None:
    log, puts = with_quarantined(tmp_path / "s")
    break_messages(log, puts[7])
    assert repair(tmp_path / "s", cut=True, apply=True).standing == ()
    assert notes(tmp_path / "s") == [True]
    assert offsets(tmp_path / "s") == [0, 1, 2, 4, 5, 6, 7]
    # And nothing of what is behind it: an entry of the quarantined message was left, and offsets were passed over.
    break_messages(log, puts[1])
    assert repair(tmp_path / "s", cut=True, apply=True).standing == ()
    assert offsets(tmp_path / "s") == [0, 1]


def test_a_note_goes_with_its_segment(place: Path) -> None:
    two_bytes(segment(place, 0), 0)
    quarantine(place)
    segment(place, 0).unlink()
    open_store(place, spawn=ManualWorkers()).close()
    assert notes(place) == []
    two_bytes(segment(place, 2), 95)
    quarantine(place)
    assert [*(read_ranges(Files(), place) or Ranges()).quarantined] == [2 * SEGMENT]


def test_rebuilt_queues_have_what_is_between_quarantined_records_and_end_where_they_did(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    """Without queues, nothing but a chain of records up to the segment's end proves a record after corruption."""
    root = tmp_path / "s"
    log, puts = ten(root)
    with open_store(root, spawn=ManualWorkers()) as store:
        store.put("u", b"follows")
    for put in (puts[2], puts[6]):
        wipe(log, put.log_offset, put.log_offset + 60)
    break_messages(log, puts[9])
    quarantine(root)
    (queue,) = (root / "consumequeue" / "t" / "0").iterdir()
    two_bytes(queue, 20 * 4 + 6)
    assert [step.action for step in repair(root, apply=True).steps] == ["rebuild"]
    assert offsets(root) == [0, 1, 3, 4, 5, 7, 8, 10]
    killed(root)
    shutil.rmtree(root / "consumequeue")
    assert "(t, queue 0, offset 9); it is quarantined" in caplog.text
    caplog.clear()
    assert offsets(root)[:-1] == [0, 1, 3, 4, 5, 7, 8, 10]
    assert "are not a valid record" not in caplog.text, "what is known is not reported as new"


@pytest.mark.parametrize(("start", "stop"), [(2, 4), (198, 202), (199, 200), (200, 202)])
def test_records_known_to_be_gone_are_not_reported_as_lost(
    tmp_path: Path, start: int, stop: int
) -> None:
    """Their queue entries were absent, as after a loss, if the gap went on in the next file, at offset 200."""
    root = tmp_path / "s"
    with open_store(root, spawn=ManualWorkers()) as store:
        store.create_topic("t", queues=1)
        puts = store.put_many([Message("t", b"body %d" % n, queue=0) for n in range(210)])
    wipe(root / "commitlog" / f"{0:020d}", puts[start].log_offset, puts[stop].log_offset)
    quarantine(root)
    killed(root)
    shutil.rmtree(root / "consumequeue")
    assert offsets(root) == [*range(start), *range(stop, 211)]
    with open_store(root, read_only=True) as store:
        lost: list[object] = []
        spans = [QueueSpan("t", 0, 0, 211)]
        found = list(store.lowlevel.scan_spans(spans, lost=lambda *what: lost.append(what)))
        assert (len(found), lost) == (211 - (stop - start), [])


def test_the_last_message_of_a_queue_counts_after_a_quarantined_one(tmp_path: Path) -> None:
    """No record has a CRC of its own, and no queue is left: only the note explains the missing queue offset."""
    log, puts = ten(tmp_path / "s", checksum="crc32")
    break_messages(log, puts[8])
    quarantine(tmp_path / "s")
    killed(tmp_path / "s")
    shutil.rmtree(tmp_path / "s" / "consumequeue")
    assert offsets(tmp_path / "s") == [0, 1, 2, 3, 4, 5, 6, 7, 9, 10]


@pytest.mark.parametrize("checksum", ["crc32", "crc32+record"])
@pytest.mark.parametrize(("hit", "left"), [(4, 10), (9, 9)])
@pytest.mark.parametrize("is_repaired", [False, True])
def test_half_of_a_batch_after_corruption_is_cut_off(
    checksum: str, hit: int, left: int, tmp_path: Path, *, is_repaired: bool
) -> None:
    """It must not become permanent because a record before it is corrupt."""
    root = tmp_path / "s"
    log, puts = ten(root, checksum=checksum)
    with open_store(root, spawn=ManualWorkers()) as store:
        batch = store.put_many([Message("t", b"batch %d" % n * 9) for n in range(6)], atomic=True)
    wipe(log, batch[3].log_offset, log.stat().st_size)
    killed(root)
    break_messages(log, puts[hit])
    if is_repaired:
        assert repair(root, apply=True).standing
    if is_repaired and hit == 9:
        refused(root, "is corrupt from")
        assert repair(root, cut=True, apply=True).standing == ()
    else:
        done = repair(root, quarantine=True, apply=True)
        # Those of the batch that are there count: they may be durable.
        assert [step.messages for step in done.steps if step.action == "cut"] == [3]
    assert offsets(root) == [*(n for n in range(left) if n != hit), left]


def test_a_sector_that_was_never_written_is_a_torn_tail_after_corruption_too(tmp_path: Path) -> None:  # fmt: skip
    log, puts = ten(tmp_path / "s", 50)
    killed(tmp_path / "s")
    sector = puts[6].log_offset // 512 * 512
    wipe(log, sector, sector + 512)
    # The records after it are lost as well: the plan said that none is.
    (cut,) = (step for step in repair(tmp_path / "s").steps if step.action == "cut")
    assert cut.messages == sum(put.log_offset >= sector + 512 for put in puts) > 0
    break_messages(log, puts[1])
    assert "cut" in quarantine(tmp_path / "s")
    whole = [n for n, put in enumerate(puts) if put.log_offset + put.size <= sector and n != 1]
    assert offsets(tmp_path / "s") == [*whole, whole[-1] + 1]
