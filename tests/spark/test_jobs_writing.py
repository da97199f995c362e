"""Jobs that write: replay and compact, against what stands for the sink, and its face."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.job_stores import COUNT, SIZES, Sink, everything, make_store, messages

import penstock
from penstock import Message
from penstock.errors import ConfigError, StorageError
from penstock_spark.jobs import compact, export, replay
from penstock_spark.jobs.messages import (
    Plan,
    Rows,
    Transform,
    app_of,
    check_app,
    check_target,
    parquet_files,
    rows_of,
    unified,
)
from penstock_spark.jobs.replay import Pace
from penstock_spark.stores import make_dataset

Seen = list[tuple[str, int, bytes, str, str]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("writing") / "store")


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Sink:
    made = Sink()
    for module in (replay, compact):
        monkeypatch.setattr(module, "write_batch", made.write)
    return made


def seen(root: Path) -> Seen:
    """Return what was stored, queue by queue in order; across queues the order may be another."""
    found = [(m.topic, m.queue, m.body, m.tag, " ".join(m.keys)) for m in everything(root)]
    return sorted(found, key=lambda row: row[:2])


# --- plans


def test_a_plan_never_changes_once_it_is_there(tmp_path: Path) -> None:
    about = {"source": "a", "where": None}
    plan = Plan(tmp_path, "app")
    assert not plan.load(about)
    plan.save(about, [[1, 2], [3]])
    plan.note(1)
    again = Plan(tmp_path, "app")
    assert again.load(about)
    assert (again.batches, again.done) == ([[1, 2], [3]], 1)
    with pytest.raises(ConfigError, match="another where"):
        Plan(tmp_path, "app").load({**about, "where": "x"})
    (tmp_path / "penstock" / "spark" / "app.json").write_text("{")
    with pytest.raises(StorageError, match="not a valid plan"):
        Plan(tmp_path, "app").load(about)
    assert app_of("replay", about) == app_of("replay", dict(reversed(about.items())))
    for wrong in ("", "../x", "a b", "x" * 101):
        with pytest.raises(ConfigError):
            check_app(wrong)


# --- rows of Parquet


def test_rows_of_a_file_come_by_range_with_the_folders_columns(tmp_path: Path) -> None:
    folder = tmp_path / "topic=007" / "date=2026-01-02"
    folder.mkdir(parents=True)
    path = folder / "a.parquet"
    pq.write_table(pa.table({"value": [b"%d" % n for n in range(100)]}), path, row_group_size=30)
    (folder / ".half.parquet").touch()
    (tmp_path / "_penstock").mkdir()
    (tmp_path / "_penstock" / "x.parquet").touch()
    assert parquet_files(str(tmp_path)) == [path]
    schema = pa.schema([("value", pa.binary()), ("topic", pa.string()), ("_file", pa.int64()),
                        ("_row", pa.int64()), ("tags", pa.string())])  # fmt: skip
    for start, stop in ((0, 100), (29, 31), (60, 90), (99, 100), (5, 5)):
        batches = list(rows_of(Rows(str(path), start, stop), 4, schema))
        rows = pa.Table.from_batches(batches, schema).to_pylist()
        assert [row["_row"] for row in rows] == list(range(start, stop))
        assert [row["value"] for row in rows] == [b"%d" % n for n in range(start, stop)]
        assert all((r["topic"], r["_file"], r["tags"]) == ("007", 4, None) for r in rows)


def make_file(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def test_the_columns_of_all_files_are_read(tmp_path: Path) -> None:
    """A column that the first file lacks was dropped from all others."""
    a = make_file(tmp_path / "a.parquet", topic=["t"], value=["text"], partition=pa.array([1]))
    b = make_file(tmp_path / "b.parquet", value=[b"x"], key=["k"], partition=pa.array([2], "int32"))
    c = make_file(tmp_path / "topic=c" / "day=3" / "c.parquet", value=[None])
    schema = unified({path: pq.read_schema(path) for path in (a, b, c)})
    rows = [row for path in (a, b, c) for part in rows_of(Rows(str(path), 0, 1), 0, schema)
            for row in part.to_pylist()]  # fmt: skip
    names = ("topic", "value", "partition", "key", "day")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("t", b"text", 1, None, None),
        (None, b"x", 2, "k", None),
        ("c", None, None, None, "3"),
    ]
    # A topic whose name was cut for its folder.
    (tmp_path / "topic=c" / "_topic.json").write_text('{"topic": "cut"}')
    (whole,) = rows_of(Rows(str(c), 0, 1), 0, schema)
    assert whole.column("topic").to_pylist() == ["cut"]
    for other in ("", "[]", '{"topic": 5}'):
        (tmp_path / "topic=c" / "_topic.json").write_text(other)
        with pytest.raises(StorageError, match=r"_topic\.json"):
            list(rows_of(Rows(str(c), 0, 1), 0, schema))
    odd = make_file(tmp_path / "odd.parquet", value=[[1]])
    with pytest.raises(ConfigError, match=r"odd\.parquet has other columns .*value"):
        unified({path: pq.read_schema(path) for path in (a, b, odd)})


def test_a_file_that_changed_since_the_plan_is_named(tmp_path: Path) -> None:
    path = make_file(tmp_path / "a.parquet", value=[b"x"] * 3)
    schema = pq.read_schema(path)
    with pytest.raises(StorageError, match=r"a\.parquet has 3 rows, and had 4 or more"):
        list(rows_of(Rows(str(path), 0, 4), 0, schema))
    make_file(path, value=[[1]])
    with pytest.raises(StorageError, match=r"column 'value' of .*a\.parquet is list"):
        list(rows_of(Rows(str(path), 0, 1), 0, schema))
    path.write_bytes(b"PAR1" * 9)
    with pytest.raises(StorageError, match=r"a\.parquet is not a valid Parquet file"):
        list(rows_of(Rows(str(path), 0, 1), 0, schema))


# --- replay


def test_a_store_is_replayed_once(spark: Any, sink: Sink, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    pace = Pace(batch_rows=500)
    sink.dies_at = 1
    with pytest.raises(KeyboardInterrupt):
        replay.run(spark, str(source), str(target), pace=pace)
    with penstock.open(source, environ={}) as store:
        before = store.stats()["log_end_offset"]
    assert before
    done = replay.run(spark, str(source), str(target), pace=pace)
    assert (done.batches, done.written) == (3, 2)
    assert 0 < done.rows < COUNT
    assert [version for _, version in sink.calls] == [0, 1, 1, 2]
    assert seen(target) == seen(source)
    again = replay.run(spark, str(source), str(target), pace=pace)
    assert (again.written, again.app) == (0, done.app)
    assert len(everything(target)) == COUNT


def test_a_pattern_is_replayed_once_whatever_it_matches_later(
    spark: Any, sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of the stores were part of the replay's: one store more, and everything was written again."""
    make_store(tmp_path / "day-1", 5)
    done = replay.run(spark, str(tmp_path / "day-*"), str(tmp_path / "target"))
    make_store(tmp_path / "day-2", 7)
    monkeypatch.chdir(tmp_path)
    # Relative, and with another text for the target.
    for source in ("day-*", "target/../day-*", f"file:{tmp_path}/day-*"):
        again = replay.run(spark, source, "day-1/../target")
        assert (again.app, again.written) == (done.app, 0)
    assert replay.run(spark, "day-2", "target").rows == 7
    assert len(everything(tmp_path / "target")) == 5 + 7


