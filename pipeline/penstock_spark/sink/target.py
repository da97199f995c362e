"""Where a sink writes to: a store or a dataset, found or made when a query starts. No pyspark in here."""

from functools import partial
from pathlib import Path

import attrs

import penstock
from penstock import Store
from penstock.errors import ConfigError
from penstock.files import Files
from penstock.staged import Encoding, encoding_for
from penstock_spark.dataset import is_dataset, make_dataset, shards_of
from penstock_spark.sink.commit import Committer, Patience
from penstock_spark.sink.options import SinkOptions


@attrs.frozen(kw_only=True)
class Target:
    """A root and its stores, and how they are opened. Holds nothing that is open: it is pickled."""

    options: SinkOptions
    shards: tuple[Path, ...]
    encoding: Encoding

    def open_store(self, path: Path, files: Files | None = None) -> Store:
        """Open one of the stores for writing."""
        return penstock.open(path, self.options.config, files=files, **self.options.settings)

    def committer(self, files: Files | None = None) -> Committer:
        """Return what commits to it."""
        patience = Patience(timeout_s=self.options.lock_timeout_s)
        return Committer(
            self.options.root, self.shards, partial(self.open_store, files=files),
            files=files or Files(), patience=patience,
        )  # fmt: skip


def find_target(options: SinkOptions) -> Target:
    """Return the target, its stores and folders made where they are not there yet."""
    shards = _shards(options)
    found = Target(options=options, shards=shards, encoding=_encoding(options, shards))
    for shard in shards:
        if not (shard / "commitlog").is_dir():
            patience = Patience(timeout_s=options.lock_timeout_s)
            patience.until(partial(found.open_store, shard)).close()
    # Now that they are there, as they are.
    found = attrs.evolve(found, encoding=_encoding(options, shards))
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


def _encoding(options: SinkOptions, shards: tuple[Path, ...]) -> Encoding:
    """Return how records are made that fit into each of the stores."""
    each = [encoding_for(shard, options.config, **options.settings) for shard in shards]
    return attrs.evolve(each[0], record_bytes_max=min(one.record_bytes_max for one in each))
