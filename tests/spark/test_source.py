"""The Spark source: the reader's parts without a JVM, then real Spark."""

import collections
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Message
from penstock.errors import ConfigError, OffsetError
from penstock_spark.java import LAUNCHER, make_launcher
from penstock_spark.options import EARLIEST, LATEST, parse_options
from penstock_spark.ranges import ROWS_A_TASK_MIN, QueueRange, plan, share_out

COUNT = 3000
SIZES: dict[str, Any] = {"geometry.segment_bytes": 256 * 1024}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("spark") / "store"
    with penstock.open(root, environ={}, **SIZES) as store:
        store.put_many(
            [
                Message(
                    f"topic{n % 2}", b"body %d" % n, queue=n % 3, tag=f"tag{n % 4}" if n % 5 else "",
                    keys=[f"k{n}"] if n % 7 else [], properties={"p": "v"},
                )
                for n in range(COUNT)
            ]
        )  # fmt: skip
    return root


def test_options_are_kafkas_and_in_any_case() -> None:
    options = parse_options(
        {
            "path": "/s",
            "SUBSCRIBE": "a, b",
            "startingoffsets": '{"a":{"0":5,"1":-2}}',
            "inferSchema": "x",
        }
    )
    assert (options.topics, options.starting) == (("a", "b"), {"a": {0: 5, 1: -2}})
    assert (options.ending, options.rows_per_batch, options.verify) == (LATEST, 8192, True)
    assert parse_options({"path": "/s", "startingOffsets": "earliest"}).starting == EARLIEST


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "load\\(path\\)"),
        ({"path": "/s", "subscrib": "a"}, "did you mean 'subscribe'"),
        ({"path": "/s", "startingOffsets": "latest"}, "cannot start"),
        ({"path": "/s", "endingOffsets": "earliest"}, "cannot end"),
        ({"path": "/s", "startingOffsets": "{"}, "JSON"),
        ({"path": "/s", "startingOffsets": '{"a":{"0":-3}}'}, "-3"),
        ({"path": "/s", "rowsPerBatch": "0"}, "whole number"),
        ({"path": "/s", "verifyChecksums": "maybe"}, "true or false"),
    ],
)
def test_bad_options_are_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_options(given)


@pytest.mark.parametrize(
    ("more", "kind", "text"),
    [
        ({"subscribe": "nope"}, ConfigError, "topic0, topic1"),
        ({"startingOffsets": '{"topic0":{"9":0}}'}, ConfigError, "queue 9"),
        ({"startingOffsets": '{"topic0":{"0":99999}}'}, OffsetError, "99999"),
    ],
)
def test_plans_that_cannot_be_are_refused(
    more: dict[str, str], kind: type[Exception], text: str, path: Path
) -> None:
    with penstock.open(path, read_only=True) as store, pytest.raises(kind, match=text):
        plan(store, parse_options({"path": str(path), **more}))


def test_tasks_share_the_rows_out_evenly_and_in_order() -> None:
    ranges = [
        QueueRange("t", q, 10, 10 + size) for q, size in enumerate([3, 0, 300_000, 5, 100_000])
    ]
    tasks = share_out(ranges)
    rows: dict[int, list[int]] = collections.defaultdict(list)
    for task in tasks:
        for each in task:
            rows[each.queue].extend((each.start, each.stop))
    assert rows[2][0] == 10
    assert rows[2][-1] == 300_010
    assert sum(e.stop - e.start for task in tasks for e in task) == 400_008
    assert all(sum(e.stop - e.start for e in task) >= ROWS_A_TASK_MIN for task in tasks[:-1])
    assert share_out([]) == []


def test_spark_finds_the_format_and_reads_every_row(spark: Any, path: Path) -> None:
    rows = spark.read.format("penstock").load(str(path)).collect()
    assert len(rows) == COUNT
    by_value = {bytes(row.value): row for row in rows}
    with penstock.open(path, read_only=True) as store:
        for topic in store.topics():
            for message in store.scan(topic):
                row = by_value[message.body]
                assert (row.topic, row.partition, row.offset) == (
                    topic,
                    message.queue,
                    message.queue_offset,
                )
                assert (bytes(row.key) if row.key else b"").decode() == " ".join(message.keys)
                assert row.timestampType == 1


