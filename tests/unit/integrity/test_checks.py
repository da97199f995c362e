"""What verification is made of: marks, atomic batches, copies made meanwhile, and segments checked in other processes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.torn import TornFiles
from tests.unit.integrity.live import found, live
from tests.unit.log.logs import MARKED_SIZE as SIZE
from tests.unit.log.logs import marked_log

from penstock.contracts.dispatcher import COPYING, Finding
from penstock.dispatch.rebuild import Recipe
from penstock.durability.progress import Checkpoint, Times
from penstock.files import Files
from penstock.integrity.checks import BatchCheck, CopyFindings, check_marks
from penstock.integrity.segment_digests import BLOCK_BYTES
from penstock.integrity.verification import spread_over
from penstock.log.scan import Checks, batch_marks, scan_segment
from penstock.testing import SimulatedDisk, open_store
from penstock.testing.kit import SMALL, messages
from penstock_index.consume_queue import ConsumeQueueDispatcher, ConsumeQueueOptions


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def nothing(_data: bytes) -> bytes:
    return b""


@pytest.mark.slow
@pytest.mark.parametrize("tear", [half, nothing])
def test_a_digest_of_a_living_store_that_is_being_written_is_no_finding(
    tear: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    store, _ = live(tmp_path / "s")
    assert found(tmp_path / "s", jobs=2) == []
    for times in (1, 2, 3):
        assert found(tmp_path / "s", TornFiles("digests", tear, times=times)) == []
    store.close()
    assert "no valid content" in found(tmp_path / "s", TornFiles("digests", tear, 1000))[0].text


def test_a_damaged_digest_of_a_living_store_is_found(tmp_path: Path) -> None:
    store, _ = live(tmp_path / "s")
    path = tmp_path / "s" / "penstock" / "digests" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)
    assert [f.text for f in found(tmp_path / "s")] == ["the digest of its segment has no valid content"]  # fmt: skip
    assert [f.part for f in store.verify(deep=True)] == ["marks"]
    store.close()


def test_a_checkpoint_that_is_ahead_of_the_log_is_told_of_a_store_of_ours() -> None:
    disk, root = SimulatedDisk(), Path("/store")
    disk.make_folder_durably(root)
    Checkpoint(disk, root).write(Times(100, 50, 0))
    assert list(check_marks(disk, root, 0, 100, is_ours=True)) == []
    (finding,) = check_marks(disk, root, 0, 99, is_ours=True)
    assert "physicMsgTimestamp is 100, but the latest record has the store time 99" in finding.text
    assert list(check_marks(disk, root, 0, 99, is_ours=False)) == []


def test_a_checkpoint_of_a_wrong_length_is_told() -> None:
    disk, root = SimulatedDisk(), Path("/store")
    disk.make_folder_durably(root)
    (finding,) = check_marks(disk, root, 0, 0, is_ours=True)
    assert "cannot be read" in finding.text
    disk.write_whole(root / "checkpoint", b"x" * 10)
    (finding,) = check_marks(disk, root, 0, 0, is_ours=True)
    assert "has 10 bytes, not 4096" in finding.text


def found_in(folder: Path, numbers: list[int], window: int) -> list[Finding]:
    log = marked_log(folder, numbers)
    segment = log.segments[0]
    check, found = BatchCheck(segment), list[Finding]()
    stop = len(numbers) * SIZE
    for records, _, _ in scan_segment(log, segment, 0, stop, Checks(), window_bytes=window):
        found += check.add(records)
    found += check.finish()
    log.close()
    return found


@pytest.mark.parametrize("window", [0, SIZE])
def test_a_batch_in_part_and_a_mark_that_fits_nothing_are_notes(
    tmp_path: Path, window: int
) -> None:
    first, rest = batch_marks(SIZE, 4 * SIZE)
    whole = [0, first, rest, rest, 0]
    one = [*batch_marks(0, SIZE, 3)[:1], 0]
    assert found_in(tmp_path, whole, window) == found_in(tmp_path, one, window) == []
    broken = {
        (0, first, rest, 0, 0): (SIZE, "only up to"),
        (0, first): (SIZE, "only up to"),
        (0, first, rest, 0, rest): (SIZE, "only up to"),
        (0, first, batch_marks(2 * SIZE, 4 * SIZE)[0], batch_marks(2 * SIZE, 4 * SIZE)[1]): (SIZE, "only up to"),
        (0, 0, rest, 0): (2 * SIZE, "no mark"), (-1, 0): (0, "no mark"), (0, batch_marks(SIZE, 9999)[0]): (SIZE, "no mark"),
    }  # fmt: skip
    for numbers, (at, text) in broken.items():
        notes = found_in(tmp_path, list(numbers), window)
        assert notes[0].log_offset == at, numbers
        assert text in notes[0].text
        assert all(note.is_note and note.position == note.log_offset for note in notes)


ROOT = Path("/store")


def of(part: str, log_offset: int, what_now: str = "") -> Finding:
    return Finding(part, ROOT / part, 0, log_offset, f"{part} at {log_offset}", what_now)


def sifted(*found: Finding, log_end: int = 1000) -> list[Finding]:
    return list(CopyFindings(ROOT).sift(found, lambda: log_end))


def test_what_copying_explains_is_put_together() -> None:
    (finding,) = sifted(of("queue", 5, COPYING), of("marks", -1, COPYING), of("queue", 6, COPYING))
    assert "which explains 3 differences (marks, queue)" in finding.text
    assert (finding.part, finding.log_offset) == ("copy", 1000)
    assert "open the copy for writing once" in finding.what_now


def test_corruption_before_the_last_valid_record_is_never_explained() -> None:
    found = [of("log", 10), of("log", 999), of("queue", -1)]
    assert sifted(*found) == found


def test_what_lies_after_the_last_valid_record_is_explained() -> None:
    (finding,) = sifted(of("log", 1000), of("log", 5000))
    assert "2 differences" in finding.text


def test_what_seemed_the_end_is_corruption_once_valid_records_follow() -> None:
    """The log's end is known only as far as it was walked."""
    ends = iter([100, 1000])
    held = of("log", 500)
    assert list(CopyFindings(ROOT).sift([held], lambda: next(ends))) == [held]


def test_a_block_of_a_digest_may_reach_past_the_end() -> None:
    (finding,) = sifted(of("digest", 1), log_end=BLOCK_BYTES)
    assert finding.part == "copy"
    early = of("digest", 0)
    assert sifted(early, log_end=10 * BLOCK_BYTES) == [early]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parallel") / "s"
    with open_store(path, retention=[]) as store:
        store.put_many(messages(1000))
    return path


def recipe(root: Path) -> Recipe:
    return Recipe(root, SMALL, ((ConsumeQueueDispatcher, ConsumeQueueOptions()),))


def test_a_file_system_of_a_tests_own_is_no_other_processs(root: Path) -> None:
    assert spread_over(Files(), recipe(root)) is not None
    assert spread_over(SimulatedDisk(), recipe(root)) is None


def test_a_class_that_no_other_process_can_import_stays_here(root: Path) -> None:
    class Local(ConsumeQueueDispatcher):
        pass

    assert spread_over(Files(), Recipe(root, SMALL, ((Local, ConsumeQueueOptions()),))) is None
