"""Resolves the stores of a job and its target folder, before a task starts. This module does not import pyspark."""

import glob
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import ConfigError, NotAStoreError
from penstock_spark.stores.dataset import is_dataset, shards_of

_LOCAL = "file://"


def local_folder(text: str, what: str) -> Path:
    """Return the absolute path of a folder that driver and tasks open."""
    plain = text.removeprefix(_LOCAL) if text.startswith(_LOCAL) else text
    if not plain or "://" in plain:
        raise ConfigError(
            f"{what} is {text!r}; it must be a folder that the driver and all tasks see under one path"
        )
    return Path(plain).expanduser().absolute()


def stores_of(paths: Sequence[str] | str) -> list[Path]:
    """Return the stores that paths name: folders, globs, and datasets, which represent their shards."""
    found: dict[Path, None] = {}
    for text in [paths] if isinstance(paths, str) else paths:
        for folder in _folders(text):
            for store in shards_of(folder) if is_dataset(folder) else [folder]:
                if not (store / "commitlog").is_dir():
                    raise NotAStoreError(store, "there is no commitlog folder in it")
                found[store] = None
    if not found:
        raise ConfigError("give at least one store: its folder, a glob, or a dataset")
    return list(found)


def one_store(path: str) -> Path:
    """Return the one store that a path names."""
    found = stores_of(path)
    if len(found) != 1:
        raise ConfigError(
            f"{path} names {len(found)} stores; the job takes one store: run it once for each"
        )
    return found[0]


def _folders(text: str) -> list[Path]:
    folder = local_folder(text, "the path of a store")
    if folder.is_dir():
        return [folder]
    if not glob.has_magic(text):
        raise NotAStoreError(folder, "there is no such folder")
    # Other things may lie beside the stores.
    matches = [Path(name) for name in sorted(glob.glob(str(folder), recursive=True))]  # noqa: PTH207 - an absolute pattern
    stores = [path for path in matches if (path / "commitlog").is_dir() or is_dataset(path)]
    if not stores:
        raise NotAStoreError(folder, "no store matches")
    return stores


def fresh_folder(text: str, what: str) -> Path:
    """Return a folder to be created; raise `ConfigError` if it exists and is not empty."""
    folder = local_folder(text, what)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{what} is {folder}, which already exists: give a new folder")
    return folder
