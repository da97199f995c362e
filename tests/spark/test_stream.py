"""The streaming reader as Spark calls it, and in Spark itself."""

import contextlib
import json
import logging
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples
from tests.spark.conftest import needed
from tests.spark.stream_query import (
    Query,
    everything,
    put,
    retain_unread,
)

import penstock
from penstock import Message
from penstock.errors import ConfigError, CorruptionError, StorageError
from penstock_spark.admission import limited
from penstock_spark.dataset import make_dataset
from penstock_spark.following import Follower
from penstock_spark.options import parse_options
from penstock_spark.reading import DataLossError, read_spans
from penstock_spark.starts import FOLDER

SMALL: dict[str, Any] = {"geometry.segment_bytes": 16384, "flush": "sync"}
NAMES = ("topic", "partition", "offset", "value", "store")


def put(root: Path, count: int, topic: str = "t", queues: int = 2, size: int = 20) -> None:
    with penstock.open(root, environ={}, **SMALL) as store:
        store.put_many([Message(topic, b"x" * size, queue=n % queues) for n in range(count)])


def follower(path: object, **more: str) -> Follower:
    return Follower(parse_options({"path": str(path), **more}, streaming=True))


class Query:
    """A query as Spark runs it: a checkpoint of planned and of committed batches, and a reader that may die."""

    def __init__(self, path: object, **more: str) -> None:
        self.path, self.more = path, more
        self.planned: list[str] = []
        self.starts: list[str] = []
        self.committed = 0
        self.rows: list[tuple[Any, ...]] = []
        self.restart()

    def restart(self) -> None:
        """Forget everything but the checkpoint, as a new process does; replay what was not committed."""
        self.reader = follower(self.path, **self.more)

    def _start(self) -> dict[str, Any]:
        if self.committed == 0:
            start: dict[str, Any] = json.loads(json.dumps(self.reader.start()))
        else:
            start = json.loads(self.planned[self.committed - 1])
        return start

    def batch(self, *, crash: str = "", rows: int = 0, size: int = 0) -> bool:
        """Run one batch; says whether there was one. `crash` is where it dies: plan, tasks or commit."""
        start = self._start()
        if len(self.planned) == self.committed:
            end = json.dumps(self.reader.latest(start, rows=rows, size=size))
            if end == json.dumps(start):
                return False
            if crash == "plan":
                self.restart()
                return True
            self.planned.append(end)
        end = json.loads(self.planned[self.committed])
        tasks = self.reader.tasks(start, end)
        if crash == "tasks":
            self.restart()
            return True
        found = [
            tuple(row[name] for name in NAMES)
            for task in pickle.loads(pickle.dumps(tasks))
            for batch in read_spans(self.reader.options, NAMES, task)
            for row in batch.to_pylist()
        ]
        if crash == "commit":
            self.restart()
            return True
        self.rows += found
        self.committed += 1
        return True

    def places(self) -> list[tuple[Any, ...]]:
        return [(row[4], row[0], row[1], row[2]) for row in self.rows]


def everything(*roots: Path) -> list[tuple[Any, ...]]:
    found = []
    for root in roots:
        with penstock.open(root, read_only=True, environ={}) as store:
            for b in store.bounds():
                found += [(str(root), b.topic, b.queue, n) for n in range(b.max_offset)]
    return sorted(found)


# --- what is new


def test_a_stream_starts_at_latest_and_says_what_that_means(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "s", 10)
    reader = follower(tmp_path / "s")
    start = reader.start()
    assert start == {"t": {"0": 5, "1": 5}}
    assert "no group" in caplog.text
    put(tmp_path / "s", 4)
    assert reader.start() == start
    assert reader.latest(start) == {"t": {"0": 7, "1": 7}}
    assert reader.newest() == {"t": {"0": 7, "1": 7}}


def test_nothing_new_is_the_same_text(tmp_path: Path) -> None:
    put(tmp_path / "s", 40, queues=12)
    reader = follower(tmp_path / "s", startingOffsets="earliest")
    end = reader.latest(reader.start())
    again = reader.latest(json.loads(json.dumps(end)))
    assert json.dumps(again) == json.dumps(end)
    assert reader.tasks(end, end) == []


