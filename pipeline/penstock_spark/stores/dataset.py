"""A dataset: several stores under one folder, with a manifest that names them in order.

One store has one writer at a time; a dataset has one for each of its shards. The manifest `penstock-dataset.json` holds
`{"format": 1, "shards": ["shard-000", ...]}`: the names of folders beside it. It is written once, when the dataset is
created. It is never changed, since it determines the shard of each key.

Once all shards are stores, the file `penstock/sink/made` is written beside the manifest. After that, a shard without
a store is one whose disk is not mounted, or that was lost. This is an error: such a shard is neither created nor
skipped.
"""

import json
import os
import re
from pathlib import Path

from penstock.errors import ConfigError, StorageError

MANIFEST = "penstock-dataset.json"
FORMAT = 1
SHARDS_MAX = 1000
# Below the folder of a dataset, or of a store that a sink writes to. The sink makes the other one with all
# stores in place as well, and did so before there was a mark.
MADE = "penstock/sink/made"
MADE_TOO = "penstock/sink/ledger"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


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
    return (root / MADE).exists() or (root / MADE_TOO).is_dir()


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
    side = root / f".{MANIFEST}.{os.getpid()}"
    try:
        with side.open("x") as file:
            json.dump({"format": FORMAT, "shards": names}, file)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(side, root / MANIFEST)
        except FileExistsError:
            return
    finally:
        side.unlink(missing_ok=True)
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
