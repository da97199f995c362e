"""Makes file names durable that a killed process may have left without a sync. This module does not import pyspark.

A process that is killed between creating a file and syncing its folder leaves a name that is visible but not on the
disk. A process that relies on such a name syncs the folder first, since a power failure could remove the name
afterwards.
"""

from contextlib import suppress
from pathlib import Path

from penstock.files import Files


def keep_folder(files: Files, folder: Path, root: Path) -> None:
    """Create `folder`, which is below `root`, and make its name durable, and the names of the folders between them."""
    files.make_folder_durably(folder)
    for each in folder.parents:
        files.sync_folder(each)
        if each == root:
            break
    # The process may have no permission to open the folder of the root.
    with suppress(PermissionError):
        files.sync_folder(root.parent)