def test_parquet_is_replayed_filtered_and_with_other_keys(
    spark: Any, sink: Sink, source: Path, tmp_path: Path
) -> None:
    export.run(spark, str(source), str(tmp_path / "out"), file_rows=90)
    change = Transform(
        topics=("topic1",), tags=("tag1", "tag3"), where="offset % 2 = 0", topic="paid",
        key="concat('o-', offset)", tag="upper(tags)", partition="partition + 10",
    )  # fmt: skip
    done = replay.run(
        spark, str(tmp_path / "out"), str(tmp_path / "target"), change=change, app="mine",
        pace=Pace(batch_rows=400),
    )  # fmt: skip
    assert (done.app, done.batches) == ("mine", 3)
    expected = [
        ("paid", m.queue + 10, m.body, m.tag.upper(), f"o-{m.queue_offset}")
        for m in everything(source)
        if m.topic == "topic1" and m.tag in ("tag1", "tag3") and m.queue_offset % 2 == 0
    ]
    assert len(expected) > 100
    assert seen(tmp_path / "target") == sorted(expected, key=lambda row: row[:2])


def test_any_parquet_with_a_value_will_do(spark: Any, sink: Sink, tmp_path: Path) -> None:
    for number in range(3):
        table = pa.table({"value": [f"{number}-{n}" for n in range(50)], "id": list(range(50))})
        pq.write_table(table, tmp_path / f"part-{number}.parquet")
    change = Transform(topic="lines", key="cast(id as string)", where="id < 40")
    replay.run(spark, str(tmp_path), str(tmp_path / "t" / "store"), change=change)
    bodies = [m.body.decode() for m in everything(tmp_path / "t" / "store")]
    assert bodies == [f"{number}-{n}" for number in range(3) for n in range(40)]


def test_a_replay_keeps_to_its_rate(spark: Any, sink: Sink, source: Path, tmp_path: Path) -> None:
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    done = replay.run(
        spark, str(source), str(tmp_path / "target"), pace=Pace(rows_per_second=100),
        clock=lambda: now[0], sleep=sleep,
    )  # fmt: skip
    assert done.batches == 3
    # Three batches of 400 rows, within a slice of a queue.
    assert slept == [pytest.approx(4.0, abs=0.1)] * 2


