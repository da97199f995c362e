"""Determines which folders under `consumequeue` are queues: `<topic>/<queue number>`.

A name that is not a topic, or not a queue number as the store writes it, belongs to no queue of the store. Examples are
control characters, bytes that are not UTF-8, a number above the limit or with leading zeros, and a file in place of a
folder. It is reported once and left unchanged, and it stops nothing: all other queues are read and written. A link or
a device is different for a writer, which would follow it out of the store: it is refused.
"""

from collections.abc import Iterator
from pathlib import Path

from penstock.contracts import Finding
from penstock.errors import QueueError, StrayFileError, TopicError
from penstock.escape import get_logger
from penstock.files import Files, Listed
from penstock.format.names import check_queue, check_topic

logger = get_logger(__name__)

_ADVICE = (
    "inspect it and move it out of the store by hand; no command reads, repairs or removes it, and no queue of "
    "the store needs it"
)


class QueueNames:
    """The names under one `consumequeue` folder. Safe from any thread.

    Attributes:
        root: the folder.
    """

    def __init__(self, files: Files, root: Path, *, read_only: bool) -> None:
        self._files = files
        self.root = root
        self._read_only = read_only
        self._reported: set[Path] = set()

    def folders(self) -> Iterator[tuple[str, int]]:
        """Yield topic and queue of every folder that may hold a queue's files; raise `StrayFileError` for a link.

        Logs each entry that belongs to no queue, the first time that it is found.
        """
        for found in self._scan_names():
            # A finding is a tuple, too.
            if not isinstance(found, Finding):
                yield found
            elif found.path not in self._reported:
                self._reported.add(found.path)
                logger.warning(
                    "%s, %s: %s",
                    found.path,
                    found.text,
                    "it was not changed, and all other queues are used",
                )

    def check_free(self, topic: str, number: int) -> None:
        """Raise `StrayFileError` if something other than a folder is at the place of a queue's folder."""
        for path in (self.root / topic, self.root / topic / str(number)) if self._reported else ():
            if path in self._reported:
                raise StrayFileError(path, "a queue of the store needs this name for its folder")

    def findings(self) -> Iterator[Finding]:
        """Return findings for entries that belong to no queue, for `verify`."""
        return (found for found in self._scan_names() if isinstance(found, Finding))

    def _scan_names(self) -> Iterator[tuple[str, int] | Finding]:
        root = str(self.root)
        for topic in self._listing(root) if self._files.is_folder(self.root) else ():
            problem = self._refuse_link("", topic) or topic_problem(topic.name)
            if problem or not topic.is_folder:
                text = problem or "a file is in a folder that holds only the folders of topics"
                yield _finding(self.root / topic.name, text)
                continue
            for number in self._listing(f"{root}/{topic.name}"):
                problem = self._refuse_link(topic.name, number) or queue_problem(number.name)
                if problem or not number.is_folder:
                    problem = problem or "a file is at the place of a queue's folder"
                    yield _finding(self.root / topic.name / number.name, problem)
                else:
                    yield topic.name, int(number.name)

    def _listing(self, folder: str) -> list[Listed]:
        try:
            return self._files.listing(folder)
        except (FileNotFoundError, NotADirectoryError):
            # Another process has just removed it.
            return []

    def _refuse_link(self, topic: str, entry: Listed) -> str:
        """Raise for a link in place of a folder: files written below it would be outside the store."""
        if entry.is_folder or entry.is_file:
            return ""
        if not self._read_only:
            raise StrayFileError(self.root / topic / entry.name, "it is a link, or not a folder")
        return "it is a link, or not a folder, and is not followed"


def _finding(path: Path, text: str) -> Finding:
    return Finding("stray", path, -1, -1, text, _ADVICE)


def topic_problem(name: str) -> str:
    """Return why a folder's name is not a topic; "" if it is one."""
    try:
        check_topic(name)
    except TopicError as error:
        return f"its name is not a topic: {error.reason}"
    return ""


def is_number(name: str) -> bool:
    """Return whether a name consists of the digits 0 to 9; other Unicode digits do not count."""
    return name.isascii() and name.isdigit()


def queue_problem(name: str) -> str:
    """Return why a folder's name is not a queue number as the store writes it; "" if it is one."""
    try:
        is_right = is_number(name) and str(check_queue(int(name))) == name
    except QueueError:
        is_right = False
    return "" if is_right else "its name is not a queue number, 0 to 65535 without leading zeros"
