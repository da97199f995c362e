"""What several retention policies ask for together: the largest vote counts, and any may refuse writes."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.contracts import DiskUse, RetentionPolicy, SegmentInfo, Vote
from penstock.errors import ReadOnlyError
from penstock.retention.runner import RetentionDecision, consult
from penstock.store.store import Store
from penstock.testing import ManualWorkers, open_store
from penstock.testing.kit import make_context

SEGMENT = 64 * 1024


def voter(vote: Vote, called: str) -> type[RetentionPolicy]:
    """Return a policy that says one thing."""

    class Voter(RetentionPolicy):
        name = called

        def vote(self, segments: Sequence[SegmentInfo], now_ms: int, disk: DiskUse) -> Vote:
            return vote

    return Voter


def asked(path: Path, *votes: Vote, segments: int = 10) -> RetentionDecision:
    context = make_context(path)
    policies = []
    for number, vote in enumerate(votes):
        cls = voter(vote, f"voter-{number}")
        policies.append(cls(cls.Options(), context))
    infos = [SegmentInfo(n * SEGMENT, SEGMENT, n, Path(str(n))) for n in range(segments)]
    return consult(policies, infos, 1, DiskUse(1, 1))


@pytest.mark.parametrize(
    ("counts", "going"),
    [((2, 3), 3), ((3, 2), 3), ((2, 2), 2), ((0, 1), 1), ((1, 0), 1), ((1, 1, 1), 1), ((4, 9), 9)],
)
def test_votes_are_not_added_up(counts: tuple[int, ...], going: int, tmp_path: Path) -> None:
    verdict = asked(tmp_path, *(Vote(count, f"wants {count}") for count in counts))
    assert verdict.going == going
    # Each policy that asks for so many says why.
    assert verdict.reason == "; ".join([f"wants {going}"] * counts.count(going))


def test_the_last_segment_is_not_counted_in_whatever_is_voted(tmp_path: Path) -> None:
    assert asked(tmp_path, Vote(10, "all"), Vote(1, "one"), segments=10).going == 9
    assert asked(tmp_path, Vote(1, "all"), segments=1).going == 0
    assert asked(tmp_path, Vote(1, "all"), segments=0).going == 0


def test_any_policy_may_refuse_writes_and_the_first_that_does_says_why(tmp_path: Path) -> None:
    calm, full = Vote(5, "calm"), Vote(0, "full", refuse_writes=True)
    fuller = Vote(1, "fuller", refuse_writes=True)
    assert asked(tmp_path, calm, calm).refusal is None
    assert asked(tmp_path, calm, full).refusal == "full"
    assert asked(tmp_path, full, calm).refusal == "full"
    assert asked(tmp_path, calm, fuller, full).refusal == "fuller"
    assert asked(tmp_path, calm, full).going == 5, "who refuses does not outvote the others"


def test_two_policies_of_a_store_take_what_the_larger_vote_names(tmp_path: Path) -> None:
    policies = [voter(Vote(2, "two"), "two"), voter(Vote(3, "three"), "three")]
    given: dict[str, Any] = {"retention": ["two", "three"], "retention.pause_ms": 0}
    with open_store(tmp_path / "s", strategies=policies, spawn=ManualWorkers(), **given) as store:
        for _ in range(8 * 60):
            store.put("t", b"x" * 1000)
        first = store.stats()["log_min_offset"]
        assert first == 0
        assert [departure.is_now for departure in store.forecast(1)].count(True) == 3
        assert store.retain() == 3
        assert store.stats()["log_min_offset"] == 3 * SEGMENT


def filled(path: Path, segments: int, **given: Any) -> Store:
    """Return a store of so many segments, nobody else at work."""
    store = open_store(path, spawn=ManualWorkers(), **{"retention.pause_ms": 0, **given})
    while store.stats()["segments"] < segments:
        store.put("t", b"x" * 1000)
    return store


def test_an_offset_and_a_time_that_are_both_given_are_not_added_up(tmp_path: Path) -> None:
    with filled(tmp_path / "s", 8) as store:
        old = [segment.path for segment in store._log.segments[:2]]
        store.flush()
        for path in old:
            os.utime(path, (1_000_000_000, 1_000_000_000))
        assert store.discard_before(log_offset=3 * SEGMENT, time_ms=1_000_000_005_000) == 3
        assert store.stats()["log_min_offset"] == 3 * SEGMENT


def test_a_segment_goes_only_when_every_dispatcher_has_all_of_it(tmp_path: Path) -> None:
    """Not when its first record is dispatched: what it has besides would never be found."""
    policies = [voter(Vote(5, "five"), "five")]
    given: dict[str, Any] = {"strategies": policies, "retention": ["five"]}
    with filled(tmp_path / "s", 2, **given) as store:
        engine: Any = store._engine
        store.topics()
        reached, index = engine.follower.progress, engine.dispatchers[1]
        dispatch, index.dispatch = index.dispatch, None
        while store.stats()["segments"] < 7:
            store.put("t", b"x" * 1000)
        assert SEGMENT < reached < 2 * SEGMENT
        assert index.progress == reached
        assert store.retain() == 1
        assert store.stats()["log_min_offset"] == SEGMENT
        index.dispatch = dispatch
        engine.follower.finish()
        assert store.retain() == 5


def test_who_makes_room_need_not_wait_for_the_next_round_to_write(tmp_path: Path) -> None:
    """Writes were refused; the segments went, and the policy says in the same round that it is well now."""

    class Full(RetentionPolicy):
        name = "full"

        def vote(self, segments: Sequence[SegmentInfo], now_ms: int, disk: DiskUse) -> Vote:
            return Vote(2, "over three segments", refuse_writes=len(segments) > 3)

    given: dict[str, Any] = {"strategies": [Full], "retention": ["full"]}
    with filled(tmp_path / "s", 5, **given) as store:
        assert store.retain() == 2
        store.put("t", b"there is room")
        while store.stats()["segments"] < 6:
            store.put("t", b"x" * 1000)
        assert store.retain() == 2
        with pytest.raises(ReadOnlyError, match="over three segments"):
            store.put("t", b"there is none")
