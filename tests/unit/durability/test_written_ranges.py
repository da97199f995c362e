"""`penstock/ranges`: which ranges of the log end in a CRC, who may believe it, and what losing it costs."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from tests.conftest import SMALL

import penstock
from penstock.durability.written_ranges import (
    Ranges,
    WrittenRange,
    known_ranges,
    read_ranges,
    write_ranges,
)
from penstock.errors import CorruptionError
from penstock.files import Files
from penstock.format.validity import Coverage
from penstock.log.segmented_log import SegmentedLog
from penstock.message import StoredMessage
from penstock.store.store import Store
from penstock.testing import ManualWorkers
from penstock.testing.kit import copy_files

SETTINGS: dict[str, Any] = {**SMALL}


RECORD, BODY = {"log.checksum": "crc32+record"}, {"log.checksum": "crc32"}


def opened(path: Path, **settings: Any) -> Store:
    return penstock.open(path, environ={}, **SETTINGS, **settings)


def ranges(path: Path) -> list[tuple[int, int | None, str]]:
    found = read_ranges(Files(), path)
    assert found is not None
    return [(r.start, None if r.is_open else r.stop, r.checksum) for r in found.written]


def known(path: Path) -> list[tuple[int, bool]]:
    log = SegmentedLog(
        Files(), path / "commitlog", SETTINGS["geometry.segment_bytes"], mapped=False
    )
    log.refresh()
    return [(r.start, r.is_open) for r in known_ranges(Files(), path, log).written]


@pytest.mark.slow
def test_a_range_begins_where_the_checksum_changes(tmp_path: Path) -> None:
    path, ends = tmp_path / "s", [0]
    for settings in (RECORD, RECORD, BODY, RECORD):
        with opened(path, **settings) as store:
            store.put("t", b"x", queue=0)
            ends.append(int(str(store.stats()["log_end_offset"])))
    assert ranges(path) == [
        (0, ends[2], "crc32+record"), (ends[2], ends[3], "crc32"), (ends[3], None, "crc32+record"),
    ]  # fmt: skip
    with opened(path, read_only=True) as store:
        assert len(list(store.scan("t"))) == 4
        assert list(store.verify(deep=True)) == []


def test_a_reader_takes_in_a_range_that_begins_while_it_reads(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with opened(path, **RECORD) as store:
        store.put("t", b"one", queue=0)
    with opened(path, read_only=True) as reader:
        assert len(list(reader.scan("t"))) == 1
        with opened(path, **BODY) as store:
            store.put("t", b"two", queue=0, properties={"__CRC32C": "1234567890"})
        assert [m.body for m in reader.scan("t")] == [b"one", b"two"]
        assert reader.to_arrow("t").num_rows == 2
        assert reader.read("t", queue=0, offset=1).messages[0].body == b"two"


def test_another_program_ends_an_open_range(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with opened(path, **RECORD) as store:
        end = store.put("t", b"one", queue=0).size
    assert known(path) == [(0, True)]
    # As every writer does when it starts.
    os.utime(path / "lock", ns=(1, 1))
    assert known(path) == [(0, False)]
    with opened(path, **BODY) as store:
        store.put("t", b"two", queue=0)
    assert ranges(path) == [(0, end, "crc32+record"), (end, None, "crc32")]


def test_another_program_s_log_from_the_same_offset_on_is_not_taken_for_ours(
    tmp_path: Path,
) -> None:
    path, other = tmp_path / "s", tmp_path / "other"
    for root, settings in ((path, RECORD), (other, BODY)):
        with opened(root, **settings) as store:
            for number in range(5):
                store.put("t", b"%d" % number, queue=0)
    for name in ("commitlog", "consumequeue"):
        shutil.rmtree(path / name, ignore_errors=True)
        shutil.copytree(other / name, path / name)
    os.utime(path / "lock", ns=(1, 1))
    with opened(path, read_only=True) as store:
        assert len(list(store.scan("t"))) == 5
    with opened(path) as store:
        assert len(list(store.scan("t"))) == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b"\xff", b'{"about": 1, "crc32": 2}', None]
)
def test_a_file_that_cannot_be_understood_costs_protection_and_nothing_else(
    content: bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / "s"
    with opened(path, **RECORD) as store:
        store.put("t", b"one", queue=0)
    file = path / "penstock" / "ranges"
    if content is None:
        about = json.loads(file.read_text())
        about["about"]["ranges"][0]["start"] = 7
        content = json.dumps(about).encode()
    file.write_bytes(content)
    assert read_ranges(Files(), path) is None
    with opened(path, read_only=True) as store:
        assert len(list(store.scan("t"))) == 1
        assert any("ranges" in str(f.path) for f in store.verify(deep=True))
    with opened(path, **RECORD) as store:
        store.put("t", b"two", queue=0)
    assert [start for start, _, _ in ranges(path)] == [store_end(path, 1)]


def foreign_append(path: Path, other: Path, bodies: list[bytes]) -> None:
    """Append as a program does that writes no CRC of the whole record and knows no side folder."""
    shutil.copytree(path, other)
    shutil.rmtree(other / "penstock")
    with opened(other, **BODY) as store:
        for body in bodies:
            store.put("t", body, queue=0, keys=["k"])
    for name in ("commitlog", "consumequeue", "index"):
        shutil.rmtree(path / name, ignore_errors=True)
        shutil.copytree(other / name, path / name)
    shutil.copy2(other / "checkpoint", path / "checkpoint")
    os.utime(path / "lock", ns=(1, 1))


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 1, 4])
@pytest.mark.parametrize("appended", [1, 3, 400])
@pytest.mark.parametrize("is_killed", [False, True])
def test_where_another_program_cut_our_log_and_went_on_its_records_are_not_ours(
    kept: int, appended: int, is_killed: bool, tmp_path: Path
) -> None:
    """A broker cuts at the first record that it does not like; a copy may have marks that are younger than its log."""
    path, before = tmp_path / "s", tmp_path / "before"
    sent = [b"ours %d" % n for n in range(kept)]
    with opened(path, **RECORD) as store:
        for body in sent:
            store.put("t", body, queue=0, keys=["k"])
        store.put("t2", b"first", queue=0, keys=["k"])
        copy_files(path, before)
        for number in range(9):
            store.put("t2", b"gone %d" % number, queue=0, keys=["k"])
    theirs = [b"theirs %d" % n for n in range(appended)]
    foreign_append(before, tmp_path / "other", theirs)
    for name in ("commitlog", "consumequeue", "index"):
        shutil.rmtree(path / name, ignore_errors=True)
        shutil.copytree(before / name, path / name)
    shutil.copy2(before / "checkpoint", path / "checkpoint")
    os.utime(path / "lock", ns=(1, 1))
    if is_killed:
        (path / "abort").write_text("1")
    for read_only in (True, False, True):
        with opened(path, read_only=read_only, **RECORD) as store:
            assert [m.body for m in store.scan("t")] == [*sent, *theirs]
            assert [m.body for m in store.scan("t2")] == [b"first"]
            assert [f for f in store.verify(deep=True) if not f.is_note] == []
    with opened(path, **RECORD) as store:
        assert store.put("t", b"on we go", queue=0).queue_offset == kept + appended


def test_what_may_be_another_program_s_is_never_cut(tmp_path: Path) -> None:
    """Where the only record that has replaced ours ends in a stale CRC: nobody can tell, so nobody cuts."""
    path = tmp_path / "s"
    with opened(path, **RECORD) as store:
        last = [store.put("t", b"%d" % n, queue=0, properties={"name": "value"}) for n in range(9)][
            -1
        ]
    os.utime(path / "lock", ns=(1, 1))
    log = next((path / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    data[last.log_offset + last.size - 4] ^= 1
    log.write_bytes(data)
    with pytest.raises(CorruptionError, match="only the CRC of the whole record"), opened(path):
        pass
    assert log.read_bytes() == data


@pytest.mark.slow
def test_a_reader_that_was_open_before_verifies_what_another_program_appended(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s"
    with opened(path, **RECORD) as store:
        store.put("t", b"one", queue=0, keys=["k"])
    with opened(path, read_only=True) as reader:
        assert not list(reader.verify(deep=True))
        foreign_append(path, tmp_path / "other", [b"two", b"three"])
        # The queues' folder is another one now, which no broker does.
        assert not [f for f in reader.verify(deep=True) if f.part == "log"]


@pytest.mark.slow
@pytest.mark.parametrize("lose_ranges", [False, True])
def test_a_repair_does_not_make_another_program_s_records_ours(
    lose_ranges: bool, tmp_path: Path
) -> None:
    """Its marks said that Penstock wrote last, so that what a broker had appended became corrupt."""
    path = tmp_path / "s"
    with opened(path, **RECORD) as store:
        end = store.put("t", b"one", queue=0, keys=["k"]).size
    foreign_append(path, tmp_path / "other", [b"two", b"three"])
    if lose_ranges:
        (path / "penstock" / "ranges").write_bytes(b"?")
    index = next((path / "index").iterdir())
    data = bytearray(index.read_bytes())
    data[44:60] = b"\xff" * 16
    index.write_bytes(data)
    assert penstock.repair(path, apply=True).steps
    assert known(path) == ([] if lose_ranges else [(0, False)])
    for read_only in (True, False):
        with opened(path, read_only=read_only, **RECORD) as store:
            assert [m.body for m in store.scan("t")] == [b"one", b"two", b"three"]
            assert [f for f in store.verify(deep=True) if not f.is_note] == []
    last = sum(m.size for m in messages_of(path))
    first = [] if lose_ranges else [(0, end, "crc32+record")]
    assert ranges(path) == [*first, (last, None, "crc32+record")]


def messages_of(path: Path) -> list[StoredMessage]:
    with opened(path, read_only=True) as store:
        return list(store.scan("t"))


def store_end(path: Path, count: int) -> int:
    with opened(path, read_only=True) as store:
        return sum(m.size for m in store.read("t", queue=0, offset=0, limit=count).messages)


# --- who wrote what


def test_who_wrote_what(tmp_path: Path) -> None:
    """Between where the log was durable and where it ended, another program may have cut and written."""
    made = Ranges(
        written=(WrittenRange(start=100, stop=200, checksum="crc32"),
                 WrittenRange(start=200, stop=1 << 62, checksum="crc32+record")),
        perhaps=((0, 50),),
    )  # fmt: skip
    assert made.is_one_run(100, 5000)
    assert not made.is_one_run(0, 120)
    ended = made.ended(300, 400)
    assert [(r.start, r.stop) for r in ended.written] == [(100, 200), (200, 300)]
    assert ended.perhaps == ((0, 50), (300, 400))
    at = np.array([0, 49, 50, 99, 100, 299, 399, 400])
    assert ended.may_be_own(at).tolist() == [True, True, False, False, True, True, True, False]
    assert [ended.is_own(offset) for offset in (49, 100, 299, 300)] == [False, True, True, False]
    assert not ended.is_one_run(250, 300)
    assert ended.extended(1000, 60, "crc32").perhaps == ((300, 400),)
    noted = attrs.evolve(ended, gaps=((3, 7),), lock_mtime_ns=99)
    (tmp_path / "penstock").mkdir()
    write_ranges(Files(), tmp_path, noted)
    assert read_ranges(Files(), tmp_path) == noted
    assert noted.coverage == Coverage.of([(200, 300)])


def test_the_edges_of_a_range_are_its_first_offset_and_the_one_after_its_last() -> None:
    made = Ranges(
        written=(WrittenRange(start=10, stop=20, checksum="a"), WrittenRange(start=20, stop=30, checksum="b")),
        perhaps=((40, 50),), gaps=((12, 14), (22, 24)),
    )  # fmt: skip
    may_have = {(9, 9): False, (9, 10): True, (29, 39): True, (30, 39): False, (30, 40): True}
    may_have[50, 60] = False
    assert {pair: made.may_have_own(*pair) for pair in may_have} == may_have
    one_run = {(10, 29): True, (10, 30): False, (9, 29): False, (19, 20): True, (40, 41): False}
    assert {pair: made.is_one_run(*pair) for pair in one_run} == one_run
    ends = ((1 << 62) - 1, 1 << 62)
    found = [WrittenRange(start=0, stop=end, checksum="a") for end in ends]
    assert [each.is_open for each in found] == [False, True]


@pytest.mark.parametrize(
    ("end", "least", "checksum", "written"),
    [
        (30, 0, "b", [(10, 20), (20, None)]), (30, 0, "c", [(10, 20), (20, 30), (30, None)]),
        (31, 0, "b", [(10, 20), (20, 30), (31, None)]), (25, 0, "b", [(10, 20), (20, None)]),
        (20, 0, "b", [(10, 20), (20, None)]), (20, 0, "a", [(10, None)]), (21, 0, "a", [(10, 20), (20, 21), (21, None)]),
        (30, 20, "b", [(20, None)]), (30, 19, "b", [(10, 20), (20, None)]), (10, 0, "a", [(10, None)]),
    ],
)  # fmt: skip
def test_the_newest_range_goes_on_where_the_last_one_ends_with_its_checksum(
    end: int, least: int, checksum: str, written: list[tuple[int, int | None]]
) -> None:
    made = Ranges(
        written=(WrittenRange(start=10, stop=20, checksum="a"), WrittenRange(start=20, stop=30, checksum="b")),
    )  # fmt: skip
    found = made.extended(end, least, checksum).written
    assert [(r.start, None if r.is_open else r.stop) for r in found] == written
    assert found[-1].checksum == checksum


def test_doubtful_ranges_that_touch_become_one_and_empty_ones_none() -> None:
    made = Ranges(
        written=(WrittenRange(start=0, stop=10, checksum="a"), WrittenRange(start=10, stop=50, checksum="b")),
        perhaps=((60, 70), (50, 55), (56, 56)),
    )  # fmt: skip
    ended = made.ended(10, 65)
    assert [(r.start, r.stop) for r in ended.written] == [(0, 10)]
    assert ended.perhaps == ((10, 55), (60, 65))


# --- corruption of what is ours


def test_corruption_in_a_covered_range_refuses_writing_and_says_what_is_missing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s"
    with opened(path, flush="none", **RECORD) as store:
        last = [store.put("t", b"%d" % number, queue=0) for number in range(4)][-1]
        copy_files(path, tmp_path / "killed")
    killed = tmp_path / "killed"
    with next((killed / "commitlog").iterdir()).open("r+b") as file:
        # One digit of the CRC of a record in the middle.
        file.seek(2 * last.size - 3)
        old = file.read(1)
        file.seek(2 * last.size - 3)
        file.write(bytes([old[0] ^ 1]))
    with pytest.raises(CorruptionError) as caught, opened(killed):
        pass
    assert caught.value.position == last.size


def test_a_record_that_was_made_durable_is_never_a_torn_tail(tmp_path: Path) -> None:
    """The last record of the log, synced, and not yet in its queue: a bit of it flips, and the process is killed."""
    path, killed = tmp_path / "s", tmp_path / "killed"
    with opened(path, flush="none", spawn=ManualWorkers(), **RECORD) as store:
        last = [store.put("t", b"%d" % number, queue=0) for number in range(3)][-1]
        store.flush()
        # The same lock file: not a copy.
        shutil.copytree(path, killed)
        for name in ("commitlog", "consumequeue", "penstock"):
            shutil.rmtree(killed / name)
            shutil.copytree(path / name, killed / name)
    for name in ("commitlog", "consumequeue", "penstock"):
        shutil.rmtree(path / name)
        shutil.copytree(killed / name, path / name)
    (path / "abort").write_bytes(b"1")
    with next((path / "commitlog").iterdir()).open("r+b") as file:
        file.seek(last.log_offset + 88)
        file.write(b"x")
    with pytest.raises(CorruptionError, match="were durable") as caught, opened(path):
        pass
    assert caught.value.position == last.log_offset


def test_what_is_cut_off_is_kept(tmp_path: Path) -> None:
    path, killed = tmp_path / "s", tmp_path / "killed"
    with opened(path, flush="none", **RECORD) as store:
        store.put("t", b"one", queue=0)
        last = store.put("t", b"two" * 300, queue=0)
        copy_files(path, killed)
    with next((killed / "commitlog").iterdir()).open("r+b") as file:
        file.seek(last.log_offset + last.size - 200)
        file.write(bytes(200))
    with opened(killed) as store:
        assert store.recovery is not None
        assert store.recovery.saved_to is not None
        assert b"two" * 200 in Path(store.recovery.saved_to).read_bytes()
