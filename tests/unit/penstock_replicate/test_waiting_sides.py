"""A file beside the log is written on a follower when the log that it speaks of is on disk there."""

from pathlib import Path

import pytest
from tests.unit.penstock_replicate.test_side_names import GOOD

from penstock.files import Files
from penstock_replicate.beside.waiting_sides import WaitingSides

DELAYS = "config/delayOffset.json"
TOPICS = "config/topics.json"


def delays(offset: int) -> bytes:
    return b'{"offsetTable":{1:%d}}' % offset


def found(root: Path) -> bytes:
    return (root / DELAYS).read_bytes()


def test_a_file_waits_for_its_log(tmp_path: Path) -> None:
    sides = WaitingSides(Files(), tmp_path)
    sides.add(DELAYS, delays(7), 1000)
    ends = [sides.first_end]
    assert sides.write(999) == []
    assert not (tmp_path / DELAYS).exists()
    assert sides.write(1000) == [DELAYS]
    ends.append(sides.first_end)
    assert ends == [1000, None]
    assert sides.write(2000) == []


def test_a_newer_content_for_the_same_log_replaces_the_one_that_waits(tmp_path: Path) -> None:
    sides = WaitingSides(Files(), tmp_path)
    sides.add(DELAYS, delays(7), 1000)
    sides.add(DELAYS, delays(8), 1000)
    sides.write(1000)
    assert found(tmp_path) == delays(8)
    assert not (tmp_path / f"{DELAYS}.bak").exists()


def test_a_follower_that_is_always_late_still_gets_files(tmp_path: Path) -> None:
    sides = WaitingSides(Files(), tmp_path)
    for number in range(1, 100):
        sides.add(DELAYS, delays(number), number * 100)
        if number % 10 == 0:
            sides.write(number * 100 - 550)
            behind = int(found(tmp_path).split(b":")[-1].rstrip(b"}"))
            assert behind * 100 <= number * 100 - 550
    sides.write(9900)
    assert found(tmp_path) == delays(99)


def test_files_are_written_in_their_order(tmp_path: Path) -> None:
    sides = WaitingSides(Files(), tmp_path)
    for name in reversed(GOOD):
        sides.add(name, GOOD[name], 10)
    assert sides.write(10) == list(GOOD)


def test_another_master_begins_anew(tmp_path: Path) -> None:
    sides = WaitingSides(Files(), tmp_path)
    sides.add(TOPICS, GOOD[TOPICS], 10)
    sides.forget()
    assert sides.write(10) == []


def test_what_cannot_be_used_is_refused_when_it_comes(tmp_path: Path) -> None:
    sides = WaitingSides(Files(), tmp_path)
    with pytest.raises(ValueError, match="travels"):
        sides.add("lock", b"", 0)
    with pytest.raises(ValueError, match="cannot be used"):
        sides.add(TOPICS, b"", 0)
    assert sides.first_end is None
