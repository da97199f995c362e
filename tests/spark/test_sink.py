"""The sink: options, columns and routing without a JVM, then real Spark."""

import pickle
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.errors import ConfigError, CorruptionError, MessageError, PenstockError
from penstock.files import Files
from penstock.format.hashes import java_hash
from penstock_spark.sink.commit import Ledger, SinkCommitter
from penstock_spark.sink.options import SinkOptions, parse_options
from penstock_spark.sink.rows import PIECE_BYTES, Router, check_columns, staged_name, tables
from penstock_spark.sink.writer import PenstockWriter, find_target
from penstock_spark.stores import make_dataset, shards_of

SMALL = {
    "set.geometry.segment_bytes": "262144", "set.geometry.queue_entries": "500",
    "set.geometry.index_slots": "200", "set.geometry.index_entries": "1500",
}  # fmt: skip

# --- options


def test_options_have_defaults() -> None:
    options = parse_options({"path": "/s", "checkpointlocation": "/c"}, is_stream=True)
    assert options == SinkOptions(root=Path("/s"))
    assert (options.partitions, options.partitioner, options.lock_timeout_s) == (4, "key", 60)


def test_options_in_any_case_and_settings_by_name() -> None:
    options = parse_options(
        {
            "path": "file:///s", "TOPIC": "t", "partitions": "8", "partitioner": "task", "locktimeout": "500ms",
            "stagingRetention": "12h", "txnappid": "etl", "txnversion": "7", "set.profile": "rocketmq",
            "set.log.checksum": "crc32+record", "SET.retention.use": '["age"]', "set.log.busy_ms": "5",
        },
        is_stream=False,
    )  # fmt: skip
    assert (options.root, options.topic, options.partitions) == (Path("/s"), "t", 8)
    assert (options.app, options.version) == ("etl", 7)
    assert (options.lock_timeout_s, options.retention_s) == (0.5, 43200)
    assert options.settings == {
        "write.use": "file", "scrub.digests": False, "retention.use": ["age"], "profile": "rocketmq",
        "log.checksum": "crc32+record", "log.busy_ms": 5,
    }  # fmt: skip


def test_each_save_is_its_own_application_unless_it_is_named() -> None:
    one, other = (parse_options({"path": "/s"}, is_stream=False) for _ in range(2))
    assert one.app != other.app
    assert one.version is None


