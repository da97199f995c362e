"""Resolves the stores of a read: a folder, a pattern, a list, a dataset, a URL. This module does not import pyspark.

A store is identified by its absolute path or its URL, in the column `store` and in offsets. A dataset represents its
shards. An empty folder that matches a pattern is skipped. A shard of a dataset that is being created is skipped, too.
"""

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.errors import NotAStoreError
from penstock_spark.stores import remote_files
from penstock_spark.stores.dataset import (
    MADE,
    MADE_TOO,
    MANIFEST,
    is_dataset,
    lost,
    parse_manifest,
    written_shards,
)

_MAGIC = "*?["


class Location(NamedTuple):
    """One store: its name, which is a path or a URL."""

    name: str

    @property
    def is_remote(self) -> bool:
        """Whether it is a URL."""
        return remote_files.is_url(self.name)


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
        found, is_plain = (
            _remote(path) if remote_files.is_url(path) else _local(_without_scheme(path))
        )
        names += found
        are_plain = are_plain and is_plain
    stores = tuple(Location(name) for name in dict.fromkeys(names))
    return Locations(stores, is_one=len(paths) == 1 and are_plain)


def _without_scheme(path: str) -> str:
    """Remove `file:`, which Spark's own sources allow."""
    if path.startswith("file:"):
        return "/" + path.removeprefix("file:").lstrip("/")
    return path


def _local(path: str) -> tuple[list[str], bool]:
    """Return the folders of stores, and whether the path is that of one store."""
    full = os.path.abspath(path)  # noqa: PTH100 - Path.absolute leaves `..` in
    if os.path.lexists(full):
        return (_shards(full), False) if is_dataset(Path(full)) else ([full], True)
    if not any(character in path for character in _MAGIC):
        raise NotAStoreError(Path(full), "there is nothing at this path")
    matches = sorted(match for match in glob.glob(full) if os.path.isdir(match))  # noqa: PTH112, PTH207 - of text
    if not matches:
        raise NotAStoreError(Path(full), "no folder matches this pattern")
    return [name for match in matches for name in _matched(match)], False


def _matched(folder: str) -> Iterator[str]:
    if is_dataset(Path(folder)):
        yield from _shards(folder)
    elif os.listdir(folder):  # noqa: PTH208 - of text
        yield folder


def _shards(folder: str) -> list[str]:
    return [str(shard) for shard in written_shards(Path(folder))]


def _remote(url: str) -> tuple[list[str], bool]:
    base = url.rstrip("/")
    if any(character in base for character in _MAGIC):
        matches = remote_files.matches(base)
        if not matches:
            raise NotAStoreError(remote_files.UrlPath(base), "nothing matches this pattern")
        return [name for match in matches for name in _remote(match)[0]], False
    files = remote_files.RemoteFiles(base)
    manifest = remote_files.UrlPath(f"{base}/{MANIFEST}")
    if files.exists(manifest):
        names = parse_manifest(files.read_whole(manifest), str(manifest))
        return _remote_shards(files, base, names), False
    if not files.is_folder(remote_files.UrlPath(f"{base}/commitlog")):
        what = "there is no commitlog in it" if files.is_folder(remote_files.UrlPath(base)) else ""
        raise NotAStoreError(remote_files.UrlPath(base), what or "there is nothing at this URL")
    return [base], True


def _remote_shards(files: "remote_files.RemoteFiles", base: str, names: Sequence[str]) -> list[str]:
    """Return the shards that exist, as `written_shards` does."""
    shards = [f"{base}/{name}" for name in names]
    there = [s for s in shards if files.is_folder(remote_files.UrlPath(f"{s}/commitlog"))]
    if len(there) < len(shards):
        made = remote_files.UrlPath(f"{base}/{MADE}"), remote_files.UrlPath(f"{base}/{MADE_TOO}")
        if files.exists(made[0]) or files.is_folder(made[1]):
            raise lost(next(shard for shard in shards if shard not in there), base)
    return there
