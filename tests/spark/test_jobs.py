"""Jobs that check, rebuild, export and count: their parts without a JVM, then real Spark."""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.conftest import make_restarted
from tests.spark.conftest import needed
from tests.spark.job_stores import COUNT, SIZES, everything, make_store, messages, spoil

import penstock
from penstock import Message
from penstock.errors import (
    ConfigError,
    NotAStoreError,
    StorageError,
    StoreLockedError,
    StrayFileError,
)
from penstock.testing import ManualClock, ManualWorkers
from penstock_spark.archive import ArchiveOptions, ArchiveRetention, archive
from penstock_spark.cli import group
from penstock_spark.errors import DataLossError
from penstock_spark.export_folder import (
    Exported,
    Written,
    merged,
    missing,
    quoted,
    unquoted,
)
from penstock_spark.jobs import export, reindex, stats, verify
from penstock_spark.jobs.tasks import (
    fresh_folder,
    local_folder,
    slices_of,
    still_there,
    stores_of,
)
from penstock_spark.source.tasks import Losses
from penstock_spark.stores import StoreSpan, make_dataset
from penstock_tools.cli import root as cli
from penstock_tools.segmentwise import Checkup


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("jobs") / "store")


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "store"))


def hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# --- which stores


def test_paths_globs_and_datasets_name_stores(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = make_dataset(tmp_path / "set", 2)
    for shard in shards:
        shutil.copytree(original, shard)
    assert stores_of(str(original)) == [original]
    assert stores_of([f"{tmp_path}/s*", str(shards[0])]) == shards
    assert stores_of(f"file://{original}") == [original]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert stores_of("~/s*") == shards
    (tmp_path / "other").mkdir()
    for text, error in (
        (tmp_path / "gone", NotAStoreError), (tmp_path / "other", NotAStoreError),
        (tmp_path / "x*", NotAStoreError), ("s3://bucket/store", ConfigError),
    ):  # fmt: skip
        with pytest.raises(error):
            stores_of(str(text))
    with pytest.raises(ConfigError, match="at least one"):
        stores_of([])
    with pytest.raises(ConfigError, match="already exists"):
        fresh_folder(str(original), "the folder")
    with pytest.raises(ConfigError, match="the folder is ''"):
        local_folder("", "the folder")


# --- the exported folder


def test_ranges_are_merged_and_what_is_missing_is_told() -> None:
    done = merged([(5, 7), (0, 2), (2, 3), (6, 9)])
    assert done == [(0, 3), (5, 9)]
    assert missing(done, 0, 12) == [(3, 5), (9, 12)]
    assert missing(done, 6, 8) == []
    assert missing([], 4, 4) == []


@pytest.mark.parametrize("topic", ["orders", "%RETRY%a", "a|b*=[x]", "täglich 1", "007"])
def test_topics_survive_as_names_of_folders(topic: str) -> None:
    assert unquoted(quoted(topic)) == topic
    assert "/" not in quoted("a/b")


EXPORT_SCHEMA = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", "UTC")),
    ("timestampType", pa.int32()),
    ("tags", pa.string()),
    ("keys", pa.list_(pa.field("element", pa.string()))),
    ("properties", pa.map_(pa.string(), pa.string())),
    ("bornTimestamp", pa.timestamp("us", "UTC")),
    ("storeTimestamp", pa.timestamp("us", "UTC")),
    ("logOffset", pa.int64()),
    ("messageId", pa.string()),
    ("sysFlag", pa.int32()),
    ("flag", pa.int32()),
]


def test_a_piece_is_written_whole_under_its_name(original: Path, tmp_path: Path) -> None:
    with (
        Exported(tmp_path / "out", 0o600) as out,
        penstock.open(original, read_only=True, environ={}) as store,
        penstock.open(tmp_path / "other", environ={}) as other,
    ):
        out.claim("store", store)
        done = out.write(StoreSpan("store", "topic1", 1, 10, 50), store)
        assert (done.rows, done.files) == (40, 1)
        assert out.write(StoreSpan("store", "topic1", 1, 10, 50), store) == done
        (file,) = (tmp_path / "out").glob("topic=topic1/date=*/*")
        assert file.name == f"store-1-{10:019d}-{50:019d}.parquet"
        assert file.stat().st_mode & 0o777 == 0o600
        # The format of the files: a column of the source that changes must not change it.
        assert [(f.name, f.type) for f in pq.read_schema(file)] == EXPORT_SCHEMA
        assert out.done("store") == {("topic1", "1"): [(10, 50)]}
        assert out.write(StoreSpan("store", "topic1", 1, 50, 50), store) == Written()
        file.with_name(".store-left").touch()
        out.clear("store")
        assert len(list(file.parent.iterdir())) == 1
        with pytest.raises(StorageError, match="another export"), Exported(tmp_path / "out"):
            pass
        with pytest.raises(ConfigError, match="another store"):
            out.claim("store", other)
        with pytest.raises(ConfigError, match="cannot be used in file names"):
            out.claim("../x", store)


