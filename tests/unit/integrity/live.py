"""A store that is being written, for tests of what looks at it meanwhile."""

from pathlib import Path
from typing import Any

from penstock.contracts.dispatcher import Finding
from penstock.files import Files
from penstock.store.store import Store
from penstock.testing import ManualWorkers, open_store
from penstock.testing.kit import messages


def seal_all(workers: ManualWorkers) -> None:
    while workers.run("penstock-seal") is not None:
        pass


def live(path: Path) -> tuple[Store, ManualWorkers]:
    """A store that is being written, some of its segments sealed."""
    workers = ManualWorkers()
    store = open_store(path, spawn=workers, retention=[])
    for first in range(0, 800, 100):
        store.put_many(messages(100, first=first))
    store.flush()
    workers.run("penstock-follow")
    workers.run("penstock-mark")
    seal_all(workers)
    return store, workers


def found(path: Path, files: Files | None = None, **how: Any) -> list[Finding]:
    with open_store(path, files=files, read_only=True) as store:
        return list(store.verify(deep=True, **how))
