"""The properties text of a stored message, read and changed as bytes: copies keep what others wrote.

A text is `name 0x01 value 0x02`, repeated. It is changed pair by pair, in its own order: a pair that is set again keeps
its place, a new one comes last. A broker writes the pairs in the order of a Java hash map, which differs between its
versions and has no meaning; so the order is not imitated. Bytes that are not UTF-8 are kept.
"""

from collections.abc import Callable, Iterable, Mapping

from penstock import Message, StoredMessage
from penstock.errors import MessageTooLargeError
from penstock.format.properties import CRC32, without_crc
from penstock.format.record import BORN_IPV6, STORE_IPV6, properties_in

# Where a message goes once its delay is over.
REAL_TOPIC, REAL_QUEUE = b"REAL_TOPIC", b"REAL_QID"
DELAY = b"DELAY"
# Where messages wait that are delivered at any time.
TIMER_TOPIC = "rmq_sys_wheel_timer"
# The topic and the message id that a retried message was first stored with.
RETRY_TOPIC, ORIGIN_ID = b"RETRY_TOPIC", b"ORIGIN_MESSAGE_ID"
WAIT = b"WAIT"
# Why the message of a retry or a dead letter was refused or given up.
REASON = b"FAILURE_REASON"

# What the store adds to the properties of a message, or of its later copies, and how long the values are at most.
LONGEST = {
    REAL_TOPIC: 255, REAL_QUEUE: 5, DELAY: 2, RETRY_TOPIC: 255, ORIGIN_ID: 56, WAIT: 5, REASON: 64,
    b"TIMER_DELIVER_MS": 15, b"TIMER_OUT_MS": 15, b"TIMER_ENQUEUE_MS": 15, b"TIMER_DEQUEUE_MS": 15,
    b"TIMER_ROLL_TIMES": 9, b"UNIQ_KEY": 32, b"__transactionId__": 32, b"TRAN_MSG": 4, b"PGROUP": 120,
    b"TRANSACTION_CHECK_TIMES": 9,
}  # fmt: skip
# By how many bytes a copy may be larger than its message: all of these, a separator each, and a longer topic.
COPY_BYTES = sum(len(name) + 2 + most for name, most in LONGEST.items()) + 255
_NAME_END, _PAIR_END = b"\x01", b"\x02"
_CRC = CRC32.encode()
_ADDRESS_BITS = BORN_IPV6 | STORE_IPV6


def stored_text(message: StoredMessage) -> bytes:
    """Return the properties text of a message as it is stored, without the CRC of its record."""
    return without_crc(properties_in(message.record))


def pairs_of(text: bytes) -> dict[bytes, bytes]:
    """Return the pairs of a text; of a name that occurs twice the last value counts, as in Java."""
    pairs = {}
    for part in text.split(_PAIR_END):
        name, _, value = part.partition(_NAME_END)
        if name and value and name != _CRC:
            pairs[name] = value
    return pairs


def stored_pairs(message: StoredMessage) -> dict[bytes, bytes]:
    """Return the pairs of a message's properties as they are stored, without the CRC of its record."""
    return pairs_of(properties_in(message.record))


def text_of(pairs: Mapping[bytes, bytes]) -> bytes:
    """Return the text of pairs."""
    return b"".join(name + _NAME_END + value + _PAIR_END for name, value in pairs.items())


def check_later(
    check: Callable[[Message, bytes], None], copy: Message, text: bytes, topics: Iterable[str], *added: bytes
) -> None:  # fmt: skip
    """Raise `MessageTooLargeError` unless later copies of a message fit, to these topics, with these properties.

    For the record as a whole there is room if the message could be put (`MessagingExtension.record_reserve`).

    Args:
        check: raises the error for one copy; see `LowLevelStore.check`.
        copy: the copy that is stored first.
        text: its properties text.
        topics: where later copies go.
        added: names of properties that they have in addition; see `LONGEST`.
    """
    text = text_of(pairs_of(text) | {name: b"0" * LONGEST[name] for name in added})
    for topic in topics:
        try:
            check(copy.__replace__(topic=topic, body=b""), text)
        except MessageTooLargeError as error:
            raise MessageTooLargeError(
                f"{error.what} of the copy that is stored later in {topic}", error.size, error.limit,
                f"shorten the message by {error.size - error.limit} bytes; nothing was stored",
            ) from None  # fmt: skip


def flags_for_copy(message: StoredMessage) -> int:
    """Return the SYSFLAG of a copy: without the bits of the two hosts' addresses, which the store sets."""
    return message.sys_flag & ~_ADDRESS_BITS
