"""The files of the timer log: units, blanks, and what a crash or somebody else left."""

from pathlib import Path

import numpy as np
import pytest

from penstock.files import Files
from penstock_messaging.timers.timer_log import UNIT, TimerLog
from penstock_messaging.timers.timer_units import TimerUnit, rows_of

# Three units and a blank.
BYTES = 3 * 52 + 20
FIRST = "00000000000000000000"


def log_of(root: Path) -> TimerLog:
    made = TimerLog(Files(), root, BYTES)
    made.read()
    return made


def written(root: Path, count: int) -> TimerLog:
    log = log_of(root)
    rows = rows_of([TimerUnit(5000, 1000 * n, 100 + n, 1, 2000, n) for n in range(count)])
    log.write(log.place(count), rows)
    return log


def test_units_are_placed_so_that_a_blank_fits_after_each(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    assert log.place(7).tolist() == [0, 52, 104, BYTES, BYTES + 52, BYTES + 104, 2 * BYTES]
    assert log.place(0).tolist() == []
    log = TimerLog(Files(), tmp_path, 3 * 52 + 15)
    assert log.place(3).tolist() == [0, 52, 171], "15 bytes are no blank"


@pytest.mark.parametrize("count", [0, 1, 3, 4, 8])
def test_what_is_written_is_read(tmp_path: Path, count: int) -> None:
    log = written(tmp_path, count)
    again = TimerLog(Files(), tmp_path, 999)
    found = again.read()
    assert found.damage == ""
    assert found.units["size"].tolist() == [100 + n for n in range(count)]
    assert found.units["topic_hash"].tolist() == [*range(count)]
    assert found.positions.tolist() == log_of(tmp_path / "none").place(count).tolist()
    assert again.place(1).tolist() == log.place(1).tolist()
    if count:
        assert again.file_bytes == BYTES, "as the files are"


def test_a_second_write_after_a_failed_one_changes_nothing(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    rows = rows_of([TimerUnit(5000, n, 100, 1, 2000, n) for n in range(8)])
    places = log.place(8)
    log.write(places, rows)
    before = {path.name: path.read_bytes() for path in (tmp_path / "timerlog").iterdir()}
    log.write(places, rows)
    assert {path.name: path.read_bytes() for path in (tmp_path / "timerlog").iterdir()} == before


def test_a_cut_erases_what_is_after_it(tmp_path: Path) -> None:
    log = written(tmp_path, 8)
    log.cut(52)
    assert [path.name for path in (tmp_path / "timerlog").iterdir()] == [FIRST]
    assert (tmp_path / "timerlog" / FIRST).read_bytes()[52:] == bytes(BYTES - 52)
    assert log.place(1).tolist() == [52]
    assert len(log_of(tmp_path).read().units) == 1


def test_bytes_after_the_end_are_no_unit_of_a_later_opening(tmp_path: Path) -> None:
    written(tmp_path, 3)
    path = tmp_path / "timerlog" / FIRST
    raw = bytearray(path.read_bytes())
    raw[52:104] = bytes(52)
    path.write_bytes(raw)
    log = log_of(tmp_path)
    assert log.end == 52
    log.cut(log.end)
    rows = rows_of([TimerUnit(5000, 7, 100, 1, 2000, 0)])
    log.write(log.place(1), rows)
    assert len(log_of(tmp_path).read().units) == 2


def test_a_new_log_begins_after_the_old_one(tmp_path: Path) -> None:
    log = written(tmp_path, 4)
    old = log.renew()
    assert old == [0, BYTES]
    rows = rows_of([TimerUnit(5000, 7, 100, 1, 2000, 0)])
    log.write(log.place(1), rows)
    assert log.begin == 2 * BYTES
    both = log_of(tmp_path).read()
    assert (len(both.units), both.damage) == (5, ""), "a blank ends the old one"
    log.remove(old)
    assert log_of(tmp_path).begin == 2 * BYTES


def test_files_of_deleted_records_go_and_the_last_one_stays(tmp_path: Path) -> None:
    log = written(tmp_path, 8)
    log.trim(2000)
    assert log.begin == 0, "the record at 2000 is there"
    log.trim(2001)
    assert log.begin == BYTES
    log.trim(1 << 40)
    assert log.begin == 2 * BYTES
    assert log_of(tmp_path).read().damage == ""


def test_a_chain_is_followed_from_its_end(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    rows = rows_of([TimerUnit(5000, n, 100, 1, 2000, 0) for n in range(8)])
    rows["previous"] = [-1, -1, 0, BYTES * 9, 104, 4, 1, BYTES + 52]
    places = log.place(8)
    log.write(places, rows)
    assert log.chain(int(places[7]))["log_offset"].tolist() == [7, 4, 2, 0]
    assert log.chain(-1).tolist() == []
    # A unit that names a later one leads back all the same.
    assert log.chain(int(places[3]))["log_offset"].tolist()[0] == 3


def test_units_are_written_again_in_all_files(tmp_path: Path) -> None:
    log = written(tmp_path, 5)
    rows = rows_of([TimerUnit(5000, 50 + n, 100, 1, 2000, 0) for n in range(5)])
    log.overwrite(np.array([0, 52, 104, BYTES, BYTES + 52]), rows)
    assert log_of(tmp_path).read().units["log_offset"].tolist() == [50, 51, 52, 53, 54]


def test_a_unit_has_52_bytes() -> None:
    assert UNIT.itemsize == 52
