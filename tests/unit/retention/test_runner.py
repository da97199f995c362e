"""What goes, when, and what never goes: votes, failing policies, disks and plugins, readers, other threads."""

import errno
import itertools
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Listen
from tests.hooked import hooked
from tests.lanes import eventually
from tests.unit.retention.stores import (
    SEGMENT,
    Said,
    bases,
    boom,
    fill,
    opened,
    opened_and_held,
    policy_that,
)

from penstock.contracts import DiskUse, SegmentInfo, Vote
from penstock.errors import ReadOnlyError, StorageError, StoreClosedError
from penstock.retention.runner import RetentionDecision, consult
from penstock.testing import FaultyFiles, ManualClock, ManualWorkers, make_context, open_store
from penstock_index.consume_queue import ConsumeQueueDispatcher
from penstock_index.hash_index import HashIndexDispatcher

# --- what several policies ask for together: the largest vote counts, and any may refuse writes


def asked(path: Path, *votes: Vote, segments: int = 10) -> RetentionDecision:
    context = make_context(path)
    policies = []
    for number, vote in enumerate(votes):
        cls = policy_that(lambda _, vote=vote: vote, f"voter-{number}")  # type: ignore[misc] # a default binds it
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
    # Each policy that asks for so many says why, and is named.
    assert verdict.reason == "; ".join([f"wants {going}"] * counts.count(going))
    assert verdict.voters == tuple(
        f"voter-{at}" for at, count in enumerate(counts) if count == going
    )


@pytest.mark.parametrize(
    ("count", "segments", "going"), [(10, 10, 9), (99, 3, 2), (1, 1, 0), (1, 0, 0), (-5, 3, 0)]
)
def test_a_vote_is_held_within_what_there_is_without_the_last(
    tmp_path: Path, count: int, segments: int, going: int
) -> None:
    assert asked(tmp_path, Vote(count, "so many"), Vote(0, "none"), segments=segments).going == going  # fmt: skip


def test_any_policy_may_refuse_writes_and_the_first_that_does_says_why(tmp_path: Path) -> None:
    calm, full = Vote(5, "calm"), Vote(0, "full", refuse_writes=True)
    fuller = Vote(1, "fuller", refuse_writes=True)
    assert asked(tmp_path, calm, calm).refusal is None
    assert asked(tmp_path, calm, full).refusal == "full"
    assert asked(tmp_path, full, calm).refusal == "full"
    assert asked(tmp_path, calm, fuller, full).refusal == "fuller"
    assert asked(tmp_path, calm, full).going == 5, "who refuses does not outvote the others"


def test_an_offset_and_a_time_that_are_both_given_are_not_added_up(tmp_path: Path) -> None:
    with opened(tmp_path / "s", retention=[]) as store:
        fill(store, 8)
        store.flush()
        for path in sorted((tmp_path / "s" / "commitlog").iterdir())[:2]:
            os.utime(path, (1_000_000_000, 1_000_000_000))
        assert store.discard_before(log_offset=3 * SEGMENT, time=1_000_000_005) == 3
        assert store.stats()["log_min_offset"] == 3 * SEGMENT


def test_who_makes_room_need_not_wait_for_the_next_round_to_write(tmp_path: Path) -> None:
    """Writes were refused; the segments went, and the policy says in the same round that it is well now."""
    full = policy_that(lambda found: Vote(2, "over three segments", refuse_writes=len(found) > 3))
    with opened(tmp_path / "s", strategies=[full], retention=["under-test"]) as store:
        fill(store, 5)
        assert store.retain() == 2
        store.put("t", b"there is room", queue=0)
        fill(store, 6)
        assert store.retain() == 2
        with pytest.raises(ReadOnlyError, match="over three segments"):
            store.put("t", b"there is none", queue=0)


# --- what goes, and what follows it


def test_a_segment_goes_only_when_every_dispatcher_has_all_of_it(tmp_path: Path) -> None:
    """Not when its first record is dispatched: what it has besides would never be found."""
    is_failing, clock = [False], ManualClock()
    index = hooked(HashIndexDispatcher, "dispatch", lambda _: is_failing[0] and 1 / 0)
    given: dict[str, Any] = {"strategies": [index], "retention": ["size"], "clock": clock}
    with opened(tmp_path / "s", **given) as store:

        def reached() -> int:
            return int(store.stats()["dispatchers"]["hash-index"]["progress"])

        fill(store, 2)
        assert SEGMENT < reached() < 2 * SEGMENT
        is_failing[0] = True
        fill(store, 7)
        assert SEGMENT < reached() < 2 * SEGMENT
        assert store.retain() == 1
        assert store.stats()["log_min_offset"] == SEGMENT
        is_failing[0] = False
        clock.now_ms += 60_000  # it is tried again after a pause
        assert store.retain() == 5