@pytest.mark.parametrize(("change", "text"), [
    (Transform(where="nothing = 1"), "nothing"), (Transform(where="a b c"), "expression"),
    (Transform(key="no_such(value)"), "expression"), (Transform(topics=("gone",)), "no topic 'gone'"),
])  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_is_written(
    spark: Any, sink: Sink, source: Path, tmp_path: Path, change: Transform, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        replay.run(spark, str(source), str(tmp_path / "target"), change=change)
    assert not sink.calls
    assert not (tmp_path / "target").exists()


def test_sources_and_targets_that_cannot_be(
    spark: Any, sink: Sink, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file.parquet").write_bytes(b"no Parquet")
    pq.write_table(pa.table({"other": [1]}), tmp_path / "other.parquet")
    target = str(tmp_path / "target")
    for given, to, text in (
        (tmp_path / "gone", target, "nothing at this path"), (tmp_path / "empty", target, "no Parquet"),
        (tmp_path / "full", target, "not a valid Parquet file"),
        (tmp_path / "other.parquet", target, "no column 'value'"),
        (source, str(tmp_path / "full"), "nor empty"), (source, str(source), "both source and target"),
    ):  # fmt: skip
        with pytest.raises((ConfigError, StorageError), match=text):
            replay.run(spark, str(given), to)
    pq.write_table(pa.table({"value": [b"1"]}), tmp_path / "values.parquet")
    with pytest.raises(ConfigError, match="give the topic"):
        replay.run(spark, str(tmp_path / "values.parquet"), target)
    with pytest.raises(ConfigError, match="cannot be negative"):
        replay.run(spark, str(source), target, pace=Pace(rows_per_second=-1))


def test_a_target_that_shares_a_store_with_the_source_is_refused(tmp_path: Path) -> None:
    """The source was doubled, as only equal texts were equal folders, and a dataset was none of its shards."""
    store, shard, other = tmp_path / "store", *make_dataset(tmp_path / "shards", 2)
    for root in (store, shard, tmp_path / "x"):
        root.mkdir()
    (tmp_path / "link").symlink_to(store)
    inside = [store, tmp_path / "link", tmp_path / "x" / ".." / "store", store / "penstock"]
    for target, source in [*((each, store) for each in inside), (tmp_path / "shards", shard)]:
        with pytest.raises(ConfigError, match="both source and target"):
            check_target(target, [tmp_path / "x", source])
    check_target(tmp_path / "shards", [store])
    check_target(tmp_path / "store-2", [store, other])


# --- compact


def test_the_latest_message_of_each_key_stays(spark: Any, sink: Sink, tmp_path: Path) -> None:
    root, target = tmp_path / "store", tmp_path / "target"
    with penstock.open(root, environ={}, **SIZES) as store:
        store.put_many(messages())
        # A tombstone, a key that came back after one, and a key in two queues.
        store.put_many([
            Message("topic1", b"", queue=0, keys=["k1"]), Message("topic1", b"", queue=0, keys=["k3"]),
            Message("topic1", b"back", queue=0, keys=["k3"]), Message("topic1", b"moved", queue=2, keys=["k5"]),
        ])  # fmt: skip
    stored = [m for m in everything(root) if m.topic == "topic1"]
    latest = {" ".join(m.keys): m.log_offset for m in stored if m.keys}
    keep = {
        m.log_offset
        for m in stored
        if not m.keys or (latest[" ".join(m.keys)] == m.log_offset and m.body)
    }
    done = compact.run(spark, str(root), str(target), "topic1")
    expected = [(m.queue, m.body, m.keys) for m in stored if m.log_offset in keep]
    assert [(m.queue, m.body, m.keys) for m in everything(target)] == expected
    assert (done.kept, done.read, done.keys) == (len(expected), len(stored), len(latest))
    assert json.loads(done.to_json())["kept"] == len(expected)
    # Run again, with more in the source: the same, and nothing twice.
    with penstock.open(root, environ={}) as store:
        store.put("topic1", b"later", queue=0, keys=["k1"])
    compact.run(spark, str(root), str(target), "topic1")
    assert len(everything(target)) == len(expected)


def test_compact_refuses(spark: Any, sink: Sink, source: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "target")
    with pytest.raises(ConfigError, match="no topic 'x'"):
        compact.run(spark, str(source), target, "x")
    other = make_store(tmp_path / "other", 5)
    with pytest.raises(ConfigError, match="already exists"):
        compact.run(spark, str(source), str(other), "topic1")
    with pytest.raises(ConfigError, match="both source and target"):
        compact.run(spark, str(source), str(source), "topic1")
    assert not sink.calls
