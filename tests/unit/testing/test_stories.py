"""Time and threads in a test's hands, stories, their exploration by crashes and failures, and strategies put to the test."""

import errno
from pathlib import Path
from typing import Any

import attrs
import pytest

from penstock.contracts import FlushPolicy
from penstock.store.store import Store
from penstock.testing import SimulatedDisk
from penstock.testing.check import CheckResult, Step, explore_kills, suite_of
from penstock.testing.crash import Case, Plot, explore, plot_for, replay
from penstock.testing.failures import ERRNOS, Failure, explore_failures
from penstock.testing.faults import CALLS
from penstock.testing.kit import (
    SMALL,
    InlineWorkers,
    ManualClock,
    ManualWorkers,
    WrittenLog,
    copy_store,
    make_context,
    messages,
    open_store,
)
from penstock.testing.platter import Survival
from penstock.testing.story import Story, bodies_of
from penstock_alloc.allocators import OnDemandAllocator
from penstock_alloc.writers import FileWriter
from penstock_flush.policies import NoFlush
from penstock_index.consume_queue import ConsumeQueueDispatcher
from penstock_index.hash_index import HashIndexDispatcher
from penstock_retention.policies import SizeRetention


def test_a_clock_stands_still_until_it_is_set() -> None:
    clock = ManualClock(1000)
    assert (clock.time_ms(), clock.monotonic_ms()) == (1000, 1000)
    clock.now_ms += 5
    assert (clock.monotonic_ns(), clock.thread_ns()) == (1_005_000_000, 1_005_000_000)


def test_a_manual_worker_runs_when_the_test_says_so() -> None:
    ran, workers = list[int](), ManualWorkers()
    worker = workers("w", lambda: ran.append(1))
    worker.wake()
    assert (ran, worker.is_awake) == ([], True)
    workers.run("w")
    workers.run_all()
    worker.stop()
    assert ran == [1, 1]
    with pytest.raises(KeyError):
        workers.run("none")


def test_an_inline_worker_runs_when_it_is_woken_and_not_within_itself() -> None:
    ran, workers = list[int](), InlineWorkers()

    def step() -> None:
        ran.append(1)
        worker.wake()

    worker = workers("w", step)
    worker.wake()
    worker.wake()
    assert ran == [1, 1]


def test_an_inline_worker_that_raised_runs_again() -> None:
    ran, workers = list[int](), InlineWorkers()

    def step() -> None:
        ran.append(1)
        raise ValueError("no")

    worker = workers("w", step)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            worker.wake()
    assert ran == [1, 1]


def test_messages_are_told_apart_by_their_bodies() -> None:
    made = messages(20, first=5)
    assert [message.body.partition(b":")[0] for message in made] == [b"%d" % n for n in range(5, 25)]  # fmt: skip
    assert len({(message.topic, message.queue) for message in made}) == 6


def test_a_context_has_its_folders_and_small_files() -> None:
    disk = SimulatedDisk()
    context = make_context(Path("/s"), files=disk)
    assert context.geometry is SMALL
    assert disk.is_folder(Path("/s/penstock"))
    assert disk.is_folder(Path("/s/commitlog"))


def test_a_written_log_has_what_was_sent_and_can_lose_its_head(tmp_path: Path) -> None:
    log = WrittenLog(tmp_path / "s", 700)
    assert len(log.offsets()) == len(log.sent) == 700
    log.lose_head(1)
    assert log.view.min_offset == SMALL.segment_bytes
    assert len(log.offsets()) < 700


def test_two_logs_are_alike_as_far_as_that_is_asked(tmp_path: Path) -> None:
    one, other = (WrittenLog(tmp_path / name, 30, alike=alike) for name, alike in (("a", 10), ("b", None)))  # fmt: skip
    assert one.sent[:10] == other.sent[:10]
    assert one.sent[10] != other.sent[10]


def test_a_copy_of_a_store_is_opened_as_if_it_had_crashed(tmp_path: Path) -> None:
    with open_store(tmp_path / "s", retention=[]) as store:
        store.put("t", b"x", queue=0)
        store.flush()
        copy_store(tmp_path / "s", tmp_path / "copy")
    with open_store(tmp_path / "copy", retention=[]) as copy:
        assert copy.recovery is not None
        assert copy.recovery.state == "abnormal"
        assert copy.max_offset("t", 0) == 1
    with pytest.raises(FileNotFoundError):
        copy_store(tmp_path / "none", tmp_path / "x")


def played(seed: int, steps: int = 12) -> tuple[list[str], Story, Store]:
    disk, clock, workers = SimulatedDisk(), ManualClock(), InlineWorkers()
    story = Story(seed, clock)

    def opened() -> Store:
        return open_store(Path("/s"), files=disk, clock=clock, spawn=workers, retention=[])

    story.begin(opened(), workers)
    names = []
    for step in story.steps(steps):
        names.append(step)
        if step == "reopen":
            story.close()
            store = opened()
            story.begin(store, workers)
    return names, story, story.store


