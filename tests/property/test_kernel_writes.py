"""Messages and records become the bytes that the plain encoder of `penstock.format.record` makes.

That every way into a store makes the same, `test_batches.py` says.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lanes import examples

from penstock import Message
from penstock._kernel import Batch, QueueCursor, RecordEncoder
from penstock.format.properties import encode_properties, is_tag
from penstock.format.record import RecordFields, encode_record
from penstock.write.validation import encode_messages, host_bytes

HOSTS = ["127.0.0.1:10911", "10.1.2.3:-7", "[2001:db8::7]:65535"]
TOPICS = ["t", "тема", "l" * 127, "l" * 128, "ü" * 120]
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=30)
WORD, TAG = TEXT.filter(lambda text: " " not in text), st.one_of(st.just(""), TEXT.filter(is_tag))
I32, I64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
NAMES = TEXT.filter(
    lambda n: n not in ("TAGS", "KEYS", "__CRC32#") and "DELAY" not in n and "DELIVER" not in n
)
MESSAGES = st.builds(
    Message,
    st.sampled_from(TOPICS), st.binary(max_size=400),
    queue=st.integers(0, 65_535), tag=TAG, keys=st.lists(WORD, max_size=20),
    properties=st.dictionaries(NAMES, TEXT, max_size=4), flag=I32,
    born_time_ms=st.one_of(st.none(), I64), born_host=st.one_of(st.none(), st.sampled_from(HOSTS)),
    sys_flag=st.sampled_from([0, 1, 0x8, 0x80, 0x30, -1 & ~0xC]), reconsume_times=I32, prepared_offset=st.integers(0, (1 << 63) - 1),
)  # fmt: skip


def encoder(host: str, *, crc_property: bool) -> RecordEncoder:
    return RecordEncoder(
        host_bytes(host), crc_property=crc_property, body_bytes_max=1 << 20,
        make_cursor=lambda topic, queue: QueueCursor(topic, queue, 0), time_ms=lambda: 77,
    )  # fmt: skip


def plain(
    message: Message, host: str, ordinal: int, at: int, store_ms: int, *, crc_property: bool
) -> bytes:
    """Return the record as the plain encoder makes it."""
    fields = RecordFields(
        topic=message.topic.encode(), body=message.body, queue=message.queue, flag=message.flag,
        queue_offset=ordinal, log_offset=at, sys_flag=message.sys_flag & ~0x30,
        born_time_ms=77 if message.born_time_ms is None else message.born_time_ms,
        born_host=host_bytes(message.born_host or host), store_time_ms=store_ms, store_host=host_bytes(host),
        reconsume_times=message.reconsume_times, prepared_offset=message.prepared_offset,
        properties=encode_properties(message.tag, message.keys, message.properties),
    )  # fmt: skip
    return encode_record(fields, crc_property=crc_property)


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(
    messages=st.lists(MESSAGES, max_size=6),
    host=st.sampled_from(HOSTS),
    crc_property=st.booleans(),
    start=st.integers(0, 1 << 62),
)
def test_a_batch_has_the_records_of_the_plain_encoder(
    messages: list[Message], host: str, crc_property: bool, start: int
) -> None:
    batch = encode_messages(encoder(host, crc_property=crc_property), messages)
    batch.stamp([(0, start)], 1234)
    nexts: dict[tuple[str, int], int] = {}
    expected = b""
    for message in messages:
        place = (message.topic, message.queue)
        ordinal = nexts[place] = nexts.get(place, -1) + 1
        expected += plain(message, host, ordinal, start + len(expected), 1234, crc_property=crc_property)  # fmt: skip
    assert bytes(batch) == expected
    batch.count_up()
    assert {
        (cursor.topic, cursor.queue): cursor.next_offset - 1 for cursor in batch.cursors
    } == nexts
    assert batch.end_offset == (start + len(expected) if messages else 0)


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(messages=st.lists(MESSAGES, min_size=1, max_size=4), had_crc=st.booleans(), has_crc=st.booleans())  # fmt: skip
def test_a_record_encoded_elsewhere_comes_in_the_form_of_the_store(
    messages: list[Message], had_crc: bool, has_crc: bool
) -> None:
    """As those of staged files do: with room for a CRC of its own, or without it."""
    here, host = encoder(HOSTS[0], crc_property=has_crc), HOSTS[0]
    batch = Batch(here)
    for message in messages:
        record = plain(message, host, 5, 7, 9, crc_property=had_crc)
        batch.add_record(here.cursor_of(message.topic, message.queue), record, has_crc=had_crc)
    batch.stamp([(0, 0)], 4)
    first = bytes(batch)[: batch.sizes(0, 1)[0]]
    assert first == plain(messages[0], host, 0, 0, 4, crc_property=has_crc)