def test_a_registered_format_reads_a_user_schema(spark: Any, path: Path) -> None:
    import penstock_spark  # noqa: PLC0415 - needs pyspark

    penstock_spark.register(spark)
    schema = "messageId string, tags string, properties map<string,string>, logOffset bigint, storeTimestamp timestamp"
    rows = (
        spark.read.format("penstock")
        .schema(schema)
        .option("subscribe", "topic1")
        .load(str(path))
        .collect()
    )
    assert len(rows) == COUNT // 2
    with penstock.open(path, read_only=True) as store:
        for row in rows[::100]:
            message = store.get(row.messageId)
            assert (row.tags or "", row.logOffset) == (message.tag, message.log_offset)
            assert row.properties == message.all_properties


def test_offsets_bound_the_read(spark: Any, path: Path) -> None:
    frame = (
        spark.read.format("penstock").option("subscribe", "topic0")
        .option("startingOffsets", '{"topic0":{"0":10,"1":-2}}')
        .option("endingOffsets", '{"topic0":{"0":13,"1":-1,"2":0}}').load(str(path))
    )  # fmt: skip
    offsets = collections.defaultdict(list)
    for row in frame.select("partition", "offset").collect():
        offsets[row.partition].append(row.offset)
    assert sorted(offsets[0]) == [10, 11, 12]
    assert sorted(offsets[1]) == list(range(500))
    assert 2 not in offsets


def test_counts_agree_and_filters_are_sparks_own(spark: Any, path: Path) -> None:
    frame = (
        spark.read.format("penstock")
        .schema("topic string, tags string, partition int")
        .load(str(path))
    )
    counts = {
        (r.topic, r.tags): r["count"] for r in frame.groupBy("topic", "tags").count().collect()
    }
    assert sum(counts.values()) == COUNT
    assert counts["topic0", None] == 300
    both = frame.where("partition = 1").union(frame.where("partition = 2"))
    assert both.count() == COUNT * 2 // 3


@pytest.mark.parametrize(
    ("more", "text"),
    [({"subscribe": "nope"}, "there is no topic 'nope'"), ({"subscrib": "x"}, "did you mean")],
)
def test_mistakes_show_when_a_query_is_planned(
    spark: Any, path: Path, more: dict[str, str], text: str
) -> None:
    with pytest.raises(Exception, match=text):
        spark.read.format("penstock").options(**more).load(str(path)).count()


def test_a_folder_that_is_no_store_is_named(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="is not a message store"):
        spark.read.format("penstock").load(str(tmp_path)).count()


def test_the_launcher_drops_the_one_flag(tmp_path: Path) -> None:
    echo = tmp_path / "real"
    echo.write_text('#!/bin/sh\nfor a do echo "$a"; done\n')
    echo.chmod(0o700)
    home = make_launcher(echo)
    done = subprocess.run(
        [home / "bin" / "java", "-x", "--add-modules=jdk.incubator.vector", "a b", "--add-modules=other"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["-x", "a b", "--add-modules=other"]
    assert (home.stat().st_mode & 0o777) == 0o700
    assert "{java}" in LAUNCHER


JOB = """
import penstock_spark, sys
spark = penstock_spark.local_session("no-java", "1", {"spark.sql.shuffle.partitions": "1"})
print("rows", spark.read.format("penstock").load(sys.argv[1]).count())
spark.stop()
"""


def test_spark_runs_where_no_java_is_installed(spark: Any, path: Path, tmp_path: Path) -> None:
    """A machine without Java: the extra's runtime, through the launcher, reads the store."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in (
        "sh",
        "bash",
        "env",
        "dirname",
        "basename",
        "ps",
        "nice",
        "uname",
        "readlink",
        "cat",
    ):
        for place in ("/bin", "/usr/bin"):
            if Path(place, name).exists() and not (tools / name).exists():
                (tools / name).symlink_to(Path(place, name))
    clean = {
        k: v
        for k, v in os.environ.items()
        if k not in ("JAVA_HOME", "SPARK_HOME") and "SPARK" not in k
    }
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(path)], env={**clean, "PATH": str(tools)},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert f"rows {COUNT}" in done.stdout, done.stderr[-3000:]
