"""What may go, when, and what never goes."""

import time
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore

import penstock
from penstock.contracts import Context, DiskUse, SegmentInfo
from penstock.errors import ReadOnlyError
from penstock.files import Files
from penstock.geometry import Geometry
from penstock.testing import ManualClock, ManualWorkers
from penstock_retention.age import AgeOptions, AgeRetention

HOUR = 3_600_000
SIZES: dict[str, Any] = {"geometry.segment_bytes": 65536}
FOUR = int(time.mktime((2026, 11, 21, 4, 30, 0, 0, 0, -1))) * 1000
DISK = DiskUse(1, 1)


def policy(**options: object) -> AgeRetention:
    context = Context(
        root=Path("/"),
        files=Files(),
        clock=ManualClock(),
        geometry=Geometry(),
        spawn=ManualWorkers(),
    )
    return AgeRetention(AgeOptions(**options), context)  # type: ignore[arg-type] # a test's own dictionary


def segments(*ages_hours: float) -> list[SegmentInfo]:
    return [
        SegmentInfo(n, 1, int(FOUR - age * HOUR), Path("x")) for n, age in enumerate(ages_hours)
    ]


@pytest.mark.parametrize(
    ("ages", "count"),
    [
        ((100, 80, 73, 71, 1), 3),
        ((100, 10, 100, 1), 1),
        ((100,), 0),
        ((100, 100), 1),
        ((), 0),
        ((72, 0), 1),
    ],
)
def test_age_lets_the_oldest_go_never_the_last(ages: tuple[float, ...], count: int) -> None:
    assert policy().vote(segments(*ages), FOUR, DISK).expired_count == count


def test_age_votes_only_at_its_hours() -> None:
    old = segments(100, 1)
    assert policy().vote(old, FOUR + HOUR, DISK).expired_count == 0
    assert policy(delete_when="3;5").vote(old, FOUR + HOUR, DISK).expired_count == 1
    assert policy(delete_when="*").vote(old, FOUR + 9 * HOUR, DISK).expired_count == 1


def test_segments_go_and_queues_and_index_follow(open_small: OpenStore, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"retention.age.reserved_hours": 0, "retention.age.delete_when": "*"}
    with open_small(spawn=ManualWorkers(), **settings) as store:
        for number in range(2000):
            store.put("t", b"x" * 200, queue=number % 2, keys=[f"k{number}"])
        assert store.retain() == 0, "nothing goes that is not durable"
        store.flush()
        store.topics()
        store.find("t", "k0")
        assert store.retain() == 9
        low = store.min_offset("t", 0)
        assert low > 0
        assert store.read("t", 0, 0).status == "OFFSET_TOO_SMALL"
        first = store.read("t", 0, low).messages[0]
        assert first.log_offset >= store.stats()["log_min_offset"] == 9 * 65536
        assert store.find("t", "k0") == []
        assert store.find("t", "k1999")
        assert not list(store.verify())
        assert store.max_offset("t", 0) == 1000
    with open_small() as store:
        assert store.recovery is not None
        assert store.recovery.state == "clean"
        assert (store.min_offset("t", 0), store.max_offset("t", 0)) == (low, 1000)
        assert not list(store.verify())
        assert store.discard_before(time_ms=1 << 60) == 0


def test_a_segment_that_is_read_stays_until_the_interval_has_passed(open_small: OpenStore) -> None:
    clock = ManualClock()
    with open_small(spawn=ManualWorkers(), clock=clock) as store:
        for _ in range(700):
            store.put("t", b"x" * 200)
        store.flush()
        store.find("t", "none")
        end = store.stats()["log_end_offset"]
        with store._log.lease(0) as held:
            view = held.view()
            assert store.discard_before(log_offset=end) == 0
            assert store._log.segments[0] is held
            clock.now_ms += 120_000
            assert store.discard_before(log_offset=end) >= 1
            assert bytes(view[4:8]).hex() == "daa320a7", "what is held can still be read"
            del view
        assert store.discard_before(log_offset=0) == 0
        assert not list(store.verify())


def test_writes_are_refused_while_a_policy_says_so(open_small: OpenStore) -> None:
    with open_small() as store:
        engine = store._engine
        assert engine is not None
        engine.retention.refusal = "the disk is 91 percent full"
        with pytest.raises(ReadOnlyError, match="91 percent"):
            store.put("t", b"x")
        engine.retention.refusal = None
        store.put("t", b"x")


def test_raw_copies_of_a_log_are_the_same_log(open_small: OpenStore, tmp_path: Path) -> None:
    with open_small() as store:
        for number in range(500):
            store.put("t", b"%d" % number * 50)
    source = tmp_path / "store"
    copy = penstock.open(tmp_path / "copy", environ={}, **SIZES)
    engine = copy._engine
    assert engine is not None
    for segment in sorted((source / "commitlog").iterdir()):
        data = segment.read_bytes()
        end = (
            65536
            if segment.name != sorted((source / "commitlog").iterdir())[-1].name
            else len(data.rstrip(b"\0")) + 2
        )
        for at in range(0, end, 32768):
            engine.log.append_raw(int(segment.name) + at, data[at : min(at + 32768, end)])
    assert [m.body for m in copy.scan("t")] == [b"%d" % n * 50 for n in range(500)]
    assert not list(copy.verify())
    with pytest.raises(LookupError):
        engine.log.append_raw(5, b"x")
    copy.close()
