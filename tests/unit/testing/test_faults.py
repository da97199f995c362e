"""Calls that fail or die when told, and only then."""

import errno
from pathlib import Path

import pytest

from penstock.testing.faults import CALLS, FaultPlan, FaultyFiles, KilledError

PATH = Path("/s/commitlog/0")


def failed(plan: FaultPlan, call: str, path: Path = PATH) -> int:
    try:
        plan.check(call, path)
    except OSError as error:
        return error.errno or 0
    return 0


def test_a_call_fails_after_some_have_passed_and_so_many_times() -> None:
    plan = FaultPlan()
    plan.fail("sync", errno.EIO, after=2, times=1)
    assert [failed(plan, "sync") for _ in range(4)] == [0, 0, errno.EIO, 0]
    assert plan.counts["sync"] == 4


def test_only_the_named_call_on_the_named_path_fails() -> None:
    plan = FaultPlan()
    plan.fail("sync", errno.EIO, path="index")
    assert (failed(plan, "sync"), failed(plan, "pwrite", Path("/s/index"))) == (0, 0)
    assert failed(plan, "sync", Path("/s/index/1")) == errno.EIO
    plan.heal()
    assert failed(plan, "sync", Path("/s/index/1")) == 0


def test_one_that_died_does_no_call_again_until_it_is_healed() -> None:
    plan = FaultPlan()
    plan.die_at(2)
    plan.check("pwrite", PATH)
    for call in ("sync", "open"):
        with pytest.raises(KilledError):
            plan.check(call, PATH)
    assert plan.died_in == "sync 0"
    plan.heal()
    plan.check("sync", PATH)


def test_calls_that_change_nothing_are_not_counted_as_changes() -> None:
    plan, seen = FaultPlan(), list[str]()
    plan.watch = lambda call, path: seen.append(call)
    for call in CALLS:
        plan.check(call, PATH)
    assert seen == list(CALLS[3:])
    assert plan.total == len(CALLS) - 3


def test_real_files_fail_as_planned(tmp_path: Path) -> None:
    files = FaultyFiles()
    file = files.create(tmp_path / "a")
    files.plan.fail("pwrite", errno.ENOSPC, times=1)
    with pytest.raises(OSError, match="No space"):
        file.pwrite(b"x", 0)
    file.pwrite(b"x", 0)
    assert files.read_whole(tmp_path / "a") == b"x"
    assert files.lock(tmp_path / "lock") is not None
    files.abandon()
    assert not files.is_locked(tmp_path / "lock")
