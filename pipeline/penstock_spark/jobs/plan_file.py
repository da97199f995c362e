"""A plan of batches that are written through the sink, stored with the target store. This module does not import pyspark.

    <target>/penstock/spark/<app>.json     {"format": 1, "about": {...}, "batches": [...]}
    <target>/penstock/spark/<app>.done     how many of them are written

Batch n is written with `txnAppId` = app and `txnVersion` = n, so the sink writes it once, however often it is tried.
This requires that a plan never changes: a job that is run again uses the plan of its first run, even if the source
has new messages. `done` only saves trying the batches that are written.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError, StorageError
from penstock.files import Files
from penstock_spark.durable_names import keep_folder
from penstock_spark.stores.dataset import is_dataset

FORMAT = 1
_APP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# A plan of a million batches is some 100 MB.
_BYTES_MAX = 1 << 30


def app_of(job: str, about: dict[str, Any]) -> str:
    """Return the default name of a job, which is the same for equal arguments."""
    text = json.dumps(about, sort_keys=True)
    return f"{job}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def check_app(app: str) -> str:
    """Return a given name; raise `ConfigError` if it cannot be a file name."""
    if not _APP.fullmatch(app):
        raise ConfigError(f"app is {app!r}; it must be letters, digits, '.', '_', '-', at most 100")
    return app


class Plan:
    """The batches of one job into one target.

    Attributes:
        app: the name under which it is stored.
        target: the store's folder.
        batches: plain values that describe one batch each.
        done: how many are written.
    """

    def __init__(self, target: Path, app: str, files: Files | None = None) -> None:
        folder = target / "penstock" / "spark"
        self._files = files or Files()
        self._path = folder / f"{app}.json"
        self._done_path = folder / f"{app}.done"
        self.app = app
        self.target = target
        self.batches: list[Any] = []
        self.done = 0

    def load(self, about: dict[str, Any]) -> bool:
        """Load the existing plan and return whether there is one; raise if it is another job's."""
        if not self._files.exists(self._path):
            return False
        try:
            found = json.loads(self._files.read_whole(self._path, _BYTES_MAX))
            version, there, self.batches = found["format"], found["about"], found["batches"]
            is_there = self._files.exists(self._done_path)
            text = self._files.read_whole(self._done_path) if is_there else b"0"
            self.done = int(text)
            # Batches are written by it now: it must not be another one after a power cut, had its writer been
            # killed before the name was durable.
            self._files.sync_folder(self._path.parent)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StorageError(
                f"{self._path} is not a valid plan ({error!r}): give another app"
            ) from error
        if version != FORMAT:
            raise StorageError(f"{self._path} has format {version!r}; this Penstock reads {FORMAT}")
        if there != about:
            odd = sorted(name for name in about if about[name] != there.get(name))
            raise ConfigError(
                f"app {self.app!r} has written to this target with another {', '.join(odd)}; nothing was "
                f"written. Give the same values to continue that job, or another app to start a new one"
            )
        return True

    def save(self, about: dict[str, Any], batches: list[Any]) -> None:
        """Store a new plan; call it before the first batch is written."""
        self.batches, self.done = batches, 0
        keep_folder(self._files, self._path.parent, self.target)
        text = json.dumps({"format": FORMAT, "about": about, "batches": batches})
        self._files.write_whole(self._path, text.encode())

    def note(self, done: int) -> None:
        """Note that so many batches are written."""
        self.done = done
        self._files.write_whole(self._done_path, str(done).encode())


def check_target(target: Path, source: list[Path]) -> None:
    """Refuse a target that is one of the sources, or that is neither a store, a dataset nor empty."""
    if target in source:
        raise ConfigError(f"{target} is both source and target: give another target")
    if not target.exists():
        return
    is_known = (target / "commitlog").is_dir() or is_dataset(target)
    names = {path.name for path in target.iterdir()} if target.is_dir() else {""}
    if not is_known and names - {"penstock"}:
        raise ConfigError(f"{target} is neither a store nor empty: give a store, or a new folder")
