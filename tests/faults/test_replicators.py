"""What a store with a replicator keeps when it is interrupted, and when the machine stops."""

from pathlib import Path
from typing import Any

import pytest
from tests.conftest import power_cut
from tests.faults.interrupts import Interrupt
from tests.folder_replicator import FolderReplicator
from tests.replicators import ScriptedReplicator

from penstock.format.record import decode_record
from penstock.message import Durability, Message, PutStatus
from penstock.testing import InlineWorkers, ManualWorkers, SimulatedDisk, open_store

ROOT = Path("/s")


@pytest.mark.parametrize("flush", ["sync", "none"])
@pytest.mark.parametrize("way", ["put", "put_many", "submit"])
def test_an_interrupt_anywhere_in_a_put_leaves_the_store_usable(
    tmp_path: Path, way: str, flush: str
) -> None:
    number, is_interrupted = 0, True
    with open_store(
        tmp_path / "s", strategies=[ScriptedReplicator], replicate="scripted", flush=flush,
        spawn=InlineWorkers(),
    ) as store:  # fmt: skip
        store.put("t", b"before")

        def put() -> object:
            if way == "put_many":
                return store.put_many([Message("t", b"one"), Message("t", b"two")])
            if way == "submit":
                return store.submit("t", b"one").result(timeout=10)
            return store.put("t", b"one")

        while is_interrupted:
            number += 1
            is_interrupted = Interrupt(number).during(put)
            assert store.put("t", b"after").status is PutStatus.PUT_OK
        assert number > 3
        bodies = [message.body for message in store.scan("t")]
        assert bodies.count(b"after") == number
        assert bodies.count(b"one") >= 1
        assert not list(store.verify())


@pytest.mark.parametrize("flush", ["sync", "async", "none"])
def test_what_is_on_disk_there_survives_a_power_cut_there(flush: str) -> None:
    """Both are on one simulated disk; only what was synced is left of it."""
    disk, workers = SimulatedDisk(), InlineWorkers()
    store = open_store(
        ROOT, files=disk, spawn=workers, strategies=[FolderReplicator], replicate="folder", flush=flush,
    )  # fmt: skip
    receipts = [store.put("t", b"%d" % number * 500) for number in range(300)]
    left = power_cut(disk)
    wanted = Durability.REPLICATED if flush == "sync" else Durability.ON_DISK_THERE
    for number, receipt in enumerate(receipts):
        assert receipt.durability in (wanted, Durability.REPLICATED)
        base = receipt.log_offset - receipt.log_offset % (64 * 1024)
        file = left.open(Path("/s-copy") / f"{base:020d}")
        record = file.pread(receipt.size, receipt.log_offset - base)
        assert decode_record(record).body == b"%d" % number * 500
        file.close()


def test_a_copy_behind_does_not_stop_retention_nor_puts(tmp_path: Path) -> None:
    """The copy's thread does not run while segments are deleted; afterwards it begins at the new head."""
    workers = ManualWorkers()
    given: dict[str, Any] = {"replicate.folder.waits": False}
    with open_store(
        tmp_path / "s", strategies=[FolderReplicator], replicate="folder", spawn=workers, **given
    ) as store:
        for number in range(200):
            store.put("t", b"%d" % number * 500)
        store.flush()
        assert store.discard_before(log_offset=2 * 64 * 1024) == 2
        for _ in range(3):
            workers.run("folder-copy")
        (state,) = store.stats()["copies"]
        assert state["flushed_offset"] == store.stats()["log_end_offset"]
        assert (state["lag_bytes"], state["last_error"]) == (0, None)
