"""Names, properties and other texts of the format, the checksums and hashes over them, and the columns of messages."""

import subprocess
import sys

import numpy
import pyarrow as pa
import pytest

from penstock.errors import ConfigError, LongTopicError, PropertyError, QueueError, TopicError
from penstock.format.arrays import RowType, np
from penstock.format.arrow_schema import COLUMNS, check_columns, reader_of, schema_of
from penstock.format.hashes import crc32c, distinct_of, index_hash, java_hash
from penstock.format.names import check_queue, check_topic, is_waiting, segment_name, topic_of
from penstock.format.properties import (
    check_zeros,
    decode_properties,
    encode_properties,
    without_crc,
)
from penstock.format.rocketmq_json import parse_rocketmq_json

# --- which names may become folders and files of a store


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("", "empty"), (".", "outside"), ("..", "outside"), ("a/b", "'/'"), ("a\n", "control"), ("\x7f", "control"),
        ("\udcff", "UTF-8"), ("x" * 256, "256 UTF-8 bytes"), ("ö" * 128, "256 UTF-8 bytes"), (5, "not int"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_folder_is_no_topic_and_says_why(topic: object, reason: str) -> None:
    with pytest.raises(TopicError, match=reason):
        check_topic(topic)
    if isinstance(topic, str):
        assert topic_of(topic.encode("utf-8", "surrogateescape")) is None


def test_a_topic_may_be_as_long_as_a_file_name_unless_brokers_read_it() -> None:
    long = "x" * 128
    assert check_topic("x" * 255) == "x" * 255
    assert check_topic("x" * 127, long=False) == "x" * 127
    with pytest.raises(LongTopicError, match="128 bytes"):
        check_topic(long, long=False)
    assert topic_of(long.encode()) == long


def test_any_whole_number_in_bounds_is_a_queue() -> None:
    assert segment_name(3221225472) == "00000000003221225472"
    assert [check_queue(number) for number in (0, 65_535, np.int64(7))] == [0, 65_535, 7]
    assert type(check_queue(np.int64(7))) is int


@pytest.mark.parametrize("queue", [-1, 65_536, 1.0, "1", None, True])
def test_what_is_no_queue_number_is_refused_by_its_limit(queue: object) -> None:
    with pytest.raises(QueueError, match="0 to 65535"):
        check_queue(queue)


def test_topics_of_brokers_hold_what_is_not_delivered_or_committed() -> None:
    assert all(map(is_waiting, ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_OP_HALF_TOPIC"]))
    assert not any(map(is_waiting, ["orders", "%RETRY%g", "%DLQ%g", "schedule_topic_xxxx"]))


# --- the properties text: what is written is read back, and what could not be is refused by name


@pytest.mark.parametrize(
    ("tag", "keys", "properties"),
    [
        ("", (), {}), ("red", (), {}), ("", ("a",), {}), ("red", ("a",), {}), ("red", ("a", "b"), {}),
        ("größe", ("ü", "two", "words"), {"n": "1", "m": "\n"}), ("red", ("\t",), {}), ("x", ["a"], {"n": "v"}),
    ],
)  # fmt: skip
def test_what_is_written_is_read_back(
    tag: str, keys: list[str], properties: dict[str, str]
) -> None:
    expected = {**({"TAGS": tag} if tag else {}), **({"KEYS": " ".join(keys)} if keys else {}), **properties}  # fmt: skip
    text = encode_properties(tag, keys, properties)
    assert decode_properties(text) == expected
    assert decode_properties(text.removesuffix(b"\x02")) == expected, "as older brokers end it"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (("a\x01", (), {}), "separate"), (("", ("a\x02b",), {}), "separate"), (("", ("",), {}), "empty"),
        (("", ("A 17",), {}), "a space separates keys"), (("a||b", (), {}), "no consumer could select"), (("*", (), {}), "no consumer could select"), (("", "abc", {}), "not one string"), ((5, (), {}), "not int"),
        (("", (None,), {}), "not NoneType"), (("", (), {"n": ""}), "empty"), (("", (), {"": "v"}), "non-empty"),
        (("", (), {"n\x01": "v"}), "separate"), (("", (), {"TAGS": "v"}), "tag="), (("", (), {"KEYS": "v"}), "keys="),
        (("\udcff", (), {}), "UTF-8"), (("", ("\udcff",), {}), "UTF-8"), (("", (), {"n": "\udcff"}), "UTF-8"),
    ],
)  # fmt: skip
def test_what_no_reader_could_get_back_is_refused(
    given: tuple[str, list[str], dict[str, str]], reason: str
) -> None:
    with pytest.raises(PropertyError, match=reason):
        encode_properties(*given)


def test_a_property_that_requests_a_delay_is_refused_and_names_the_argument() -> None:
    with pytest.raises(PropertyError, match=r"'DELAY' is refused: pass it as delay_level="):
        encode_properties("", (), {"DELAY": "3"})
    for name in ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"):
        with pytest.raises(PropertyError, match="deliver_at= or delay="):
            encode_properties("", (), {name: "3"})


def test_the_crc_of_another_record_is_neither_written_nor_read() -> None:
    assert encode_properties("", (), {"__CRC32#": "1234567890", "n": "1"}) == b"n\x011\x02"
    assert decode_properties(b"__CRC32#\x011234567890\x02n\x011\x02") == {"n": "1"}


def test_of_a_name_given_twice_the_last_counts_and_torn_pairs_do_not() -> None:
    text = b"n\x011\x02n\x012\x02\x01v\x02name\x02empty\x01\x02\xff\x01v"
    assert decode_properties(text) == {"n": "2", "\ufffd": "v"}


def test_a_sector_of_zeros_in_a_value_is_refused_naming_it() -> None:
    check_zeros(b"a\x01" + bytes(511) + b"\x02")
    with pytest.raises(PropertyError, match=r"property 'b' is refused.*512 consecutive zero bytes"):
        check_zeros(b"a\x01x\x02b\x01" + bytes(512) + b"\x02")


def test_only_crc_properties_are_left_out() -> None:
    assert without_crc(b"__CRC32#\x0112\x02") == b""
    assert without_crc(b"a\x01b\x02__CRC32#\x0112\x02") == b"a\x01b\x02"
    assert without_crc(b"__CRC32#X\x011\x02") == b"__CRC32#X\x011\x02"


# --- hashes and checksums


@pytest.mark.parametrize(
    ("text", "java", "index"),
    [("", 0, 0), ("a", 97, 97), ("TagA", 2598919, 2598919), ("Hello", 69609650, 69609650),
     ("TopicTest", -1902610879, 1902610879), ("TagA || TagB", 1359775119, 1359775119),
     ("polygenelubricants", -(1 << 31), 0), ("中文标签", 622041809, 622041809),
     ("\U0001f600", 1772899, 1772899), ("TopicTest#k0", 2746023, 2746023),
     ("TopicTest#common", 1811706477, 1811706477),
     ("TopicTest#7F000001000100000000000000000000", 352739635, 352739635)],
)  # fmt: skip
def test_java_hashes(text: str, java: int, index: int) -> None:
    assert java_hash(text) == java
    assert index_hash(text) == index


def test_distinct_values_ascend_whether_they_are_small_or_large() -> None:
    assert distinct_of(np.array([5, 1, 5, 0])) == [0, 1, 5]
    assert distinct_of(np.array([1 << 40, 3, 1 << 40])) == [3, 1 << 40]
    assert distinct_of(np.zeros(0, np.int64)) == []


@pytest.mark.parametrize(
    ("data", "value"),
    # The check value of the catalogue, and those of RFC 3720, B.4.
    [(b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E), (b"", 0)],
)  # fmt: skip
def test_crc32c_has_its_published_values(data: bytes, value: int) -> None:
    assert crc32c(data) == crc32c(memoryview(data)) == value
    assert crc32c(np.frombuffer(data, np.uint8)) == value
    assert crc32c(data[5:], crc32c(data[:5])) == value


# --- RocketMQ's JSON: bare whole numbers as keys, and no text of others changed by that


def test_bare_and_quoted_keys_are_read_alike() -> None:
    for text in ('{"t@g":{0:7,-1:8, 12 : 9}}', '{"t@g":{"0":7,"-1":8,"12":9}}'):
        assert parse_rocketmq_json(text) == {"t@g": {"0": 7, "-1": 8, "12": 9}}


def test_what_looks_like_a_bare_key_within_a_text_stays() -> None:
    text = r'{"a":"{0:1, 2:3}","b\",4:5":"x\\","c":[6, 7]}'
    assert parse_rocketmq_json(text) == {"a": "{0:1, 2:3}", 'b",4:5': "x\\", "c": [6, 7]}


@pytest.mark.parametrize("text", ["", "[]", "5", '{"a"', '{"a":1,}', '"' * 100_000, "[" * 100_000])
def test_what_is_none_is_a_value_error_and_takes_no_time_by_its_square(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_rocketmq_json(text)


def test_a_number_too_long_for_any_field_spoils_its_own_entry_only() -> None:
    digits = "9" * 5000
    assert parse_rocketmq_json(f'{{"a":{digits},"b":1}}') == {"a": digits, "b": 1}


# --- columns, in Arrow and numpy


def test_the_default_is_what_most_ask_for_without_the_map_of_properties() -> None:
    assert check_columns(None) == (
        "topic", "queue", "queue_offset", "log_offset", "store_time", "born_time", "tag", "keys", "body",
    )  # fmt: skip


def test_columns_come_in_the_order_asked_for() -> None:
    assert check_columns(["body", "topic"]) == ("body", "topic")
    assert schema_of(("body", "topic")) == pa.schema([("body", pa.binary()), ("topic", pa.string())])  # fmt: skip
    assert check_columns([]) == ()


def test_an_unknown_column_is_an_error_that_names_all_there_are() -> None:
    with pytest.raises(
        ConfigError, match="no column 'offset'; the columns are: topic, queue, "
    ) as raised:
        check_columns(["topic", "offset"])
    assert all(name in str(raised.value) for name in COLUMNS)


def test_a_stream_has_its_schema_before_its_first_batch_and_errors_as_they_are() -> None:
    def batches() -> "object":
        yield pa.record_batch({"topic": ["a"]})
        raise ConfigError("gone")

    reader = reader_of(batches(), ["topic"])  # type: ignore[arg-type] # pyarrow is untyped
    assert reader.schema.names == ["topic"]
    assert reader.read_next_batch().to_pydict() == {"topic": ["a"]}
    with pytest.raises(ConfigError, match="gone"):
        reader.read_next_batch()


def test_a_row_type_is_what_numpy_makes_of_the_fields() -> None:
    fields = [("a", ">i8"), ("b", "<u2"), ("c", "|u1")]
    made, real = RowType(fields), numpy.dtype(fields)
    assert made.dtype == real
    assert made.itemsize == real.itemsize == 11
    assert made.names == real.names
    assert made["b"] == real["b"]
    assert numpy.zeros(2, made.dtype).dtype == real
    assert numpy.frombuffer(bytes(22), made).dtype == real


@pytest.mark.slow
def test_nothing_of_it_imports_numpy_before_its_use() -> None:
    code = (
        "import sys; from penstock.format.arrays import Int64s, RowType, np; t = RowType([('a', '>i8')]); t.itemsize, t.names; "
        "assert 'numpy' not in sys.modules; t.dtype; assert 'numpy' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
