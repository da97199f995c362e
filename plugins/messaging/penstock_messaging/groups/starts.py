"""Where a group begins in a topic that it consumes for the first time.

The first member that subscribes to a topic resolves "earliest", "latest" or a time to an offset of each queue that the
topic has then, and writes them to the group's file for that topic. All members use that file from then on. A queue that
the topic gets later begins at its first message, so no message is passed over because nobody had the queue yet. So do
all queues of a topic that was deleted and made again: the group knows that name, and must miss nothing of it.
"""

import json
from collections.abc import Callable, Mapping

from penstock.escape import get_logger
from penstock.files import Files
from penstock_messaging.groups.entries import NUMBER_MAX
from penstock_messaging.groups.paths import GroupPaths, make_group_folder

logger = get_logger(__name__)

_CONTENT_BYTES_MAX = 16 << 20


def read_start(files: Files, paths: GroupPaths, topic: str, generation: int) -> dict[int, int] | None:  # fmt: skip
    """Return the offset of each queue where the group begins; None if that is not resolved for this generation."""
    path = paths.start(topic)
    try:
        found = json.loads(files.read_whole(path, _CONTENT_BYTES_MAX))
        offsets = _offsets(found["offsets"])
        return offsets if found["generation"] == generation else None
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        logger.warning(
            "%s cannot be understood (%s); the group begins at the first message of each queue", path, error
        )  # fmt: skip
        return {}


def _offsets(found: dict[str, int]) -> dict[int, int]:
    offsets = {int(queue): offset for queue, offset in found.items()}
    if not all(type(each) is int and 0 <= each <= NUMBER_MAX for each in offsets.values()):
        raise ValueError("an offset is not that of a message")
    return offsets


def ensure_start(
    files: Files,
    paths: GroupPaths,
    topic: str,
    generation: int,
    resolve: Callable[[], Mapping[int, int]],
) -> dict[int, int] | None:
    """Return the offsets where the group begins in a topic, which are resolved and written durably the first time.

    Returns None if another member is writing them: try again.
    """
    known = read_start(files, paths, topic, generation)
    if known is not None:
        return known
    make_group_folder(files, paths.root, paths.topic(topic))
    lock = files.lock_one(paths.lock)
    if lock is None:
        return None
    try:
        if not lock.has_name(paths.lock):
            return None
        # Another member may have written it since.
        known = read_start(files, paths, topic, generation)
        if known is None:
            # A file of another generation: the topic was deleted since.
            known = {} if files.exists(paths.start(topic)) else dict(resolve())
            _write(files, paths, topic, generation, known)
        return known
    finally:
        lock.release()


def _write(
    files: Files, paths: GroupPaths, topic: str, generation: int, offsets: Mapping[int, int]
) -> None:
    text = json.dumps({"generation": generation, "offsets": {str(q): o for q, o in offsets.items()}})  # fmt: skip
    files.write_whole(paths.start(topic), text.encode())


def lower_starts(
    files: Files,
    paths: GroupPaths,
    generation: Callable[[str], int],
    end: Callable[[str, int], int],
) -> None:
    """Lower, durably, what is beyond the end of its queue: messages were lost with the log's end, and others come."""
    for topic in paths.topics(files):
        now = generation(topic)
        known = read_start(files, paths, topic, now) or {}
        lowered = {queue: min(offset, end(topic, queue)) for queue, offset in known.items()}
        if lowered != known:
            _write(files, paths, topic, now, lowered)
