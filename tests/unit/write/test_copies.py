"""Copies keep their properties text byte by byte; what no record can hold is refused."""

from typing import Any

import pytest
from tests.conftest import OpenStore

from penstock import Message
from penstock.errors import MessageError, MessageTooLargeError, QueueError, TopicError


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
