"""JSON in the bytes of brokers: the files of real ones, copied from 4.9.7 and 5.3.3, come out as they went in."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.format.rocketmq_json import parse_rocketmq_json
from penstock_messaging.configuration.broker_json import encoded, in_bean_order, in_map_order

GOLDEN = Path(__file__).parents[2] / "golden" / "broker-config"
FILES = sorted(GOLDEN.glob("*/*.json"))
VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20,
)  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_brokers_file_comes_out_as_it_went_in(path: Path) -> None:
    raw = path.read_bytes()
    assert encoded(parse_rocketmq_json(raw.decode())) == raw


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_order_of_a_brokers_table_is_known(path: Path) -> None:
    (table,) = (v for k, v in json.loads(path.read_bytes()).items() if k.endswith(("ConfigTable", "GroupTable")))  # fmt: skip
    shuffled = dict(sorted(table.items()))
    assert list(shuffled) != list(table)
    assert list(in_map_order(shuffled)) == list(table)
    assert all(list(bean) == list(in_bean_order(bean)) for bean in table.values())


def test_there_are_samples_of_both_versions() -> None:
    assert len(FILES) == 4


def test_a_table_that_outgrows_its_bins_gets_more_of_them() -> None:
    names = {f"topic-{number}": number for number in range(1535)}
    before = list(in_map_order(names))
    names["one-more"] = 1535
    after = list(in_map_order(names))
    assert sorted(before) == sorted(set(after) - {"one-more"})
    assert before != [name for name in after if name != "one-more"]


def test_what_is_escaped_is_so_as_in_java() -> None:
    text = 'ü"\\\n\x01\x7f\u2028\U0001f600\ud800'
    assert encoded(text) == 'ü\\"\\\\\\n\\u0001\\u007F\\u2028\U0001f600'.encode().join([b'"', b'\\ud800"'])  # fmt: skip


@pytest.mark.slow
@given(VALUES)
def test_everything_is_read_again_as_it_was(value: object) -> None:
    whole = {"a": value}
    assert parse_rocketmq_json(encoded(whole).decode()) == whole


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_cannot_hold_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="no number of JSON"):
        encoded({"a": [value]})


@pytest.mark.slow
def test_what_is_nested_too_deeply_is_refused() -> None:
    value: Any = 1
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ValueError, match="nested too deeply"):
        encoded(value)
