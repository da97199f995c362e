"""`verify` of a store that was copied while it was written: one finding for what copying explains, and no more."""

import itertools
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.crash.writer import SMALL, body
from tests.faults.children import TIMES, writing
from tests.lanes import explored

import penstock
from penstock.contracts.dispatcher import Finding
from penstock.store.store import Store
from penstock.testing import ManualWorkers, open_store
from penstock.testing.kit import copy_store, messages

GROUPS = ("commitlog", "consumequeue", "index", "penstock", "checkpoint", "lock")
Copy = Callable[..., Any]
SEGMENT = 64 * 1024


def found(path: Path) -> list[Finding]:
    with open_store(path, read_only=True) as store:
        return list(store.verify(deep=True))


def take(source: Path, target: Path, group: str, copy: Copy) -> None:
    """Copy one group of a store's files as they are now; the abort marker comes with the lock."""
    target.mkdir(exist_ok=True)
    names = [group, "abort"] if group == "lock" else [group]
    for name in names:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, copy_function=copy)
        else:
            copy(source / name, target / name)


def copy_in_steps(store: Store, workers: ManualWorkers, target: Path, order: tuple[str, ...], copy: Copy) -> None:  # fmt: skip
    """Copy a store group by group, and put, dispatch and mark more between them."""
    workers.run("penstock-follow")
    for number, group in enumerate(order):
        take(store.path, target, group, copy)
        store.put_many(messages(150, first=1000 + 150 * number))
        store.flush()
        workers.run("penstock-follow")
        workers.run("penstock-mark")


ORDERS = [
    GROUPS,
    GROUPS[::-1],
    *random.Random(14).sample(list(itertools.permutations(GROUPS)), 12),
]


@pytest.mark.parametrize("copy", [shutil.copy2, shutil.copyfile], ids=["times", "no times"])
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_what_a_copy_in_any_order_explains_is_one_finding(
    order: tuple[str, ...], copy: Copy, tmp_path: Path
) -> None:
    """A copy whose log came first had a finding for each entry and mark that was ahead of it, 40 and more; and
    one without file times was taken for another program's store."""
    workers, target = ManualWorkers(), tmp_path / "copy"
    with open_store(tmp_path / "s", spawn=workers, retention=[]) as store:
        store.put_many(messages(300))
        copy_in_steps(store, workers, target, order, copy)
        sent = [m.body for m in store.scan("topic-0", queue=0)]
    findings = found(target)
    # Queues and marks that lag the log are no findings at all, as after a crash.
    assert len(findings) == 1 or (not findings and order.index("commitlog") > 0)
    for finding in findings:
        assert finding.part == "copy"
        assert "copied while it was written" in finding.text
        assert "open the copy for writing" in finding.what_now
    with open_store(target, retention=[]) as healed:
        bodies = [m.body for m in healed.scan("topic-0", queue=0)]
        assert bodies
        assert bodies == sent[: len(bodies)]
        assert healed.put("topic-0", b"next", queue=0).queue_offset == len(bodies)
        assert not list(healed.verify(deep=True))
    assert found(target) == []


@pytest.mark.parametrize("copy", [shutil.copy2, shutil.copyfile], ids=["times", "no times"])
@pytest.mark.parametrize("order", [GROUPS, GROUPS[::-1]], ids=["log first", "log last"])
@pytest.mark.parametrize("where", ["first record", "third segment", "last record but one"])
def test_corruption_in_an_unfinished_copy_is_still_corruption(
    where: str, order: tuple[str, ...], copy: Copy, tmp_path: Path
) -> None:
    workers, target = ManualWorkers(), tmp_path / "copy"
    with open_store(tmp_path / "s", spawn=workers, retention=[]) as store:
        receipts = store.put_many(messages(1000))
        copy_in_steps(store, workers, target, order, copy)
    at = {
        "first record": 0,
        "third segment": next(r.log_offset for r in receipts if r.log_offset > 2 * SEGMENT),
        "last record but one": receipts[-2].log_offset,
    }[where]
    base = at // SEGMENT * SEGMENT
    with (target / "commitlog" / f"{base:020d}").open("r+b") as file:
        file.seek(at - base + 90)
        old = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([old[0] ^ 1]))
    findings = found(target)
    assert [(f.part, f.log_offset) for f in findings if f.part != "copy"] == [("log", at)]
    assert sum(f.part == "copy" for f in findings) <= 1


def test_a_queue_entry_that_points_elsewhere_is_not_explained_by_copying(tmp_path: Path) -> None:
    workers, target = ManualWorkers(), tmp_path / "copy"
    with open_store(tmp_path / "s", spawn=workers, retention=[]) as store:
        store.put_many(messages(300))
        copy_in_steps(store, workers, target, GROUPS, shutil.copy2)
    queue = target / "consumequeue" / "topic-0" / "0" / f"{0:020d}"
    with queue.open("r+b") as file:
        file.seek(20 * 5 + 6)
        file.write(b"\x7f")
    assert [f.part for f in found(target) if f.part != "copy"] == ["queue"]


