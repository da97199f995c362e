"""The source's options, schema and offsets: what is taken, and what is refused in which words. No JVM."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ConfigError, StorageError
from penstock.format import arrow_schema
from penstock_spark.arrow import COLUMNS, Column
from penstock_spark.option_parser import declared
from penstock_spark.sink.options import SinkOptions
from penstock_spark.source.offsets import NextOffset, from_json, to_json
from penstock_spark.source.options import (
    EARLIEST,
    LATEST,
    SINK_OPTIONS,
    SourceOptions,
    parse_options,
)
from penstock_spark.source.tasks import DEFAULT, check_schema, ddl
from penstock_spark.stores import Location, Locations

ROOT = Path(__file__).parents[2]


def test_options_are_kafkas_and_in_any_case() -> None:
    options = parse_options(
        {
            "path": "/s",
            "SUBSCRIBE": "a, b",
            "startingoffsets": '{"a":{"0":5,"1":-2}}',
            "maxoffsetspertrigger": "10",
            "maxbytespertrigger": "2m",
            "tags": "x || y",
            "inferSchema": "x",
        }
    )
    assert (options.paths, options.topics) == (("/s",), ("a", "b"))
    assert options.starting.numbers == {"": {"a": {0: (5, None), 1: (-2, None)}}}
    assert (options.ending.word, options.rows_per_batch, options.verify) == (LATEST, 8192, True)
    assert (options.rows_per_trigger, options.bytes_per_trigger) == (10, 2 << 20)
    assert options.tags == ("x", "y")
    assert options.fail_on_loss


def test_tags_and_keys_keep_the_spaces_of_other_scripts() -> None:
    """All spaces of Unicode around them were cut off, and their messages could not be selected."""
    options = parse_options({"path": "/s", "tags": " \u3000a\t|| b ", "keys": " \ta || b\u00a0 "})
    assert (options.tags, options.keys) == (("\u3000a", "b"), ("\ta", "b\u00a0"))
    assert parse_options({"path": "/s", "tags": " * "}).tags == ()


def test_a_batch_starts_at_earliest_and_a_stream_at_latest() -> None:
    given = {"path": "/s"}
    assert parse_options(given).starting.word == EARLIEST
    assert parse_options(given, streaming=True).starting.word == LATEST
    named = {**given, "startingOffsets": '{"a":{"0":-1}}'}
    assert parse_options(named, streaming=True).starting.word == EARLIEST
    with pytest.raises(ConfigError, match="cannot start at 'latest'"):
        parse_options(named)


def test_offsets_of_a_checkpoint_are_starting_offsets() -> None:
    """Of a topic that was created again they name its generation."""
    given = {"path": "/s", "startingOffsets": '{"a":{"0@1":4,"1":5}}'}
    assert parse_options(given).starting.numbers == {"": {"a": {0: (4, 1), 1: (5, None)}}}
    with pytest.raises(ConfigError, match="queue 0 is named twice"):
        parse_options({"path": "/s", "startingOffsets": '{"a":{"0@1":4,"0":5}}'})


def test_one_time_counts_before_times_and_these_before_offsets() -> None:
    """As Kafka's source documents it."""
    given = {"path": "/s", "startingOffsets": "earliest", "endingOffsets": '{"a":{"0":4}}'}
    times = {"startingOffsetsByTimestamp": '{"a":{"0":7}}', "endingOffsetsByTimestamp": "{}"}
    one = {"startingTimestamp": "5", "endingTimestamp": "6"}
    assert parse_options(given).ending.numbers == {"": {"a": {0: (4, None)}}}
    options = parse_options({**given, **times})
    assert (options.starting.are_times, options.starting.numbers) == (
        True,
        {"": {"a": {0: (7, None)}}},
    )
    assert options.ending.are_times
    options = parse_options({**given, **times, **one})
    assert (options.starting.time_ms, options.ending.time_ms) == (5, 6)
    assert options.starting.numbers == {}


