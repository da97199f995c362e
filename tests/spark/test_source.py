"""The Spark source, batch: the reader's parts without a JVM, then real Spark."""

import collections
import os
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.lanes import SEED

import penstock
from penstock import Message
from penstock.errors import ConfigError, CorruptionError, NotAStoreError, OffsetError
from penstock.files import Files
from penstock_spark.arrow import COLUMNS
from penstock_spark.errors import DataLossError
from penstock_spark.java import LAUNCHER, make_launcher
from penstock_spark.source.offsets import survey
from penstock_spark.source.options import parse_options
from penstock_spark.source.tasks import DEFAULT, LogRange, plan, read_spans, share_out
from penstock_spark.stores import StoreSpan, find_stores

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
                    keys=[f"k{n}", f"g{n % 10}"] if n % 7 else [], properties={"p": "v"},
                )
                for n in range(COUNT)
            ]
        )  # fmt: skip
    return root


def spans(path: Path, **more: str) -> list[list[Any]]:
    options = parse_options({"path": str(path), **more})
    locations = find_stores(options.paths)
    return plan(survey(options, locations), locations.stores, options.min_partitions)


def rows(path: Path, names: tuple[str, ...] = DEFAULT, **more: str) -> list[dict[str, Any]]:
    options = parse_options({"path": str(path), **more})
    found = []
    for task in spans(path, **more):
        for batch in read_spans(options, names, task):
            assert batch.num_rows <= options.rows_per_batch
            found += batch.to_pylist()
    return found


@pytest.mark.parametrize(
    ("more", "kind", "text"),
    [
        ({"subscribe": "nope"}, ConfigError, "no topic 'nope' in .*topic0, topic1"),
        ({"assign": '{"nope":[0]}'}, ConfigError, "topic0, topic1"),
        ({"assign": '{"topic0":[7]}'}, ConfigError, "queue 7 of topic 'topic0'"),
        ({"startingOffsets": '{"topic0":{"9":0}}'}, ConfigError, "queue 9.*does not exist"),
        (
            {"subscribe": "topic1", "startingOffsets": '{"topic0":{"0":0}}'},
            ConfigError,
            "not subscribe",
        ),
        ({"startingOffsets": '{"topic0":{"0":99999}}'}, OffsetError, "99999"),
        ({"endingOffsets": '{"topic0":{"0":501}}'}, OffsetError, "0 to 501"),
        ({"startingOffsets": '{"/x":{"topic0":{"0":0}}}'}, ConfigError, "one store is read"),
        ({"startingTimestamp": "9999999999999"}, ConfigError, "give since"),
        ({"startingTimestamp": f"{(1 << 63) - 1}"}, ConfigError, "^startingTimestamp: queue 0"),
    ],
)
def test_plans_that_cannot_be_are_refused(
    more: dict[str, str], kind: type[Exception], text: str, path: Path
) -> None:
    with pytest.raises(kind, match=text):
        spans(path, **more)


def test_paths_that_are_no_store_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match="nothing at this path"):
        spans(tmp_path / "missing")
    with pytest.raises(NotAStoreError, match="not a message store"):
        spans(path / "commitlog")
    with pytest.raises(NotAStoreError, match="not a message store"):
        spans(tmp_path)
    with pytest.raises(NotAStoreError, match="no folder matches"):
        spans(tmp_path / "nothing*")


def test_a_store_is_divided_into_no_more_parts_than_rows() -> None:
    """A million parts of some hundred rows took ten seconds to plan."""
    span = StoreSpan("/s", "t", 0, 0, 600)
    piece = LogRange(span, [0, 600], [0.0, 60_000.0], [0.0, 60_000.0])
    tasks = share_out([[piece]], 1_000_000)
    assert [span[3:5] for task in tasks for span in task] == [(n, n + 1) for n in range(600)]
    tracemalloc.start()
    share_out([[piece]], 1_000_000)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_every_row_comes_once_whatever_the_tasks(path: Path) -> None:
    for parts in ("1", "2", "7", "500"):
        found = rows(path, ("topic", "partition", "offset", "value"), minPartitions=parts)
        assert len(found) == COUNT
        assert len({row["value"] for row in found}) == COUNT
        tasks = spans(path, minPartitions=parts)
        assert len(tasks) >= int(parts)
        assert all(span.start < span.stop for task in tasks for span in task)


