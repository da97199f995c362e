"""What a stream reads and what it says is gone: its state driven as Spark does it, without a JVM."""

import json
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lanes import examples
from tests.spark.stream_query import (
    Query,
    everything,
    follower,
    lose,
    put,
    retain_unread,
)

import penstock
from penstock.errors import ConfigError, StorageError
from penstock_spark.errors import DataLossError
from penstock_spark.source.stream_state import limited

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
    query.start()
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


def test_a_checkpoint_with_offsets_of_messages_that_wait_goes_on_without_them(
    tmp_path: Path,
) -> None:
    """A run before asked for the schedule topic by its name; that it is left out now is no loss."""
    put(tmp_path / "s", 4)
    with penstock.open(tmp_path / "s") as store:
        store.lowlevel.put_copies(
            [(penstock.Message("SCHEDULE_TOPIC_XXXX", b"x", queue=n % 2), b"") for n in range(6)]
        )
    reader = follower(tmp_path / "s")
    before = {"t": {"0": 1, "1": 2}, "SCHEDULE_TOPIC_XXXX": {"0": 1, "1": 1}}
    end = reader.latest(before)
    assert end == {**before, "t": {"0": 2, "1": 2}}
    (task,) = reader.tasks(before, {**end, "SCHEDULE_TOPIC_XXXX": {"0": 3, "1": 3}})
    assert {each.topic for each in task} == {"t"}


def test_the_loss_of_messages_that_wait_is_said_where_they_are_named(tmp_path: Path) -> None:
    """They were left out of that in every case, and the loss of a topic that was asked for was not said."""
    half = "RMQ_SYS_TRANS_HALF_TOPIC"
    put(tmp_path / "s", 4)
    with penstock.open(tmp_path / "s") as store:
        store.lowlevel.put_copies([(penstock.Message(half, b"x", queue=0), b"")])
    reader = follower(tmp_path / "s", subscribe=f"t,{half}", startingOffsets="earliest")
    end = reader.latest(reader.start())
    shutil.rmtree(tmp_path / "s")
    put(tmp_path / "s", 4)
    with pytest.raises(DataLossError, match=half):
        reader.latest(end)
    with pytest.raises(DataLossError, match=half):
        reader.tasks({**end, half: {"0": 0}}, end)


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


@pytest.mark.parametrize("pattern", ["s1", "s?"])
def test_what_retention_deletes_before_the_first_batch_of_an_empty_store_is_reported(
    pattern: str, tmp_path: Path
) -> None:
    """A store without queues was in no offsets, so it was as unknown as one that had just appeared."""
    for name in ("s1", "s2"):
        put(tmp_path / name, 1, topic="other", queues=1)
    query = Query(tmp_path / pattern, startingOffsets="earliest", group="g", subscribePattern="t")
    query.start()
    for name in ("s1", "s2", "s3"):
        put(tmp_path / name, 200, queues=1, size=500)
        lose(tmp_path / name, 3)
    query.restart()
    with pytest.raises(DataLossError, match=r"of topic 't' in .*s1 is new, and its first messages"):
        query.batch()


def test_an_empty_store_that_appears_is_known_from_then_on(tmp_path: Path) -> None:
    put(tmp_path / "s1", 2, queues=1)
    query = Query(tmp_path / "s*", startingOffsets="earliest", subscribePattern="t")
    assert query.batch()
    put(tmp_path / "s2", 1, topic="other", queues=1)
    # Nothing was promised of a store that lost messages before it appeared.
    put(tmp_path / "s3", 200, queues=1, size=500)
    lose(tmp_path / "s3", 3)
    while query.batch():
        pass
    assert json.loads(query.planned[-1])[str(tmp_path / "s2")] == {}
    assert str(tmp_path / "s3") in {row[4] for row in query.rows}
    put(tmp_path / "s2", 200, queues=1, size=500)
    lose(tmp_path / "s2", 3)
    with pytest.raises(DataLossError, match=r"of topic 't' in .*s2 is new, and its first messages"):
        query.batch()


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
    assert caplog.text.count("no longer exists") == 2, "once for each queue"
    (root / "away").rename(root / "consumequeue")
    assert not query.batch()
    put(root, 4)
    assert query.batch()
    assert sorted(query.places()) == everything(root)
    (root / "consumequeue").rename(root / "away")
    with pytest.raises(DataLossError, match="no longer exists"):
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