REFUSED: list[tuple[dict[str, str], str]] = [
    ({"subscrib": "a"}, "did you mean 'subscribe'"),
    ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
    ({"startingOffsets": "latest"}, "cannot start"),
    ({"endingOffsets": "earliest"}, "cannot end"),
    ({"endingOffsets": '{"a":{"0":-2}}'}, "cannot end"),
    ({"startingOffsets": "{"}, "not JSON"),
    ({"startingOffsets": "[1]"}, "must be JSON"),
    ({"startingOffsets": '{"a":5}'}, "must be JSON"),
    ({"startingOffsets": '{"a":{"0":-3}}'}, "-3"),
    ({"startingOffsets": '{"a":{"0":1.5}}'}, "1.5"),
    ({"startingOffsets": '{"a":{"0":true}}'}, "True"),
    ({"startingOffsets": '{"a":{"x":1}}'}, "not a queue"),
    ({"startingOffsets": '{"a":{"0":1},"a":{"0":2}}'}, "twice"),
    ({"startingOffsets": "[" * 100_000}, "not JSON"),
    ({"startingOffsets": '{"a":{"0":99999999999999999999}}'}, "whole number"),
    ({"startingTimestamp": "soon"}, "startingTimestamp"),
    ({"since": "soon"}, "since: 'soon' is not a time"),
    ({"since": "999999999999999"}, "since is '999999999999999', which is not in the years 1 to"),
    ({"until": "9999-12-31T23:59:59-12:00"}, "until is .* years 1 to 9999"),
    ({"until": "0001-01-01T00:00:00+14:00"}, "until is .* years 1 to 9999"),
    ({"since": "999999999d"}, "since is '999999999d', which"),
    ({"topics": "a"}, "is called 'subscribe' here"),
    ({"Queue": "0"}, "is called 'assign' here"),
    ({"startingTimestamp": "-1"}, "startingTimestamp"),
    ({"startingOffsetsByTimestamp": '{"a":{"0":-2}}'}, "from 0 on"),
    ({"subscribe": "a", "assign": '{"a":[0]}'}, "subscribe and assign"),
    ({"subscribePattern": "a", "assign": '{"a":[0]}'}, "subscribePattern and assign"),
    ({"subscribe": " , "}, "names no topic"),
    ({"subscribePattern": "("}, "not a valid regular expression"),
    ({"subscribePattern": ""}, "is empty"),
    ({"assign": "{}"}, "assign"),
    ({"assign": '{"a":[]}'}, "assign"),
    ({"assign": '{"a":[-1]}'}, "assign"),
    ({"assign": '{"a":["0"]}'}, "assign"),
    ({"rowsPerBatch": "0"}, "whole number"),
    ({"rowsPerBatch": "99999"}, "65536"),
    ({"minPartitions": "0"}, "minPartitions"),
    ({"maxOffsetsPerTrigger": "-1"}, "maxOffsetsPerTrigger"),
    ({"maxBytesPerTrigger": "much"}, "maxBytesPerTrigger"),
    ({"verifyChecksums": "maybe"}, "true or false"),
    ({"failOnDataLoss": "no"}, "true or false"),
    ({"includeHeaders": "1"}, "true or false"),
    ({"tags": "a || "}, "separated by"),
    ({"keys": "a || *"}, "separated by"),
    ({"group": "../../etc"}, "group"),
    ({"group": ""}, "group"),
    ({"group": ".."}, "group"),
    ({"group": "a/b"}, "group"),
    ({"group": "x" * 129}, "group"),
    ({"paths": "x"}, "paths"),
    ({"paths": "[1]"}, "paths"),
]


@pytest.mark.parametrize(("given", "text"), REFUSED, ids=lambda v: str(v)[:50])
def test_bad_options_are_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_options({"path": "/s", **given})


@pytest.mark.parametrize("given", [{}, {"paths": "[]"}, {"path": " "}])
def test_a_read_without_a_path_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"load\(path\)|path is empty"):
        parse_options(given)


@pytest.mark.parametrize("name", SINK_OPTIONS)
def test_what_belongs_to_the_sink_is_said_to(name: str) -> None:
    with pytest.raises(ConfigError, match="is an option of the sink"):
        parse_options({"path": "/s", name.lower(): "1"})


@pytest.mark.parametrize(
    "name", ["until", "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"]
)
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(ConfigError, match="a stream has no end"):
        parse_options({"path": "/s", name: "1"}, streaming=True)


def test_topics_are_picked_by_name_by_pattern_and_by_queue() -> None:
    by_name = parse_options({"path": "/s", "subscribe": "a"})
    assert (by_name.wants("a"), by_name.wants("ab")) == (True, False)
    by_pattern = parse_options({"path": "/s", "subscribePattern": "a.*"})
    assert (by_pattern.wants("ab"), by_pattern.wants("ba")) == (True, False)
    by_queue = parse_options({"path": "/s", "assign": '{"a":[1,1,3]}'})
    assert [by_queue.wants_queue("a", n) for n in range(4)] == [False, True, False, True]
    assert not by_queue.wants("b")


def test_topics_whose_messages_wait_are_picked_by_name_only() -> None:
    half = "RMQ_SYS_TRANS_HALF_TOPIC"
    assert not parse_options({"path": "/s"}).wants(half)
    assert not parse_options({"path": "/s", "subscribePattern": ".*"}).wants(half)
    assert parse_options({"path": "/s", "subscribe": f"a,{half}"}).wants(half)
    assert parse_options({"path": "/s", "assign": f'{{"{half}":[0]}}'}).wants(half)


# --- columns


