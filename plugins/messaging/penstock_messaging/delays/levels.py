"""The 18 delay levels of RocketMQ, and the queues in which messages wait: level 1 in queue 0 of `SCHEDULE_TOPIC_XXXX`.

A broker can be configured with other levels (`messageDelayLevel`). When a waiting message is due stands in its queue
entry, so a message that waits since such a broker is delivered when that one would have, unless its entry was rebuilt.
"""

from penstock.contracts.dispatcher import DELAY_SECONDS
from penstock.contracts.dispatcher import SCHEDULE_TOPIC as _SCHEDULE_TOPIC

SCHEDULE_TOPIC = _SCHEDULE_TOPIC.decode()
LEVEL_MAX = len(DELAY_SECONDS)
# The delay of a level that is none of these, as RocketMQ has it.
_UNKNOWN_MS = 1000


def clamped(level: int) -> int:
    """Return a level, at most the last one, as a broker stores it."""
    return min(level, LEVEL_MAX)


def delay_ms(level: int) -> int:
    """Return the delay of a level in milliseconds."""
    return DELAY_SECONDS[level - 1] * 1000 if 1 <= level <= LEVEL_MAX else _UNKNOWN_MS


def queue_of(level: int) -> int:
    """Return the number of the queue in which messages of a level wait."""
    return level - 1


def level_of(queue: int) -> int:
    """Return the level whose messages wait in a queue."""
    return queue + 1
