"""A log offset where no record begins is the caller's mistake, and is told as that; corruption stays corruption."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from tests.faults.children import ROOT, environment
from tests.unit.log.test_resync import chain, flip_body
from tests.unit.log.test_scan import log_of

from penstock.errors import CorruptionError, NoRecordError, OffsetError
from penstock.log.offset_context import explain
from penstock.message import Message
from penstock.store.store import Store
from penstock.testing import ManualWorkers, open_store

SEGMENT = 64 * 1024


def filled(path: Path) -> list[tuple[int, int]]:
    """A closed store of three segments; returns log offset and size of its records."""
    with open_store(path, spawn=ManualWorkers(), retention=[]) as store:
        sent = [Message("t", b"%d:" % n + b"x" * (n * 37 % 700)) for n in range(400)]
        receipts = store.put_many(sent)
        assert len(store._log.segments) == 3
        return [(r.log_offset, r.size) for r in receipts]


@pytest.fixture(params=[True, False], ids=["beside", "writing"])
def opened(request: pytest.FixtureRequest, tmp_path: Path):  # type: ignore[no-untyped-def] # a generator of pairs
    places = filled(tmp_path / "s")
    is_beside: bool = request.param
    with open_store(
        tmp_path / "s", read_only=is_beside, retention=[], spawn=ManualWorkers()
    ) as store:
        yield store, places


@pytest.mark.slow
def test_every_offset_within_a_record_names_its_neighbours(
    opened: tuple[Store, list[tuple[int, int]]],
) -> None:
    """`penstock get STORE 5` said that the log was damaged at byte 5."""
    store, places = opened
    for (at, size), following in itertools.pairwise(places[:4]):
        for offset in range(at + 1, at + size):
            with pytest.raises(NoRecordError) as caught:
                store.at(offset)
            assert (caught.value.offset, caught.value.before) == (offset, at)
            assert caught.value.after == following[0]
            assert f"begins at {at}" in str(caught.value)
            assert "damaged" not in str(caught.value)
        assert store.at(at).log_offset == at
    last, size = places[-1]
    with pytest.raises(NoRecordError) as caught:
        store.at(last + 7)
    assert caught.value.after == last + size == store.stats()["log_end_offset"]


def test_filler_names_the_next_segment(opened: tuple[Store, list[tuple[int, int]]]) -> None:
    store, places = opened
    before = max(place for place in places if place[0] < SEGMENT)
    following = min(place for place in places if place[0] >= SEGMENT)
    for offset in {sum(before), SEGMENT - 1, SEGMENT - 7}:
        if offset < sum(before):
            continue
        with pytest.raises(NoRecordError, match="filler") as caught:
            store.at(offset)
        assert (caught.value.before, caught.value.after) == (before[0], following[0])


def test_what_is_not_written_yet_is_outside_of_the_log(
    opened: tuple[Store, list[tuple[int, int]]],
) -> None:
    store, places = opened
    end = sum(places[-1])
    for offset in (end, end + 1, 3 * SEGMENT - 1, 3 * SEGMENT - 8):
        with pytest.raises(OffsetError) as caught:
            store.at(offset)
        assert not isinstance(caught.value, NoRecordError)
        assert caught.value.high == end
    for offset in (-1, 3 * SEGMENT, 1 << 62):
        with pytest.raises(OffsetError):
            store.at(offset)


def test_a_message_id_that_points_into_a_record_is_told_as_such(
    opened: tuple[Store, list[tuple[int, int]]],
) -> None:
    store, places = opened
    message_id = store.at(places[1][0]).message_id
    wrong = f"{int(message_id, 16) + 3:032X}"
    with pytest.raises(NoRecordError):
        store.get(wrong)


@pytest.mark.parametrize("where", [4, 20, 95])
def test_corruption_stays_corruption(where: int, tmp_path: Path) -> None:
    """Magic, queue offset and body of one record: neither it nor what lies within it is the caller's mistake."""
    places = filled(tmp_path / "s")
    at, size = next(place for place in places[50:] if place[1] > 300)
    path = tmp_path / "s" / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[at + where] ^= 0x10
    path.write_bytes(data)
    with open_store(tmp_path / "s", read_only=True) as store:
        if where != 20:
            for offset in (at, at + 5, at + size - 1):
                with pytest.raises(CorruptionError):
                    store.at(offset)
        before, after = places[places.index((at, size)) - 1], places[places.index((at, size)) + 1]
        for offset, begins in ((before[0] + 5, before[0]), (after[0] + 5, after[0])):
            with pytest.raises(NoRecordError) as caught:
                store.at(offset)
            assert caught.value.before == begins


def test_a_last_record_that_is_corrupt_is_not_the_logs_end(tmp_path: Path) -> None:
    at, _size = filled(tmp_path / "s")[-1]
    path = tmp_path / "s" / "commitlog" / f"{2 * SEGMENT:020d}"
    data = bytearray(path.read_bytes())
    data[at - 2 * SEGMENT + 90] ^= 1
    path.write_bytes(data)
    with open_store(tmp_path / "s", read_only=True) as store:
        for offset in (at, at + 5):
            with pytest.raises(CorruptionError):
                store.at(offset)


@pytest.mark.slow
def test_the_command_line_says_so_and_exits_with_1(tmp_path: Path) -> None:
    places = filled(tmp_path / "s")
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "get", str(tmp_path / "s"), "5"],
        capture_output=True, text=True, cwd=ROOT, env=environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "no record begins at log offset 5" in done.stderr
    assert f"the next one at {places[1][0]}" in done.stderr
    assert "damaged" not in done.stderr


def test_an_offset_is_explained_only_where_the_log_is_intact(tmp_path: Path) -> None:
    data, (first, second, third) = chain(b"a" * 50, b"b" * 50, b"c")
    log = log_of(tmp_path, data)
    within, after = explain(log, second + 5), explain(log, len(data) + 5)
    assert isinstance(within, NoRecordError)
    assert (within.before, within.after) == (second, third)
    assert type(after) is OffsetError
    assert [explain(log, at) for at in (first, -1, 1 << 40)] == [None] * 3
    spoilt = bytearray(data)
    flip_body(spoilt, second)
    assert explain(log_of(tmp_path, bytes(spoilt)), second + 5) is None