def test_new_queues_topics_and_stores_start_at_their_earliest(tmp_path: Path) -> None:
    put(tmp_path / "s1", 4)
    query = Query(tmp_path / "s*", startingOffsets="latest", subscribePattern="t.*")
    query._start()
    put(tmp_path / "s1", 2)
    assert query.batch()
    put(tmp_path / "s1", 3, queues=3)
    put(tmp_path / "s1", 3, topic="tea")
    put(tmp_path / "s1", 3, topic="other")
    put(tmp_path / "s2", 5)
    while query.batch():
        pass
    expected = [row for row in everything(tmp_path / "s1", tmp_path / "s2") if row[1] != "other"]
    skipped = {(str(tmp_path / "s1"), "t", queue, n) for queue in range(2) for n in range(2)}
    assert sorted(query.places()) == [row for row in expected if row not in skipped]


def test_available_now_ends_where_it_was_when_it_began(tmp_path: Path) -> None:
    put(tmp_path / "s", 10)
    reader = follower(tmp_path / "s", startingOffsets="earliest")
    reader.fix_target()
    put(tmp_path / "s", 10, queues=3)
    end = reader.latest(reader.start())
    assert end["t"]["0"] == 5
    assert end["t"]["1"] == 5
    assert json.dumps(reader.latest(end)) == json.dumps(end)


def test_a_queue_made_after_the_target_waits(tmp_path: Path) -> None:
    put(tmp_path / "s", 10)
    reader = follower(tmp_path / "s", startingOffsets="earliest")
    start = reader.start()
    reader.fix_target()
    put(tmp_path / "s", 10, topic="new")
    end = reader.latest(start)
    assert end == {"t": {"0": 5, "1": 5}}
    reader = follower(tmp_path / "s", startingOffsets="earliest")
    noted = reader.latest(end)
    assert noted["new"] == {"0": 0, "1": 0}
    assert reader.latest(noted)["new"] == {"0": 5, "1": 5}


def test_a_new_queue_that_retention_overtakes_is_missed(tmp_path: Path) -> None:
    """Its first batch began where the queue began when it was asked: a replay began later, and told nobody."""
    root = tmp_path / "s"
    put(root, 10)
    query = Query(root, startingOffsets="earliest")
    assert query.batch()
    put(root, 200, topic="u", queues=1, size=500)
    # Noted, and planned, and never committed.
    assert query.batch()
    assert query.batch(crash="tasks")
    lose(root, 3)
    with pytest.raises(DataLossError, match=r"messages \[0, \d+\) of queue 0 of topic 'u'"):
        query.batch()
    # Gone before anything of it was planned, as well.
    lenient = Query(root, startingOffsets="earliest", failOnDataLoss="false")
    lenient.planned, lenient.committed = query.planned[:2], 2
    assert lenient.batch()
    with penstock.open(root, read_only=True, environ={}) as store:
        assert len(lenient.rows) == store.max_offset("u", 0) - store.min_offset("u", 0) > 0


def test_a_new_queue_is_only_noted_by_the_batch_that_sees_it(tmp_path: Path) -> None:
    root = tmp_path / "s"
    put(root, 4, queues=1)
    query = Query(root, startingOffsets="earliest")
    assert query.batch()
    put(root, 3, topic="u", queues=1)
    put(root, 2, queues=1)
    assert query.batch()
    assert json.loads(query.planned[-1]) == {"t": {"0": 6}, "u": {"0": 0}}
    assert [row[:2] for row in query.rows[4:]] == [("t", 0)] * 2
    assert query.batch()
    assert [row[:2] for row in query.rows[6:]] == [("u", 0)] * 3
    assert not query.batch()


