"""The properties text: what is written is read back, and what could not be is refused by name."""

import pytest

from penstock.errors import PropertyError
from penstock.format.properties import (
    check_zeros,
    decode_properties,
    encode_properties,
    tag_text,
    texts_of,
    without_crc,
)


@pytest.mark.parametrize(
    ("tag", "keys", "properties"),
    [
        ("", (), {}), ("red", (), {}), ("", ("a",), {}), ("red", ("a",), {}), ("red", ("a", "b"), {}),
        ("größe", ("ü", "two words"), {"n": "1", "m": "\n"}), ("red", ("\t",), {}), ("x", ["a"], {"n": "v"}),
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
        (("", (" ",), {}), "spaces"), (("", "abc", {}), "not one string"), ((5, (), {}), "not int"),
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
        with pytest.raises(PropertyError, match="deliver_at= or delay_ms="):
            encode_properties("", (), {name: "3"})


def test_the_crc_of_another_record_is_neither_written_nor_read() -> None:
    assert encode_properties("", (), {"__CRC32#": "1234567890", "n": "1"}) == b"n\x011\x02"
    assert decode_properties(b"__CRC32#\x011234567890\x02n\x011\x02") == {"n": "1"}


def test_of_a_name_given_twice_the_last_counts_and_torn_pairs_do_not() -> None:
    text = b"n\x011\x02n\x012\x02\x01v\x02name\x02empty\x01\x02\xff\x01v"
    assert decode_properties(text) == {"n": "2", "\ufffd": "v"}


@pytest.mark.parametrize(
    "keys",
    [
        [("a",), ("b",)],
        [("a",), ("b", "c")],
        [("a b",), ("c",)],
        [("\t",), ("c",)],
        [("a",), ()],
    ],
)
@pytest.mark.parametrize("tags", [["x", "x"], ["x", "y"], ["", ""]])
def test_many_texts_are_those_of_each(tags: list[str], keys: list[tuple[str, ...]]) -> None:
    assert texts_of(tags, keys) == [encode_properties(*each) for each in zip(tags, keys, strict=True)]  # fmt: skip
    assert tag_text("") == b""


def test_a_sector_of_zeros_in_a_value_is_refused_naming_it() -> None:
    check_zeros(b"a\x01" + bytes(511) + b"\x02")
    with pytest.raises(PropertyError, match=r"property 'b' is refused.*512 consecutive zero bytes"):
        check_zeros(b"a\x01x\x02b\x01" + bytes(512) + b"\x02")


def test_only_crc_properties_are_left_out() -> None:
    assert without_crc(b"__CRC32#\x0112\x02") == b""
    assert without_crc(b"a\x01b\x02__CRC32#\x0112\x02") == b"a\x01b\x02"
    assert without_crc(b"__CRC32#X\x011\x02") == b"__CRC32#X\x011\x02"
