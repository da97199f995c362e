"""Where a queue goes on, asked of the queue index before the first message is put into it."""

from penstock._kernel import QueueCursor
from penstock.contracts import QueueIndex
from penstock.errors import PluginError, StorageError, SystemLimitError
from penstock.log.log_tail import LIMITS

_OFFSET_END = 1 << 63


def make_cursor(index: QueueIndex, topic: str, queue: int) -> QueueCursor:
    """Return the cursor of a queue whose topic and number were checked; raises where its next offset is not known."""
    following = _next_offset(index, topic, queue)
    # The queue index is a plugin; what it says goes into the log for good.
    if not (isinstance(following, int) and 0 <= following < _OFFSET_END):
        raise PluginError(
            f"the queue index says that queue {topic}/{queue} goes on at {following!r}, which no queue "
            f"can: nothing was put; mend or replace that plugin, see penstock plugins"
        )
    return QueueCursor(str(topic), queue, following)


def _next_offset(index: QueueIndex, topic: str, queue: int) -> object:
    """Return what the index says; it may look at the queue only now, the first time after a clean opening."""
    try:
        return index.max_offset(topic, queue)
    except OSError as error:
        if error.errno in LIMITS:
            raise SystemLimitError(str(error)) from error
        raise StorageError(
            f"the files of queue {topic}/{queue} cannot be read ({error}), so it is not known where the queue goes "
            f"on; nothing was stored. Other queues are not affected; look at the disk, and try again"
        ) from error
