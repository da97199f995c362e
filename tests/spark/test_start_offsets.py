"""Where a stream with a group starts: kept before it is used, and given again until a batch is committed."""

import json
from pathlib import Path

import pytest
from tests.spark.stream_query import Query, everything, follower, put

import penstock
from penstock.errors import ConfigError, CorruptionError, StorageError
from penstock_spark.source.stream_state import FOLDER
from penstock_spark.stores import make_dataset


def test_a_first_batch_that_was_never_committed_begins_where_it_did(tmp_path: Path) -> None:
    """Spark asks again for the start after an early crash; a second `latest` would skip messages."""
    put(tmp_path / "s", 10)
    query = Query(tmp_path / "s", startingOffsets="latest", group="g")
    assert query.start() == {"t": {"0": 5, "1": 5}}
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
    query.start()
    put(tmp_path / "s", 4)
    assert query.batch(crash="tasks")
    put(tmp_path / "s", 4)
    with pytest.raises(StorageError, match=r"after its end .* give group"):
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
    assert "used by another query" in caplog.text


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
    with pytest.raises(CorruptionError, match="delete it"):
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
    with pytest.raises(ConfigError, match=r"cannot be stored .* omit group"):
        follower(tmp_path / "s", group="g").start()
    make_dataset(tmp_path / "d", 2)
    put(tmp_path / "d" / "shard-000", 3)
    reader = follower(tmp_path / "d", group="g", startingOffsets="earliest")
    assert reader.start() == {str(tmp_path / "d" / "shard-000"): {"t": {"0": 0, "1": 0}}}
    assert (tmp_path / "d" / FOLDER / "g.json").exists()
    # The second shard appears later, and comes from its beginning.
    put(tmp_path / "d" / "shard-001", 3)
    assert str(tmp_path / "d" / "shard-001") in reader.latest(reader.start())