def test_each_queue_is_in_order_within_a_task_and_over_the_tasks(path: Path) -> None:
    following: dict[tuple[str, int], int] = collections.defaultdict(int)
    for row in rows(path, ("topic", "partition", "offset"), minPartitions="5", rowsPerBatch="37"):
        place = row["topic"], row["partition"]
        assert row["offset"] == following[place]
        following[place] += 1
    assert sum(following.values()) == COUNT


def test_tags_and_keys_pick_messages_exactly(path: Path) -> None:
    tagged = rows(path, ("value", "tags"), tags="tag1 || tag3")
    assert {row["tags"] for row in tagged} == {"tag1", "tag3"}
    assert len(tagged) == sum(1 for n in range(COUNT) if n % 5 and n % 4 in (1, 3))
    keyed = rows(path, ("value",), keys="k8 || g3 || nope")
    wanted = {n for n in range(COUNT) if n % 7 and (n == 8 or n % 10 == 3)}
    assert {int(row["value"].split()[1]) for row in keyed} == wanted
    both = rows(path, ("value",), keys="g3", tags="tag1")
    picked = {n for n in range(COUNT) if n % 7 and n % 5 and n % 10 == 3 and n % 4 == 1}
    assert {int(row["value"].split()[1]) for row in both} == picked
    phrase = rows(path, ("value",), keys="k8 g8")
    assert [row["value"] for row in phrase] == [b"body 8"]


def test_tags_of_one_hash_are_told_apart(tmp_path: Path) -> None:
    """`Aa` and `BB` have the same Java hash, which is all that a queue entry knows."""
    with penstock.open(tmp_path / "s", environ={}) as store:
        for tag in ("Aa", "BB", "AaAa"):
            store.put("t", tag.encode(), queue=0, tag=tag)
    assert [row["value"] for row in rows(tmp_path / "s", tags="BB")] == [b"BB"]


def test_headers_are_the_properties(path: Path) -> None:
    first = rows(path, ("headers", "properties"))[:50]
    for row in first:
        assert [(h["key"], h["value"].decode()) for h in row["headers"]] == row["properties"]
        assert {"key": "p", "value": b"v"} in row["headers"]


def test_a_time_that_spark_cannot_express_is_null(tmp_path: Path) -> None:
    """One born time in nanoseconds stopped every read of the column."""
    last_ms = (1 << 63) // 1000
    born = [1_700_000_000_000, last_ms, last_ms + 1, 1_700_000_000_000_000_000, (1 << 63) - 1]
    with penstock.open(tmp_path / "s", environ={}) as store:
        store.put_many([Message("t", b"x", queue=0, born_time_ms=ms) for ms in born])
    options = parse_options({"path": str(tmp_path / "s")})
    (task,) = spans(tmp_path / "s")
    (batch,) = read_spans(options, ("bornTimestamp", "timestamp"), task)
    found = batch.column("bornTimestamp").cast(pa.int64()).to_pylist()
    assert found == [born[0] * 1000, last_ms * 1000, None, None, None]
    assert batch.column("timestamp").null_count == 0


