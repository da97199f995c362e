"""Cuts of a follower's log: only at records, with everything saved that is cut off."""

from pathlib import Path

import pytest
from tests.following import SEGMENT, MasterLog, contents, findings, follow, make_log, reader

from penstock.errors import ArgumentError, CorruptionError, OffsetError
from penstock.files import Files
from penstock.log.segmented_log import SegmentedLog
from penstock.recovery.cutting import newest_before


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> MasterLog:
    return make_log(tmp_path_factory.mktemp("master") / "store")


def test_a_cut_keeps_what_is_before_it_and_saves_the_rest(log: MasterLog, tmp_path: Path) -> None:
    for number in (0, 1, 30, len(log.begins) - 2):
        root = tmp_path / str(number)
        to = log.begins[number]
        with follow(root) as store:
            store.note_coverage(log.ranges)
            store.feed(0, log.raw)
            saved = store.cut(to)
            assert saved is not None
            assert (store.end_offset, store.visible_offset, store.flushed_offset) == (to, to, to)
            assert store.stats()["waiting_bytes"] == 0
        kept = b"".join(
            each.read_bytes().ljust(SEGMENT, b"\0") if each.name.isdigit() else each.read_bytes()
            for each in sorted(
                (root / "penstock" / "saved").iterdir(), key=lambda e: e.name[0] != "c"
            )
        )
        assert kept.rstrip(b"\0") == log.raw[to:].rstrip(b"\0"), number
        with reader(root) as found:
            assert findings(found) == []
        with follow(root) as store:
            store.note_coverage(log.ranges)
            assert store.recovery.state == "clean"
            store.feed(to, log.raw[to:])
        with reader(root) as found:
            assert sum(len(each) for each in contents(found).values()) == 60 + 9 * len(log.batches)


def test_a_cut_within_a_record_or_outside_of_the_log_changes_nothing(
    log: MasterLog, tmp_path: Path
) -> None:
    with follow(tmp_path / "store") as store:
        store.feed(0, log.raw)
        for wrong in (1, log.begins[3] + 1, log.end - 1, log.end + 1, -1):
            with pytest.raises(OffsetError):
                store.cut(wrong)
        assert store.cut(log.end) is None
        assert store.end_offset == log.end
    assert not (tmp_path / "store" / "penstock" / "saved").exists()
    segments = SegmentedLog(Files(), tmp_path / "store" / "commitlog", SEGMENT, mapped=False)
    segments.load(repair=False)
    times = [newest_before(segments, at) for at in (0, log.begins[9], SEGMENT, log.end)]
    assert times == sorted(times)
    assert times[0] == 0 < times[1]
    with pytest.raises(OffsetError):
        newest_before(segments, SEGMENT + 1)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"at": -1, "newest_ms": 0}', b'{"at": "x", "newest_ms": 0}'])  # fmt: skip
def test_a_note_of_a_cut_that_cannot_be_read_is_named(tmp_path: Path, content: bytes) -> None:
    follow(tmp_path).close()
    (tmp_path / "penstock" / "cut").write_bytes(content)
    with pytest.raises(CorruptionError, match="penstock/cut"):
        follow(tmp_path)


def test_an_empty_log_begins_at_any_segment_border(log: MasterLog, tmp_path: Path) -> None:
    with follow(tmp_path / "store") as store:
        with pytest.raises(OffsetError, match="begin_at"):
            store.feed(SEGMENT, log.raw[SEGMENT:])
        for border in (2 * SEGMENT, 0, SEGMENT, SEGMENT):
            store.begin_at(border)
            assert (store.min_offset, store.end_offset, store.visible_offset) == (border,) * 3
        for wrong in (-SEGMENT, 7, SEGMENT + 1):
            with pytest.raises(ArgumentError, match="segment border"):
                store.begin_at(wrong)
        store.note_coverage(log.ranges)
        store.feed(SEGMENT, log.raw[SEGMENT:])
        with pytest.raises(ArgumentError, match="an empty log"):
            store.begin_at(2 * SEGMENT)
        assert store.digest(SEGMENT, log.end)
    with reader(tmp_path / "store") as found:
        assert findings(found) == []
        before = contents(found)
    # A full copy: everything is cut off, and the log begins elsewhere.
    with follow(tmp_path / "store") as store:
        store.cut(store.min_offset)
        store.begin_at(0)
        store.feed(0, log.raw)
    with reader(tmp_path / "store") as found:
        after = contents(found)
    assert {queue: bodies[-len(before[queue]) :] for queue, bodies in after.items()} == before
