"""Reads, on a master, the files that travel beside the log."""

from pathlib import Path

from penstock.escape import get_logger
from penstock.files import Files
from penstock_replicate.beside.side_names import SIDE_NAMES, check_content

logger = get_logger(__name__)


class SideReader:
    """Reads those files that have changed since it read them last. Not thread-safe.

    To send what `changed` returns, read the end of the log after it, and send the log up to there first: a file never says more
    than the log did when it was read.

    Args:
        files: the file system.
        root: the store's folder.
    """

    def __init__(self, files: Files, root: Path) -> None:
        self._files, self._root = files, root
        self._versions: dict[str, tuple[int, int, int]] = {}
        self._contents: dict[str, bytes] = {}
        self._troubles: dict[str, str] = {}

    def changed(self) -> dict[str, bytes]:
        """Return name to content of each file whose content is another one now; all that there are at first.

        A file that is not there, or cannot be used, is left out; the latter is logged once. A follower keeps what it has then.
        """
        found = {}
        for name in SIDE_NAMES:
            path = self._root / name
            # Before reading: a change that comes after it is seen the next time.
            version = self._files.version(path)
            if version == self._versions.get(name):
                continue
            data = self._usable(name, path)
            self._versions[name] = version
            if data is not None and data != self._contents.get(name):
                found[name] = self._contents[name] = data
        return found

    def contents(self) -> dict[str, bytes]:
        """Return name to content of all files as they are now."""
        self.changed()
        return dict(self._contents)

    def _usable(self, name: str, path: Path) -> bytes | None:
        try:
            data = self._files.read_whole(path, SIDE_NAMES[name].bytes_max)
            check_content(name, data)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            if str(error) != self._troubles.get(name):
                self._troubles[name] = str(error)
                logger.warning("%s is not sent to followers: %s; they keep what they have", path, error)  # fmt: skip
            return None
        self._troubles.pop(name, None)
        return data


def snapshot(files: Files, root: Path) -> dict[str, bytes]:
    """Return name to content of all files that travel beside the log, of those that are there and can be used."""
    return SideReader(files, root).contents()
