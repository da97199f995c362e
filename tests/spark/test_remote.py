"""Stores at a URL: in memory, and on an S3 server of this machine."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.conftest import needed

import penstock
from penstock import Message
from penstock.errors import (
    ConfigError,
    CorruptionError,
    MissingExtraError,
    NotAStoreError,
    ReadOnlyError,
    StorageError,
)
from penstock_spark.remote_files import RemoteFiles, UrlPath, is_url
from penstock_spark.source.offsets import survey
from penstock_spark.source.options import parse_options
from penstock_spark.source.stream_state import Follower
from penstock_spark.source.tasks import plan, read_spans
from penstock_spark.stores import Location, find_stores, make_dataset, open_store

fsspec: Any = needed("fsspec")
SMALL: dict[str, Any] = {"geometry.segment_bytes": 1 << 20, "geometry.queue_entries": 50_000}
NAMES = ("topic", "partition", "offset", "value", "tags", "store")


def make(root: Path, count: int) -> None:
    with penstock.open(root, environ={}, **SMALL) as store:
        store.put_many(
            [
                Message(f"t{n % 2}", b"%d" % n + b"x" * 900, queue=n % 3, tag="g")
                for n in range(count)
            ]
        )


def rows(url: str, **more: str) -> list[dict[str, Any]]:
    options = parse_options({"path": url, **more})
    locations = find_stores(options.paths)
    tasks = plan(survey(options, locations), locations.stores, options.min_partitions)
    batches = (batch for task in tasks for batch in read_spans(options, NAMES, task))
    return [row for batch in batches for row in batch.to_pylist()]


def keyed(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((row["topic"], row["partition"], row["offset"], row["value"]) for row in found)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("remote") / "store"
    make(root, 3000)
    return root


@pytest.fixture
def memory(local: Path) -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    system.put(str(local), "/b/store", queue=0, recursive=True)
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def test_urls_are_told_from_paths() -> None:
    assert is_url("s3://bucket/x")
    assert is_url("memory://x")
    assert not is_url("/a/b")
    assert not is_url("file:///a")
    path = UrlPath("s3://bucket/x")
    assert str(path / "commitlog" / "0") == "s3://bucket/x/commitlog/0"
    assert str((path / "a").parent) == "s3://bucket/x"


def test_a_store_at_a_url_is_read_as_the_same_store_here(memory: Any, local: Path) -> None:
    found = rows("memory://b/store")
    assert keyed(found) == keyed(rows(str(local)))
    assert {row["store"] for row in found} == {"memory://b/store"}
    part = rows("memory://b/store", subscribe="t1", startingOffsets='{"t1":{"0":10}}', tags="g")
    assert keyed(part) == [
        key for key in keyed(found) if key[0] == "t1" and (key[1] != 0 or key[2] >= 10)
    ]


def test_few_requests_are_made(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = type(memory).cat_file

    def counted(system: Any, path: str, start: int, end: int) -> bytes:
        asked.append(end - start)
        return bytes(real(system, path, start=start, end=end))

    monkeypatch.setattr(type(memory), "cat_file", counted)
    assert len(rows("memory://b/store")) == 3000
    # 3 MB of log in batches of one segment, and the entries of six queues, planned and read.
    assert sum(size > 500_000 for size in asked) <= 4
    assert len(asked) < 70


@pytest.mark.parametrize("count", [0, 1, 13_107, 13_108, 26_214, 26_215, 50_000])
def test_the_end_of_a_queues_entries_is_found(count: int, memory: Any) -> None:
    entry = (1 << 40).to_bytes(8, "big") + (100).to_bytes(4, "big") + bytes(8)
    memory.pipe("/b/store/queue", (entry * count).ljust(1_000_000, b"\0"))
    files = RemoteFiles("memory://b/store")
    path = UrlPath("memory://b/store/queue")
    for _ in range(2):
        file = files.open(path)
        # The tag code of the last entry is zero.
        assert -(-file.data_end() // 20) == count
        assert file.pread(20, 0) == (entry if count else bytes(20))
        file.close()


def test_patterns_lists_and_datasets_of_urls(memory: Any, tmp_path: Path) -> None:
    folders = make_dataset(tmp_path / "d", 3)
    make(folders[0], 10)
    make(folders[2], 20)
    memory.put(str(tmp_path / "d"), "/b/d", queue=0, recursive=True)
    stores = [row["store"] for row in rows("memory://b/d")]
    names = [f"memory://b/d/shard-{n:03d}" for n in (0, 2)]
    assert [stores.count(name) for name in names] == [10, 20]
    assert {row["store"] for row in rows("memory://b/d/shard*")} == set(names)
    with pytest.raises(NotAStoreError, match="nothing matches"):
        rows("memory://b/none*")


def test_a_url_with_nothing_behind_it_is_refused(memory: Any) -> None:
    with pytest.raises(NotAStoreError, match=r"memory://b/nope is not .* nothing at this URL"):
        rows("memory://b/nope")
    with pytest.raises(
        NotAStoreError, match=r"memory://b/store/consumequeue is not .* no commitlog"
    ):
        rows("memory://b/store/consumequeue")
    with pytest.raises(StorageError, match=r"nosuch://x cannot be read \(ValueError"):
        rows("nosuch://x")


def test_an_object_that_vanishes_half_way_is_named(memory: Any) -> None:
    with open_store(Location("memory://b/store")) as store:
        spans = [
            penstock.QueueSpan(b.topic, b.queue, 0, b.max_offset) for b in store.lowlevel.bounds()
        ]
        batches = store.lowlevel.arrow_spans(spans, rows=100)
        next(batches)
        memory.rm("/b/store/commitlog", recursive=True)
        with pytest.raises(StorageError, match=r"memory://b/store/commitlog/0.* is gone"):
            list(batches)


def test_an_object_that_was_cut_short_is_named(memory: Any) -> None:
    with open_store(Location("memory://b/store")) as store:
        spans = [
            penstock.QueueSpan(b.topic, b.queue, 0, b.max_offset) for b in store.lowlevel.bounds()
        ]
        name = next(iter(memory.ls("/b/store/commitlog", detail=False)))
        memory.pipe(name, memory.cat(name)[:1000])
        with pytest.raises(StorageError, match="has changed, or was truncated"):
            list(store.lowlevel.arrow_spans(spans, rows=100))


def test_damage_is_named_with_the_url(memory: Any) -> None:
    name = next(iter(memory.ls("/b/store/commitlog", detail=False)))
    data = bytearray(memory.cat(name))
    data[500] ^= 1
    memory.pipe(name, bytes(data))
    with pytest.raises(CorruptionError, match=r"memory://b/store/commitlog/0+ is corrupt at byte"):
        rows("memory://b/store")


def test_nothing_is_written_to_a_url(memory: Any) -> None:
    files = RemoteFiles("memory://b/store")
    root = UrlPath("memory://b/store")
    calls: list[Callable[[], object]] = [
        lambda: files.create(root / "x"),
        lambda: files.write_whole(root / "x", b""),
        lambda: files.open(root / "checkpoint", writable=True),
        lambda: files.lock(root / "lock"),
    ]
    for call in calls:
        with pytest.raises(ReadOnlyError, match="can only be read"):
            call()
    options = parse_options({"path": "memory://b/store", "group": "g"}, streaming=True)
    with pytest.raises(ConfigError, match="cannot be stored in memory://b/store"):
        Follower(options).start()


def test_a_stream_over_a_url_takes_what_is_there(memory: Any) -> None:
    options = parse_options(
        {"path": "memory://b/store", "startingOffsets": "earliest"}, streaming=True
    )
    reader = Follower(options)
    start = reader.start()
    end = reader.latest(start)
    assert sum(n for queues in end.values() for n in queues.values()) == 3000
    assert reader.latest(end) == end
    found = [b for task in reader.tasks(start, end) for b in read_spans(options, NAMES, task)]
    assert sum(batch.num_rows for batch in found) == 3000


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys  # noqa: PLC0415 - only here

    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtraError, match=r"penstock\[remote\]"):
        rows("s3://bucket/store")


# --- S3


@pytest.fixture(scope="module")
def s3(local: Path) -> Iterator[str]:
    """An S3 server on loopback with the store in it; yields its URL."""
    needed("s3fs")
    server = needed("moto.server")
    serving = needed("werkzeug.serving")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    application = server.DomainDispatcherApplication(server.create_backend_app)
    made = serving.make_server("127.0.0.1", port, application, threaded=True)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    given = {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        system = fsspec.filesystem("s3", skip_instance_cache=True)
        system.mkdir("bucket")
        system.put(str(local), "bucket/deep/store", queue=0, recursive=True)
        yield "s3://bucket/deep/store"
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
        made.shutdown()
        thread.join()
        made.server_close()


def test_a_store_on_s3_is_read_whole(s3: str, local: Path) -> None:
    assert keyed(rows(s3)) == keyed(rows(str(local)))


def test_a_bucket_or_a_store_that_is_missing_is_named(s3: str) -> None:
    with pytest.raises(StorageError, match="s3://nobucket/x"):
        rows("s3://nobucket/x")
    with pytest.raises(
        NotAStoreError, match=r"s3://bucket/deep/other is not .* nothing at this URL"
    ):
        rows("s3://bucket/deep/other")


def test_a_store_without_credentials_is_a_clear_error(
    s3: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    with pytest.raises(StorageError, match=r"s3://bucket/deep/store cannot be read .*credentials"):
        rows(s3)