def test_a_date_that_changes_begins_a_new_file(tmp_path: Path) -> None:
    clock = ManualClock()
    with penstock.open(tmp_path / "store", environ={}, clock=clock, **SIZES) as store:
        for n in range(9):
            store.put("t", b"%d" % n, queue=0)
            clock.now_ms += 8 * 3_600_000
        with Exported(tmp_path / "out") as out:
            done = out.write(StoreSpan("store", "t", 0, 0, 9), store)
            assert done.rows == 9
            assert done.files >= 3
            assert out.done("store") == {("t", "0"): [(0, 9)]}


# --- archive before delete


def filled(root: Path, more: dict[str, Any]) -> int:
    """Let a store of several segments go by size; returns how many segments went."""
    settings = {
        "retention": ["size", "archive"], "retention.size.bytes_max": 0, "retention.pause_ms": 0, **more,
    }  # fmt: skip
    with penstock.open(root, environ={}, spawn=ManualWorkers(), **SIZES, **settings) as store:
        store.put_many(messages())
        store.flush()
        return store.retain()


def parquet(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ds.dataset(folder, partitioning="hive").to_table().to_pylist()
    return found


@pytest.fixture
def plugged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this project's entry points be found as they are in `pyproject.toml`, installed anew or not."""
    import tomllib  # noqa: PLC0415 - beside its only use

    about = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    folder = tmp_path / "installed" / f"penstock-{about['version']}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: penstock\nVersion: {about['version']}\n"
    )
    points = about["entry-points"]["penstock"]
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (folder / "entry_points.txt").write_text(f"[penstock]\n{lines}")
    monkeypatch.syspath_prepend(folder.parent)


@pytest.mark.usefixtures("plugged")
def test_a_segment_is_archived_before_it_goes(tmp_path: Path) -> None:
    root = tmp_path / "store"
    gone = filled(root, {})
    assert gone > 1
    left = {(m.topic, m.queue, m.queue_offset) for m in everything(root)}
    rows = parquet(tmp_path / "store-archive")
    archived = {(row["topic"], row["partition"], row["offset"]) for row in rows}
    assert len(rows) == len(archived), "none twice"
    assert not archived & left
    assert len(archived) + len(left) == COUNT
    assert {row["value"] for row in rows} <= {m.body for m in messages()}
    assert oct((tmp_path / "store-archive").stat().st_mode & 0o777) == "0o700"


@pytest.mark.usefixtures("plugged")
def test_an_archive_that_fails_keeps_the_segment(tmp_path: Path) -> None:
    root = tmp_path / "store"
    (tmp_path / "full").touch()
    more = {"retention.archive.to": str(tmp_path / "full")}
    assert filled(root, more) == 0
    assert len(everything(root)) == COUNT
    # In the next round it is asked again.
    (tmp_path / "full").unlink()
    settings: dict[str, Any] = {
        "retention": ["size", "archive"], "retention.size.bytes_max": 0, "retention.pause_ms": 0, **more,
    }  # fmt: skip
    with penstock.open(root, environ={}, spawn=ManualWorkers(), **settings) as store:
        assert store.retain() > 0
    assert len(parquet(tmp_path / "full")) + len(everything(root)) == COUNT


@pytest.mark.usefixtures("plugged")
def test_a_store_whose_name_no_file_can_have_is_not_opened_to_be_archived(tmp_path: Path) -> None:
    """It was opened, each deletion failed, and the disk became full."""
    penstock.open(tmp_path / "my store", environ={}, **SIZES).close()
    with pytest.raises(ConfigError, match=r"'my store'.*retention\.archive\.name"):
        filled(tmp_path / "my store", {})
    assert not (tmp_path / "my store" / "abort").exists(), "nothing was changed"
    assert filled(tmp_path / "my store", {"retention.archive.name": "mine"}) > 0


