"""Which folders under `consumequeue` hold the files of a queue: `<topic>/<queue number>`.

A name that is no topic, or no queue number as the store writes it, belongs to no queue of ours: control
characters, bytes that are no UTF-8, a number above the limit or with leading zeros, a file in place of a
folder. It is named once, left as it is, and stops nothing: all other queues are read and written. A link or
a device is another matter for a writer, which would follow it out of the store: it is refused.
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
    "look at it and move it out of the store by hand; no verb reads, repairs or removes it, and no queue of "
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
        self._named: set[Path] = set()

    def folders(self) -> Iterator[tuple[str, int]]:
        """Yield topic and queue of every folder that may hold a queue's files; a link is refused.

        Names what belongs to no queue in the log, the first time that it is seen.
        """
        for found in self._looked_at():
            # A finding is a tuple, too.
            if not isinstance(found, Finding):
                yield found
            elif found.path not in self._named:
                self._named.add(found.path)
                logger.warning(
                    "%s, %s: %s",
                    found.path,
                    found.text,
                    "it is left as it is, and all other queues are used",
                )

    def check_free(self, topic: str, number: int) -> None:
        """Raise if something that is no folder stands where a queue would have its folder."""
        for path in (self.root / topic, self.root / topic / str(number)) if self._named else ():
            if path in self._named:
                raise StrayFileError(path, "a queue of the store needs that name for its folder")

    def findings(self) -> Iterator[Finding]:
        """Return what belongs to no queue, for `verify`."""
        return (found for found in self._looked_at() if isinstance(found, Finding))

    def _looked_at(self) -> Iterator[tuple[str, int] | Finding]:
        root = str(self.root)
        for topic in self._listing(root) if self._files.is_folder(self.root) else ():
            problem = self._refuse_link("", topic) or topic_problem(topic.name)
            if problem or not topic.is_folder:
                text = problem or "a file stands where only topics have folders"
                yield _finding(self.root / topic.name, text)
                continue
            for number in self._listing(f"{root}/{topic.name}"):
                problem = self._refuse_link(topic.name, number) or queue_problem(number.name)
                if problem or not number.is_folder:
                    problem = problem or "a file stands where a queue has its folder"
                    yield _finding(self.root / topic.name / number.name, problem)
                else:
                    yield topic.name, int(number.name)

    def _listing(self, folder: str) -> list[Listed]:
        try:
            return self._files.listing(folder)
        except (FileNotFoundError, NotADirectoryError):
            # Another process took it away just now.
            return []

    def _refuse_link(self, topic: str, entry: Listed) -> str:
        """Raise for a link in place of a folder: what is written below it would leave the store."""
        if entry.is_folder or entry.is_file:
            return ""
        if not self._read_only:
            raise StrayFileError(self.root / topic / entry.name, "it is a link, or no folder")
        return "it is a link, or no folder, and is not followed"


def _finding(path: Path, text: str) -> Finding:
    return Finding("stray", path, -1, -1, text, _ADVICE)


def topic_problem(name: str) -> str:
    """Return why a folder's name is no topic; "" for one that is."""
    try:
        check_topic(name)
    except TopicError as error:
        return f"its name is no topic: {error.reason}"
    return ""


def is_number(name: str) -> bool:
    """Say whether a name consists of the digits 0 to 9; other digits of Unicode are none here."""
    return name.isascii() and name.isdigit()


def queue_problem(name: str) -> str:
    """Return why a folder's name is no queue number as the store writes it; "" for one that is."""
    try:
        is_right = is_number(name) and str(check_queue(int(name))) == name
    except QueueError:
        is_right = False
    return "" if is_right else "its name is no queue number, 0 to 65535 without leading zeros"
