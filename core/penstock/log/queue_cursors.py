"""The next offset of a queue, read from the queue index before the first message is put into the queue."""

from penstock._kernel import QueueCursor
from penstock.contracts import QueueReader
from penstock.errors import PluginError, StorageError, SystemLimitError
from penstock.log.log_tail import LIMITS

_OFFSET_END = 1 << 63


def make_cursor(index: QueueReader, topic: str, queue: int) -> QueueCursor:
    """Return the cursor of a queue whose topic and number were checked.

    Raises `PluginError` if the queue index returns an impossible offset, `StorageError` if it cannot read its files,
    and `SystemLimitError` if the system has no resources left for that.
    """
    following = _next_offset(index, topic, queue)
    # The queue index is a plugin, and its answer is written to the log permanently.
    if not (isinstance(following, int) and 0 <= following < _OFFSET_END):
        raise PluginError(
            f"the queue index returned {following!r} as the next offset of queue {topic}/{queue}, which is not a "
            f"valid offset; nothing was stored. Fix or replace that plugin, see penstock plugins"
        )
    return QueueCursor(str(topic), queue, following)


def _next_offset(index: QueueReader, topic: str, queue: int) -> object:
    """Return the next offset from the index, which may read the queue's files now, for the first time since the opening."""
    try:
        return index.max_offset(topic, queue)
    except OSError as error:
        if error.errno in LIMITS:
            raise SystemLimitError(str(error)) from error
        raise StorageError(
            f"the files of queue {topic}/{queue} cannot be read ({error}), so the next offset of the queue is not "
            f"known; nothing was stored. Other queues are not affected; check the disk, and try again"
        ) from error