@pytest.mark.parametrize(
    ("given", "is_stream", "text"),
    [
        ({}, False, "folder of a store"),
        ({"path": "s3://bucket/x"}, False, "this machine"),
        ({"path": "/s", "partitioner": "hash"}, False, "key, round-robin, task"),
        ({"path": "/s", "partitions": "0"}, False, "1 to 65536"),
        ({"path": "/s", "partition": "4"}, False, "did you mean"),
        ({"path": "/s", "subscribe": "t"}, False, "for reading"),
        ({"path": "/s", "paths": '["/a","/b"]'}, False, "several paths"),
        ({"path": "/s", "shards": "1001"}, False, "1 to 1000"),
        ({"path": "/s", "txnAppId": "a"}, False, "give both txnAppId and txnVersion"),
        ({"path": "/s", "txnVersion": "1"}, False, "give both txnAppId and txnVersion"),
        ({"path": "/s", "txnAppId": " ", "txnVersion": "1"}, False, "empty"),
        ({"path": "/s", "txnAppId": "a", "txnVersion": "-1"}, False, "txnVersion"),
        ({"path": "/s", "txnVersion": "1"}, True, "batch queries"),
        ({"path": "/s", "lockTimeout": "soon"}, False, "duration"),
        ({"path": "/s", "profile": "rocketmq"}, False, "'set.profile'"),
        ({"path": "/s", "config": "/c.toml"}, False, "'set.<setting>'"),
    ],
)
def test_bad_options_are_refused(given: dict[str, str], is_stream: bool, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_options(given, is_stream=is_stream)


@pytest.mark.parametrize(
    ("columns", "topic", "text"),
    [
        ([("key", "string")], "t", "needs a column 'value'"),
        ([("value", "string")], None, "needs a topic"),
        ([("value", "bigint")], "t", "string or binary: cast it"),
        ([("value", "string"), ("body", "string")], "t", "no column 'body'"),
        ([("value", "string"), ("VALUE", "string")], "t", "twice"),
        ([("value", "string"), ("partition", "string")], "t", "int or bigint"),
        ([("value", "string"), ("headers", "map<string,binary>")], "t", "headers"),
        ([("value", "string"), ("timestamp", "timestamp_ntz")], "t", "timestamp"),
    ],
)
def test_frames_that_cannot_be_written_are_refused(
    columns: list[tuple[str, str]], topic: str | None, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        check_columns(columns, topic)


# --- columns and routing


def converted(
    columns: dict[str, pa.Array], router: Router | None = None, **options: Any
) -> list[tuple[int, list[dict[str, Any]]]]:
    given = SinkOptions(root=Path("/s"), **{"topic": "t", **options})
    batch = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
    router = router or Router.of(given, 1, 0)
    return [(shard, table.to_pylist()) for shard, table in tables(batch, given, router, 99)]


def test_every_column_finds_its_place() -> None:
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    ((_, rows),) = converted({
        "VALUE": pa.array([b"a", b"b", b""]),
        "key": pa.array([b"k", None, b""]),
        "tags": pa.array(["x", None, ""]),
        "partition": pa.array([7, None, 1], pa.int32()),
        "headers": pa.array([[{"key": "h", "value": b"1"}, {"key": "i", "value": b"2"}], None, []], header),
        "timestamp": pa.array([1_000_000, None, 2_500], pa.timestamp("us", tz="UTC")),
    })  # fmt: skip
    assert [row["body"] for row in rows] == [b"a", b"b", b""]
    assert [row["keys"] for row in rows] == ["k", None, ""]
    assert [row["queue"] for row in rows] == [7, 1, 1]
    assert [row["properties"] for row in rows] == [[("h", "1"), ("i", "2")], [], []]
    assert [row["born_time"] for row in rows] == [1000, 99, 2]
    assert {row["topic"] for row in rows} == {"t"}


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"value": pa.array([b"a", None])}, "'value' has nulls"),
        ({"value": pa.array([b"a"]), "key": pa.array([b"\xff"])}, "'key' has a value that is not UTF-8"),
        ({"value": pa.array([b"a"]), "topic": pa.array([None], pa.string())}, "'topic' has nulls"),
        ({"value": pa.array([b"a"]), "headers": pa.array([[{"key": "h", "value": b"\xff"}]])}, "not UTF-8"),
        ({"value": pa.array([b"a"]), "headers": pa.array([[{"key": "h", "value": None}]],
          pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])))}, "null name or value"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_stored_are_refused(columns: dict[str, pa.Array], text: str) -> None:
    with pytest.raises(MessageError, match=text):
        converted(columns, topic=None if "topic" in columns else "t")


def test_a_key_picks_the_queue_that_rocketmq_would() -> None:
    # The last one's hash is the least there is, whose absolute value does not fit 32 bits.
    keys = ["a", "order-17", "ключ", "polygenelubricants"]
    assert java_hash(keys[-1]) == -(1 << 31)
    ((_, rows),) = converted({"value": pa.array(keys), "key": pa.array(keys)}, partitions=7)
    assert [row["queue"] for row in rows] == [abs(java_hash(key)) % 7 for key in keys]


def queues(partitioner: str, task: int, keys: Sequence[str | None]) -> list[int]:
    options = SinkOptions(root=Path("/s"), topic="t", partitioner=partitioner, partitions=3)
    router = Router.of(options, 1, task)
    columns = {"value": pa.array(["v"] * len(keys)), "key": pa.array(keys, pa.string())}
    found = []
    for _ in range(2):
        for _, rows in converted(columns, router, partitioner=partitioner, partitions=3):
            found += [row["queue"] for row in rows]
    return found


def test_partitioners() -> None:
    assert queues("round-robin", 1, ["k"] * 4) == [1, 2, 0, 1, 2, 0, 1, 2]
    assert queues("task", 5, ["k", None]) == [2, 2, 2, 2]
    same = abs(java_hash("k")) % 3
    assert queues("key", 0, ["k", None, "", "k"]) == [same, 1, 2, same, same, 2, 0, same]