def test_a_queue_that_was_away_is_read_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A repair swaps queues by renames: in between they are not there. They came back as new ones, and whole."""
    root = tmp_path / "s"
    put(root, 6)
    query = Query(root, startingOffsets="earliest", failOnDataLoss="false")
    assert query.batch()
    (root / "consumequeue").rename(root / "away")
    assert not query.batch()
    assert not query.batch()
    assert caplog.text.count("not there any more") == 2, "once for each queue"
    (root / "away").rename(root / "consumequeue")
    assert not query.batch()
    put(root, 4)
    assert query.batch()
    assert sorted(query.places()) == everything(root)
    (root / "consumequeue").rename(root / "away")
    with pytest.raises(DataLossError, match="not there any more"):
        follower(root).latest(json.loads(query.planned[-1]))


# --- admission


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 5000)), min_size=1, max_size=20),
    st.integers(1, 10_000),
)
def test_limits_are_shared_and_everything_comes_in_the_end(
    queues: list[tuple[int, int]], rows: int
) -> None:
    starts = {n: start for n, (start, _) in enumerate(queues)}
    ends = {n: start + new for n, (start, new) in enumerate(queues)}
    sizes = dict.fromkeys(ends, 100.0)
    rounds = 0
    while starts != ends:
        limits = {"rows": rows} if rounds % 2 else {"size": rows * 100}
        taken = limited(starts, ends, sizes, **limits)
        assert all(starts[n] <= taken[n] <= ends[n] for n in ends)
        assert sum(taken.values()) > sum(starts.values())
        assert sum(taken[n] - starts[n] for n in ends) <= rows + len(queues)
        # One message at least of each that has any.
        assert all(taken[n] > starts[n] for n in ends if ends[n] > starts[n])
        starts = taken
        rounds += 1
        if rounds > 50:
            rows *= 2


def test_limits_are_in_proportion() -> None:
    starts, ends = {"a": 0, "b": 0}, {"a": 900, "b": 100}
    assert limited(starts, ends, {"a": 1, "b": 1}, rows=100) == {"a": 90, "b": 10}
    assert limited(starts, ends, {"a": 10, "b": 1}, size=910) == {"a": 90, "b": 10}
    assert limited(starts, ends, {"a": 1, "b": 1}) == ends
    # 2781 times 500 / 2781 is a little less than 500.
    assert limited({"a": 0}, {"a": 2781}, {"a": 1}, rows=500) == {"a": 500}


# --- starts that are kept


def test_a_first_batch_that_was_never_committed_begins_where_it_did(tmp_path: Path) -> None:
    """Spark asks again for the start after an early crash; a second `latest` would skip messages."""
    put(tmp_path / "s", 10)
    query = Query(tmp_path / "s", startingOffsets="latest", group="g")
    assert query._start() == {"t": {"0": 5, "1": 5}}
    for crash in ("plan", "tasks", "commit", "tasks"):
        put(tmp_path / "s", 4)
        assert query.batch(crash=crash)
    assert query.batch()
    assert query.batch()
    assert not query.batch()
    expected = [row for row in everything(tmp_path / "s") if row[3] >= 5]
    assert sorted(query.places()) == expected


def test_without_a_group_such_a_replay_is_refused_where_it_shows(tmp_path: Path) -> None:
    put(tmp_path / "s", 10)
    query = Query(tmp_path / "s", startingOffsets="latest")
    query._start()
    put(tmp_path / "s", 4)
    assert query.batch(crash="tasks")
    put(tmp_path / "s", 4)
    with pytest.raises(StorageError, match=r"behind its end .* give group"):
        query.batch()


def test_a_group_that_has_begun_starts_anew_for_another_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "s", 10)
    query = Query(tmp_path / "s", startingOffsets="earliest", group="g")
    assert query.batch()
    put(tmp_path / "s", 2)
    assert query.batch()
    kept = json.loads((tmp_path / "s" / FOLDER / "g.json").read_text())
    assert kept == {"format": 1, "start": {"t": {"0": 0, "1": 0}}, "begun": True}
    other = follower(tmp_path / "s", startingOffsets="latest", group="g")
    assert other.start() == {"t": {"0": 6, "1": 6}}
    assert "starts anew" in caplog.text


def test_what_was_kept_appears_whole_and_can_be_read_again(tmp_path: Path) -> None:
    put(tmp_path / "s", 2)
    reader = follower(tmp_path / "s", group="g.1")
    # What a process left that died half way.
    folder = tmp_path / "s" / FOLDER
    reader.start()
    (folder / "g.1.json").rename(folder / "g.1.json.new")
    assert follower(tmp_path / "s", group="g.1").start() == reader.start()
    assert [path.name for path in folder.iterdir()] == ["g.1.json"]
    (folder / "g.1.json").write_text('{"format": 1, "start": [')
    with pytest.raises(CorruptionError, match="remove it"):
        follower(tmp_path / "s", group="g.1").start()
    # The store takes no offence at the folder.
    put(tmp_path / "s", 2)
    with penstock.open(tmp_path / "s", environ={}) as store:
        assert list(store.verify(deep=True)) == []


def test_a_start_stays_where_it_is_kept_when_another_store_comes_first(tmp_path: Path) -> None:
    put(tmp_path / "g-b", 5)
    first = follower(tmp_path / "g-*", group="g", startingOffsets="latest").start()
    put(tmp_path / "g-b", 5)
    put(tmp_path / "g-a", 3)
    again = follower(tmp_path / "g-*", group="g", startingOffsets="latest")
    assert again.start() == first
    again.note_begun(again.latest(first))
    assert not (tmp_path / "g-a" / FOLDER).exists()


def test_a_start_that_cannot_be_kept_says_so(tmp_path: Path) -> None:
    put(tmp_path / "s", 2)
    (tmp_path / "s" / FOLDER).write_text("in the way")
    with pytest.raises(ConfigError, match=r"cannot be kept .* leave group out"):
        follower(tmp_path / "s", group="g").start()
    make_dataset(tmp_path / "d", 2)
    put(tmp_path / "d" / "shard-000", 3)
    reader = follower(tmp_path / "d", group="g", startingOffsets="earliest")
    assert reader.start() == {str(tmp_path / "d" / "shard-000"): {"t": {"0": 0, "1": 0}}}
    assert (tmp_path / "d" / FOLDER / "g.json").exists()
    # The second shard appears later, and comes from its beginning.
    put(tmp_path / "d" / "shard-001", 3)
    assert str(tmp_path / "d" / "shard-001") in reader.latest(reader.start())


# --- what is gone


def lose(root: Path, segments: int) -> None:
    with penstock.open(root, environ={}, **SMALL) as store:
        assert store.discard_before(log_offset=segments * 16384) > 0


def test_retention_that_overtakes_a_reader_is_an_error_or_a_logged_skip(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "s"
    put(root, 40)
    strict = Query(root, startingOffsets="earliest")
    lenient = Query(root, startingOffsets="earliest", failOnDataLoss="false")
    assert strict.batch()
    assert lenient.batch()
    put(root, 200, size=500)
    assert lenient.batch(crash="tasks")
    lose(root, 4)
    with pytest.raises(DataLossError, match=r"messages \[20, \d+\) of queue 0 .* are gone"):
        strict.batch()
    # One that was planned before, and one that is planned now.
    assert lenient.batch()
    put(root, 200, size=500)
    lose(root, 10)
    lenient.batch()
    assert not lenient.batch()
    assert "passed over" in caplog.text
    with penstock.open(root, read_only=True, environ={}) as store:
        there = {
            (str(root), b.topic, b.queue, n)
            for b in store.bounds()
            for n in range(b.min_offset, b.max_offset)
        }
    counts = Counter(lenient.places())
    assert there <= set(counts)
    assert set(counts.values()) == {1}


def test_a_topic_that_was_deleted_is_an_error_or_a_logged_skip(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "s"
    put(root, 10)
    put(root, 10, topic="u")
    strict = Query(root, startingOffsets="earliest")
    lenient = Query(root, startingOffsets="earliest", failOnDataLoss="false")
    for query in (strict, lenient):
        assert query.batch()
    put(root, 10, topic="u")
    assert lenient.batch(crash="tasks")
    shutil.rmtree(root / "consumequeue" / "t")
    shutil.rmtree(root / "consumequeue" / "u" / "1")
    with pytest.raises(DataLossError, match=r"'t' in .* not there any more"):
        strict.batch()
    assert lenient.batch()
    assert not lenient.batch() or not lenient.batch()
    assert "not there any more" in caplog.text


def test_a_store_that_was_made_anew_is_an_error_or_a_logged_skip(tmp_path: Path) -> None:
    root = tmp_path / "s"
    put(root, 10)
    strict = Query(root, startingOffsets="earliest")
    lenient = Query(root, startingOffsets="earliest", failOnDataLoss="false")
    for query in (strict, lenient):
        assert query.batch()
    shutil.rmtree(root)
    put(root, 4)
    with pytest.raises(DataLossError, match="read up to 5, and now ends at 2: it was made anew"):
        strict.batch()
    lenient.batch()
    put(root, 4)
    lenient.batch()
    assert sorted(row[3] for row in lenient.places()) == sorted([0, 1, 2, 3, 4, 2, 3] * 2)


def test_a_store_that_is_gone_is_named(tmp_path: Path) -> None:
    put(tmp_path / "s", 3)
    query = Query(tmp_path / "s", startingOffsets="earliest")
    assert query.batch()
    shutil.rmtree(tmp_path / "s")
    with pytest.raises(StorageError, match="nothing at this path"):
        query.batch()


# --- everything at random


@settings(deadline=None, max_examples=examples(12))
@given(st.integers(0, 1 << 30))
def test_whatever_crashes_every_row_comes_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Writes, crashes at every step, retention behind the reader, new queues: nothing lost, nothing twice."""
    chance = random.Random(seed)
    root = tmp_path_factory.mktemp("any")
    roots = [root / f"s{n}" for n in range(chance.choice([1, 1, 2]))]
    for each in roots:
        put(each, chance.randint(1, 30), queues=chance.randint(1, 3), size=300)
    path = roots[0] if len(roots) == 1 else root / "s*"
    query = Query(path, startingOffsets="earliest", group="any")
    query._start()
    for _ in range(15):
        action = chance.random()
        if action < 0.35:
            put(
                chance.choice(roots),
                chance.randint(1, 60),
                chance.choice("tu"),
                chance.randint(1, 4),
                300,
            )
        elif action < 0.5:
            query.restart()
        elif action < 0.6 and query.committed and len(query.planned) == query.committed:
            _let_go_behind(query, roots)
        else:
            crash = chance.choice(["", "", "plan", "tasks", "commit"])
            query.batch(crash=crash, rows=chance.choice([0, 7, 50]), size=chance.choice([0, 3000]))
    while query.batch():
        pass
    assert sorted(query.places()) == everything(*roots)


