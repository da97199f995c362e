"""What `verify` finds, shallow and deep, in one process and in several."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.integrity.live import seal_all
from tests.unit.integrity.test_segment_digests import flip
from tests.unit.log.logs import chain, log_of
from tests.unit.recovery.losses import LOSSES

import penstock
from penstock.contracts.dispatcher import Finding
from penstock.dispatch.rebuild import Recipe, StoreView
from penstock.errors import CorruptionError
from penstock.files import Files
from penstock.integrity import verification
from penstock.integrity.verification import Scope, Verification
from penstock.testing import FaultyFiles, ManualWorkers, open_store
from penstock.testing.kit import SMALL, messages
from penstock_index.consume_queue import ConsumeQueueDispatcher, ConsumeQueueOptions

SEGMENT = 64 * 1024


def make(path: Path) -> Path:
    """A closed store of some segments, all full ones sealed, with several index files.

    Its records have no CRC of their own: what only a digest covers is the subject.
    """
    workers = ManualWorkers()
    settings: dict[str, Any] = {"log.checksum": "crc32"}
    with open_store(path, spawn=workers, retention=[], **settings) as store:
        for first in range(0, 1400, 100):
            store.put_many(messages(100, first=first))
        store.flush()
        seal_all(workers)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("verify") / "s")


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "s", copy_function=shutil.copy2)
    return tmp_path / "s"


def findings(path: Path, **how: Any) -> list[Finding]:
    with open_store(path, read_only=True) as store:
        return list(store.verify(**how))


def segment(path: Path, number: int) -> Path:
    return path / "commitlog" / f"{number * SEGMENT:020d}"


def index_file(path: Path, number: int) -> Path:
    return sorted((path / "index").iterdir())[number]


def patch(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


@pytest.mark.slow
def test_a_sound_store_has_no_findings(place: Path) -> None:
    assert findings(place) == []
    assert findings(place, deep=True) == []
    assert findings(place, deep=True, jobs=2) == []


DEEP: dict[str, tuple[str, Callable[[Path], object]]] = {
    "flag of a record": ("digest", lambda p: flip(segment(p, 1), 19)),
    "filler behind the blank record": ("digest", lambda p: flip(segment(p, 1), SEGMENT - 1)),
    "checkpoint lost": ("marks", lambda p: (p / "checkpoint").unlink()),
    "checkpoint short": ("marks", lambda p: os.truncate(p / "checkpoint", 99)),
    "checkpoint ahead": ("marks", lambda p: patch(p / "checkpoint", 8, b"\x7f")),
    "checkpoint negative": ("marks", lambda p: patch(p / "checkpoint", 0, b"\xff")),
    "progress lost": ("marks", lambda p: (p / "penstock" / "progress").unlink()),
    "progress torn": ("marks", lambda p: (p / "penstock" / "progress").write_bytes(bytes(1024))),
    "clean mark garbled": ("marks", lambda p: (p / "penstock" / "clean").write_bytes(b"{")),
    "digest garbled": ("marks", lambda p: flip(p / "penstock" / "digests" / f"{SEGMENT:020d}", 50)),
    "digest of nothing": ("marks", lambda p: (p / "penstock" / "digests" / "0").write_bytes(b"")),
}
SHALLOW: dict[str, tuple[str, Callable[[Path], object]]] = {
    "body": ("log", lambda p: flip(segment(p, 1), 95)),
    "size of a record": ("log", lambda p: flip(segment(p, 1), 2)),
    "index header": ("index", lambda p: patch(index_file(p, 0), 24, bytes(8))),
    "index count": ("index", lambda p: patch(index_file(p, 0), 36, b"\x00\x00\x00\x05")),
    "index hostile count": ("index", lambda p: patch(index_file(p, -1), 36, b"\x7f\xff\xff\xff")),
    "index seconds": ("index", lambda p: patch(index_file(p, 1), 40 + 400 + 20 * 9 + 12, b"\x70")),
    "index slot": ("index", lambda p: patch(index_file(p, 1), 40, b"\x7f")),
    "index length": ("index", lambda p: os.truncate(index_file(p, 1), 44)),
    "index negative": ("index", lambda p: patch(index_file(p, 1), 40 + 400 + 24, b"\xff" * 8)),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("kind", DEEP)
def test_what_only_a_deep_look_finds(kind: str, place: Path) -> None:
    part, damage = DEEP[kind]
    damage(place)
    assert findings(place) == []
    found = findings(place, deep=True)
    assert {f.part for f in found} == {part}
    assert all(f.what_now and str(f.path).startswith(str(place)) for f in found)


@pytest.mark.parametrize("kind", SHALLOW)
def test_what_every_look_finds(kind: str, place: Path) -> None:
    part, damage = SHALLOW[kind]
    damage(place)
    assert part in {f.part for f in findings(place)}


@pytest.mark.slow
@pytest.mark.parametrize("lose", [each for each in LOSSES if each.__name__ != "lose_side_folder"])
def test_whatever_a_closed_store_lost_is_found(
    lose: Callable[[Path], None], place: Path, tmp_path: Path
) -> None:
    """Nothing was said of a closed store that had lost all its queues: the log's end was taken from them."""
    shutil.move(place / "consumequeue" / "topic-0", place / "consumequeue" / "t")
    lose(place)
    if (place / "consumequeue" / "t").exists():
        shutil.move(place / "consumequeue" / "t", place / "consumequeue" / "topic-0")
    assert findings(place)