def test_shards_go_by_key_else_by_task_and_leave_no_queue_empty() -> None:
    options = SinkOptions(root=Path("/s"), topic="t")
    keys = [f"key-{n}" for n in range(400)]
    seen = set()
    for shard, rows in converted(
        {"value": pa.array(keys), "key": pa.array(keys)}, Router.of(options, 4, 3)
    ):
        seen |= {(shard, row["queue"]) for row in rows}
        again = converted(
            {"value": pa.array([rows[0]["keys"]] * 2), "key": pa.array([rows[0]["keys"]] * 2)},
            Router.of(options, 4, 1),
        )
        assert [one for one, _ in again] == [shard]
    assert len(seen) == 16
    assert [s for s, _ in converted({"value": pa.array(["v"] * 9)}, Router.of(options, 4, 7))] == [
        3
    ]


def test_large_batches_are_cut_into_pieces_in_order() -> None:
    bodies = [b"x" * size for size in (10, PIECE_BYTES + 5, 20, PIECE_BYTES - 10, 10, 1)]
    found = converted({"value": pa.array(bodies)})
    assert [row["body"] for _, rows in found for row in rows] == bodies
    assert [len(rows) for _, rows in found] == [1, 1, 1, 2, 1]
    assert converted({"value": pa.array([], pa.binary())}) == []


def test_names_of_staged_files_are_names() -> None:
    name = staged_name("../ü app/" + "x" * 99, "7", 3, 1)
    assert "/" not in name
    assert name.startswith("app-x")
    assert name != staged_name("../ü app/" + "x" * 99, "7", 3, 1)


# --- where to


def options_for(root: Path, **more: str) -> SinkOptions:
    return parse_options({"path": str(root), "topic": "t", **SMALL, **more}, is_stream=False)


def test_a_store_is_made_when_a_query_starts(tmp_path: Path) -> None:
    target = find_target(options_for(tmp_path / "new" / "store"))
    assert (tmp_path / "new" / "store" / "commitlog").is_dir()
    assert target.encoding.record_bytes_max == 262144 - 8
    assert pickle.loads(pickle.dumps(target)) == target
    # A store has its own sizes, whatever a later query says of new ones.
    later = find_target(
        parse_options({"path": str(tmp_path / "new" / "store"), "topic": "t"}, is_stream=True)
    )
    assert later.encoding.record_bytes_max == 262144 - 8


def test_a_dataset_is_made_of_as_many_shards_as_asked_for(tmp_path: Path) -> None:
    target = find_target(options_for(tmp_path / "d", shards="3"))
    assert list(target.shards) == shards_of(tmp_path / "d")
    assert len(target.shards) == 3
    assert find_target(options_for(tmp_path / "d")).shards == target.shards
    with pytest.raises(ConfigError, match="has 3 shards, not 2"):
        find_target(options_for(tmp_path / "d", shards="2"))


def test_what_others_have_left_fails_no_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = PenstockWriter(find_target(options_for(tmp_path, txnAppId="a", txnVersion="1")))

    def fails(*_: Any) -> int:
        raise CorruptionError(tmp_path, 0, "a decision", "another's")

    monkeypatch.setattr(SinkCommitter, "collect", fails)
    writer.commit([])
    assert "old staged files" in caplog.text
    assert writer.committer().ledger.last_batch("a") == 1


def test_what_is_no_place_for_a_sink_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "file").touch()
    with pytest.raises(PenstockError, match="not a message store"):
        find_target(options_for(tmp_path / "else"))
    with pytest.raises(ConfigError, match="neither a dataset nor empty"):
        find_target(options_for(tmp_path / "else", shards="2"))
    penstock.open(tmp_path / "store", environ={}).close()
    with pytest.raises(ConfigError, match="is a store"):
        find_target(options_for(tmp_path / "store", shards="2"))
    with pytest.raises(ConfigError, match="did you mean flush"):
        find_target(options_for(tmp_path / "new", **{"set.flus.use": "sync"}))
    assert sorted(path.name for path in (tmp_path / "else").iterdir()) == ["file"]


# --- Spark


def frame(spark: Any, count: int, parts: int = 3) -> Any:
    return spark.range(0, count, 1, parts).selectExpr(
        "cast(id as string) value", "concat('k', id) key"
    )


