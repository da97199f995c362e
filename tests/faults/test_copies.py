"""A store copied while it is written: the copy opens as after a crash, with nothing that was not there."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore

import penstock
from penstock import CorruptionError, Store
from penstock.testing import ManualClock, ManualWorkers, open_store


def test_marks_that_were_copied_later_than_the_log_are_not_believed(
    open_small: OpenStore, tmp_path: Path
) -> None:
    """A copy whose marks were younger than its log was taken for our own crash and believed up to the flushed
    offset: zeros stood where records should, and the next put went behind them."""
    store = open_small(spawn=ManualWorkers())
    for number in range(20):
        store.put("t", b"%d" % number, queue=0)
    store.flush()
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    for number in range(20, 40):
        store.put("t", b"%d" % number, queue=0)
    store.flush()
    for name in ("lock", "penstock/progress", "penstock/holder", "abort", "checkpoint"):
        shutil.copy2(tmp_path / "store" / name, tmp_path / "copy" / name)
    with open_small(path=tmp_path / "copy") as copy:
        assert copy.recovery is not None
        assert copy.recovery.state == "abnormal"
        assert [m.body for m in copy.scan("t")] == [b"%d" % n for n in range(20)]
        assert copy.put("t", b"next", queue=0).queue_offset == 20
        assert not list(copy.verify())
    store.close()


@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
@pytest.mark.parametrize("copy", [shutil.copy2, shutil.copyfile], ids=["times", "no times"])
def test_a_durable_record_that_has_changed_in_a_copy_is_not_cut_off(
    copy: Callable[..., Any], is_killed: bool, open_small: OpenStore, tmp_path: Path
) -> None:
    """It was taken for one that the copy lacks: the next put overwrote it and got its queue offset."""
    path, target = tmp_path / "store", tmp_path / "copy"
    with open_small(spawn=ManualWorkers()) as store:
        receipts = [store.put("t", b"%d" % number * 400, queue=0) for number in range(5)]
        store.flush()
        if is_killed:
            shutil.copytree(path, target, copy_function=copy)
    if not is_killed:
        shutil.copytree(path, target, copy_function=copy)
    whole = shutil.copytree(target, tmp_path / "whole", copy_function=copy)
    at = receipts[-1].log_offset + 90
    (segment,) = (target / "commitlog").iterdir()
    with segment.open("r+b") as file:
        file.seek(at)
        changed = bytes([file.read(1)[0] ^ 1])
        file.seek(at)
        file.write(changed)
    with pytest.raises(CorruptionError, match="were durable"):
        open_small(path=target)
    with open_small(path=target, read_only=True) as store:
        assert [f.log_offset for f in store.verify() if f.part == "log" and not f.is_note] == [receipts[-1].log_offset]  # fmt: skip
    (cut,) = [step for step in penstock.repair(target, environ={}).steps if step.action == "cut"]
    assert "what was on disk after it is given up" in cut.text
    with open_small(path=whole) as store:
        assert store.put("t", b"next", queue=0).queue_offset == 5


def test_a_clean_store_that_was_copied_is_still_clean(
    open_small: OpenStore, tmp_path: Path
) -> None:
    with open_small() as store:
        store.put("t", b"x", queue=0)
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    with open_small(path=tmp_path / "copy") as copy:
        assert copy.recovery is not None
        assert copy.recovery.state == "clean"


def lose_the_end(way: str, store: Store, path: Path, copy: Path, end: int) -> Path:
    """Close the store, and let its log, or that of a copy that was begun before, end earlier; return where that is."""
    if way.startswith("copied"):
        begun = shutil.ignore_patterns(*(each.name for each in copy.iterdir()))
        shutil.copytree(path, copy, ignore=begun, dirs_exist_ok=True)
    store.close()
    if way == "copied and repaired":
        assert penstock.repair(copy, apply=True).applied
    elif way == "cut":
        penstock.open_follower(path, cut_at=end, environ={}).close()
    elif way in ("repaired", "zeroed"):
        with (path / "commitlog" / ("0" * 20)).open("r+b") as file:
            file.seek(end + 90 * (way == "repaired"))
            file.write(b"\xff" * 9 if way == "repaired" else bytes(2000))
        penstock.repair(path, apply=True, cut=True)
    return copy if way.startswith("copied") else path


@pytest.mark.parametrize("way", ["copied", "copied and repaired", "cut", "repaired", "zeroed"])
def test_what_was_delivered_in_an_end_that_the_log_has_lost_is_delivered_again(
    way: str, tmp_path: Path
) -> None:
    """The files that count timers and prepared messages were believed, so these were lost."""
    clock, path = ManualClock(), tmp_path / "store"
    expected = [b"level", b"prepared", b"timer"]

    def passed(path: Path, seconds: int) -> tuple[Store, ManualWorkers]:
        workers = ManualWorkers()
        store = open_store(path, clock=clock, spawn=workers)
        for _ in range(seconds):
            clock.now_ms += 1000
            workers.run_all()
        return store, workers

    store, workers = passed(path, 0)
    store.put("orders", b"timer", queue=0, delay=5)
    store.put("orders", b"level", queue=0, delay_level=2)
    prepared = store.prepare("orders", b"prepared", queue=0, group="g")
    end = store.stats()["log_end_offset"]
    store.flush()
    # A repair makes all agree with the log, and what the next opening would see of a copy is gone then.
    others = ("penstock", "consumequeue", "index") if way == "copied and repaired" else ()
    for name in ("commitlog", *others):
        shutil.copytree(path / name, tmp_path / "copy" / name)
    prepared.commit()
    for _ in range(60):
        clock.now_ms += 5000
        workers.run_all()
    assert sorted(m.body for m in store.scan("orders")) == expected
    path = lose_the_end(way, store, path, tmp_path / "copy", end)
    for _ in range(2):
        store, _ = passed(path, 12)
        for each in store.prepared():
            each.commit()
        assert sorted(m.body for m in store.scan("orders")) == expected
        store.close()


def test_offsets_that_cannot_be_read_keep_no_timer_from_being_delivered_again(
    tmp_path: Path,
) -> None:
    clock, path, end = ManualClock(), tmp_path / "store", 0
    for is_cut in (False, True):
        workers = ManualWorkers()
        store = open_store(path, clock=clock, spawn=workers)
        if not is_cut:
            store.put("others", b"1", queue=0)
            store.commit_offset("g", "others", 0, offset=1)
            store.put("orders", b"timer", queue=0, delay=5)
            end = store.stats()["log_end_offset"]
        for _ in range(12):
            clock.now_ms += 1000
            workers.run_all()
        assert [m.body for m in store.scan("orders")] == [b"timer"]
        store.close()
        if not is_cut:
            penstock.open_follower(path, cut_at=end, environ={}).close()
            for each in (path / "config").glob("consumerOffset.json*"):
                each.write_bytes(b"no offsets")


@pytest.mark.parametrize("way", ["copied", "cut"])
@pytest.mark.parametrize("days", [2.5, 3.2])
def test_a_timer_that_was_put_again_meanwhile_is_delivered_once_by_a_copy_and_after_a_cut(
    way: str, days: float, tmp_path: Path
) -> None:
    """Both records were taken in, where the files that say how far all is did not count."""
    clock, path = ManualClock(), tmp_path / "store"

    def passed(path: Path, days: float) -> Store:
        workers = ManualWorkers()
        store = open_store(path, clock=clock, spawn=workers)
        if not store.topics():
            store.put("orders", b"x", queue=0, delay=3 * 86_400)
        for _ in range(100):
            clock.now_ms += int(days * 864_000)
            workers.run_all()
        return store

    store = passed(path, days)
    end = store.stats()["log_end_offset"]
    store.put("others", b"y", queue=0)
    store.close()
    if way == "cut":
        penstock.open_follower(path, cut_at=end, environ={}).close()
    else:
        shutil.copytree(path, tmp_path / "copy")
        path = tmp_path / "copy"
    store = passed(path, 2)
    assert [m.body for m in store.scan("orders")] == [b"x"]
    assert not store.delayed()
    store.close()