def test_at_most_ten_go_a_round_with_pauses_that_a_close_cuts_short(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        fill(store, 16)
        assert store.retain() == 10
        assert store.stats()["segments"] == 6
    store = opened(tmp_path / "s", **{"retention.pause_ms": 600_000})
    round_ = threading.Thread(target=store.retain)
    round_.start()
    eventually(lambda: store.stats()["segments"] < 6, "the first segment is gone")
    store.close()
    round_.join(30)
    assert not round_.is_alive()


# --- policies that are wrong


@pytest.mark.parametrize("says", [boom, lambda _: None, lambda _: Vote("x", "y")])  # type: ignore[arg-type] # wrong on purpose
def test_a_policy_that_fails_has_no_say_and_harms_nobody(
    says: Said, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(
        tmp_path / "s", strategies=[policy_that(says)], retention=["under-test", "size"]
    ) as store:
        fill(store, 3)
        assert (
            "under-test" in store.lowlevel.forecast(1)[-2].reason
            or store.lowlevel.forecast(1)[0].is_now
        )
        assert store.retain() == 2
        fill(store, 3)
        assert store.retain() == 2
        assert store.retain() == 0
        store.put("t", b"still", queue=0)
    told = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert len(told) == 1, "once, not every ten seconds"
    assert "'under-test'" in told[0].getMessage()


def test_a_policy_that_fails_goes_on_refusing_puts_until_it_says_otherwise(tmp_path: Path) -> None:
    """It guards a full disk: its exception let the puts go on."""
    answers = [Vote(0, "full", refuse_writes=True), None, Vote(0, "calm"), None]
    policy = policy_that(lambda _: answers.pop(0))
    workers = ManualWorkers()
    with opened(
        tmp_path / "s", strategies=[policy], retention=["under-test"], spawn=workers
    ) as store:
        for _ in range(2):
            store.retain()
            with pytest.raises(ReadOnlyError, match="full"):
                store.put("t", b"x", queue=0)
        for _ in range(2):
            store.retain()
            store.put("t", b"x", queue=0)


def test_a_failing_policy_in_the_background_does_not_stop_the_store(tmp_path: Path) -> None:
    """It once ended the thread, and with that all writing."""
    asked = threading.Event()

    def says(segments: Sequence[SegmentInfo]) -> Vote:
        asked.set()
        raise ZeroDivisionError

    given: dict[str, Any] = {"retention": ["under-test"], "retention.interval_ms": 1}
    with open_store(tmp_path / "s", strategies=[policy_that(says)], **given) as store:
        for _ in range(3):
            asked.clear()
            assert asked.wait(30)
        store.put("t", b"still", queue=0)
        assert store.stats()["failure"] is None


# --- disks and indexes that fail


@pytest.mark.parametrize("call", ["remove", "sync_folder"])
@pytest.mark.parametrize("alloc", ["on-demand", "recycle"])
def test_a_file_that_cannot_be_removed_holds_up_all_later_ones(
    call: str, alloc: str, tmp_path: Path
) -> None:
    """Or the log had a hole: the next round went on with the segment behind it."""
    files = FaultyFiles()
    call = "rename" if (alloc, call) == ("recycle", "remove") else call
    with opened(tmp_path / "s", files=files, alloc=alloc) as store:
        fill(store, 6)
        store.flush()
        store.find("none", "t")
        files.plan.fail(call, errno.EIO, path="commitlog")
        for _ in range(3):
            with pytest.raises(StorageError, match="Input/output"):
                store.retain()
        assert bases(store)[-5:] == [number * SEGMENT for number in range(1, 6)]
        assert store.min_offset("t", 0) > 0, "queues follow all the same"
        files.plan.heal()
        assert store.retain() == 5
        assert bases(store) == [5 * SEGMENT]
        assert not list(store.verify())


def test_an_index_that_cannot_be_trimmed_holds_up_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    is_failing, trimmed = [True], list[int]()
    queues = hooked(ConsumeQueueDispatcher, "trim", lambda _: is_failing[0] and 1 / 0)
    index = hooked(HashIndexDispatcher, "trim", trimmed.append)
    with opened(tmp_path / "s", strategies=[queues, index]) as store:
        fill(store, 4)
        trimmed.clear()
        assert store.retain() == 3
        assert trimmed == [3 * SEGMENT]
        assert "could not be trimmed" in caplog.text
        is_failing[0] = False
        assert store.retain() == 0
        assert trimmed == [3 * SEGMENT] * 2, "tried again, though nothing went"
        store.retain()
        assert len(trimmed) == 2
        assert store.read("t", 0, 0).status == "OFFSET_TOO_SMALL"


def test_asking_every_segment_keeps_no_file_open(tmp_path: Path) -> None:
    """Each was left open once, and a store of a thousand segments ran out of descriptors."""
    with open_store(tmp_path / "s", retention=["age"], spawn=ManualWorkers()) as store:
        for _ in range(60):
            store.put("t", b"x" * 60_000, queue=0)
            store.flush()
    with open_store(tmp_path / "s", retention=["age"], spawn=ManualWorkers()) as store:
        before = len(list(Path("/proc/self/fd").iterdir()))
        store.retain()
        store.lowlevel.forecast()
        assert store.stats()["segments"] == 60
        assert len(list(Path("/proc/self/fd").iterdir())) <= before


# --- readers that hold a segment


@pytest.mark.slow
def test_a_segment_that_is_read_stays_until_the_interval_has_passed_and_then_ten_go(
    tmp_path: Path,
) -> None:
    """Ten are the most also when a round ends what another began."""
    clock = ManualClock()
    with opened(tmp_path / "s") as store:
        fill(store, 20)
    store, release = opened_and_held(tmp_path / "s", clock=clock)
    with store:
        end = store.stats()["log_end_offset"]
        assert store.discard_before(log_offset=end) == store.retain() == 0
        assert bases(store)[0] == 0
        clock.now_ms += 120_000
        assert store.retain() == 10
        numbers = [base // SEGMENT for base in bases(store)]
        assert numbers[0] == 10
        assert all(b == a + 1 for a, b in itertools.pairwise(numbers))
        release()
        assert store.discard_before(log_offset=0) == 0
        assert not list(store.verify())


@pytest.mark.slow
def test_a_held_segment_goes_though_no_policy_asks_for_it_any_more(tmp_path: Path) -> None:
    """It is closed to readers from the first try on, so it must not lie there until tomorrow."""
    clock, workers = ManualClock(), ManualWorkers()
    votes = [Vote(1, "now"), Vote(0, "no more"), Vote(0, "the disk is full", refuse_writes=True)]
    policy = policy_that(lambda _: votes.pop(0) if len(votes) > 1 else votes[0])
    with opened(tmp_path / "s") as store:
        fill(store, 4)
    given: dict[str, Any] = {"strategies": [policy], "retention": ["under-test"]}
    store, release = opened_and_held(tmp_path / "s", clock=clock, spawn=workers, **given)
    with store:
        for _ in range(3):
            workers.run("penstock-retain")
            clock.now_ms += 59_000
            assert bases(store)[0] == 0
        with pytest.raises(ReadOnlyError, match="the disk is full"):
            store.put("t", b"policies are asked all the while", queue=0)
        workers.run("penstock-retain")
        release()
        assert bases(store) == [SEGMENT, 2 * SEGMENT, 3 * SEGMENT], "it, and nothing else"


# --- plugins, which are asked before a segment goes

EXPIRED = "penstock_segment_expired"


def test_a_plugin_archives_a_segment_before_it_goes_or_keeps_it(
    listen: Listen, tmp_path: Path
) -> None:
    archive: dict[str, bytes] = {}
    has_room = False

    def hook(path: str) -> None:
        assert has_room
        archive[Path(path).name] = Path(path).read_bytes()

    listen(EXPIRED, "path", hook)
    with opened(tmp_path / "s") as store:
        fill(store, 6)
        whole = (tmp_path / "s" / "commitlog" / f"{0:020d}").read_bytes()
        end = store.stats()["log_end_offset"]
        assert store.discard_before(log_offset=end) == 0, "there is no archive, so it stays"
        assert store.stats()["log_min_offset"] == 0
        has_room = True
        assert store.discard_before(log_offset=end) == 5
        assert len(archive) == 5
        assert archive[f"{0:020d}"] == whole
        assert not list(store.verify())


def test_close_waits_for_a_round_in_another_thread(listen: Listen, tmp_path: Path) -> None:
    """What it removed after the lock was let go might have been another process's by then."""
    in_hook, go_on = threading.Event(), threading.Event()

    def hook(_path: str) -> None:
        in_hook.set()
        assert go_on.wait(30)

    listen(EXPIRED, "path", hook)
    store = opened(tmp_path / "s")
    fill(store, 4)
    gone: list[int] = []
    round_ = threading.Thread(target=lambda: gone.append(store.retain()))
    round_.start()
    assert in_hook.wait(30)
    closing = threading.Thread(target=store.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    go_on.set()
    for thread in (round_, closing):
        thread.join(30)
        assert not thread.is_alive()
    assert gone == [0]
    assert len(bases(store)) == 4, "and nothing goes afterwards"


def test_a_plugin_may_close_the_store_from_its_hook(listen: Listen, tmp_path: Path) -> None:
    listen(EXPIRED, "path", lambda _path: store.close())
    store = opened(tmp_path / "s")
    fill(store, 4)
    assert store.retain() == 0
    with pytest.raises(StoreClosedError):
        store.retain()
    assert len(bases(store)) == 4
    with opened(tmp_path / "s") as again:
        assert again.recovery is not None
        assert again.recovery.state == "clean"
