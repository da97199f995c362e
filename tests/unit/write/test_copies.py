"""Copies keep their properties text byte by byte; what no record can hold is refused."""

from typing import Any

import pytest
from tests.conftest import OpenStore

from penstock import Message
from penstock._kernel import Batch
from penstock.errors import MessageError, MessageTooLargeError, QueueError, TopicError
from penstock.exchange.rows import row_text
from penstock.format.properties import without_crc
from penstock.write.copies import encode_copies


def test_a_copy_has_its_text_and_every_other_field(open_small: OpenStore) -> None:
    text = b"DELAY\x013\x02a\x01\x02a\x01\xff\x02"
    message = Message(
        "t", b"\xff", queue=2, flag=-1, sys_flag=9, born_time_ms=7, born_host="[::1]:5", reconsume_times=4,
        prepared_offset=1 << 62,
    )  # fmt: skip
    with open_small() as store:
        assert store._engine is not None
        encoded = encode_copies(store._engine.log.encoder, [(message, text)])
        assert isinstance(encoded, Batch)
        assert len(encoded) == 1
        receipts = store.put_copies([(message, text), (Message("t", b""), b"")])
        assert [r.queue_offset for r in receipts] == [0, 0]
        found = store.read("t", 2).messages[0]
        assert without_crc(row_text(found)) == text
        assert (found.flag, found.sys_flag, found.born_time_ms) == (-1, 9 | 0x10, 7)
        assert (found.born_host, found.reconsume_times) == ("[::1]:5", 4)
        assert found.prepared_offset == 1 << 62
        other = store.read("t", 0).messages[0]
        assert other.born_host == other.store_host
        assert 0 <= other.store_time_ms - other.born_time_ms < 60_000
        assert list(store.verify(deep=True)) == []


@pytest.mark.parametrize(("message", "text", "kind"), [
    (Message("a/b", b""), b"", TopicError), (Message("t", b"", queue=-1), b"", QueueError),
    (Message("t", "text"), b"", MessageError), (Message("t", b"", flag=1 << 31), b"", MessageError),  # type: ignore[arg-type] # refused
    (Message("t", b"", born_host="nowhere"), b"", MessageError), (Message("t", bytes(5 << 20)), b"", MessageTooLargeError),
    (Message("t", b""), bytes(40_000), MessageTooLargeError), (Message("t", bytes(70_000)), b"", MessageTooLargeError),
])  # fmt: skip
def test_what_cannot_be_stored_is_refused_and_nothing_is_stored(
    open_small: OpenStore, message: Message, text: bytes, kind: type[Exception]
) -> None:
    given: Any = [(Message("t", b"before"), b""), (message, text)]
    with open_small() as store:
        with pytest.raises(kind):
            store.put_copies(given)
        assert store.topics() == {}
