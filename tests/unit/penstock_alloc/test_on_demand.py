"""Files made when they are needed."""

import errno
from pathlib import Path

import pytest
from tests.conftest import power_cut

from penstock.contracts import NoOptions
from penstock.testing import ManualWorkers, SimulatedDisk, make_context
from penstock_alloc.on_demand import OnDemandAllocator

ROOT = Path("/store")
PATH = ROOT / "commitlog" / "0"


def made() -> tuple[OnDemandAllocator, SimulatedDisk, ManualWorkers]:
    disk, workers = SimulatedDisk(), ManualWorkers()
    context = make_context(ROOT, files=disk, spawn=workers)
    return OnDemandAllocator(NoOptions(), context), disk, workers


def test_nothing_is_made_ahead() -> None:
    allocator, disk, workers = made()
    allocator.expect([PATH], 8192, allocated=True)
    assert (workers.by_name, disk.entries(ROOT / "commitlog")) == ({}, [])
    assert allocator.obtain(PATH, 8192, allocated=True).size == 8192


@pytest.mark.parametrize("in_use", [True, False])
def test_a_discarded_file_is_gone_for_good(in_use: bool) -> None:
    allocator, disk, _ = made()
    allocator.obtain(PATH, 8192, allocated=False)
    allocator.discard(PATH, in_use=in_use)
    assert not power_cut(disk).exists(PATH)


def test_without_room_there_is_no_file() -> None:
    allocator, disk, _ = made()
    disk.plan.fail("allocate", errno.ENOSPC, times=1)
    with pytest.raises(OSError, match="No space"):
        allocator.obtain(PATH, 8192, allocated=True)
    assert not disk.exists(PATH)