def _let_go_behind(query: Query, roots: list[Path]) -> None:
    """Retention takes segments that the query has read wholly."""
    done = json.loads(query.planned[-1])
    for root in roots:
        topics = done if len(roots) == 1 else done.get(str(root), {})
        with penstock.open(root, environ={}, **SMALL) as store:
            first = [
                store._queue_index.entries(b.topic, b.queue, at, at + 1).log_offsets.tolist()
                for b in store.bounds()
                if (at := topics.get(b.topic, {}).get(str(b.queue), b.min_offset)) < b.max_offset
            ]
            limit = min((offsets[0] for offsets in first if offsets), default=1 << 60)
            store.discard_before(log_offset=limit)


def test_a_reader_is_pickled_without_what_it_knows_of_the_driver(tmp_path: Path) -> None:
    needed("pyspark")
    from pyspark.sql.streaming.datasource import (  # noqa: PLC0415 - an extra
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
    )

    from penstock_spark.source.stream import PenstockStreamReader  # noqa: PLC0415 - needs pyspark

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


def test_fifty_restarts_at_random_lose_and_repeat_nothing(spark: Any, tmp_path: Path) -> None:
    """Restarted from its checkpoint after every step of a batch, while retention deletes behind it.

    A batch whose sink fails is never committed; a commit that is removed from the checkpoint is a crash after
    the batch ran. Rows of a batch that ran twice count once, by its number, as an idempotent sink sees it.
    """
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
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
        assert max(bounds.min_offset for bounds in store.bounds()) > 0
