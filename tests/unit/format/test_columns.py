"""Many records as columns: what the decoder says of each, and nothing of what is none."""

import attrs
import numpy as np
import pytest

from penstock.format.columns import RecordColumns
from penstock.format.record import (
    COMMIT,
    PREPARED,
    RecordFields,
    decode_record,
    encode_host,
    encode_record,
)

COMMON = RecordFields(
    topic=b"TopicTest",
    body=b"hello 0",
    born_time_ms=1_700_000_000_000,
    born_host=encode_host("127.0.0.1:50000"),
    store_time_ms=1_700_000_000_001,
    store_host=encode_host("127.0.0.1:10911"),
    properties=b"KEYS\x01k0 common\x02TAGS\x01TagA\x02UNIQ_KEY\x017F000001000100000000000000000000\x02",
)


A = (
    "000000ae daa320a7 20e809f1 00000000 00000000 0000000000000000 0000000000000000 00000000"
    "0000018bcfe56800 7f000001 0000c350 0000018bcfe56801 7f000001 00002a9f 00000000"
    "0000000000000000 00000007 68656c6c6f2030 09 546f70696354657374 0043"
    "4b455953016b3020636f6d6d6f6e02 544147530154616741 02 554e49515f4b455901374630303030303130"
    "303031303030303030303030303030303030303030303002"
)


IPV6 = attrs.evolve(
    COMMON, born_host=encode_host("[2001:db8::1]:50000"), store_host=encode_host("[::1]:10911")
)


SMALLEST = attrs.evolve(COMMON, topic=b"T", body=b"x", properties=b"")


LONG_TOPIC = attrs.evolve(COMMON, topic=b"t" * 128, body=b"b", properties=b"")


EVERYTHING = attrs.evolve(
    IPV6, queue=3, flag=-7, queue_offset=1 << 40, log_offset=1 << 50, sys_flag=0x1 | COMMIT,
    reconsume_times=5, prepared_offset=1 << 41, is_v2=True,
)  # fmt: skip


RECORDS = {
    "a V1": (COMMON, A),
    "c IPv6": (IPV6, None),
    "d V2": (LONG_TOPIC, None),
    "e smallest": (SMALLEST, "0000005d daa320a7 0cdc1683 00000000 00000000" + "00" * 20
                   + "0000018bcfe56800 7f0000010000c350 0000018bcfe56801 7f00000100002a9f"
                   + "00" * 12 + "00000001 78 01 54 0000"),
    "everything": (EVERYTHING, None),
    "empty body": (attrs.evolve(COMMON, body=b""), None),
    "prepared": (attrs.evolve(COMMON, sys_flag=PREPARED), None),
    "no trailing separator": (attrs.evolve(COMMON, properties=b"TAGS\x01TagA"), None),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
def test_columns_see_what_the_decoder_sees(name: str) -> None:
    fields, _ = RECORDS[name]
    data = b"\0" * 13 + encode_record(fields)
    one = RecordColumns.parse(data, [13], fields.log_offset - 13)
    assert one.first_bad(check_crc=True) is None
    decoded = decode_record(data[13:])
    assert one.queues[0] == decoded.queue
    assert one.queue_offsets[0] == decoded.queue_offset
    assert one.store_times_ms[0] == decoded.store_time_ms
    assert one.born_times_ms[0] == decoded.born_time_ms
    assert one.reconsume_times[0] == decoded.reconsume_times
    assert one.prepared_offsets[0] == decoded.prepared_offset
    assert one.topics[0] == [decoded.topic]


def test_a_row_that_is_no_record_is_not_valid_and_says_no_more() -> None:
    record = encode_record(RecordFields(topic=b"t", body=b"x", queue=5))
    window = record + b"\xff" * 200
    columns = RecordColumns.parse(window, [0, len(record)], 0)
    assert columns.valid.tolist() == [True, False]
    assert columns.queues.tolist()[0] == 5
    assert columns.first_bad(check_crc=True) == 1


def test_the_first_row_at_another_place_than_it_says_is_bad() -> None:
    records = [encode_record(RecordFields(topic=b"t", body=b"x", log_offset=1000 + 93 * n)) for n in range(3)]  # fmt: skip
    columns = RecordColumns.parse(b"".join(records), [0, 93, 186], 1000)
    assert columns.first_bad(check_crc=True) is None
    moved = RecordColumns.parse(b"".join(records), [0, 93, 186], 0, log_offsets=np.array([1000, 7, 1186]))  # fmt: skip
    assert moved.first_bad(check_crc=False) == 1


def test_a_crc_is_looked_at_only_where_that_is_asked_for() -> None:
    record = bytearray(encode_record(RecordFields(topic=b"t", body=b"abc")))
    record[89] ^= 1
    columns = RecordColumns.parse(bytes(record), [0], 0)
    assert columns.first_bad(check_crc=False) is None
    assert columns.first_bad(check_crc=True) == 0


def test_rows_are_picked_by_number_mask_or_range_with_their_offsets() -> None:
    records = [encode_record(RecordFields(topic=b"t%d" % (n % 2), body=b"x", queue=n)) for n in range(4)]  # fmt: skip
    columns = RecordColumns.parse(b"".join(records), [94 * n for n in range(4)], 50)
    assert columns.rows(np.array([3, 1])).queues.tolist() == [3, 1]
    assert columns.rows(columns.queues > 1).log_offsets.tolist() == [238, 332]
    assert columns.head(1).queues.tolist() == [0]
    assert columns.head(4) is columns
    names, rows = columns.topics
    assert [names[row] for row in rows.tolist()] == [b"t0", b"t1", b"t0", b"t1"]
