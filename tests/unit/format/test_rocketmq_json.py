"""RocketMQ's JSON: bare whole numbers as keys, and no text of others changed by that."""

import pytest

from penstock.format.rocketmq_json import parse_rocketmq_json


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
