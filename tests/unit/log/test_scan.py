"""The one scanner: what it yields of a segment, why it stops, and how much it reads."""

import struct
from pathlib import Path
from typing import Any

import pytest

from penstock.files import Files
from penstock.format.record import MAGIC_BLANK, MAGIC_V1, RecordFields, encode_record
from penstock.format.validity import Coverage
from penstock.log.scan import Checks, StopReason, scan_segment
from penstock.log.segmented_log import SegmentedLog

CAPACITY = 4096


class CountedLog(SegmentedLog):
    """Counts what is read."""

    read_sizes: list[int]

    def read_from(self, segment: Any, log_offset: int, size: int, **how: Any) -> Any:
        self.read_sizes.append(size)
        return super().read_from(segment, log_offset, size, **how)


def log_of(folder: Path, data: bytes, *, length: int = CAPACITY) -> CountedLog:
    (folder / f"{0:020d}").write_bytes(data.ljust(length, b"\0"))
    log = CountedLog(Files(), folder, CAPACITY, mapped=False)
    log.refresh()
    log.read_sizes = []
    return log


def records(*bodies: int) -> bytes:
    made = b""
    for body in bodies:
        made += encode_record(RecordFields(topic=b"t", body=b"b" * body, log_offset=len(made)))
    return made


def scanned(
    log: CountedLog, stop: int = CAPACITY, checks: Checks | None = None, **more: Any
) -> tuple[list[int], int, StopReason]:
    """Return the log offsets of all records, where they end, and why; only the last window has another reason than MORE."""
    windows = list(scan_segment(log, log.segments[0], 0, stop, checks or Checks(), **more))
    assert all(window.stop is StopReason.MORE for window in windows[:-1])
    offsets = [offset for window in windows for offset in window.records.log_offsets.tolist()]
    return offsets, windows[-1].end_offset, windows[-1].stop


THREE = records(10, 20, 30)
PLACES = [0, 102, 214]
HEAD = struct.Struct(">ii")


@pytest.mark.parametrize("window_bytes", [1, 100, 150, 8 << 20])
@pytest.mark.parametrize(
    ("behind", "stop", "reason"),
    [
        (b"", CAPACITY, StopReason.NO_RECORD),
        (b"", len(THREE), StopReason.END),
        (HEAD.pack(CAPACITY - len(THREE), MAGIC_BLANK), CAPACITY, StopReason.FILLER),
        (b"\xff" * 9, CAPACITY, StopReason.NO_RECORD),
        (HEAD.pack(92, MAGIC_V1), CAPACITY, StopReason.INVALID),
        (HEAD.pack(CAPACITY, MAGIC_V1), CAPACITY, StopReason.CUT),
        (HEAD.pack((1 << 31) - 1, MAGIC_V1), CAPACITY, StopReason.CUT),
        (records(10), CAPACITY, StopReason.INVALID),
        (b"", len(THREE) - 1, StopReason.CUT),
        (b"", len(THREE) + 7, StopReason.CUT),
    ],
)
def test_it_says_why_the_records_end(
    tmp_path: Path, behind: bytes, stop: int, reason: StopReason, window_bytes: int
) -> None:
    log = log_of(tmp_path, THREE + behind)
    is_short = stop < len(THREE)
    places = PLACES[:2] if is_short else PLACES
    end = PLACES[2] if is_short else len(THREE)
    assert scanned(log, stop, window_bytes=window_bytes) == (places, end, reason)


def test_a_record_larger_than_the_window_is_read_by_its_size(tmp_path: Path) -> None:
    log = log_of(tmp_path, records(10, 2000, 10))
    places, _, reason = scanned(log, window_bytes=128)
    assert (len(places), reason) == (3, StopReason.NO_RECORD)
    assert len(records(0, 2000)) - len(records(0)) in log.read_sizes


def test_a_size_that_is_only_claimed_is_not_read(tmp_path: Path) -> None:
    """The file ends long before what its last head says that the record has."""
    log = log_of(tmp_path, THREE + HEAD.pack(3000, MAGIC_V1), length=len(THREE) + 100)
    assert scanned(log, window_bytes=128) == (PLACES, len(THREE), StopReason.CUT)
    assert max(log.read_sizes) < 1024


def test_what_is_checked_is_what_is_asked_for(tmp_path: Path) -> None:
    broken = THREE[:190] + b"?" + THREE[191:]
    log = log_of(tmp_path, broken)
    assert scanned(log)[1:] == (PLACES[1], StopReason.INVALID), "the body's CRC"
    assert scanned(log, checks=Checks(crc=False))[1:] == (len(THREE), StopReason.NO_RECORD)
    log = log_of(tmp_path, THREE)
    covered = Checks(Coverage.of([(PLACES[2], CAPACITY)]))
    assert scanned(log, checks=covered)[1:] == (PLACES[2], StopReason.INVALID), "no CRC of its own"


def test_a_torn_record_is_one_only_where_penstock_wrote_and_may_not_have_synced(
    tmp_path: Path,
) -> None:
    torn = encode_record(RecordFields(topic=b"t\0", body=b"b"))
    log = log_of(tmp_path, torn)
    assert scanned(log, checks=Checks(torn_from=0))[1:] == (0, StopReason.INVALID)
    assert scanned(log, checks=Checks(torn_from=1))[1:] == (len(torn), StopReason.NO_RECORD)
    assert scanned(log)[1:] == (len(torn), StopReason.NO_RECORD)