@pytest.mark.usefixtures("plugged")
def test_without_the_policy_nothing_is_archived(tmp_path: Path) -> None:
    assert filled(tmp_path / "store", {"retention": ["size"]}) > 0
    assert [path.name for path in tmp_path.iterdir() if path.name != "installed"] == ["store"]


def test_what_was_exported_is_not_archived_again(original: Path, tmp_path: Path) -> None:
    options = ArchiveOptions(to=str(tmp_path / "out"), name="mine")
    assert archive(original, 70_000, options) > 0
    assert archive(original, 70_000, options) == 0
    assert archive(original, 1 << 40, options) > 0
    assert len(parquet(tmp_path / "out")) == COUNT
    assert not ArchiveRetention.capabilities


@pytest.mark.parametrize(
    "topic", ["x" * 255, "%" * 100, "é" * 120 + "%=" * 7], ids=["x", "percent", "accents"]
)
def test_a_topic_of_any_length_is_archived(tmp_path: Path, topic: str) -> None:
    """Its folder's name was too long for the file system, so nothing was deleted any more."""
    other = topic[:-1] + "y"
    with penstock.open(tmp_path / "store", environ={}, **SIZES) as store:
        store.put_many([Message(name, b"x", queue=0) for name in (topic, topic, other)])
    options = ArchiveOptions(to=str(tmp_path / "out"))
    assert archive(tmp_path / "store", 1 << 40, options) == 3
    assert archive(tmp_path / "store", 1 << 40, options) == 0
    named = {json.loads(path.read_bytes())["topic"]: path.parent
             for path in (tmp_path / "out").glob("topic=*/_topic.json")}  # fmt: skip
    assert {*named} == {topic, other}
    assert sum(row["topic"] == unquoted(named[topic].name.removeprefix("topic="))
               for row in parquet(tmp_path / "out")) == 2  # fmt: skip


@pytest.mark.parametrize("name", ["lock", "about.json", "x" * 201])
def test_a_store_whose_name_cannot_be_one_there_is_refused(tmp_path: Path, name: str) -> None:
    with (
        penstock.open(tmp_path / "store", environ={}) as store,
        Exported(tmp_path / "out") as out,
        pytest.raises(ConfigError, match="give another name"),
    ):
        out.claim(name, store)


def test_any_time_is_archived(tmp_path: Path) -> None:
    """A born time in nanoseconds, and a store's clock far ahead, made archiving fail, so nothing was deleted any more."""
    far = 1_700_000_000_000_000_000
    clock = ManualClock(far)
    with penstock.open(tmp_path / "store", environ={}, clock=clock, **SIZES) as store:
        store.put_many([Message("t", b"x", queue=0, born_time_ms=ms) for ms in (1000, far)])
    assert archive(tmp_path / "store", 1 << 40, ArchiveOptions()) == 2
    (file,) = (tmp_path / "store-archive").glob("topic=t/date=*/*")
    assert file.parent.name == "date=53872825-06-17"
    rows = pq.ParquetFile(file).read(["offset", "bornTimestamp", "timestamp"])
    assert rows.column("bornTimestamp").cast(pa.int64()).to_pylist() == [1_000_000, None]
    assert rows.column("timestamp").null_count == 2


@pytest.mark.parametrize("absent", [0, 1])
def test_messages_without_queue_entries_keep_their_segment(absent: int, tmp_path: Path) -> None:
    """They were passed over, and deleted with it."""
    path = tmp_path / "store"
    with penstock.open(path, environ={}, **SIZES) as store:
        store.put_many([Message("t", b"x", queue=0)] * 3)
        size = store.stats()["log_end_offset"] // 3
    (queue,) = (path / "consumequeue" / "t" / "0").iterdir()
    with queue.open("r+b") as file:
        file.seek(20 * absent)
        file.write(bytes(20))
    found = rf"no entries of messages \[{absent}, {absent + 1}\).*repair PATH --apply"
    with pytest.raises(DataLossError, match=found):
        # The segment ends behind the second one.
        archive(path, 2 * size, ArchiveOptions())
    penstock.repair(path, apply=True, environ={})
    assert archive(path, 2 * size, ArchiveOptions()) == 2


