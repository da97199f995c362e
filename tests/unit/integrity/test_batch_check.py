"""What verify says of atomic batches: one in part, and marks that fit nothing, are named; nothing else is."""

from pathlib import Path

import pytest
from tests.unit.log.logs import MARKED_SIZE as SIZE
from tests.unit.log.logs import marked_log

from penstock.contracts.findings import Finding
from penstock.integrity.batch_check import BatchCheck
from penstock.log.atomic_batches import batch_marks
from penstock.log.scan import Checks, scan_segment


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
