"""Which topics a consumer reads: names, or patterns in which `*` stands for any characters."""

import re
from collections.abc import Iterable

from penstock.errors import ArgumentError, ArgumentTypeError
from penstock.format import arguments
from penstock.format.names import check_topic

_GROUP = re.compile(r"[%|a-zA-Z0-9_-]{1,120}")
# A broker's own topics, and copies of messages: only consumed if they are named.
_NOT_BY_PATTERN = (
    "%",
    "RMQ_SYS_",
    "rmq_sys_",
    "SCHEDULE_TOPIC_XXXX",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "OFFSET_MOVED_EVENT",
    "SELF_TEST_TOPIC",
    "TBW102",
)


class TopicSelection:
    """The topics of a consumer, also those that do not exist yet.

    Attributes:
        texts: the names and patterns.
        names: those that are not patterns.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(dict.fromkeys(texts))
        self.names = tuple(each for each in self.texts if "*" not in each)
        patterns = [re.escape(each).replace(r"\*", ".*") for each in self.texts if "*" in each]
        self._pattern = re.compile("|".join(patterns), re.DOTALL) if patterns else None

    @property
    def text(self) -> str:
        """The names and patterns as one text, for `parse`."""
        return "/".join(self.texts)

    @classmethod
    def parse(cls, text: str) -> "TopicSelection":
        """Return the selection whose `text` is given; no name of a topic has a slash."""
        return cls(each for each in text.split("/") if each)

    def matches(self, topic: str) -> bool:
        """Return whether a topic is consumed."""
        if topic in self.names:
            return True
        if self._pattern is None or topic.startswith(_NOT_BY_PATTERN):
            return False
        return self._pattern.fullmatch(topic) is not None


def checked_group(group: object, call: str = "consumer") -> str:
    """Return a group's name, an argument of `call`; raises `ArgumentError` for one that RocketMQ does not allow."""
    expected = "the name of a group: 1 to 120 letters, digits, '%', '|', '_' and '-'"
    name = arguments.text(call, "group", group, expected)
    if _GROUP.fullmatch(name) is None:
        raise ArgumentError(call, "group", group, expected)
    return name


def checked_topics(topics: object) -> tuple[str, ...]:
    """Return the names and patterns of topics; raises `ArgumentError` if there are none, and for one that cannot be."""
    if not isinstance(topics, Iterable):
        expected = "a topic, or several of them in a list"
        raise ArgumentTypeError("consumer", "topics", topics, expected)
    names = arguments.texts("consumer", "topics", topics, one_too=True)
    if not names:
        raise ArgumentError("consumer", "topics", topics, "at least one topic")
    for name in names:
        # A pattern is the name of a topic if its stars are letters.
        check_topic(name.replace("*", "x"))
    return names
