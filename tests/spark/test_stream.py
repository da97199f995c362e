"""The streaming reader as Spark calls it, and in Spark itself."""

import contextlib
import json
import logging
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from tests.lanes import SEED
from tests.spark.conftest import needed
from tests.spark.stream_query import (
    Query,
    everything,
    put,
    retain_unread,
)

import penstock


def test_a_reader_is_pickled_without_what_it_knows_of_the_driver(tmp_path: Path) -> None:
    needed("pyspark")
    from pyspark.sql.streaming.datasource import (  # noqa: PLC0415 - an extra
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
    )

    from penstock_spark.source.source import PenstockStreamReader  # noqa: PLC0415 - needs pyspark

    put(tmp_path / "s", 40)
    given: dict[str, str] = {"path": str(tmp_path / "s"), "startingoffsets": "earliest"}
    fields = [("offset", "bigint")]
    reader = PenstockStreamReader(given, fields)
    assert isinstance(reader.getDefaultReadLimit(), ReadAllAvailable)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(10))
    assert end == {"t": {"0": 5, "1": 5}}
    assert reader.latestOffset(start, ReadAllAvailable()) == {"t": {"0": 20, "1": 20}}
    assert reader.reportLatestOffset() == {"t": {"0": 20, "1": 20}}
    assert reader.latestOffset(start, ReadMaxBytes(1)) == {"t": {"0": 1, "1": 1}}
    copy = pickle.loads(pickle.dumps(reader))
    (part,) = copy.partitions(start, end)
    assert sum(batch.num_rows for batch in copy.read(part)) == 10
    assert list(copy.read(None)) == []
    limits = {"maxoffsetspertrigger": "7", "maxbytespertrigger": "1k"}
    assert PenstockStreamReader({**given, **limits}, fields).getDefaultReadLimit() == ReadMaxRows(7)
    del limits["maxoffsetspertrigger"]
    limit = PenstockStreamReader({**given, **limits}, fields).getDefaultReadLimit()
    assert limit == ReadMaxBytes(1024)


def run(spark: Any, path: Path, checkpoint: Path, sink: Any, **more: str) -> Any:
    """Run what there is, batch by batch, through `sink`."""
    frame = spark.readStream.format("penstock").schema("topic string, partition int, offset bigint")
    query = (
        frame.options(**{"startingOffsets": "earliest", **more}).load(str(path))
        .writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    return query


def test_available_now_takes_limited_batches_and_shows_the_lag(spark: Any, tmp_path: Path) -> None:
    put(tmp_path / "s", 100)
    sizes: list[int] = []
    query = run(
        spark, tmp_path / "s", tmp_path / "c", lambda frame, _: sizes.append(frame.count()),
        maxOffsetsPerTrigger="40",
    )  # fmt: skip
    assert sizes == [40, 40, 20]
    progress = [p for p in query.recentProgress if p["numInputRows"]]
    assert json.loads(progress[0]["sources"][0]["latestOffset"]) == {"t": {"0": 50, "1": 50}}
    assert json.loads(progress[0]["sources"][0]["endOffset"]) == {"t": {"0": 20, "1": 20}}


@pytest.mark.night
def test_restarts_at_random_lose_and_repeat_nothing(spark: Any, tmp_path: Path) -> None:
    """Restarted from its checkpoint after every step of a batch, while retention deletes behind it.

    A batch whose sink fails is never committed; a commit that is removed from the checkpoint is a crash after
    the batch ran. Rows of a batch that ran twice count once, by its number, as an idempotent sink sees it.
    """
    chance = random.Random(SEED)
    root, checkpoint = tmp_path / "s", tmp_path / "c"
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    done: dict[int, list[tuple[str, int, int]]] = {}
    fails, is_due = [True], False

    def sink(frame: Any, number: int) -> None:
        rows = [tuple(row) for row in frame.collect()]
        assert sorted(done.setdefault(number, rows)) == sorted(rows)
        if fails and fails.pop():
            raise RuntimeError("dies on purpose")

    put(root, 20)
    for restart in range(50):
        put(root, chance.randint(1, 40), chance.choice("tu"), chance.randint(1, 3), 300)
        # The first three never commit.
        fails[:] = [restart < 3 or chance.random() < 0.3]
        dies = pytest.raises(Exception, match="dies on purpose")
        with dies if fails[0] else contextlib.nullcontext():
            run(spark, root, checkpoint, sink, maxOffsetsPerTrigger="60", group="fifty")
        # Now, or at the next restart that it can be done at.
        is_due |= restart % 10 == 9
        newest = max((int(p.name) for p in (checkpoint / "commits").glob("[0-9]*")), default=-1)
        planned = max((int(p.name) for p in (checkpoint / "offsets").glob("[0-9]*")), default=-1)
        if newest >= 0 and newest == planned and chance.random() < 0.3:
            (checkpoint / "commits" / str(newest)).unlink()
            (checkpoint / "commits" / f".{newest}.crc").unlink(missing_ok=True)
        elif newest > 0 and newest == planned and is_due:
            is_due = False
            text = (checkpoint / "offsets" / str(newest - 1)).read_text().splitlines()[-1]
            behind = Query(root, startingOffsets="earliest")
            behind.planned = [text]
            retain_unread(behind, [root])
    fails[:] = []
    run(spark, root, checkpoint, sink, group="fifty")
    found = sorted((str(root), *row) for rows in done.values() for row in rows)
    assert found == everything(root)
    with penstock.open(root, read_only=True, environ={}) as store:
        assert max(bounds.min_offset for bounds in store.lowlevel.bounds()) > 0
