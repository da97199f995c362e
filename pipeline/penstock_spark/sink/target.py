"""The target of a sink: a store or a dataset, opened or created when a query starts. This module does not import pyspark."""

from functools import partial
from pathlib import Path

import attrs

import penstock
from penstock.errors import ConfigError
from penstock.files import Files
from penstock.staged import Encoding, encoding_for
from penstock_spark.sink.commit import THREADS, Patience, SinkCommitter
from penstock_spark.sink.options import SinkOptions
from penstock_spark.stores.dataset import (
    is_dataset,
    is_made,
    is_store,
    lost,
    make_dataset,
    shards_of,
)


@attrs.frozen(kw_only=True)
class Target:
    """A root, its stores, and their settings. It has no open files, since it is pickled."""

    options: SinkOptions
    shards: tuple[Path, ...]
    encoding: Encoding

    def committer(self, files: Files | None = None) -> SinkCommitter:
        """Return the object that commits batches to the target."""
        patience = Patience(timeout_s=self.options.lock_timeout_s)
        return SinkCommitter(
            self.options.root, self.shards, partial(open_store, self.options, files),
            files=files or Files(), patience=patience, threads=THREADS,
        )  # fmt: skip


def open_store(options: SinkOptions, files: Files | None, path: Path) -> penstock.Store:
    """Open one of the stores for writing."""
    return penstock.open(path, options.config, files=files, **options.settings)


def find_target(options: SinkOptions) -> Target:
    """Return the target; its stores and folders are created if they do not exist."""
    shards = _shards(options)
    patience = Patience(timeout_s=options.lock_timeout_s)
    was_made = is_made(options.root)
    for shard in shards:
        if not is_store(shard):
            if was_made:
                raise lost(shard, options.root)
            patience.until(partial(open_store, options, None, shard)).close()
    # A record is made to fit into each of them, as they are.
    encoding = encoding_for(*shards, config=options.config, **options.settings)
    found = Target(options=options, shards=shards, encoding=encoding)
    found.committer().prepare()
    return found


def _shards(options: SinkOptions) -> tuple[Path, ...]:
    root = options.root
    if is_dataset(root):
        return tuple(make_dataset(root, options.shards) if options.shards else shards_of(root))
    if options.shards <= 1:
        return (root,)
    if (root / "commitlog").exists():
        raise ConfigError(
            f"{root} is a store, and cannot become a dataset of {options.shards} shards: write to a new folder, "
            f"or leave shards out"
        )
    if root.exists() and any(root.iterdir()):
        raise ConfigError(f"{root} is neither a dataset nor empty: write to a new folder")
    return tuple(make_dataset(root, options.shards))
