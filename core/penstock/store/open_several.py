"""Opens many stores for reading with one search for plugins and one reading of the configuration.

The search for plugins takes longer than opening a store, which matters for a data set of a thousand stores.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock.files import Files
from penstock.format import arguments
from penstock.store.open import Opener, make_opener
from penstock.store.store import Store

OpenForReading = Callable[[str | os.PathLike[str]], Store]


def open_several(
    config: str | os.PathLike[str] | None = None,
    *,
    files: Files | None = None,
    environ: Mapping[str, str] | None = None,
    **settings: Any,
) -> OpenForReading:
    """Return a function that opens a store read-only, given its path; the arguments are those of `open`.

    The function uses a `Path` unchanged, and resolves anything else as a path on this machine.
    """
    call = "open_several"
    made = make_opener(
        ".", config, files, None, None, environ, settings, call=call,
        names=("config", "files", "environ"),
    )  # fmt: skip

    def open_one(path: str | os.PathLike[str]) -> Store:
        root = arguments.folder("open", "path", path)
        if not isinstance(path, Path):
            root = root.absolute()
        opener = Opener(root, made.asked, made.registry, made.files, made.clock, None)
        return opener.open_for_reading()

    return open_one