def test_a_topic_that_is_made_again_is_archived_and_exported_anew(tmp_path: Path) -> None:
    """Its first messages counted as archived, and retention deleted them."""
    path, options = tmp_path / "store", ArchiveOptions(to=str(tmp_path / "out"))
    for count in (5, 3):
        with penstock.open(path, environ={}, **SIZES) as store:
            store.put_many([Message("t", b"x", queue=0)] * count)
        assert archive(path, 1 << 40, options) == count
        with penstock.open(path, environ={}, **SIZES) as store:
            store.delete_topic("t")
    names = sorted(file.name for file in (tmp_path / "out").glob("topic=t/date=*/*"))
    assert names == [
        f"store-{queue}-{0:019d}-{end:019d}.parquet" for queue, end in (("0", 5), ("0@1", 3))
    ]
    with Exported(tmp_path / "out") as out:
        assert out.done("store") == {("t", "0"): [(0, 5)], ("t", "0@1"): [(0, 3)]}


def test_a_new_store_at_the_path_of_an_archived_one_is_refused(tmp_path: Path) -> None:
    """Its messages counted as archived. The same store by another path is the same."""
    path, options = tmp_path / "store", ArchiveOptions(to=str(tmp_path / "out"))
    for number in range(2):
        with penstock.open(path, environ={}, **SIZES) as store:
            store.put_many([Message("t", bytes(20_000), queue=0)] * (5 - 4 * number))
        if number == 0:
            assert archive(path, 1 << 40, options) == 5
            (tmp_path / "link").symlink_to(tmp_path)
            assert archive(tmp_path / "link" / "store", 1 << 40, options) == 0
            shutil.rmtree(path)
    with pytest.raises(ConfigError, match="after the end of its files"):
        archive(path, 1 << 40, options)


def test_what_was_planned_of_a_topic_that_was_removed_since_is_gone(tmp_path: Path) -> None:
    """A replay that was resumed mixed both lives of the topic, and reported no loss."""
    with penstock.open(tmp_path / "store", environ={}, **SIZES) as store:
        store.put_many([Message("t", b"old", queue=0)] * 5)
    planned = slices_of([tmp_path / "store"], ["t"], 100)
    with penstock.open(tmp_path / "store", environ={}, **SIZES) as store:
        store.delete_topic("t")
        store.put_many([Message("t", b"new", queue=0)] * 9)
    assert still_there(planned, skips=True) == ([], 5)
    with pytest.raises(DataLossError, match=r"messages \[0, 5\)"):
        still_there(planned, skips=False)
    losses = Losses(fails=True)
    assert losses.is_there(planned[0], 0)
    with pytest.raises(DataLossError, match="the topic was removed before they were read"):
        losses.is_there(planned[0], 1)


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    code = "import sys, penstock_spark.plugin; print(sorted({'pyspark','pyarrow','click','rich','pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_pyarrow_a_job_names_the_extra_and_its_help_works(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None; from penstock_tools.cli import root; "
        "from penstock_spark.cli import group; sys.exit(root.run(sys.argv[1:], group, 'penstock spark'))"
    )
    ran = [
        subprocess.run(
            [sys.executable, "-c", code, "verify", argument],
            capture_output=True, text=True, check=False,
        )
        for argument in ("--help", str(tmp_path))
    ]  # fmt: skip
    assert [done.returncode for done in ran] == [0, 2]
    assert "pip install 'penstock[spark]'" in ran[1].stderr


# --- with Spark


