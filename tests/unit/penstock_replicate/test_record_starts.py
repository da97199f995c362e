from pathlib import Path

import pytest
from tests.ha_peers import SEGMENT_BYTES, MemoryLog

from penstock.errors import OffsetError
from penstock_replicate.master.record_starts import (
    begins_record,
    large_record_rest,
    whole_records,
)


def test_exactly_the_starts_of_records_are_found(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path, SEGMENT_BYTES)
    log.put(1000, 200)
    starts = {*log.starts, log.visible_offset}
    tried = {at + shift for at in starts for shift in (-40, -7, -1, 0, 1, 4, 36)}
    inside = {at for at in tried if log.min_offset <= at <= log.visible_offset}
    assert {at for at in inside if begins_record(log, at)} == starts
    with pytest.raises(OffsetError):
        begins_record(log, SEGMENT_BYTES - 1)


def test_the_rest_of_a_large_record_is_known(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    log.put(100, 3)
    log.put(5000)
    log.put(100)
    assert large_record_rest(log, 1300, 4000) == 4000
    assert large_record_rest(log, 1300, 5000) == 0
    assert large_record_rest(log, 150, 4000) == 0
    assert large_record_rest(log, 300, 4000) == 0


def test_a_window_is_cut_at_records(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    log.put(100, 3)
    log.put(5000)
    assert whole_records(log.data, 0, 250) == (200, 100)
    assert whole_records(log.data, 100, 250) == (200, 5000)
    assert whole_records(log.data, 300, 250) == (0, 5000)
    assert whole_records(log.data[:230], 0, 250) == (200, 100)
    assert whole_records(log.data[:205], 0, 250) == (200, 0)
    assert whole_records(bytes(100), 0, 50) == (0, 0)
