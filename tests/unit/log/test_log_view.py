"""The log as dispatchers see it while they load: up to the end that recovery found, and not a byte more."""

from pathlib import Path

import pytest

from penstock.errors import OffsetError
from penstock.log.log_view import RecoveredLog
from penstock.testing import WrittenLog
from penstock.testing.kit import SMALL

SEGMENT = SMALL.segment_bytes


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    return WrittenLog(tmp_path_factory.mktemp("log") / "s", 800)


def test_ranges_end_where_the_log_does(written: WrittenLog) -> None:
    end = written.end_offset
    assert written.view.spans()[-1][1] == end
    view = written.ending_at(SEGMENT + 100)
    assert view.spans() == [(0, SEGMENT), (SEGMENT, SEGMENT + 100)]
    assert written.ending_at(SEGMENT).spans() == [(0, SEGMENT)]


def test_batches_stop_at_its_end_whatever_is_asked_for(written: WrittenLog) -> None:
    stop = written.offsets()[10]
    view: RecoveredLog = written.ending_at(stop)
    assert sum(len(batch) for batch in view.batches(0, 1 << 60)) == 10


def test_what_is_handed_out_is_a_copy(written: WrittenLog) -> None:
    (batch, *_) = written.view.batches(0, SEGMENT)
    assert isinstance(batch.columns.window, bytes)
    assert bytes(written.view.read(0, 8)) == bytes(batch.columns.window[:8])


def test_the_head_that_retention_took_is_out_of_range(tmp_path: Path) -> None:
    written = WrittenLog(tmp_path / "s", 800)
    written.lose_head(1)
    assert written.view.min_offset == SEGMENT
    with pytest.raises(OffsetError):
        written.view.read(0, 8)


def test_what_is_dispatched_at_an_opening_has_right_crcs(tmp_path: Path) -> None:
    written = WrittenLog(tmp_path / "s", 50)
    path = tmp_path / "s" / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[written.offsets()[5] + 90] ^= 1
    path.write_bytes(data)
    assert sum(len(batch) for batch in written.view.batches(0, SEGMENT)) == 49
