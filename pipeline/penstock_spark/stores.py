"""The stores of a read or write: a folder, pattern, list, dataset, URL; and their opening. Does not import pyspark.

A store is identified by its absolute path or its URL, in the column `store` and in offsets. An empty folder that
matches a pattern is skipped.

A dataset is several stores under one folder, its shards. One store has one writer at a time; a dataset has one for each
of its shards. The manifest `penstock-dataset.json` holds `{"format": 1, "shards": ["shard-000", ...]}`: the names of
folders beside it. It is written once, with the dataset, and never changed, since it determines the shard of each key.

Once all shards are stores, the file `penstock/sink/made` is written beside the manifest. After that, a shard without
a store is one whose disk is not mounted, or that was lost. This is an error: such a shard is neither created nor
skipped. Before that, a read skips it.
"""

import functools
import glob
import json
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import penstock
from penstock.errors import ConfigError, NotAStoreError, StorageError
from penstock.files import Files
from penstock_spark.remote_files import RemoteFiles, UrlPath, is_url, matching_folders

MANIFEST = "penstock-dataset.json"
FORMAT = 1
SHARDS_MAX = 1000
# Below the folder of a dataset, or of a store that a sink writes to.
MADE = "penstock/sink/made"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MAGIC = "*?["
_THREADS = 16

_T = TypeVar("_T")


# --- datasets


def is_dataset(root: Path) -> bool:
    """Return whether a folder has a manifest."""
    return (root / MANIFEST).is_file()


def parse_manifest(text: str | bytes, where: str) -> list[str]:
    """Return the names of the shards in a manifest; raise `StorageError` if they are invalid."""
    try:
        found = json.loads(text)
        names, version = found["shards"], found["format"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StorageError(f"{where} is not a valid manifest of a dataset: {error!r}") from error
    if version != FORMAT:
        raise StorageError(f"{where} has format {version!r}; this Penstock reads {FORMAT}")
    sound = isinstance(names, list) and 1 <= len(names) <= SHARDS_MAX
    if not sound or not all(isinstance(n, str) and _NAME.fullmatch(n) for n in names):
        raise StorageError(f"{where} names shards with invalid names: {names!r}")
    if len(set(names)) != len(names):
        raise StorageError(f"{where} names a shard twice: {names!r}")
    return list(names)


def shards_of(root: Path) -> list[Path]:
    """Return the folders of a dataset's shards, in order."""
    path = root / MANIFEST
    return [root / name for name in parse_manifest(path.read_bytes(), str(path))]


def is_made(root: Path) -> bool:
    """Return whether the store of a sink, or all shards of a dataset, have existed before."""
    return (root / MADE).exists()


def is_store(shard: Path) -> bool:
    """Return whether a shard's store exists."""
    return (shard / "commitlog").is_dir()


def lost(shard: Path | str, root: Path | str) -> StorageError:
    """Return the error for a store that existed before and is missing."""
    what = "a store" if shard == root else f"a shard of the dataset {root}"
    return StorageError(
        f"{shard}, {what}, existed before and has no commitlog now: mount its disk, or "
        f"restore it from a copy. To continue without its messages, create it empty with `penstock init {shard}`"
    )


def written_shards(root: Path) -> list[Path]:
    """Return the shards that exist; once the dataset is complete, a missing one is an error."""
    shards = shards_of(root)
    there = [shard for shard in shards if is_store(shard)]
    if len(there) < len(shards) and is_made(root):
        raise lost(next(shard for shard in shards if shard not in there), root)
    return there


def make_dataset(root: Path, shards: int) -> list[Path]:
    """Create a dataset of so many shards, or check that the existing one has this number."""
    if not 1 <= shards <= SHARDS_MAX:
        raise ConfigError(f"shards is {shards}; it must be 1 to {SHARDS_MAX}")
    if not is_dataset(root):
        _write_manifest(root, [f"shard-{number:03d}" for number in range(shards)])
    found = shards_of(root)
    if len(found) != shards:
        raise ConfigError(
            f"{root} has {len(found)} shards, not {shards}: the shard of a key is fixed when a dataset is "
            f"created; omit the option, or write to a new folder"
        )
    return found


def _write_manifest(root: Path, names: list[str]) -> None:
    """Write the manifest atomically; if several writers try, the first one wins."""
    root.mkdir(parents=True, exist_ok=True)
    temporary = root / f".{MANIFEST}.{os.getpid()}"
    try:
        with temporary.open("x") as file:
            json.dump({"format": FORMAT, "shards": names}, file)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, root / MANIFEST)
        except FileExistsError:
            return
    finally:
        temporary.unlink(missing_ok=True)
    Files().sync_folder(root)


def keep_folder(files: Files, folder: Path, root: Path) -> None:
    """Create `folder`, which is below `root`, and make its name durable, and the names of the folders between them.

    A process that is killed between creating a folder and syncing the one above leaves a name that is visible but not
    on the disk. A caller that relies on the name calls this first, since a power failure could remove the name.
    """
    files.make_folder_durably(folder)
    for each in folder.parents:
        files.sync_folder(each)
        if each == root:
            break
    # The process may have no permission to open the folder of the root.
    with suppress(PermissionError):
        files.sync_folder(root.parent)


