"""A master says how far its copies are, for other processes."""

import time
from pathlib import Path

from tests.ha_peers import MemoryLog, context_of
from tests.scripted_masters import put_some, serving

from penstock.files import Files
from penstock_replicate.following.follow import follow
from penstock_replicate.roles.master_status import MasterStatus
from penstock_replicate.roles.status_file import ReplicaStatus, StatusFile


def test_a_master_lists_its_copies(tmp_path: Path) -> None:
    with serving(tmp_path / "m") as (store, address):
        end = put_some(store, 5)
        with follow(tmp_path / "c", address) as follower:
            assert follower.wait_caught_up(10, log_offset=end)
            deadline = time.monotonic() + 10
            while True:
                found = StatusFile(Files(), tmp_path / "m").read()
                if found is not None and found.copies and found.copies[0].received_offset == end:
                    break
                assert time.monotonic() < deadline, found
                time.sleep(0.05)
        assert (found.role, found.state, found.address, found.epoch) == ("master", "listening", address, 1)  # fmt: skip
        assert (found.end_offset, found.copies[0].kind) == (end, "penstock")
    found = StatusFile(Files(), tmp_path / "m").read()
    assert found is not None
    assert found.state == "stopped"


def test_a_status_that_cannot_be_written_is_left_out(tmp_path: Path) -> None:
    made = ReplicaStatus(role="master", state="listening", pid=1, time_ms=0)
    # There is no folder penstock/.
    status = MasterStatus(context_of(tmp_path), MemoryLog(tmp_path), lambda: (), made)
    status.finish()
    assert StatusFile(Files(), tmp_path).read() is None
