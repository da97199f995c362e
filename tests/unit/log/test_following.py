"""What the dispatchers are given is the log, every record once and in order, over every border."""

from pathlib import Path
from typing import Any

import pytest

from penstock import Message
from penstock.format.record import CRC_PROPERTY_SIZE
from penstock.testing import ManualWorkers, open_store

SEGMENT = 64 * 1024


def walked(path: Path) -> list[tuple[int, int, int]]:
    """Return log offset, size and queue offset of every record, from the log's own bytes."""
    found = []
    for segment in sorted((path / "commitlog").iterdir()):
        data, at = segment.read_bytes(), 0
        while int.from_bytes(data[at + 4 : at + 8], "big") == 0xDAA320A7:
            size = int.from_bytes(data[at : at + 4], "big")
            queue_offset = int.from_bytes(data[at + 20 : at + 28], "big")
            found.append((int(segment.name) + at, size, queue_offset))
            at += size
    return found


# Of a record of topic "t" without properties and body.
BARE = 91 + len("t") + CRC_PROPERTY_SIZE


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 7, 8])
@pytest.mark.parametrize("count", [1, 3, 60])
@pytest.mark.parametrize("how", ["put", "put_many", "atomic"])
def test_the_last_record_of_a_segment_leaves_room_for_the_blank_one(
    how: str, count: int, left: int, tmp_path: Path
) -> None:
    """That is 8 bytes: with 8 it stays in the segment, with 7 it begins the next."""
    # With extensions, a record that is put leaves room for copies, too.
    given: dict[str, Any] = {"extensions.use": []}
    with open_store(tmp_path / "s", spawn=ManualWorkers(), **given) as store:
        assert store.put("t", b"", queue=0).size == BARE
        rest = SEGMENT - BARE - (count - 1) * BARE - BARE - left
        messages = [Message("t", b"", queue=0)] * (count - 1) + [Message("t", bytes(rest), queue=0)]
        if how == "put":
            receipts = [store.put("t", message.body, queue=0) for message in messages]
        else:
            receipts = list(store.put_many(messages, atomic=how == "atomic"))
        fits = left >= 8
        last = SEGMENT - left - BARE - rest if fits else SEGMENT
        if how == "atomic" and not fits:
            last = SEGMENT + (count - 1) * BARE
        assert receipts[-1].log_offset == last
        store.put("t", b"after the border", queue=0)
        found = walked(tmp_path / "s")
        assert len(found) == count + 2
        assert [m.log_offset for m in store.scan("t")] == [offset for offset, _, _ in found]
        assert not list(store.verify())