# --- from paths, patterns and URLs to stores


class Location(NamedTuple):
    """One store: its name, which is a path or a URL."""

    name: str

    @property
    def is_remote(self) -> bool:
        """Whether it is a URL."""
        return is_url(self.name)


class StoreSpan(NamedTuple):
    """Messages [start, stop) of one queue of one store, in one generation of its topic, which one task reads."""

    store: str
    topic: str
    queue: int
    start: int
    stop: int
    generation: int = 0

    @property
    def span(self) -> penstock.QueueSpan:
        """The same without store and generation."""
        return penstock.QueueSpan(*self[1:5])

    @property
    def queue_name(self) -> str:
        """The queue's number, and how often its topic was removed before, as in offsets: `3`, or `3@1`."""
        return queue_name(self.queue, self.generation)


def queue_name(queue: int, generation: int) -> str:
    """Return the text for a queue in a generation of its topic."""
    return f"{queue}@{generation}" if generation else str(queue)


class Locations(NamedTuple):
    """The stores of a read.

    Attributes:
        stores: where they are; the names are different.
        is_one: the path names one store and no more, so offsets need not say which.
    """

    stores: tuple[Location, ...]
    is_one: bool

    def key(self, name: str) -> str:
        """Return a store's name in options and offsets; empty if there is only one store."""
        return "" if self.is_one else name


def find_stores(paths: Sequence[str]) -> Locations:
    """Return the stores of these paths; raise `NotAStoreError` for a path without a store."""
    names: list[str] = []
    are_plain = True
    for path in paths:
        found, is_plain = _remote(path) if is_url(path) else _local(without_scheme(path))
        names += found
        are_plain = are_plain and is_plain
    stores = tuple(Location(name) for name in dict.fromkeys(names))
    return Locations(stores, is_one=len(paths) == 1 and are_plain)


def without_scheme(path: str) -> str:
    """Remove `file:`, which Spark's own sources allow."""
    if path.startswith("file:"):
        return "/" + path.removeprefix("file:").lstrip("/")
    return path


def _local(path: str) -> tuple[list[str], bool]:
    """Return the folders of stores, and whether the path is that of one store."""
    full = os.path.abspath(path)  # noqa: PTH100 - Path.absolute leaves `..` in
    if os.path.lexists(full):
        if is_dataset(Path(full)):
            return [str(shard) for shard in written_shards(Path(full))], False
        return [full], True
    if not any(character in path for character in _MAGIC):
        raise NotAStoreError(Path(full), "there is nothing at this path")
    # Not of `full`: the name of the working directory is no pattern, whatever is in it.
    matches = sorted(map(os.path.abspath, filter(os.path.isdir, glob.glob(path))))  # noqa: PTH207 - of text
    if not matches:
        raise NotAStoreError(Path(full), "no folder matches this pattern")
    found: list[str] = []
    for match in matches:
        if is_dataset(Path(match)):
            found += map(str, written_shards(Path(match)))
        elif os.listdir(match):  # noqa: PTH208 - of text
            found.append(match)
    return found, False


def _remote(url: str) -> tuple[list[str], bool]:
    base = url.rstrip("/")
    if any(character in base for character in _MAGIC):
        matches = matching_folders(base)
        if not matches:
            raise NotAStoreError(UrlPath(base), "nothing matches this pattern")
        return [name for match in matches for name in _remote(match)[0]], False
    files = RemoteFiles(base)
    manifest = UrlPath(f"{base}/{MANIFEST}")
    if files.exists(manifest):
        names = parse_manifest(files.read_whole(manifest), str(manifest))
        return _remote_shards(files, base, names), False
    if not files.is_folder(UrlPath(f"{base}/commitlog")):
        what = "there is no commitlog in it" if files.is_folder(UrlPath(base)) else ""
        raise NotAStoreError(UrlPath(base), what or "there is nothing at this URL")
    return [base], True


def _remote_shards(files: RemoteFiles, base: str, names: Sequence[str]) -> list[str]:
    """Return the shards that exist, as `written_shards` does."""
    shards = [f"{base}/{name}" for name in names]
    there = [s for s in shards if files.is_folder(UrlPath(f"{s}/commitlog"))]
    if len(there) < len(shards) and files.exists(UrlPath(f"{base}/{MADE}")):
        raise lost(next(shard for shard in shards if shard not in there), base)
    return there


# --- opening


@functools.cache
def _opener() -> Callable[[str], penstock.Store]:
    return penstock.open_several()


def open_store(location: Location) -> penstock.Store:
    """Open one store, read-only."""
    if location.is_remote:
        url = location.name.rstrip("/")
        return penstock.open_several(files=RemoteFiles(url))(UrlPath(url))
    return _opener()(location.name)


def ask_all(locations: Sequence[Location], ask: Callable[[Location], _T]) -> list[_T]:
    """Return the result of `ask` for each store, in order; stores at URLs in several threads, which mostly wait.

    `ask` opens the store and closes it again, since a read may have a thousand stores.
    """
    far = sum(location.is_remote for location in locations)
    if far > 1:
        with ThreadPoolExecutor(min(_THREADS, far)) as threads:
            return list(threads.map(ask, locations))
    return [ask(location) for location in locations]
