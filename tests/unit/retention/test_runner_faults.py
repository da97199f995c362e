"""Retention when something else is wrong: a policy, a plugin, a disk, another thread, a reader."""

import errno
import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock.contracts import DiskUse, RetentionPolicy, SegmentInfo, Vote
from penstock.errors import ReadOnlyError, StorageError, StoreClosedError
from penstock.store.store import Store
from penstock.testing import FaultyFiles, ManualClock, ManualWorkers, open_store

SEGMENT = 64 * 1024
ALL: dict[str, Any] = {
    "retention": ["size"], "retention.size.bytes_max": 0, "retention.pause_ms": 0,
}  # fmt: skip
Said = Callable[[Sequence[SegmentInfo]], Any]


def policy_that(says: Said) -> type[RetentionPolicy]:
    class TestPolicy(RetentionPolicy):
        name: ClassVar[str] = "under-test"

        def vote(self, segments: Sequence[SegmentInfo], now_ms: int, disk: DiskUse) -> Vote:
            return says(segments)  # type: ignore[no-any-return] # wrong answers are the point

    return TestPolicy


def boom(_segments: Sequence[SegmentInfo]) -> Vote:
    raise ZeroDivisionError("the policy's own mistake")


def opened(path: Path, **given: Any) -> Store:
    return open_store(path, **{"spawn": ManualWorkers(), **ALL, **given})


def fill(store: Store, segments: int) -> None:
    """Put so many messages that the log has this many segments."""
    while len(store._log.segments) < segments:
        store.put("t", b"x" * 1000)


def retention_of(store: Store) -> Any:
    assert store._engine is not None
    return store._engine.retention


def bases(store: Store) -> list[int]:
    """Return the offsets of the files that lie there."""
    return sorted(int(path.name) for path in (store.path / "commitlog").iterdir())


# --- policies that are wrong


@pytest.mark.parametrize(
    ("said", "gone"), [(-1, 0), (-1000, 0), (0, 0), (2, 2), (6, 5), (1 << 70, 5)]
)
def test_a_vote_out_of_range_never_takes_what_it_does_not_name(
    said: int, gone: int, tmp_path: Path
) -> None:
    """-1 was once read as "all but the last"."""
    policy = policy_that(lambda _: Vote(said, "so it says"))
    with opened(tmp_path / "s", strategies=[policy], retention=["under-test"]) as store:
        fill(store, 6)
        assert store.retain() == gone
        assert bases(store) == [number * SEGMENT for number in range(gone, 6)]


@pytest.mark.parametrize("says", [boom, lambda _: None, lambda _: Vote("x", "y")])  # type: ignore[arg-type] # wrong on purpose
def test_a_policy_that_fails_has_no_say_and_harms_nobody(
    says: Said, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(
        tmp_path / "s", strategies=[policy_that(says)], retention=["under-test", "size"]
    ) as store:
        fill(store, 3)
        assert "under-test" in store.forecast(1)[-2].reason or store.forecast(1)[0].is_now
        assert store.retain() == 2
        fill(store, 3)
        assert store.retain() == 2
        assert store.retain() == 0
        store.put("t", b"still")
    told = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert len(told) == 1, "once, not every ten seconds"
    assert "'under-test'" in told[0].getMessage()


def test_a_failing_policy_in_the_background_does_not_stop_the_store(tmp_path: Path) -> None:
    """It once ended the thread, and with that all writing."""
    asked = threading.Event()

    def says(segments: Sequence[SegmentInfo]) -> Vote:
        asked.set()
        return boom(segments)

    policy = policy_that(says)
    given: dict[str, Any] = {"retention": ["under-test"], "retention.interval_ms": 1}
    with open_store(tmp_path / "s", strategies=[policy], **given) as store:
        for _ in range(3):
            asked.clear()
            assert asked.wait(30)
        store.put("t", b"still")
        assert store.stats()["failure"] is None


def test_the_reason_for_staying_names_every_policy(tmp_path: Path) -> None:
    policies = [policy_that(lambda _: Vote(0, "not today"))]
    with opened(
        tmp_path / "s", strategies=policies, retention=["under-test", "size"],
        **{"retention.size.bytes_max": 1 << 20},
    ) as store:  # fmt: skip
        fill(store, 3)
        said = [departure.reason for departure in store.forecast(1)]
        assert said == ["not today; the log has 0.1875 MiB, within the limit of 1 MiB"] * 2 + [
            "the last segment is never deleted"
        ]


# --- a disk that fails


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
        store.find("t", "none")
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


def test_a_close_while_a_file_cannot_be_removed_leaves_a_whole_log(tmp_path: Path) -> None:
    files = FaultyFiles()
    with opened(tmp_path / "s", files=files) as store:
        fill(store, 6)
        store.flush()
        files.plan.fail("remove", errno.EIO, path="commitlog")
        with pytest.raises(StorageError, match="Input/output"):
            store.retain()
    with opened(tmp_path / "s") as store:
        assert bases(store) == [number * SEGMENT for number in range(6)]
        assert not list(store.verify())
        assert store.retain() == 5


def test_an_index_that_cannot_be_trimmed_holds_up_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path / "s") as store:
        fill(store, 4)
        first, second = retention_of(store)._dispatchers
        trim, first.trim = first.trim, boom
        trimmed: list[int] = []
        second.trim = trimmed.append
        assert store.retain() == 3
        assert trimmed == [3 * SEGMENT]
        assert "could not be trimmed" in caplog.text
        first.trim = trim
        assert store.retain() == 0
        assert trimmed == [3 * SEGMENT] * 2, "tried again, though nothing went"
        store.retain()
        assert len(trimmed) == 2
        assert store.read("t", 0, 0).status == "OFFSET_TOO_SMALL"