@pytest.mark.slow
def test_findings_come_in_log_order_however_many_look(place: Path) -> None:
    for number in range(5):
        flip(segment(place, number), 97)
        flip(segment(place, number), 19)
    patch(index_file(place, 1), 40, b"\x7f")
    alone = findings(place, deep=True)
    assert len(alone) >= 10
    assert findings(place, deep=True, jobs=3) == alone
    offsets = [f.log_offset for f in alone if f.part in ("log", "digest")]
    assert offsets == sorted(offsets)


@pytest.mark.slow
def test_a_segment_that_is_not_there_is_told_with_its_gap(place: Path) -> None:
    segment(place, 1).unlink()
    found = findings(place, deep=True)
    gap = [f for f in found if "missing before this segment" in f.text]
    assert [(f.path.name, f.log_offset) for f in gap] == [(f"{2 * SEGMENT:020d}", SEGMENT)]


def test_digests_count_only_while_nobody_else_wrote(place: Path) -> None:
    flip(segment(place, 1), 19)
    (place / "lock").write_bytes(b"lock")
    assert findings(place, deep=True) == []


@pytest.mark.slow
def test_a_live_store_is_verified_from_within_and_from_elsewhere(place: Path) -> None:
    with open_store(place, spawn=ManualWorkers()) as store:
        store.put("topic-0", b"new", queue=0, keys=["k"])
        assert not list(store.verify(deep=True))
        assert findings(place, deep=True) == []
        flip(segment(place, 1), 19)
        assert [f.part for f in store.verify(deep=True, jobs=2)] == ["digest"]
        assert [f.part for f in findings(place, deep=True)] == ["digest"]


@pytest.mark.slow
def test_looking_changes_no_byte(place: Path) -> None:
    flip(segment(place, 1), 97)
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in place.rglob("*") if p.is_file()}
    findings(place, deep=True, jobs=2)
    after = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in place.rglob("*") if p.is_file()}
    assert after == before


def test_two_segments_are_enough_for_two_processes(tmp_path: Path) -> None:
    root, asked = tmp_path / "s", []
    with open_store(root, retention=[]) as store:
        store.put("t", bytes(40_000), queue=0)
        store.put("t", bytes(40_000), queue=0)
    recipe = Recipe(root, SMALL, ((ConsumeQueueDispatcher, ConsumeQueueOptions()),))
    view = StoreView.open(Files(), recipe)

    def spread(bases: list[int], scope: Scope, jobs: int) -> Iterator[Any]:
        assert scope is not None
        asked.append((bases, jobs))
        return iter(())

    verification = Verification(Files(), root, view.log, view.dispatchers, spread=spread)
    list(verification.run(lambda _: None, deep=True, jobs=2))
    assert asked == [([0, 64 * 1024], 2)]


def test_a_segment_that_cannot_be_read_is_a_finding_and_the_others_are_read(place: Path) -> None:
    files = FaultyFiles()
    view = StoreView.open(files, Recipe(place, SMALL, ()))
    files.plan.fail("pread", errno.EIO, path=segment(place, 1).name)
    verification = Verification(files, place, view.log, view.dispatchers)
    found = [f for f in verification.run(lambda _: None, deep=True, jobs=1) if f.part == "log"]
    assert [(f.path.name, f.position) for f in found] == [(segment(place, 1).name, -1)]
    assert found[0].text.startswith("the segment cannot be read: [Errno 5]")


