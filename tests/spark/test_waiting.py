"""Real Spark over a store in which messages wait: a source and jobs over all topics see those that are delivered or committed."""

from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock_spark.jobs import export, replay, stats

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
SEEN = {"plain", "committed"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a store in which some messages wait, in each of the ways there are."""
    with penstock.open(tmp_path / "store", environ={}) as store:
        store.put("orders", b"plain", queue=0)
        store.put("orders", b"by level", queue=0, delay_level=18)
        store.put("orders", b"by time", queue=0, delay=3600)
        store.prepare("orders", b"committed", group="g").commit()
        store.prepare("orders", b"rolled back", group="g").rollback()
        store.prepare("orders", b"open", group="g")
        assert len(store.topics(system=True)) == 5
    return tmp_path / "store"


def bodies(reader: Any, root: Path) -> list[str]:
    return sorted(bytes(row.value).decode() for row in reader.load(str(root)).collect())


def test_a_read_and_a_stream_of_all_topics_leave_out_what_waits(
    spark: Any, root: Path, tmp_path: Path
) -> None:
    assert bodies(spark.read.format("penstock"), root) == sorted(SEEN)
    query = (
        spark.readStream.format("penstock").options(startingOffsets="earliest", subscribePattern=".*").load(str(root))
        .selectExpr("value AS body", "topic").writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start(str(tmp_path / "out"))
    )  # fmt: skip
    query.awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert {(bytes(row.body).decode(), row.topic) for row in rows} == {(body, "orders") for body in SEEN}  # fmt: skip
    named = spark.read.format("penstock").option("subscribe", f"orders,{HALF}")
    assert bodies(named, root) == sorted([*SEEN, "committed", "rolled back", "open"])


def test_jobs_over_all_topics_leave_out_what_waits(spark: Any, root: Path, tmp_path: Path) -> None:
    found = stats.run(spark, str(root))
    assert [(row["name"], row["messages"]) for row in found.topics] == [("orders", 2)]
    assert stats.run(spark, str(root), topics=[HALF]).total["messages"] == 3
    done = export.run(spark, str(root), str(tmp_path / "exported"))
    assert set(done.topics) == {"orders"}
    replay.run(spark, str(root), str(tmp_path / "copy"))
    with penstock.open(tmp_path / "copy", environ={}, read_only=True) as copy:
        assert set(copy.topics(system=True)) == {"orders"}
        assert {message.body.decode() for message in copy.scan("orders")} == SEEN