def test_a_schema_of_some_columns_in_any_order_is_taken() -> None:
    fields = [(name, COLUMNS[name].shown) for name in reversed(COLUMNS)]
    assert check_schema(fields) == tuple(reversed(COLUMNS))


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (("body", "binary"), "there is no column 'body'; there are: key, value"),
        (("logoffset", "bigint"), "did you mean 'logOffset'"),
        (("value", "string"), "'value' is binary, not string"),
        (("partition", "bigint"), "'partition' is int, not bigint"),
        (("headers", "map<string,string>"), "array<struct<key:string,value:binary>>, not map"),
    ],
)
def test_other_columns_and_types_are_refused(field: tuple[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check_schema([("topic", "string"), field])


def test_headers_are_a_column_only_where_they_are_asked_for() -> None:
    assert "headers" not in ddl(headers=False)
    assert ddl(headers=True).endswith("headers ARRAY<STRUCT<key: STRING, value: BINARY>>")
    assert "headers" not in DEFAULT


def test_every_column_of_the_kernel_is_one_in_spark() -> None:
    assert {column.source for column in COLUMNS.values()} == set(arrow_schema.COLUMNS)
    assert COLUMNS["key"] == Column("BINARY", pa.binary(), "keys")
    assert COLUMNS["reconsumeTimes"] == Column("INT", pa.int32(), "reconsume_times")
    assert COLUMNS["timestamp"] == Column("TIMESTAMP", pa.timestamp("us", "UTC"), "store_time")


# --- offsets


ONE = Locations((Location("/s"),), is_one=True)
TWO = Locations((Location("/s"), Location("/t")), is_one=False)


def test_offsets_are_kafkas_json_and_equal_ones_are_equal_text() -> None:
    offsets = {
        NextOffset("/s", "b", 10): 3,
        NextOffset("/s", "a", 1): 2,
        NextOffset("/s", "b", 9): 1,
        NextOffset("/s", "c", 0, 12): 7,
    }
    assert (
        json.dumps(to_json(offsets, ONE))
        == '{"a": {"1": 2}, "b": {"9": 1, "10": 3}, "c": {"0@12": 7}}'
    )
    assert from_json(to_json(offsets, ONE), ONE) == offsets
    shuffled = dict(reversed(offsets.items()))
    assert json.dumps(to_json(shuffled, ONE)) == json.dumps(to_json(offsets, ONE))


def test_offsets_of_several_stores_say_which() -> None:
    offsets = {NextOffset("/t", "a", 0): 2, NextOffset("/s", "a", 0): 1}
    assert to_json(offsets, TWO) == {"/s": {"a": {"0": 1}}, "/t": {"a": {"0": 2}}}
    assert from_json(to_json(offsets, TWO), TWO) == offsets


@pytest.mark.parametrize("found", [{"/s": {"a": {"0": 1}}}, {"a": 1}, {"a": {"x": 1}}])
def test_a_checkpoint_of_another_kind_of_path_is_refused(found: dict[str, Any]) -> None:
    with pytest.raises(StorageError, match="checkpoint belongs to one query"):
        from_json(found, ONE)


def documented(page: str) -> dict[str, str]:
    """Return the options in a page's table of them, each with the text of its default."""
    text = (ROOT / "docs" / page).read_text()
    rows = text[text.index("\n| option | default |") :].strip().split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.split(" | ")] for row in rows]
    return {
        name: default.strip("`")
        for names, default, *_ in cells
        for name in re.findall(r"`([A-Za-z]+)`", names)
    }


@pytest.mark.parametrize(
    ("options", "page"), [(SourceOptions, "spark-source.md"), (SinkOptions, "spark-sink.md")]
)
def test_the_docs_list_the_options_that_are_declared(options: type, page: str) -> None:
    shown = documented(page)
    listed = {option.name: option for option in declared(options).values()}
    assert shown.keys() == listed.keys()
    defaults = {name: o.default for name, o in listed.items() if o.default is not None}
    assert {name: shown[name] for name in defaults} == defaults
    assert all(option.meaning for option in listed.values())


def test_every_column_is_in_the_docs() -> None:
    text = (ROOT / "docs" / "spark-source.md").read_text()
    assert [name for name in COLUMNS if f"`{name}`" not in text] == []


def test_an_option_that_another_overrides_is_not_looked_at() -> None:
    options = parse_options({"path": "/s", "startingTimestamp": "5", "startingOffsets": "{"})
    assert (options.starting.time_ms, options.starting_offsets) == (5, None)


def test_a_stream_that_starts_at_a_time_reads_other_queues_from_their_end() -> None:
    given = {"path": "/s", "startingOffsetsByTimestamp": '{"a":{"0":7}}'}
    assert parse_options(given, streaming=True).starting.word == LATEST
    assert parse_options(given).starting.word == EARLIEST