# --- readers and other threads


@pytest.mark.slow
def test_a_held_segment_goes_though_no_policy_asks_for_it_any_more(tmp_path: Path) -> None:
    """It is closed to readers from the first try on, so it must not lie there until tomorrow."""
    clock, workers = ManualClock(), ManualWorkers()
    votes = [Vote(1, "now"), Vote(0, "no more"), Vote(0, "the disk is full", refuse_writes=True)]
    policy = policy_that(lambda _: votes.pop(0) if len(votes) > 1 else votes[0])
    with opened(
        tmp_path / "s", clock=clock, spawn=workers, strategies=[policy], retention=["under-test"]
    ) as store:
        fill(store, 4)
        with store._log.lease(0):
            for _ in range(3):
                workers.run("penstock-retain")
                clock.now_ms += 59_000
                assert bases(store)[0] == 0
            with pytest.raises(ReadOnlyError, match="the disk is full"):
                store.put("t", b"policies are asked all the while")
            workers.run("penstock-retain")
        assert bases(store) == [SEGMENT, 2 * SEGMENT, 3 * SEGMENT], "it, and nothing else"


def test_close_waits_for_a_round_in_another_thread(tmp_path: Path) -> None:
    """What it removed after the lock was let go might have been another process's by then."""
    store = opened(tmp_path / "s")
    fill(store, 4)
    in_hook, go_on = threading.Event(), threading.Event()

    def hook(_info: SegmentInfo, _reason: str) -> bool:
        in_hook.set()
        return go_on.wait(30)

    retention = retention_of(store)
    retention.on_expired = hook
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
    assert len(bases(store)) == 4
    assert retention.run() == 0, "and nothing goes afterwards"
    assert len(bases(store)) == 4


def test_a_plugin_may_close_the_store_from_its_hook(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    fill(store, 4)

    def hook(_info: SegmentInfo, _reason: str) -> bool:
        store.close()
        return True

    retention_of(store).on_expired = hook
    assert store.retain() == 0
    with pytest.raises(StoreClosedError):
        store.retain()
    assert len(bases(store)) == 4
    with opened(tmp_path / "s") as again:
        assert again.recovery is not None
        assert again.recovery.state == "clean"


@pytest.mark.slow
def test_ten_is_the_most_also_when_a_round_ends_what_another_began(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path / "s", clock=clock) as store:
        fill(store, 20)
        with store._log.lease(0):
            assert store.retain() == 0
            clock.now_ms += 120_000
            assert store.retain() == 10
        assert bases(store)[0] == 10 * SEGMENT
        numbers = [base // SEGMENT for base in bases(store)]
        assert all(b == a + 1 for a, b in itertools.pairwise(numbers))


def test_asking_every_segment_keeps_no_file_open(tmp_path: Path) -> None:
    """Each was left open once, and a store of a thousand segments ran out of descriptors."""
    with open_store(tmp_path / "s", retention=["age"], spawn=ManualWorkers()) as store:
        for _ in range(60):
            store.put("t", b"x" * 60_000)
            store.flush()
    with open_store(tmp_path / "s", retention=["age"], spawn=ManualWorkers()) as store:
        before = len(list(Path("/proc/self/fd").iterdir()))
        store.retain()
        store.forecast()
        assert store.stats()["segments"] == 60
        assert len(list(Path("/proc/self/fd").iterdir())) <= before
