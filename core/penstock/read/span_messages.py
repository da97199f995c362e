"""Reads ranges of multiple queues as messages, in the order of the log, with bounded memory.

The entries of all queues are merged by log offset (`span_merge`), so the log is read once. Records are checked and
copied out of the log by the kernel, at most a few MiB at a time. A record that is not valid is read separately, which
determines what is wrong with it; the caller decides whether that is an error.
"""

from collections.abc import Callable, Iterator, Sequence

from penstock.contracts import QueueReader
from penstock.errors import CorruptionError, OffsetError
from penstock.log.record_reader import Entries, QueuePosition, RecordReader
from penstock.log.segmented_log import SegmentedLog
from penstock.message import StoredMessage
from penstock.read.span_merge import EntryRows, Limits, Lost, MayMatch, QueueSpan, merged

# Entries of one batch at most: the messages of fewer than this, and of a few MiB, are in memory at once.
_ROWS = 4096
_BYTES = 4 << 20


def span_messages(
    log: SegmentedLog,
    index: QueueReader,
    records: RecordReader,
    spans: Sequence[QueueSpan],
    may_match: MayMatch,
    lost: Lost,
    corrupt: Callable[[CorruptionError], None],
) -> Iterator[StoredMessage]:
    """Yield the messages of ranges of queues in the order of the log.

    Args:
        log: the log.
        index: the queue index.
        records: reads the records of the log.
        spans: the ranges to read.
        may_match: returns which entries may match, given their tag codes; the caller compares the texts.
        lost: called with messages that were deleted; they are skipped unless it raises.
        corrupt: called with the error of a corrupt record; the record is skipped unless it raises.
    """
    places = [QueuePosition.of(span.topic, span.queue) for span in spans]
    for rows in merged(log, index, spans, Limits(_ROWS, _BYTES), may_match, lost):
        at = 0
        while at < len(rows.offsets):
            found = _leading(records, rows.part(at, len(rows.offsets)), places)
            yield from found
            at += len(found)
            if not found:
                message = _one(records, rows, at, spans, lost, corrupt)
                if message is not None:
                    yield message
                at += 1


def _leading(
    records: RecordReader, rows: EntryRows, places: Sequence[QueuePosition]
) -> list[StoredMessage]:
    """Return the messages of the first entries, up to the first that is not valid; possibly none."""
    first = int(rows.spans[0])
    is_one = bool((rows.spans == first).all())
    # The kernel compares the records with one queue; records of several queues are compared here.
    place = places[first] if is_one else QueuePosition(None, 0)
    try:
        found = records.leading(Entries(rows.ordinals, rows.offsets, rows.sizes), place)
    except (OffsetError, CorruptionError):
        return []
    if is_one:
        return found
    wanted = zip(found, rows.spans.tolist(), rows.ordinals.tolist(), strict=False)
    for count, (message, number, ordinal) in enumerate(wanted):
        if not _is_of(message, places[number], ordinal):
            return found[:count]
    return found


def _is_of(message: StoredMessage, place: QueuePosition, ordinal: int) -> bool:
    return place.topic is None or (
        message.queue_offset == ordinal
        and message.queue == place.queue
        and message.topic.encode() == place.topic
    )


def _one(
    records: RecordReader,
    rows: EntryRows,
    at: int,
    spans: Sequence[QueueSpan],
    lost: Lost,
    corrupt: Callable[[CorruptionError], None],
) -> StoredMessage | None:
    """Return the message of one entry; None if it was deleted or is corrupt, and the callback did not raise."""
    span, ordinal = spans[int(rows.spans[at])], int(rows.ordinals[at])
    place = QueuePosition.of(span.topic, span.queue)
    try:
        return records.message(int(rows.offsets[at]), int(rows.sizes[at]), place, ordinal)
    except OffsetError as error:
        lost(span._replace(start=ordinal, stop=ordinal + 1), error)
    except CorruptionError as error:
        corrupt(error)
    return None