def verified_alone(root: Path) -> list[Finding]:
    view = StoreView.open(Files(), Recipe(root, SMALL, ()))
    verification = Verification(Files(), root, view.log, view.dispatchers)
    return list(verification.run(lambda _: None, deep=True, jobs=1))


def test_a_log_is_verified_without_its_queues(place: Path) -> None:
    """It was `RuntimeError: generator raised StopIteration`: the end of the queues was asked of a queue index that is not there."""
    assert verified_alone(place) == []
    shutil.rmtree(place / "consumequeue")
    assert verified_alone(place) == []
    flip(segment(place, 0), 200)
    assert {finding.part for finding in verified_alone(place)} >= {"log"}


def test_the_log_of_another_writer_is_verified_without_its_queues(place: Path) -> None:
    shutil.rmtree(place / "penstock")
    assert verified_alone(place) == []
    (place / "abort").touch()
    assert verified_alone(place) == []
    flip(segment(place, 0), 200)
    assert {finding.part for finding in verified_alone(place)} == {"log"}


def test_the_records_end_for_good_if_no_later_segment_has_begun(tmp_path: Path) -> None:
    log = log_of(tmp_path, chain(b"a", b"b", b"c")[0])
    second = tmp_path / f"{4096:020d}"
    for data, is_last in ((bytes(8) + b"x", True), (bytes(7) + b"x", False)):
        second.write_bytes(data.ljust(4096, b"\0"))
        log.refresh()
        assert (verification.is_last(log, 10), verification.is_last(log, 4096)) == (is_last, True)


def segments(place: Path) -> list[Path]:
    return sorted((place / "commitlog").iterdir())


@pytest.mark.parametrize("deep", [False, True])
def test_a_segment_that_is_gone_at_the_end_is_told_by_how_far_the_log_was_on_disk(
    place: Path, deep: bool
) -> None:
    """Only queue entries without a record were told, and rebuilding them gave the messages up without a word."""
    segments(place)[-1].unlink()
    with penstock.open(place, read_only=True, environ={}) as store:
        first = next(finding for finding in store.verify(deep=deep) if finding.part == "log")
    assert "its last segments are gone" in first.text
    assert "restore them from a copy" in first.what_now


def test_a_segment_that_was_cut_short_is_a_finding_also_where_it_has_a_digest(place: Path) -> None:
    """The digest was compared with what is not there, and the whole verification ended in an error."""
    os.truncate(segments(place)[1], 30_000)
    with penstock.open(place, read_only=True, environ={}) as store:
        found = [finding for finding in store.verify(deep=True) if finding.part == "log"]
    assert any("the records end here" in each.text for each in found)
    assert any("the file has 30000 bytes instead of 65536" in each.text for each in found)


def test_the_advice_about_a_corrupt_end_of_the_log_is_what_helps(place: Path) -> None:
    """A quarantine was advised, which refuses a corrupt end."""
    with penstock.open(place, read_only=True, environ={}) as store:
        last = max(store.scan("topic-0"), key=lambda message: message.log_offset)
    with segments(place)[-1].open("r+b") as file:
        file.seek(last.log_offset % 65_536 + 8)
        file.write(bytes(last.size))
    with penstock.open(place, read_only=True, environ={}) as store:
        found = next(finding for finding in store.verify() if finding.part == "log")
    assert "--quarantine" not in found.what_now
    penstock.repair(place, apply=True, environ={})
    with penstock.open(place, read_only=True, environ={}) as store:
        assert [*store.verify()] == []


def test_no_advice_about_a_missing_segment_is_what_cannot_help(place: Path) -> None:
    """A quarantine was advised, which refuses it and advised itself again."""
    segments(place)[1].unlink()
    remaining = penstock.repair(place, apply=True, quarantine=True, environ={}).standing
    with penstock.open(place, read_only=True, environ={}) as store:
        found = [*store.verify(), *remaining]
    advice = [finding.what_now for finding in found if "missing before" in finding.text]
    assert len(advice) == 2
    assert all("from a copy" in each and "--quarantine" not in each for each in advice)
    with pytest.raises(CorruptionError, match="restore the segment from a copy") as caught:
        penstock.open(place, environ={})
    assert "--quarantine" not in str(caught.value)
