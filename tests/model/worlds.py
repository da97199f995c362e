"""Where a story is played: a simulated disk, files, or files that another process reads."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.lanes import eventually
from tests.model.model import Question
from tests.model.questions import SecondProcess, ask
from tests.shop import KillableFiles

import penstock
from penstock import Store
from penstock.testing import InlineWorkers, ManualClock, SimulatedDisk
from penstock.testing.kit import ManualWorker
from penstock.testing.platter import Image, Survival

Settings = dict[str, Any]
STRATEGIES = {
    "write": ("mmap", "file", "transient-pool"),
    "alloc": ("on-demand", "preallocate", "recycle"),
    "flush": ("sync", "async", "none"),
    "log.checksum": ("crc32", "crc32+record"),
    "geometry.segment_bytes": (8192, 16384),
    "geometry.queue_entries": (3, 10, 40),
    "geometry.index_entries": (5, 20, 60),
    "geometry.index_slots": (3, 20),
    # Few queues are taken for many: their files are synced together, and a clean close notes where each ends.
    "index.consume-queue.sync_volume_from": (2, 256),
    "index.consume-queue.summary_from": (1, 256),
    "index.consume-queue.open_files_max": (1, 256),
    "retention": ([], ["size"]),
}
# By retention, where it is.
KEPT_SEGMENTS = 4
FIXED = {
    "write.transient-pool.lock_memory": False,
    "write.transient-pool.buffers": 2,
    "retention.pause_ms": 0,
}


def drawn_settings(chance: Random) -> Settings:
    """Return settings with which a store can be opened; the files are so small that all of them roll."""
    settings: Settings = {name: chance.choice(values) for name, values in STRATEGIES.items()}
    if settings["write"] == "transient-pool" and settings["flush"] == "sync":
        settings["flush"] = "async"
    settings["retention.size.bytes_max"] = KEPT_SEGMENTS * settings["geometry.segment_bytes"]
    return settings


class Crew(InlineWorkers):
    """Workers of which several may have one name, as those of consumers of one group."""

    def __call__(
        self, name: str, step: Callable[[], float | None], wakes: object = None
    ) -> ManualWorker:
        """Create a worker."""
        return super().__call__(f"{name} {len(self.by_name)}", step, wakes)


class World:
    """Opens one store, again and again."""

    # Whether its process can die, and whether it can lose what was not synced.
    can_die = True
    has_power = False
    files: Any

    def __init__(self, folder: Path, settings: Settings, seed: int) -> None:
        self.folder = folder
        self.settings = {**FIXED, **settings}
        self.clock = ManualClock()
        self.workers = Crew()
        self._crews: list[Crew] = []
        self.chance = Random(seed)

    def open(self) -> Store:
        """Open the store for writing."""
        raise NotImplementedError

    def work(self) -> None:
        """Let the background work be done."""
        self.workers.run_all()

    def crash(self, survival: Survival, image: Any = None) -> None:
        """Drop the process without a close; if `image` is given, at that moment."""
        raise NotImplementedError

    def beside(self) -> tuple[Store, Crew]:
        """Open the store for reading, while another one has it open for writing; return what does its work, too."""
        raise NotImplementedError

    def answers(self, questions: Sequence[Question]) -> list[Any]:
        """Return what a reader answers that is not the writer."""
        reader, _ = self.beside()
        with reader:
            return [ask(reader, question) for question in questions]

    def end(self) -> None:
        """Free what the world holds: the work of a consumer refers to it, and it keeps its store."""
        for crew in self._crews:
            crew.by_name.clear()

    def _open(self, files: Any, **more: Any) -> Store:
        self.workers = Crew()
        self._crews.append(self.workers)
        return penstock.open(
            self.folder, files=files, clock=self.clock, spawn=self.workers, environ={}, **self.settings, **more
        )  # fmt: skip

    def _open_beside(self, files: Any) -> tuple[Store, Crew]:
        mine = self.workers
        reader = self._open(files, read_only=True)
        theirs, self.workers = self.workers, mine
        return reader, theirs


class DiskWorld(World):
    """A simulated disk."""

    has_power = True

    def __init__(self, _folder: Path, settings: Settings, seed: int) -> None:
        super().__init__(Path("/store"), settings, seed)
        self.files = SimulatedDisk(clock=self.clock, seed=seed, write_back=0.05)

    def open(self) -> Store:
        """See `World`."""
        return self._open(self.files)

    def crash(self, survival: Survival, image: Image | None = None) -> None:
        """See `World`."""
        taken = image or self.files.image()
        self.files.plan.watch, self.files.plan.is_dead = None, True
        self.files = SimulatedDisk.after(taken, survival, self.chance, clock=self.clock)

    def beside(self) -> tuple[Store, Crew]:
        """See `World`; on the same disk, so both die together."""
        return self._open_beside(self.files)

    def answers(self, questions: Sequence[Question]) -> list[Any]:
        """See `World`."""
        calls = self.files.plan.total
        found = super().answers(questions)
        assert self.files.plan.total == calls, "a reader has changed the disk"
        return found

    def watch(self, then: Callable[[Image], None], after: int) -> None:
        """Take an image before one of the next calls that change the disk."""
        left = after

        def count(_call: str, _path: Path) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self.files.plan.watch = None
                then(self.files.image())

        self.files.plan.watch = count


class FolderWorld(World):
    """Files; the process dies by forgetting its store."""

    def __init__(self, folder: Path, settings: Settings, seed: int) -> None:
        super().__init__(folder / "store", settings, seed)
        self.files = KillableFiles()
        self._beside: list[KillableFiles] = []

    def open(self) -> Store:
        """See `World`."""
        return self._open(self.files)

    def crash(self, survival: Survival, image: Any = None) -> None:
        """See `World`."""
        assert survival is Survival.PROCESS
        assert image is None
        for files in (self.files, *self._beside):
            files.die()
        self.files, self._beside = KillableFiles(), []

    def beside(self) -> tuple[Store, Crew]:
        """See `World`; both die together."""
        self._beside.append(KillableFiles())
        return self._open_beside(self._beside[-1])

    def end(self) -> None:
        """See `World`."""
        super().end()
        shutil.rmtree(self.folder, ignore_errors=True)


class ThreadedWorld(FolderWorld):
    """Files, and the store's own threads; they cannot be stopped at a moment, so the process never dies."""

    can_die = False

    def __init__(self, folder: Path, settings: Settings, seed: int) -> None:
        # A round of retention may come at any moment.
        super().__init__(folder, {**settings, "retention": []}, seed)

    def open(self) -> Store:
        """See `World`."""
        return penstock.open(self.folder, environ={}, **self.settings)

    def work(self) -> None:
        """See `World`; the threads do it."""

    def answers(self, questions: Sequence[Question]) -> list[Any]:
        """See `World`; waits until all that is in the queues is published."""
        with penstock.open(self.folder, environ={}, read_only=True) as reader:
            eventually(
                lambda: reader.lowlevel.bounds() == reader.lowlevel.bounds(published=False),
                "all is published",
            )
            return [ask(reader, question) for question in questions]


class ReadWorld(FolderWorld):
    """Files that a second process keeps open while they are written."""

    def __init__(self, folder: Path, settings: Settings, seed: int, reader: SecondProcess) -> None:
        super().__init__(folder, settings, seed)
        self._reader = reader
        self._is_open = False

    def answers(self, questions: Sequence[Question]) -> list[Any]:
        """See `World`."""
        if not self._is_open:
            self._reader.open(self.folder)
            self._is_open = True
        return self._reader.ask(questions)


MakeWorld = Callable[[Path, Settings, int], World]