def test_times_bound_a_read(tmp_path: Path) -> None:
    clock = penstock_clock(1_000)
    with penstock.open(tmp_path / "s", environ={}, clock=clock) as store:
        for n in range(10):
            clock.now_ms = 1_000 + 10 * n
            store.put("t", b"%d" % n, queue=0)

    def bodies(**more: str) -> list[int]:
        return [int(row["value"]) for row in rows(tmp_path / "s", DEFAULT, **more)]

    assert bodies(startingTimestamp="1035") == [4, 5, 6, 7, 8, 9]
    assert bodies(startingTimestamp="1030", endingTimestamp="1050") == [3, 4]
    by_queue = '{"t":{"0":1080}}'
    assert bodies(startingOffsetsByTimestamp=by_queue) == [8, 9]
    assert bodies(endingOffsetsByTimestamp=by_queue) == list(range(8))
    with pytest.raises(ConfigError, match="no message at 5000 or later; give since"):
        bodies(startingTimestamp="5000")
    assert bodies(endingTimestamp="5000") == list(range(10))
    assert bodies(endingTimestamp=f"{(1 << 63) - 1}") == list(range(10))


def test_since_and_until_bound_a_read_as_they_bound_a_scan(tmp_path: Path) -> None:
    begin_s = 1_795_000_000
    clock = penstock_clock(begin_s * 1000)
    with penstock.open(tmp_path / "s", environ={}, clock=clock) as store:
        for n in range(10):
            clock.now_ms = (begin_s + n) * 1000
            store.put("t", b"%d" % n, queue=0)

        def bodies(since: str, until: str) -> list[int]:
            given = {"since": since, "until": until, "startingTimestamp": "0"}
            return [int(row["value"]) for row in rows(tmp_path / "s", DEFAULT, **given)]

        scanned = store.scan("t", since=begin_s + 2.5, until=begin_s + 5)
        assert [int(m.body) for m in scanned] == [3, 4, 5]
    assert bodies(f"{begin_s + 2.5}", f"{begin_s + 5}") == [3, 4, 5]
    assert bodies("2026-11-18 11:06:48Z", f"{begin_s + 9}000") == [8, 9]
    # As a scan, and unlike Kafka's options, it finds nothing after the last message.
    assert bodies(f"{begin_s + 10}", f"{begin_s + 11}") == bodies("1h", "now") == []


def penstock_clock(now_ms: int) -> Any:
    from penstock.runtime.clock import Clock  # noqa: PLC0415 - not part of the public face

    class SetClock(Clock):
        now_ms = 0

        def time_ms(self) -> int:
            return self.now_ms

    clock = SetClock()
    clock.now_ms = now_ms
    return clock


def test_a_damaged_segment_is_named_with_its_position(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "s", environ={}) as store:
        receipts = [store.put("t", b"x" * 100, queue=0) for _ in range(5)]
    segment = next((tmp_path / "s" / "commitlog").iterdir())
    at = receipts[3].log_offset + 120
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(b"y")
    with pytest.raises(CorruptionError, match=f"{segment} is corrupt at byte") as caught:
        rows(tmp_path / "s")
    assert caught.value.position == receipts[3].log_offset
    assert len(rows(tmp_path / "s", verifyChecksums="false")) == 5
    # What is left out is not checked, what is wanted is.
    assert len(rows(tmp_path / "s", endingOffsets='{"t":{"0":3}}')) == 3


