"""Fuzz target: a consume-queue file of any bytes beside a sound log.

Whatever stands in the file, a reader gets the messages of the entries that are as they were, and never
a message that belongs to another place.
"""

import contextlib

from tests.fuzz.ground import PLACES, SIZES, ground, verified

from penstock.errors import PenstockError
from penstock.message import StoredMessage


def target(data: bytes) -> None:
    made = ground()
    size = SIZES.queue_file_bytes
    content = data[:size].ljust(size, b"\0")
    made.queue_file.write_bytes(content)
    reader, queues, _ = made.reader()
    try:
        whole = {
            ordinal
            for ordinal in range(5)
            if content[20 * ordinal : 20 * ordinal + 20]
            == made.queue_bytes[20 * ordinal : 20 * ordinal + 20]
        }
        found = reader.read("a", 0, reader.min_offset("a", 0), 1000).messages
        _check(found, whole)
        _check([m for m in reader.scan("a") if m.queue == 0], whole)
        others = [m for m in reader.scan("a") if m.queue == 1]
        assert len(others) == 5, "a damaged queue costs its neighbour nothing"
        for time_ms in (0, 1_700_000_000_000, 1 << 49):
            assert 0 <= reader.offset_at("a", 0, time_ms / 1000) <= reader.max_offset("a", 0)
        with contextlib.suppress(PenstockError):
            table = reader.to_arrow("a", columns=["log_offset", "body", "queue", "queue_offset"])
            assert table.num_rows <= SIZES.queue_entries
        findings, _ = verified(made.log, [queues], made.end)
        assert findings or len(whole) == 5, "verify tells of every entry that is not as it was"
    finally:
        queues.close()
        made.queue_file.write_bytes(made.queue_bytes)


def _check(found: list[StoredMessage], whole: set[int]) -> None:
    records = ground().records
    for message in found:
        place = message.topic, message.queue, message.queue_offset
        assert place[:2] == PLACES[0], "only messages of this queue"
        assert records[place] == message.record
    missing = whole - {message.queue_offset for message in found}
    assert not missing, "an entry that is as it was gives its message"
