"""A store with timer messages, on a clock and a thread that the test runs."""

from pathlib import Path
from typing import Any

import attrs

from penstock import Message, Receipt, Store
from penstock.testing import FaultyFiles, ManualClock, ManualWorkers, open_store
from penstock.testing.kit import copy_store
from penstock_messaging.extension import MessagingExtension
from penstock_messaging.properties_text import TIMER_TOPIC
from penstock_messaging.timers.timer_delivery import TimerDelivery

WORKER = "penstock-timers"
DAY = 86_400_000
# The second in which the tests begin.
NOW = 1_700_000_000_000


@attrs.define
class TimerShop:
    """A store with timer messages that a test opens, closes, and runs the delivery of."""

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
        """Kill the writer: go on with a copy of its files, which holds all that was passed to the system."""
        copy = copy_store(self.root, self.root.with_name(self.root.name + "-killed"))
        self.close()
        self.root = copy

    def put(self, body: bytes, delay_ms: int, topic: str = "orders", **more: Any) -> Receipt:
        return self.store.put(topic, body, delay_ms=delay_ms, **more)

    def put_raw(self, body: bytes, text: bytes) -> Receipt:
        """Put what another program has written to the timer topic."""
        return self.store.put_copies([(Message(TIMER_TOPIC, body), text)])[0]

    def run(self, *, after_ms: int = 0) -> float | None:
        """Advance the clock, run rounds until nothing is left to do, and return the pause in seconds."""
        self.clock.now_ms += after_ms
        while True:
            pause = self.workers.run(WORKER)
            if pause != 0:
                return pause

    def bodies(self, topic: str = "orders", queue: int = 0) -> list[bytes]:
        return [message.body for message in self.store.scan(topic, queue)]

    @property
    def has_thread(self) -> bool:
        return WORKER in self.workers.by_name

    @property
    def timers(self) -> TimerDelivery:
        extension = self.store.extension("messaging")
        assert isinstance(extension, MessagingExtension)
        return extension.timers

    def stats(self) -> dict[str, Any]:
        return self.timers.stats()
