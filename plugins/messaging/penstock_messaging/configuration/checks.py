"""Which messages of callers are refused: the checks of RocketMQ's broker, and one more.

In this order, as a broker has them:

1. Topics that the broker keeps for itself, such as `SCHEDULE_TOPIC_XXXX`.
2. A topic without a configuration, where messages do not create topics. `%RETRY%` topics are always created.
3. A queue number that the topic does not have.
4. A topic without write permission. A broker leaves that to its clients, and stores what they send nevertheless.

Called once for each queue, and again after a topic was changed: never for each message.
"""

from penstock.errors import (
    BusyError,
    MessageError,
    TopicError,
    TopicPermissionError,
    TopicQueueError,
    UnknownTopicError,
)
from penstock.format.names import FORBIDDEN_TOPICS
from penstock_messaging.configuration.topics import TopicConfigs
from penstock_messaging.properties_text import TIMER_TOPIC

_RETRY = "%RETRY%"
_INSTEAD = {
    "SCHEDULE_TOPIC_XXXX": "; to delay a message, put it to its topic with delay_level",
    TIMER_TOPIC: "; to delay a message, put it to its topic with delay or deliver_at",
}


def check_put(topics: TopicConfigs, topic: str, queue: int, *, grows: bool = False) -> None:
    """Raise a `MessageError` if messages may not be put to a queue; creates the topic where that is allowed.

    With `grows`, a topic that messages have created gets the queue: its number was picked before.

    Raises `BusyError` while the topic is being deleted.
    """
    if topic in FORBIDDEN_TOPICS:
        raise TopicError(topic, f"RocketMQ reserves that name for its own messages; nothing was "
            f"stored{_INSTEAD.get(topic, '')}")  # fmt: skip
    if topics.is_being_deleted(topic):
        raise BusyError(f"topic {topic} has been being deleted", 0)
    is_new = topics.get(topic) is None
    if (is_new and (topics.auto_create or topic.startswith(_RETRY))) or (grows and not is_new):
        topics.ensure(topic, queue if grows else 0)
    if (error := refusal(topics, topic, queue)) is not None:
        raise error


def refusal(topics: TopicConfigs, topic: str, queue: int) -> MessageError | None:
    """Return why messages may not be put to a queue, by what its topic is now; None if they may."""
    config = topics.get(topic)
    if config is None:
        if topics.auto_create or topic.startswith(_RETRY) or topics.has_none(topic):
            return None
        return UnknownTopicError(
            topic,
            ", and messages do not create topics (extensions.messaging.auto_create_topics is false); "
            "nothing was stored. Create it with Store.create_topic or `penstock topic create`",
        )
    if queue >= config.queues:
        return TopicQueueError(topic, queue, config.queues)
    return None if config.is_writable else TopicPermissionError(topic, config.perm)
