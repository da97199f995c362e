"""`config/timercheck`, as brokers write it."""

from pathlib import Path
from struct import pack

import pytest

from penstock.files import Files
from penstock_messaging.timers.timer_check import TimerCheck, path_of, read_check, write_check


def test_what_is_written_is_read_and_counted(tmp_path: Path) -> None:
    files = Files()
    assert read_check(files, tmp_path) is None
    first = write_check(files, tmp_path, TimerCheck(1000, 52, 3), 77)
    assert path_of(tmp_path).read_bytes()[:56] == pack(">7q", 1000, 52, 3, 3, 0, 77, 1)
    assert read_check(files, tmp_path) == first
    assert write_check(files, tmp_path, first, 78).version == (0, 78, 2)
    assert len(path_of(tmp_path).read_bytes()) == 4096


def test_of_two_offsets_the_lower_one_counts_and_other_bytes_are_kept(tmp_path: Path) -> None:
    path_of(tmp_path).parent.mkdir()
    path_of(tmp_path).write_bytes(pack(">7q", 1, 2, 9, 5, 4, 3, (1 << 63) - 1) + b"more" * 1010)
    found = read_check(Files(), tmp_path)
    assert found is not None
    assert (found.queue_offset, found.version[0]) == (5, 4)
    assert write_check(Files(), tmp_path, found, 6).version == (4, 6, 1)
    assert path_of(tmp_path).read_bytes()[56:] == b"more" * 1010


def test_a_file_of_an_older_broker_has_no_version(tmp_path: Path) -> None:
    path_of(tmp_path).parent.mkdir()
    path_of(tmp_path).write_bytes(pack(">4q", 1, 2, 3, 4))
    assert read_check(Files(), tmp_path) == TimerCheck(1, 2, 3)
    path_of(tmp_path).write_bytes(b"1234")
    with pytest.raises(ValueError, match="has 4 bytes"):
        read_check(Files(), tmp_path)
