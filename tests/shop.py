"""A store that a test opens, closes and kills, and whose clock and threads it runs."""

from pathlib import Path
from typing import Any

import attrs

from penstock import Message, Receipt, Store, StoredMessage
from penstock.files.lock_file import Lock
from penstock.testing import FaultyFiles, ManualClock, ManualWorkers, open_store
from penstock.testing.kit import copy_store
from penstock_messaging.extension import MessagingExtension
from penstock_messaging.properties_text import TIMER_TOPIC

WORKER = "penstock-timers"
DAY = 86_400_000
# The second in which the tests begin.
NOW = 1_700_000_000_000


@attrs.define
class Shop:
    root: Path
    files: FaultyFiles = attrs.Factory(FaultyFiles)
    clock: ManualClock = attrs.Factory(ManualClock)
    workers: ManualWorkers = attrs.Factory(ManualWorkers)
    settings: dict[str, Any] = attrs.Factory(dict)
    opened: Store | None = None

    def open(self, **more: Any) -> Store:
        self.workers = ManualWorkers()
        self.opened = open_store(
            self.root, files=self.files, clock=self.clock, spawn=self.workers,
            **{**self.settings, **more},
        )  # fmt: skip
        return self.opened

    @property
    def store(self) -> Store:
        return self.opened or self.open()

    def close(self) -> None:
        opened, self.opened = self.opened, None
        if opened is not None:
            opened.close()

    def kill(self) -> None:
        """Go on with a copy of the files, which holds all that was passed to the system."""
        copy = copy_store(self.root, self.root.with_name(self.root.name + "-killed"))
        self.close()
        self.root = copy

    def step(self, worker: str, after_ms: int = 0) -> float | None:
        """Advance the clock and run one round of a thread; returns its pause in seconds."""
        self.clock.now_ms += after_ms
        return self.workers.run(worker)

    def later(self, after_ms: int) -> None:
        """Run all threads, advance the clock, and run them until what one of them leaves to another is done."""
        self.workers.run_all()
        self.clock.now_ms += after_ms
        for _ in range(4):
            self.workers.run_all()

    def bodies(self, topic: str = "orders", queue: int = 0) -> list[bytes]:
        there = queue in self.store.topics(system=True).get(topic, [])
        return [message.body for message in self.store.scan(topic, queue=queue)] if there else []

    def stored(self, message: Message, text: bytes) -> StoredMessage:
        """Store a record with any properties text, as another program may."""
        return self.store.at(self.store.lowlevel.put_copies([(message, text)])[0].log_offset)

    @property
    def messaging(self) -> MessagingExtension:
        extension = self.store.lowlevel.extension("messaging")
        assert isinstance(extension, MessagingExtension)
        return extension


class TimerShop(Shop):
    """A store with timer messages, the delivery of which the test runs."""

    def put(self, body: bytes, delay_ms: int, topic: str = "orders", **more: Any) -> Receipt:
        return self.store.put(topic, body, delay=delay_ms / 1000, **{"queue": 0, **more})

    def put_raw(self, body: bytes, text: bytes) -> Receipt:
        """Put what another program has written to the timer topic."""
        return self.store.lowlevel.put_copies([(Message(TIMER_TOPIC, body, queue=0), text)])[0]

    def run(self, *, after_ms: int = 0) -> float | None:
        """Advance the clock, run rounds until nothing is left to do, and return the pause in seconds."""
        self.clock.now_ms += after_ms
        while True:
            pause = self.workers.run(WORKER)
            if pause != 0:
                return pause

    @property
    def has_thread(self) -> bool:
        return WORKER in self.workers.by_name

    def stats(self) -> dict[str, Any]:
        return self.messaging.timers.stats()


class KillableFiles(FaultyFiles):
    """Knows the locks of queues and members as well, which the system releases when a process dies."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Lock] = []

    def lock_one(self, path: Path) -> Lock | None:
        lock = super().lock_one(path)
        if lock is not None:
            self.taken.append(lock)
        return lock

    def die(self) -> None:
        self.plan.watch, self.plan.is_dead = None, True
        self.abandon()
        for lock in self.taken:
            lock.release()