def save(frame: Any, root: Path, **options: str) -> None:
    frame.write.format("penstock").mode("append").options(
        **{"topic": "t", **SMALL, **options}
    ).save(str(root))


def bodies(root: Path, topic: str = "t") -> list[str]:
    with penstock.open(root, read_only=True) as store:
        assert not list(store.verify())
        return [
            m.body.decode()
            for q in store.topics().get(topic, [])
            for m in store.scan(topic, queue=q)
        ]


def test_a_frame_is_written_with_all_its_columns(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "store"
    spark.range(0, 1000, 1, 2).selectExpr(
        "concat('topic', id % 2) topic", "cast(concat('k', id) as binary) key", "concat('v', id) value",
        "cast(id % 3 as int) partition", "if(id % 5 = 0, null, concat('tag', id % 5)) tags",
        "array(named_struct('key', 'h', 'value', cast(cast(id as string) as binary))) headers",
        "timestamp_millis(1700000000000 + id) timestamp",
    ).write.format("penstock").mode("append").options(**SMALL).save(str(root))  # fmt: skip
    with penstock.open(root, read_only=True) as store:
        assert store.topics() == {"topic0": [0, 1, 2], "topic1": [0, 1, 2]}
        for topic in store.topics():
            for message in store.scan(topic):
                number = int(message.body[1:])
                assert (topic, message.queue) == (f"topic{number % 2}", number % 3)
                assert (list(message.keys), message.properties) == (
                    [f"k{number}"],
                    {"h": str(number)},
                )
                assert message.tag == (f"tag{number % 5}" if number % 5 else "")
                assert message.born_time_ms == 1700000000000 + number
        assert store.find("k77", "topic1")[0].body == b"v77"
    rows = (
        spark.read.format("penstock")
        .load(str(root))
        .selectExpr("cast(value as string) v")
        .collect()
    )
    assert len({row.v for row in rows}) == 1000


def test_the_same_version_is_written_once_and_rows_stay_in_order(
    spark: Any, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    for _ in range(2):
        save(
            frame(spark, 90),
            root,
            txnAppId="etl",
            txnVersion="3",
            partitioner="task",
            partitions="3",
        )
    save(frame(spark, 90), root, txnAppId="etl", txnVersion="2")
    # One queue for each task: its rows in order.
    assert bodies(root) == [str(n) for n in range(90)]
    save(frame(spark, 5), root, txnAppId="etl", txnVersion="4")
    save(frame(spark, 5), root)
    save(frame(spark, 5), root)
    save(frame(spark, 0), root)
    assert len(bodies(root)) == 105
    ledger = Ledger(Files(), root)
    assert ledger.last_batch("etl") == 4
    assert not list(ledger.staging.iterdir())
    # A save that is only itself leaves no line behind.
    assert len(list((ledger.folder / "ledger").iterdir())) == 1


def test_a_dataset_spreads_rows_over_its_shards(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "data"
    for _ in range(2):
        save(frame(spark, 300), root, shards="2", txnAppId="a", txnVersion="0")
    found = [bodies(shard) for shard in shards_of(root)]
    assert sorted(int(each) for shard in found for each in shard) == list(range(300))
    assert min(map(len, found)) > 75


def test_each_shard_gets_records_of_its_own_checksum(spark: Any, tmp_path: Path) -> None:
    """Rows are staged once for all shards; a store made with a broker's defaults keeps them."""
    root = tmp_path / "data"
    old, new = make_dataset(root, 2)
    sizes: dict[str, Any] = {name.removeprefix("set."): int(SMALL[name]) for name in SMALL}
    penstock.open(old, environ={}, profile="rocketmq", **sizes).close()
    for version in range(2):
        save(frame(spark, 100), root, txnAppId="a", txnVersion=str(version))
    assert sorted(int(b) for shard in (old, new) for b in bodies(shard)) == sorted(
        [*range(100)] * 2
    )
    for shard, has_crc in ((old, False), (new, True)):
        with penstock.open(shard, read_only=True, environ={}) as store:
            assert {b"__CRC32#" in m.record[-20:] for m in store.scan("t")} == {has_crc}
            assert all(store.find(f"k{m.body.decode()}", "t") for m in store.scan("t"))


@pytest.mark.parametrize(
    ("mode", "columns", "options", "text"),
    [
        ("overwrite", ["value"], {}, "which a log cannot do"),
        ("append", ["id"], {}, "no column 'id'"),
        ("append", ["value"], {"partitons": "4"}, "did you mean 'partitions'"),
        ("append", ["value"], {"subscribe": "t"}, "for reading"),
        ("errorifexists", ["value"], {}, "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"),
    ],
)
def test_mistakes_show_when_a_frame_is_saved(
    spark: Any, tmp_path: Path, mode: str, columns: list[str], options: dict[str, str], text: str
) -> None:
    given = spark.range(1).selectExpr("id", "cast(id as string) value").select(*columns)
    with pytest.raises(Exception, match=text):
        given.write.format("penstock").mode(mode).options(topic="t", **options).save(
            str(tmp_path / "s")
        )
    assert not (tmp_path / "s" / "commitlog").exists()


def test_complete_mode_ends_a_stream_before_its_first_batch(spark: Any, tmp_path: Path) -> None:
    counts = (
        spark.readStream.format("rate")
        .load()
        .groupBy("value")
        .count()
        .selectExpr("cast(count as string) value")
    )
    # Spark asks for the writer in the query's own thread.
    query = (
        counts.writeStream.format("penstock").outputMode("complete").option("topic", "t")
        .option("checkpointLocation", str(tmp_path / "c")).start(str(tmp_path / "s"))
    )  # fmt: skip
    with pytest.raises(Exception, match="which a log cannot do"):
        query.awaitTermination()
    assert not (tmp_path / "s").exists()


def test_a_bad_row_fails_the_save_and_nothing_is_written(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "store"
    bad = spark.range(0, 100, 1, 2).selectExpr("if(id = 77, null, cast(id as string)) value")
    with pytest.raises(Exception, match="'value' has nulls"):
        save(bad, root)
    assert bodies(root) == []
    # Spark may give up while the other task still stages; what it leaves no decision names, and it goes by age.
    committer = find_target(parse_options({"path": str(root)}, is_stream=False)).committer()
    committer.collect(time.time_ns() + 10**9)
    assert not list(Ledger(Files(), root).staging.iterdir())


def stream(spark: Any, folder: Path, **options: str) -> Any:
    lines = (
        spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(folder / "in"))
    )
    return (
        lines.writeStream.format("penstock").options(**{"topic": "t", **SMALL, **options})
        .option("checkpointLocation", str(folder / "cp")).trigger(availableNow=True).start(str(folder / "store"))
    )  # fmt: skip


def add_file(folder: Path, number: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "side").write_text("".join(f"{number}:{n}\n" for n in range(10)))
    (folder / "side").rename(folder / "in" / f"{number}.txt")


def test_a_batch_that_spark_repeats_is_written_once(spark: Any, tmp_path: Path) -> None:
    for number in range(3):
        add_file(tmp_path, number)
    stream(spark, tmp_path).awaitTermination()
    # As after a crash between the sink's commit and Spark's own note of it.
    for name in ("commits/2", "commits/.2.crc"):
        (tmp_path / "cp" / name).unlink(missing_ok=True)
    add_file(tmp_path, 3)
    stream(spark, tmp_path).awaitTermination()
    found = bodies(tmp_path / "store")
    assert sorted(found) == sorted(f"{f}:{n}" for f in range(4) for n in range(10))


def test_a_commit_waits_for_a_producer_and_names_it_when_that_takes_too_long(
    spark: Any, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    save(frame(spark, 3), root)
    with penstock.open(root, environ={}) as producer:
        producer.put("t", b"-1", queue=0)
        with pytest.raises(Exception, match="open for writing elsewhere"):
            save(frame(spark, 3), root, lockTimeout="50ms")
    assert len(bodies(root)) == 4
    assert not Ledger(Files(), root).has_decision()
    producer = penstock.open(root, environ={})

    def close_later() -> None:
        # Once the rows are staged the commit waits.
        while not list(Ledger(Files(), root).staging.iterdir()):
            time.sleep(0.01)
        time.sleep(0.1)
        producer.close()

    closing = threading.Thread(target=close_later)
    closing.start()
    save(frame(spark, 3), root)
    closing.join()
    assert len(bodies(root)) == 7