def test_the_same_seed_tells_the_same_story() -> None:
    (one, first, _), (other, second, _) = played(3), played(3)
    assert one == other
    assert first.sent == second.sent
    assert played(4)[1].sent != first.sent


def test_a_story_ends_with_a_clean_close_after_which_all_is_durable() -> None:
    names, story, store = played(5)
    assert names[-1] == "reopen"
    promised = story.promised()
    assert promised.durable == promised.kept == promised.count == len(story.sent)
    assert set(bodies_of(store)) <= set(story.sent)
    assert story.is_open


PLOT = Plot(seed=2, steps=4)


@pytest.mark.slow
def test_a_few_cases_of_a_short_story_find_nothing_wrong() -> None:
    outcomes = list(explore(PLOT, cases=4))
    assert [outcome.problem for outcome in outcomes] == [""] * len(outcomes)
    assert sum(outcome.states for outcome in outcomes) >= len(outcomes) >= 4


def test_a_case_is_played_again() -> None:
    outcome = replay(PLOT, Case(9, Survival.NONE))
    assert (outcome.case, outcome.problem) == (Case(9, Survival.NONE), "")
    assert outcome.call == replay(PLOT, Case(9, Survival.NONE)).call


def test_a_plot_says_how_to_play_it_again_and_deletes_nothing_by_itself() -> None:
    command = PLOT.command(Case(7, Survival.BYTE))
    assert "--seed 2 --steps 4 --point 7 --survival byte" in command
    assert PLOT.settings == {"retention": []}
    assert attrs.evolve(PLOT, settings={"retention": ["size"]}).settings == {"retention": ["size"]}


def test_a_plot_for_a_strategy_uses_it() -> None:
    for cls, kind in ((FileWriter, "write"), (NoFlush, "flush"), (HashIndexDispatcher, "index"), (SizeRetention, "retention")):  # fmt: skip
        plot = plot_for(cls)
        assert cls in plot.strategies
        assert any(key.split(".")[0] == kind and cls.name in value for key, value in plot.settings.items())  # fmt: skip
    assert issubclass(NoFlush, FlushPolicy)


@pytest.mark.slow
def test_a_few_failures_of_a_short_story_break_no_promise() -> None:
    outcomes = list(explore_failures(Plot(seed=1, steps=4), 3, kinds=("pwrite", "sync", "create")))
    assert [outcome.failure.call for outcome in outcomes] == ["pwrite", "sync", "create"]
    assert [outcome.problem for outcome in outcomes] == [""] * 3


def test_a_failure_says_which_call_and_how_often() -> None:
    assert str(Failure("sync", errno.EIO, 4, 1)) == "EIO at sync number 5, once"
    assert str(Failure("sync", errno.EIO, 0, None)) == "EIO at sync number 1, from then on"


def test_every_call_that_may_fail_has_an_error_that_it_may_give() -> None:
    assert set(ERRNOS) == set(CALLS) - {"sync_volume"}
    assert all(ERRNOS.values())


@pytest.mark.slow
def test_a_store_survives_death_at_points_spread_over_the_story(tmp_path: Path) -> None:
    outcomes = list(explore_kills(tmp_path, Plot(seed=1, steps=3), 2))
    assert len(outcomes) >= 2
    for outcome in outcomes:
        assert (outcome.problem, outcome.case.survival) == ("", Survival.PROCESS)
        assert outcome.call
    points = [outcome.case.point for outcome in outcomes]
    assert points == sorted(set(points))


def result(**given: Any) -> CheckResult:
    return CheckResult(**{
        "kind": "flush", "name": "own", "contract": "FlushPolicy", "plugin": "p", "distribution": "penstock-own",
        "version": "1.0", "steps": [Step(name="a", about="it holds")], **given,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "cls", "suite"),
    [
        ("index", ConsumeQueueDispatcher, "QueueIndexContract"), ("index", HashIndexDispatcher, "KeyIndexContract"),
        ("alloc", OnDemandAllocator, "AllocatorContract"),
    ],
)  # fmt: skip
def test_a_class_has_the_suite_of_what_it_is(kind: str, cls: Any, suite: str) -> None:
    assert suite_of(kind, cls) == suite


def test_one_that_keeps_its_contract_is_told_with_its_steps() -> None:
    assert result().sentence == "flush strategy 'own' of penstock-own 1.0 meets the contract FlushPolicy: 1 of 1 steps"  # fmt: skip
    assert result().failed == []


def test_a_fault_is_the_plugins_unless_the_built_in_one_has_it_too() -> None:
    steps = [Step(name="a", about="it holds"), Step(name="b", about="it lasts", failure="no")]
    broken = result(steps=steps)
    assert broken.failed == steps[1:]
    assert "breaks the contract FlushPolicy at step b (it lasts): no; the plugin is at fault" in broken.sentence  # fmt: skip
    other = result(steps=steps, blames_strategy=False).sentence
    assert "also fails here for the built-in strategy 'async'" in other
    assert "is at fault, not flush strategy 'own'" in other