# --- what is gone


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
    assert "skipped, since" in caplog.text
    with penstock.open(root, read_only=True, environ={}) as store:
        there = {
            (str(root), b.topic, b.queue, n)
            for b in store.lowlevel.bounds()
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
    with pytest.raises(DataLossError, match=r"'t' in .* no longer exists"):
        strict.batch()
    assert lenient.batch()
    assert not lenient.batch() or not lenient.batch()
    assert "no longer exists" in caplog.text


def test_a_store_that_was_made_anew_is_an_error_or_a_logged_skip(tmp_path: Path) -> None:
    root = tmp_path / "s"
    put(root, 10)
    strict = Query(root, startingOffsets="earliest")
    lenient = Query(root, startingOffsets="earliest", failOnDataLoss="false")
    for query in (strict, lenient):
        assert query.batch()
    shutil.rmtree(root)
    put(root, 4)
    with pytest.raises(
        DataLossError, match="read up to 5, and now ends at 2: it was created again"
    ):
        strict.batch()
    lenient.batch()
    put(root, 4)
    lenient.batch()
    assert sorted(row[3] for row in lenient.places()) == sorted([0, 1, 2, 3, 4, 2, 3] * 2)


@pytest.mark.parametrize("crash", ["", "plan", "tasks"])
def test_a_topic_that_was_made_again_is_read_from_its_first_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, crash: str
) -> None:
    """With as many messages as before it looked like the same topic, and so many were skipped without a word."""
    root = tmp_path / "s"
    put(root, 10)
    strict = Query(root, startingOffsets="earliest")
    lenient = Query(root, startingOffsets="earliest", failOnDataLoss="false")
    for query in (strict, lenient):
        assert query.batch()
    for generation in (1, 2):
        with penstock.open(root, environ={}) as store:
            store.delete_topic("t")
        put(root, 14, size=30)
        with pytest.raises(DataLossError, match=r"read up to 5, was removed .* created again"):
            strict.batch()
        lenient.rows.clear()
        assert lenient.batch(crash=crash)
        while lenient.batch():
            pass
        assert sorted(lenient.places()) == everything(root)
        assert lenient.start() == {"t": {f"0@{generation}": 7, f"1@{generation}": 7}}
        assert caplog.text.count("was removed with its topic") == 2 * (1 + bool(crash == "plan"))
        caplog.clear()
    assert lenient.reader.tasks(lenient.start(), lenient.start()) == []
    assert Query(root, startingOffsets='{"t":{"0@2":3}}').start()["t"]["0@2"] == 3
    with pytest.raises(ConfigError, match=r"after 1 removals of it, but .* knows 2"):
        Query(root, startingOffsets='{"t":{"0@1":99}}').start()


def test_a_batch_of_a_topic_that_was_made_again_is_not_read_from_the_new_one(
    tmp_path: Path,
) -> None:
    put(tmp_path / "s", 10)
    query = Query(tmp_path / "s", startingOffsets="earliest")
    assert query.batch()
    put(tmp_path / "s", 4)
    assert query.batch(crash="tasks")
    with penstock.open(tmp_path / "s", environ={}) as store:
        store.delete_topic("t")
    put(tmp_path / "s", 14)
    with pytest.raises(DataLossError, match="no longer exists"):
        query.batch()


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
    query.start()
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
            retain_unread(query, roots)
        else:
            crash = chance.choice(["", "", "plan", "tasks", "commit"])
            query.batch(crash=crash, rows=chance.choice([0, 7, 50]), size=chance.choice([0, 3000]))
    while query.batch():
        pass
    assert sorted(query.places()) == everything(*roots)