def test_bodies_that_nobody_asks_for_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long ones; the rest of a record is the same, whatever its body is."""
    bodies = [b"", b"x", b"x" * 300_000, b"x" * 70_000, b"x" * 40, b"x" * 100_000]
    with penstock.open(tmp_path / "s", environ={}) as store:
        for n, body in enumerate(bodies):
            store.put("t", body, queue=0, tag=f"g{n}", keys=[f"k{n}"], properties={"p": str(n)})
    names = ("offset", "tags", "keys", "properties", "timestamp", "messageId")
    expected = rows(tmp_path / "s", names)
    read: list[int] = []
    real = os.preadv

    def counted(descriptor: int, buffers: list[memoryview], position: int) -> int:
        read.append(sum(len(buffer) for buffer in buffers))
        return real(descriptor, buffers, position)

    monkeypatch.setattr(os, "preadv", counted)
    assert rows(tmp_path / "s", names, verifyChecksums="false") == expected
    assert sum(read) < 5_000
    read.clear()
    assert rows(tmp_path / "s", names) == expected
    assert sum(read) > 400_000
    assert [len(row["value"]) for row in rows(tmp_path / "s")] == [len(body) for body in bodies]


def test_messages_that_retention_took_are_an_error_or_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "s"
    settings: dict[str, Any] = {"geometry.segment_bytes": 8192, "flush": "sync"}
    with penstock.open(root, environ={}, **settings) as store:
        store.put_many([Message("t", b"x" * 500, queue=n % 2) for n in range(60)])
    planned = spans(root)
    with penstock.open(root, environ={}, **settings) as store:
        assert store.discard_before(log_offset=3 * 8192) > 0
        low = [store.min_offset("t", queue) for queue in range(2)]
    assert min(low) > 0
    strict = parse_options({"path": str(root)})
    with pytest.raises(DataLossError, match=r"messages \[0, .* failOnDataLoss=false"):
        list(read_spans(strict, DEFAULT, planned[0]))
    lenient = parse_options({"path": str(root), "failOnDataLoss": "false"})
    found = [batch.to_pylist() for batch in read_spans(lenient, DEFAULT, planned[0])]
    offsets = collections.Counter(row["partition"] for batch in found for row in batch)
    assert offsets == {queue: 30 - low[queue] for queue in range(2)}
    assert "skipped, since" in caplog.text
    assert len(rows(root)) == sum(offsets.values())


WRITER = """
import sys, penstock
with penstock.open(sys.argv[1], environ={}, **{"geometry.segment_bytes": 65536}) as store:
    print("open", flush=True)
    n = 0
    while not sys.stdin.readline().startswith("stop"):
        for _ in range(200):
            store.put("t", b"%d" % n + b"x" * (n % 700), queue=n % 3)
            n += 1
        print(n, flush=True)
