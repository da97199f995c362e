"""Names that outlive a kill and then a power cut. No pyspark in here.

A process that is killed between making a name and syncing its folder leaves a name that is seen and is not on
the disk. Whoever finds it and acts on it makes it durable first: else a power cut takes away what the
acting stood on.
"""

from contextlib import suppress
from pathlib import Path

from penstock.files import Files


def keep_folder(files: Files, folder: Path, root: Path) -> None:
    """Make `folder`, which lies below `root`; its name is durable then, and those between, whoever made them."""
    files.make_folder_durably(folder)
    for each in folder.parents:
        files.sync_folder(each)
        if each == root:
            break
    # Where the root lies is not always ours to look into.
    with suppress(PermissionError):
        files.sync_folder(root.parent)
