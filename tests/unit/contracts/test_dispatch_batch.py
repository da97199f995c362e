"""A batch as dispatchers get it: queue entries' third field, keys, messages."""

import attrs
import numpy as np
import pytest

from penstock.contracts.dispatch_batch import DELAY_SECONDS, DispatchBatch
from penstock.format.columns import RecordColumns
from penstock.format.java_hash import java_hash
from penstock.format.record import (
    RecordFields,
    encode_host,
    encode_record,
)
from penstock_index.queue_files import ENTRY, PRE_BLANK

COMMON = RecordFields(
    topic=b"TopicTest",
    body=b"hello 0",
    born_time_ms=1_700_000_000_000,
    born_host=encode_host("127.0.0.1:50000"),
    store_time_ms=1_700_000_000_001,
    store_host=encode_host("127.0.0.1:10911"),
    properties=b"KEYS\x01k0 common\x02TAGS\x01TagA\x02UNIQ_KEY\x017F000001000100000000000000000000\x02",
)


def test_queue_entry_vectors() -> None:
    def entry(offset: int, size: int, code: int) -> str:
        return np.array([(offset, size, code)], ENTRY).tobytes().hex()

    assert entry(174, 174, java_hash("TagA")) == "00000000000000ae000000ae000000000027a807"
    assert entry(348, 174, java_hash("TopicTest")) == "000000000000015c000000aeffffffff8e987641"
    assert PRE_BLANK.hex() == "00000000000000007fffffff0000000000000000"


def test_the_code_on_the_schedule_topic_is_the_time_of_delivery() -> None:
    fields = attrs.evolve(
        COMMON, topic=b"SCHEDULE_TOPIC_XXXX", properties=b"DELAY\x013\x02TAGS\x01x\x02"
    )
    data = encode_record(fields)
    batch = DispatchBatch(RecordColumns.parse(data, [0], 0), 0, len(data))
    assert batch.tag_codes.tolist() == [0x18BCFE58F11]


@pytest.mark.parametrize("level", [b"9" * 5000, "\u00b2".encode(), b"-1", b"+3", b"0", b"x", b""])
def test_a_delay_level_that_is_no_number_is_no_level(level: bytes) -> None:
    """A number of 5,000 digits, which Python refuses to read, ended the dispatch of its record."""
    for text, expected in ((level, None), (b"3", 5 + DELAY_SECONDS[2] * 1000)):
        fields = RecordFields(topic=b"SCHEDULE_TOPIC_XXXX", body=b"", store_time_ms=5,
                              properties=b"DELAY\x01" + text + b"\x02")  # fmt: skip
        record = encode_record(fields)
        codes = DispatchBatch(
            RecordColumns.parse(record, [0], 0), 0, len(record)
        ).tag_codes.tolist()
        assert codes == ([0] if expected is None else [expected])
