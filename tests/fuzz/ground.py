"""What several fuzz targets stand on: a small store of known records, made once a process."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

from penstock.contracts import Context, Dispatcher
from penstock.contracts.base import Geometry
from penstock.contracts.dispatcher import DispatchBatch, Finding
from penstock.files import Files
from penstock.integrity.verification import Tally, Verification
from penstock.log.resync import read_batches
from penstock.log.segmented_log import SegmentedLog
from penstock.message import Message
from penstock.read.reader import Reader
from penstock.runtime.waking import Wakes
from penstock.testing import ManualClock, ManualWorkers
from penstock.testing.kit import open_store
from penstock_index.consume_queue import ConsumeQueueDispatcher, ConsumeQueueOptions
from penstock_index.hash_index import HashIndexDispatcher

SIZES = Geometry(segment_bytes=4096, queue_entries=16, index_slots=8, index_entries=32)
PLACES = (("a", 0), ("a", 1), ("b", 0))


def folder() -> Path:
    """Return a fresh folder that goes with the process."""
    path = Path(tempfile.mkdtemp(prefix="penstock-fuzz-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def messages() -> list[Message]:
    return [
        Message(
            "ab"[number % 3 // 2], b"body %d" % number, queue=number % 3 % 2,
            tag="even" if number % 2 == 0 else "", keys=["same", f"k{number}"],
        )
        for number in range(14)
    ]  # fmt: skip


class Ground:
    """The store, and what is in it. Targets put files of their own into place and read."""

    def __init__(self) -> None:
        self.root = folder() / "store"
        with open_store(self.root, retention=[], **_sizes()) as store:
            store.put_many(messages())
            store.commit_offset("group", "a", 0, offset=1)
        self.files = Files()
        self.log = SegmentedLog(self.files, self.root / "commitlog", 4096, mapped=False)
        self.log.refresh()
        self.records = {
            (batch.message(row).topic, int(batch.queues[row]), int(batch.queue_offsets[row])): batch.message(row).record
            for batch in self.batches() for row in range(len(batch))
        }  # fmt: skip
        assert len(self.records) == 14
        last = self.batches()[-1]
        self.end = int(last.log_offsets[-1] + last.sizes[-1])
        self.queue_file = self.root / "consumequeue" / "a" / "0" / f"{0:020d}"
        self.index_file = next((self.root / "index").iterdir())
        self.queue_bytes = self.queue_file.read_bytes()
        self.index_bytes = self.index_file.read_bytes()

    def batches(self) -> list[DispatchBatch]:
        return list(read_batches(self.log, 0, 4096))

    def reader(self) -> tuple[Reader, ConsumeQueueDispatcher, HashIndexDispatcher]:
        """Return a reader that has seen nothing yet."""
        context = Context(
            root=self.root, files=self.files, clock=ManualClock(), geometry=SIZES,
            spawn=ManualWorkers(), read_only=True, log_min_offset=lambda: 0,
        )  # fmt: skip
        queues = ConsumeQueueDispatcher(ConsumeQueueOptions(), context)
        index = HashIndexDispatcher(None, context)
        wakes = Wakes(self.files, self.root)
        made = Reader(self.log, queues, index, live=True, published=lambda: None, wakes=wakes)
        return made, queues, index


def _sizes() -> dict[str, Any]:
    return {
        "geometry.segment_bytes": SIZES.segment_bytes,
        "geometry.queue_entries": SIZES.queue_entries,
        "geometry.index_slots": SIZES.index_slots,
        "geometry.index_entries": SIZES.index_entries,
    }


@functools.cache
def ground() -> Ground:
    return Ground()


def verified(
    log: SegmentedLog, dispatchers: list[Dispatcher], end: int
) -> tuple[list[Finding], Tally]:
    """Verify what is there, as for a store whose writer knows its end; returns findings and counts."""
    last: list[Tally] = []
    checked = Verification(Files(), log.folder.parent, log, dispatchers, end=lambda: end)
    return list(checked.run(last.append, deep=False, jobs=1)), last[-1]