def test_a_crashed_store_that_was_not_copied_has_its_findings_one_by_one(tmp_path: Path) -> None:
    """Its lock file is the one that its writer noted; a queue entry after the log's end is told as such."""
    workers, target = ManualWorkers(), tmp_path / "copy"
    with open_store(tmp_path / "s", spawn=workers, retention=[]) as store:
        store.put_many(messages(300))
        copy_in_steps(store, workers, target, GROUPS, shutil.copy2)
    # What the writer noted of its lock file is made true for the copy's.
    copy_store(target, tmp_path / "stands")
    assert {f.part for f in found(tmp_path / "stands")} >= {"log", "marks"}


def test_a_copy_of_a_closed_store_is_judged_as_a_closed_store(tmp_path: Path) -> None:
    with open_store(tmp_path / "s", retention=[]) as store:
        store.put_many(messages(300))
    copiers: list[Copy] = [shutil.copy2, shutil.copyfile]
    for number, copy in enumerate(copiers):
        target = tmp_path / f"copy{number}"
        shutil.copytree(tmp_path / "s", target, copy_function=copy)
        assert found(target) == []
        shutil.rmtree(target / "consumequeue" / "topic-0" / "0")
        assert "queue" in {f.part for f in found(target)}


WAYS = {
    "cp -a": "cp -a {store} {copy}",
    "cp -r": "cp -r {store} {copy}",
    "tar": "mkdir {copy} && tar -C {store} -cf - . | tar -C {copy} -xf -",
    "tar by name": "mkdir {copy} && tar -C {store} --sort=name -cf - . | tar -C {copy} -xf -",
    "shutil": "",
}


def copier(number: int) -> Copy:
    """Return one that keeps a file's times, or one that does not."""
    return shutil.copy2 if number % 2 else shutil.copy


@contextmanager
def suppress_vanished() -> Iterator[None]:
    """Pass over files that were made beside their place, and had got their names, or were gone, when their turn came."""
    try:
        yield
    except shutil.Error as error:
        if not all(Path(source).name.startswith("new-") for source, _, _ in error.args[0]):
            raise


def was_copied_in_pieces(copy: Path, source: Path, finding: Finding) -> bool:
    """Say whether the copy has zeros where the source, which only grows, has bytes, and no other bytes.

    A program that is held up between two pieces of a file leaves a hole, in the middle of a record if the writer was
    held up there.
    """
    if finding.part == "log":
        base = finding.log_offset // SMALL["geometry.segment_bytes"] * SMALL["geometry.segment_bytes"]  # fmt: skip
        files = [copy / "commitlog" / f"{base:020d}"]
    else:
        files = [file for file in finding.path.rglob("*") if file.is_file()]
    has_holes = False
    for file in files:
        copied = np.fromfile(file, np.uint8)
        wrote = np.fromfile(source / file.relative_to(copy), np.uint8)[: len(copied)]
        differs = copied[: len(wrote)] != wrote
        if copied[: len(wrote)][differs].any():
            return False
        has_holes |= bool(differs.any())
    return has_holes


@pytest.mark.sampled(4)
@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("way", WAYS)
def test_a_copy_in_the_middle_of_heavy_writing_has_one_finding_at_most(
    way: str, flush: str, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    with writing(path, flush):
        for number in range(explored(4 * TIMES, least=2)):
            copy = tmp_path / f"copy{number}"
            with penstock.open(path, read_only=True, environ={}) as before:
                sure = before.max_offset("t", 0)
            if way == "shutil":
                with suppress_vanished():
                    shutil.copytree(path, copy, copy_function=copier(number))
            else:
                done = subprocess.run(
                    WAYS[way].format(store=path, copy=copy), shell=True, check=False
                )
                assert done.returncode in (0, 1)
            with penstock.open(copy, read_only=True, environ={}) as store:
                findings = list(store.verify(deep=True))
            # A program that skips what is not written yet, or reads in pieces, may leave a hole: corruption.
            others = [f for f in findings if f.part != "copy"]
            for hole in others:
                assert hole.part in {"log", "queue"}, "\n".join(map(str, findings))
                assert was_copied_in_pieces(copy, path, hole), "\n".join(map(str, findings))
            assert sum(f.part == "copy" for f in findings) <= 1
            if others:
                shutil.rmtree(copy)
                continue
            with penstock.open(copy, environ={}, **SMALL) as store:
                bodies = [m.body for m in store.scan("t")]
                assert bodies == [body(n) for n in range(len(bodies))]
                assert store.max_offset("t", 0) >= sure
                assert not list(store.verify(deep=True))
            with penstock.open(copy, read_only=True, environ={}) as store:
                assert not list(store.verify(deep=True))
            shutil.rmtree(copy)


def test_a_copy_during_which_the_writer_closed_is_recovered(tmp_path: Path) -> None:
    """Its log is older than its clean-close file, which is no corruption: what was copied first is what there is."""
    target = tmp_path / "copy"
    with open_store(tmp_path / "s", spawn=ManualWorkers(), retention=[]) as store:
        store.put_many(messages(300))
        store.flush()
        take(store.path, target, "commitlog", shutil.copy2)
        store.put_many(messages(150, first=1000))
    for group in GROUPS[1:-1]:
        take(tmp_path / "s", target, group, shutil.copy2)
    shutil.copy2(tmp_path / "s" / "lock", target / "lock")
    with open_store(target, spawn=ManualWorkers()) as store:
        assert sum(1 for topic in store.topics() for _ in store.scan(topic)) == 300
