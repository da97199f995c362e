"""The extension `messaging`: puts together what this package adds to a store.

Every process that opens a store imports this module, and many need no more of it than that a topic takes puts. So each part is
imported and made at its first use.
"""

import threading
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

import attrs

from penstock import Message
from penstock.contracts import (
    MS_MAX,
    SIDE_FOLDER,
    Consumer,
    ConsumerOptions,
    Context,
    Extension,
    OpenStore,
    TopicConfig,
    limits,
)
from penstock.errors import StoreClosedError

if TYPE_CHECKING:
    from penstock_messaging.configuration.parts import Configuration
    from penstock_messaging.parts import Parts

# Queues of a topic that a message creates: as many as a RocketMQ producer asks for.
_DEFAULT_QUEUES = 4
_QUEUES_MAX = 65_536
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"


@attrs.frozen(kw_only=True)
class MessagingOptions:
    """Options of the extension `messaging`.

    Attributes:
        auto_create_topics: a message to an unknown topic creates it, and a message to a higher queue of a topic that was
            created so adds queues. If false, such messages are refused.
        default_queues: how many queues a new topic has unless a number is given.
        delay_save_ms: how long after the delivery of a delayed message `delayOffset.json` is written at the latest. A crash
            delivers again at most what was delivered in that time; each write flushes the log.
    """

    auto_create_topics: bool = True
    default_queues: int = attrs.field(default=_DEFAULT_QUEUES, validator=limits(1, _QUEUES_MAX))
    delay_save_ms: int = attrs.field(default=1000, validator=limits(1, MS_MAX))