def test_verify_finds_what_one_process_finds(spark: Any, root: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(root, tmp_path / "other"))
    body = next(m.body for m in everything(root) if m.log_offset > 70_000 and len(m.body) > 40)
    segment = sorted((root / "commitlog").iterdir())[1]
    spoil(segment, segment.read_bytes().index(body) + 3)
    spoil(sorted((root / "consumequeue" / "topic1" / "1").iterdir())[0], 145)
    with penstock.open(root, read_only=True, environ={}) as store:
        expected = list(store.verify(deep=True))
    told: list[tuple[int, int]] = []
    report = verify.run(
        spark, [str(root), str(other)], deep=True,
        on_progress=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    assert report.findings == [(str(root), finding) for finding in expected]
    assert len(expected) > 1
    assert (report.stores, report.records) == (2, 2 * COUNT - 1)
    rows = report.frame(spark).collect()
    assert sorted(row["text"] for row in rows) == sorted(finding.text for finding in expected)
    about = json.loads(report.to_json())
    assert [row["path"] for row in about["findings"]] == [str(f.path) for f in expected]
    assert all(done <= total for done, total in told)
    assert verify.run(spark, str(other)).findings == []


class Here:
    """Runs what a job gives to Spark's tasks in this process."""

    sparkContext = SimpleNamespace(defaultParallelism=2)  # noqa: N815 - Spark's name

    def range(self, start: int, stop: int, _step: int, _tasks: int) -> "Here":
        self._numbers = pa.RecordBatch.from_pydict({"id": [*range(start, stop)]})
        return self

    def mapInArrow(self, work: Any, _schema: Any) -> "Here":  # noqa: N802 - Spark's name
        self._found = pa.Table.from_batches(work(iter([self._numbers])))
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        return self._found


def test_verify_goes_on_after_stores_that_cannot_be_checked(original: Path, tmp_path: Path) -> None:
    """One lost folder ended the verification of all stores without any result."""
    needed("pyspark")
    roots = [shutil.copytree(original, tmp_path / name) for name in "abcd"]
    shutil.rmtree(roots[1] / "penstock")
    shutil.rmtree(roots[2] / "index")
    (roots[2] / "index").touch()
    spoil(sorted((roots[3] / "commitlog").iterdir())[0], 1000)
    report = verify.run(Here(), [str(root) for root in roots])
    found = [(store, finding.part) for store, finding in report.findings]
    assert found == [(f"{roots[1]}", "store"), (f"{roots[2]}", "store"), (f"{roots[3]}", "log")]
    texts = [finding.text for _, finding in report.findings]
    assert "geometry.index_slots" in texts[0]
    assert "index does not belong there" in texts[1]
    assert (report.stores, report.wrong, report.records) == (4, 3, 2 * COUNT - 1)
    with pytest.raises(StrayFileError):
        verify.run(Here(), [str(roots[2]), str(roots[1])])


def test_a_store_that_fails_within_a_task_is_a_finding(root: Path) -> None:
    checkup = Checkup(root)
    shutil.rmtree(root)
    check = verify.checker([checkup.task], [(0, piece) for piece in checkup.pieces])
    (rows,) = check(0)
    assert [row["part"] for row in rows.to_pylist()] == ["store", None]


def test_reindex_makes_the_same_queues(spark: Any, root: Path) -> None:
    before = hashes(root / "consumequeue")
    shutil.rmtree(root / "consumequeue" / "topic0")
    shutil.rmtree(root / "index")
    done = reindex.run(spark, str(root))
    assert (done.records, done.queues, done.damages) == (COUNT, 6, [])
    assert hashes(root / "consumequeue") == before
    assert done.saved_to is not None
    with penstock.open(root, environ={}) as store:
        assert not list(store.verify(deep=True))
        assert len(store.find("k1", "topic1")) == COUNT // 40
        with pytest.raises(StoreLockedError):
            reindex.run(spark, str(root))


def test_export_adds_each_message_once(spark: Any, root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = export.run(spark, str(root), str(out), topics=["topic1"], file_rows=70)
    assert (first.messages, first.lost, set(first.topics)) == (COUNT // 2, 0, {"topic1"})
    # As after a kill before the manifest was written, with a file that never got its name.
    shutil.rmtree(out / "_penstock" / "store" / "topic1")
    (next(out.glob("topic=*/date=*")) / ".store-abc").write_bytes(b"half")
    min(out.glob("topic=*/date=*/store-2-*")).unlink()
    with penstock.open(root, environ={}, **SIZES) as store:
        store.put_many(messages(60, COUNT))
    second = export.run(spark, str(root), str(out))
    assert second.messages == COUNT // 2 + 60 + 70
    assert export.run(spark, str(root), str(out)).messages == 0
    assert not list(out.rglob(".store-*"))
    rows = spark.read.parquet(str(out)).orderBy("logOffset").collect()
    stored = everything(root)
    assert [(r["topic"], r["partition"], r["offset"]) for r in rows] == [
        (m.topic, m.queue, m.queue_offset) for m in stored
    ]
    assert [bytes(r["value"]) for r in rows] == [m.body for m in stored]
    assert rows[1]["properties"]["p"] == "v1"
    # What is done stands in the manifest also when the files have been moved on.
    for folder in out.glob("topic=*"):
        shutil.rmtree(folder)
    assert export.run(spark, str(root), str(out)).messages == 0


def test_export_refuses_before_a_task_starts(spark: Any, root: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(root, tmp_path / "a" / "store"))
    out = str(tmp_path / "out")
    with pytest.raises(ConfigError, match="no topic 'orders'"):
        export.run(spark, str(root), out, topics=["orders"])
    with pytest.raises(ConfigError, match="both have the name 'store'"):
        export.run(spark, [str(root), str(other)], out)
    (tmp_path / "link").symlink_to(root)
    for inside in (root / "out", tmp_path / "link" / "out", other / ".." / ".." / "link"):
        with pytest.raises(ConfigError, match="is inside the store"):
            export.run(spark, str(root), str(inside))
    with pytest.raises(ConfigError, match="not one of the stores"):
        export.run(spark, str(root), out, names={"x": "y"})
    done = export.run(spark, [str(root), str(other)], out, names={f"{other}/../store": "b"})
    assert done.messages == 2 * COUNT


def test_stats_count_and_measure(spark: Any, root: Path, tmp_path: Path) -> None:
    found = stats.run(spark, str(root), top=3, plots=str(tmp_path / "plots"))
    stored = everything(root)
    sizes = sorted(len(m.body) for m in stored)
    total = found.total
    assert (total["messages"], total["bytes"]) == (COUNT, sum(sizes))
    assert (total["min"], total["max"]) == (sizes[0], sizes[-1])
    assert total["p50"] == sizes[COUNT // 2 - 1]
    assert {row["name"]: row["messages"] for row in found.topics} == {
        "topic0": COUNT // 2, "topic1": COUNT // 2
    }  # fmt: skip
    assert {row["name"] for row in found.tags} == {"(none)", "tag0", "tag1", "tag2", "tag3"}
    assert len(found.keys) == 3
    assert sum(row["messages"] for row in found.hours) == COUNT
    pictures = [Path(path) for path in found.plots]
    assert {path.name for path in pictures} >= {"hours.png", "topics.png", "sizes.png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    assert json.loads(found.to_json())["total"]["messages"] == COUNT
    for wrong in ({"top": 0}, {"topics": ["x"]}):
        with pytest.raises(ConfigError):
            stats.run(spark, str(root), **wrong)


# --- the verbs


def shown(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = cli.run(arguments, group, "penstock spark")
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.mark.sampled(4)
@pytest.mark.parametrize("verb", group.module_names())
def test_every_verbs_help_has_two_examples_that_work(
    verb: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with penstock.open("data", environ={}, **SIZES) as store:
        for n in range(30):
            store.put(
                "orders", b"order %d" % n, queue=0, tag=("created", "paid")[n % 2], keys=[f"A-{n}"]
            )
    code, text, _ = shown(verb, "--help", capsys=capsys)
    assert code == 0
    examples = re.findall(r"^ *\$ (.*)$", text, re.MULTILINE)
    assert len(examples) == 2
    for example in examples:
        words = shlex.split(example)
        assert words[:3] == ["penstock", "spark", verb]
        code, out, err = shown(*words[2:], capsys=capsys)
        assert code == 0, (example, out, err)
        if "--json" in words:
            assert [json.loads(line) for line in out.splitlines()]
        else:
            assert "│" in out


def test_verbs_say_what_is_wrong_by_exit_code(
    spark: Any, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(sorted((root / "consumequeue" / "topic1" / "1").iterdir())[0], 145)
    code, out, err = shown("verify", str(root), capsys=capsys)
    assert (code, "what to do" in out) == (1, True)
    code, out, err = shown("verify", str(root), "--json", capsys=capsys)
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["kind"] for line in lines] == ["finding"] * (len(lines) - 1) + ["summary"]
    # A note is shown, and nothing is wrong.
    healthy = make_restarted(root.parent / "healthy", "t", **SIZES)
    code, out, err = shown("verify", str(healthy), "--json", capsys=capsys)
    noted, summary = (json.loads(line) for line in out.splitlines())
    assert (code, noted["is_note"], summary["findings"], summary["notes"]) == (0, True, 0, 1)
    with penstock.open(healthy, read_only=True, environ={}) as store:
        assert verify.run(spark, str(healthy)).findings == [
            (str(healthy), f) for f in store.verify()
        ]
    code, out, err = shown("verify", "nowhere", capsys=capsys)
    assert (code, "nothing at this path" in err) == (4, True)
    code, out, err = shown("export", str(root), "--to", "x", "--name", "y", capsys=capsys)
    assert (code, "STORE=NAME" in err) == (2, True)
    code, out, err = shown("stats", str(root), "--master", "a", "--remote", "b", capsys=capsys)
    assert (code, "cannot be used together" in err) == (2, True)
    assert spark.range(3).count() == 3, "a session that was there is left alone"


@pytest.mark.usefixtures("plugged")
def test_penstock_spark_is_a_verb_of_penstock(tmp_path: Path) -> None:
    path = os.pathsep.join([str(tmp_path / "installed"), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "spark", "--help"], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": path}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert all(verb in done.stdout for verb in group.module_names())