"""


def test_a_live_store_is_read_up_to_what_its_writer_has_published(tmp_path: Path) -> None:
    """Reads race with a writer in another process: every row is whole, and each queue has no gap."""
    root = tmp_path / "s"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as writer:  # fmt: skip
        assert writer.stdin
        assert writer.stdout
        assert writer.stdout.readline() == "open\n"
        written = seen = 0
        for _ in range(12):
            writer.stdin.write("more\n")
            writer.stdin.flush()
            # While it writes.
            found = rows(root, ("partition", "offset", "value"), rowsPerBatch="50")
            by_queue = collections.defaultdict(list)
            for row in found:
                by_queue[row["partition"]].append(row["offset"])
                number = int(row["value"].rstrip(b"x"))
                assert row["value"] == b"%d" % number + b"x" * (number % 700)
            assert all(offsets == list(range(len(offsets))) for offsets in by_queue.values())
            assert len(found) >= seen
            seen = len(found)
            written = int(writer.stdout.readline())
        writer.stdin.write("stop\n")
        writer.stdin.close()
        writer.stdout.read()
    assert len(rows(root)) == written


def test_a_live_store_shows_nothing_behind_what_was_published(tmp_path: Path) -> None:
    """Entries that lie behind the mark of a writer that died are not read: the next one may cut them."""
    from penstock.durability.progress import Progress  # noqa: PLC0415 - not part of the public face

    root = tmp_path / "s"
    with penstock.open(root, environ={}) as store:
        receipts = [store.put("t", b"%d" % n, queue=0) for n in range(10)]
        store.flush()
    progress = Progress(Files(), root)
    progress.read()
    progress.state.visible_offset = receipts[6].log_offset
    progress.write()
    progress.close()
    (root / "penstock" / "clean").unlink()
    assert [row["value"] for row in rows(root)] == [b"%d" % n for n in range(6)]
    with penstock.open(root, read_only=True, environ={}) as reader:
        assert reader.lowlevel.bounds()[0].max_offset == 6
        assert reader.lowlevel.bounds(published=False)[0].max_offset == 10


def test_queues_mixed_at_random_are_read_whole(tmp_path: Path) -> None:
    """Property: any mix of queues and sizes, any batch size, any cut."""
    seed = SEED
    print(f"seed {seed}")
    chance = random.Random(seed)
    root = tmp_path / "s"
    with penstock.open(root, environ={}, **SIZES) as store:
        sent = []
        for _ in range(800):
            topic, queue = chance.choice(["a", "bb", "c"]), chance.randrange(4)
            body = chance.randbytes(chance.choice([0, 1, 50, 900, 20_000]))
            receipt = store.put(topic, body, queue=queue)
            sent.append((topic, queue, receipt.queue_offset, body))
    for _ in range(6):
        more = {
            "rowsPerBatch": str(chance.randint(1, 300)),
            "minPartitions": str(chance.randint(1, 40)),
        }
        picked = chance.sample(["a", "bb", "c"], chance.randint(1, 3))
        names = ("topic", "partition", "offset", "value")
        found = [
            tuple(row[n] for n in names)
            for row in rows(root, names, subscribe=",".join(picked), **more)
        ]
        assert sorted(found) == sorted(row for row in sent if row[0] in picked)


# --- real Spark


def test_spark_finds_the_format_and_reads_every_row(spark: Any, path: Path) -> None:
    found = spark.read.format("penstock").load(str(path)).collect()
    assert len(found) == COUNT
    by_value = {bytes(row.value): row for row in found}
    with penstock.open(path, read_only=True) as store:
        for topic in store.topics(system=True):
            for message in store.scan(topic):
                row = by_value[message.body]
                place = (row.topic, row.partition, row.offset)
                assert place == (topic, message.queue, message.queue_offset)
                assert (bytes(row.key) if row.key else b"").decode() == " ".join(message.keys)
                assert row.timestampType == 1


def test_a_registered_format_reads_every_column(spark: Any, path: Path) -> None:
    import penstock_spark  # noqa: PLC0415 - needs pyspark

    penstock_spark.register(spark)
    schema = ", ".join(f"{name} {COLUMNS[name].ddl}" for name in reversed(COLUMNS))
    found = (
        spark.read.format("penstock").schema(schema)
        .option("subscribe", "topic1").load(str(path)).collect()
    )  # fmt: skip
    assert len(found) == COUNT // 2
    with penstock.open(path, read_only=True) as store:
        for row in found[::100]:
            message = store.get(row.messageId)
            assert (row.tags or "", row.logOffset) == (message.tag, message.log_offset)
            assert row.properties == message.all_properties
            assert row.store == str(path)
            assert (row.size, row.bodySize) == (message.size, len(message.body))
            assert (row.reconsumeTimes, row.preparedOffset) == (0, 0)
            headers = {header.key: bytes(header.value).decode() for header in row.headers}
            assert headers == message.all_properties


def test_offsets_bound_the_read(spark: Any, path: Path) -> None:
    frame = (
        spark.read.format("penstock").option("subscribe", "topic0")
        .option("startingOffsets", '{"topic0":{"0":10,"1":-2}}').option("includeHeaders", "true")
        .option("endingOffsets", '{"topic0":{"0":13,"1":-1,"2":0}}').load(str(path))
    )  # fmt: skip
    assert frame.columns[-1] == "headers"
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
    assert spark.read.format("penstock").schema("offset bigint").load(str(path)).count() == COUNT


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"subscrib": "x"}, "did you mean"),
        ({"startingOffsets": "{"}, "not JSON"),
        ({"path": "/nowhere/at/all"}, "nothing at this path"),
    ],
)
def test_mistakes_show_at_load(spark: Any, path: Path, more: dict[str, str], text: str) -> None:
    with pytest.raises(Exception, match=text):
        spark.read.format("penstock").options(**{"path": str(path), **more}).load()


def test_mistakes_show_when_a_query_is_planned(spark: Any, path: Path) -> None:
    reader = spark.read.format("penstock")
    with pytest.raises(Exception, match="there is no topic 'nope'"):
        reader.option("subscribe", "nope").load(str(path)).count()
    with pytest.raises(Exception, match="'value' is binary, not string"):
        spark.read.format("penstock").schema("value string").load(str(path)).count()


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


@pytest.mark.night
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
