"""Where the files of groups are, below `penstock/groups` in the store's folder.

<group>/members/<id>             a member of the group; locked for as long as it lives
<group>/queues/<topic>/<n>.lock  the right to the queue; locked by its owner
<group>/queues/<topic>/<n>.journal   what its owners have written: see `entries`
<group>/queues/<topic>/start     where the group begins in a topic that it consumes for the first time
<group>/marks                    what the writer has taken in: see `marks`
<group>/lock                     locked while a start is resolved
<group>.deleting                 locked while the group is deleted: nobody joins it then
"""

import re
from contextlib import suppress
from pathlib import Path

import attrs

from penstock.errors import ArgumentError, MessageError
from penstock.files import Files
from penstock.format.names import QUEUE_MAX, SIDE_FOLDER, check_topic

_GROUP = re.compile(r"[%|a-zA-Z0-9_-]{1,120}", re.ASCII)
_JOURNAL = ".journal"


def groups_folder(root: Path) -> Path:
    """Return the folder of all groups of a store."""
    return root / SIDE_FOLDER / "groups"


def make_group_folder(files: Files, root: Path, folder: Path) -> None:
    """Create a folder below the store's folder `root`, and make its names durable.

    Also if it exists: the process that created it may have been killed before its names were durable.
    """
    files.make_folder(folder)
    while folder != root:
        folder = folder.parent
        files.sync_folder(folder)


def check_group_name(call: str, group: object) -> str:
    """Return `group` if a group may have this name; raises `ArgumentError` if not."""
    if not isinstance(group, str) or not _GROUP.fullmatch(group):
        expected = "the name of a group: 1 to 120 of the characters a-z, A-Z, 0-9, %, |, _ and -"
        raise ArgumentError(call, "group", group, expected)
    return group


@attrs.frozen
class GroupPaths:
    """The files of one group."""

    root: Path
    group: str

    @property
    def folder(self) -> Path:
        """The group's folder."""
        return groups_folder(self.root) / self.group

    @property
    def members(self) -> Path:
        """The folder of its members."""
        return self.folder / "members"

    @property
    def marks(self) -> Path:
        """The file of what the writer has taken in."""
        return self.folder / "marks"

    @property
    def lock(self) -> Path:
        """The file that is locked while a start is resolved."""
        return self.folder / "lock"

    @property
    def deleting(self) -> Path:
        """The file that is locked while the group is deleted; outside of its folder."""
        return self.folder.with_name(self.group + ".deleting")

    def topic(self, topic: str) -> Path:
        """Return the folder of a topic's queues."""
        return self.folder / "queues" / topic

    def start(self, topic: str) -> Path:
        """Return the file of where the group begins in a topic."""
        return self.topic(topic) / "start"

    def queue_lock(self, topic: str, queue: int) -> Path:
        """Return the file that the owner of a queue locks."""
        return self.topic(topic) / f"{queue}.lock"

    def journal(self, topic: str, queue: int) -> Path:
        """Return the journal of a queue."""
        return self.topic(topic) / f"{queue}{_JOURNAL}"

    def topics(self, files: Files) -> list[str]:
        """Return the topics of which there are files; other names are passed over."""
        top = self.folder / "queues"
        found = []
        for name in files.folders(str(top)) if files.is_folder(top) else ():
            with suppress(MessageError):
                found.append(check_topic(name))
        return found

    def journals(self, files: Files) -> list[tuple[str, int]]:
        """Return the queues that have a journal, as (topic, queue), sorted; other names are passed over."""
        found = []
        for topic in self.topics(files):
            for item in files.listing(str(self.topic(topic))):
                stem = item.name.removesuffix(_JOURNAL)
                if item.is_file and stem != item.name and _is_queue(stem):
                    found.append((topic, int(stem)))
        return sorted(found)


def _is_queue(text: str) -> bool:
    """Return whether a text is a queue number as it is written in names."""
    digits = len(str(QUEUE_MAX))
    return (
        text.isascii()
        and text.isdigit()
        and len(text) <= digits
        and int(text) <= QUEUE_MAX
        and str(int(text)) == text
    )


def groups_of(files: Files, root: Path) -> list[str]:
    """Return the names of the groups that have a folder, sorted."""
    folder = groups_folder(root)
    if not files.is_folder(folder):
        return []
    return [name for name in files.folders(str(folder)) if _GROUP.fullmatch(name)]
