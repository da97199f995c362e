"""A process killed before a name was durable, one that acts on what it sees, and then a power cut. No Spark in here."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from penstock.testing import ManualClock, SimulatedDisk
from penstock.testing.platter import Image, Survival
from penstock_spark.export_folder import Exported
from penstock_spark.jobs.messages import Plan
from penstock_spark.source.stream_state import KeptStart
from penstock_spark.stores import keep_folder

ROOT = Path("/data/root")
ABOUT = {"source": "a"}
START = {"t": {"0": 5}}
Job = Callable[[SimulatedDisk], object]


def images_of(disk: SimulatedDisk, job: Job) -> list[Image]:
    """Return the disk before each call of a job, and after it."""
    found: list[Image] = []
    disk.plan.watch = lambda *_: found.append(disk.image())
    job(disk)
    disk.plan.watch = None
    return [*found, disk.image()]


def after(image: Image, survival: Survival) -> SimulatedDisk:
    return SimulatedDisk.after(image, survival, Random(1), clock=ManualClock())


def made() -> SimulatedDisk:
    disk = SimulatedDisk(clock=ManualClock())
    for folder in (ROOT.parent, ROOT):
        disk.make_folder_durably(folder)
    return disk


def plan_of(disk: SimulatedDisk) -> list[int] | None:
    plan = Plan(ROOT, "app", disk)
    return plan.batches if plan.load(ABOUT) else None


def start_of(disk: SimulatedDisk) -> object:
    return KeptStart(ROOT, "g", disk).read()


@pytest.mark.parametrize(
    ("write", "read"),
    [
        (lambda disk: Plan(ROOT, "app", disk).save(ABOUT, [1, 2]), plan_of),
        (lambda disk: KeptStart(ROOT, "g", disk).write(START, begun=False), start_of),
    ],
    ids=["plan", "start"],
)
def test_what_was_acted_upon_is_there_after_a_power_cut(
    write: Job, read: Callable[[SimulatedDisk], object]
) -> None:
    seen = 0
    for image in images_of(made(), write):
        killed = after(image, Survival.PROCESS)
        found = read(killed)
        if found is None:
            # Nothing to act upon: the next one writes it, into folders that are there already.
            write(killed)
            found = read(killed)
        else:
            seen += 1
        assert found is not None
        assert read(after(killed.image(), Survival.NONE)) == found
    assert seen >= 2


def test_a_folder_that_was_found_is_as_durable_as_one_that_was_made() -> None:
    folder = ROOT / "a" / "b" / "c"
    for image in images_of(made(), lambda disk: keep_folder(disk, folder, ROOT)):
        killed = after(image, Survival.PROCESS)
        keep_folder(killed, folder, ROOT)
        assert after(killed.image(), Survival.NONE).is_folder(folder)


def test_an_export_syncs_a_folder_that_it_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(
        "penstock_spark.export_folder.Files.sync_folder", lambda _, path: synced.append(path)
    )
    folder = tmp_path / "topic=t" / "date=2026-03-01"
    folder.mkdir(parents=True)
    Exported(tmp_path)._make_folder(folder)
    assert synced == [folder.parent]
