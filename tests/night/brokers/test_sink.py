"""What the Spark sink wrote: the real Java store opens it, appends within a batch that was cut short, reads it all."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.interop.compare import same
from tests.interop.javastore import SMALL_GEOMETRY, JavaStore, message

import penstock
from penstock.errors import StoreLockedError
from penstock.files import Files
from penstock.staged import MARK_MIN
from penstock_spark.sink.commit import Part, SinkCommitter
from penstock_spark.sink.options import parse_options
from penstock_spark.sink.rows import Stager, staged_name
from penstock_spark.sink.writer import Target, find_target, open_store

ROWS = 900


def target(root: Path, checksum: str = "crc32") -> Target:
    sizes = {f"set.{name}": str(size) for name, size in SMALL_GEOMETRY.items()}
    options = {"path": str(root), "topic": "orders", "set.log.checksum": checksum, **sizes}
    return find_target(parse_options(options, is_stream=True))


def stage(given: Target, committer: SinkCommitter, first: int) -> list[Part]:
    found = []
    for task in range(2):
        name = staged_name("app", "0", task, 0)
        stager = Stager(Files(), committer.ledger.staging, name, task, given.encoding)
        for start in range(first + task * ROWS // 2, first + (task + 1) * ROWS // 2, 50):
            rows = range(start, start + 50)
            stager.add(
                pa.table({
                    "topic": ["orders"] * 50, "body": pa.array([b"%d" % n for n in rows]),
                    "queue": [n % 3 for n in rows], "tag": [f"tag{n % 4}" for n in rows],
                    "keys": [f"k{n}" for n in rows], "properties": pa.array(
                        [[("h", f"{n}")] for n in rows], pa.map_(pa.string(), pa.string())),
                }),
                0,
            )  # fmt: skip
        part = stager.finish()
        assert part is not None
        found.append(part)
    return found


@pytest.mark.parametrize("checksum", ["crc32", "crc32+record"])
def test_java_reads_dispatches_and_finds_what_the_sink_wrote(
    checksum: str, java: JavaStore, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    given = target(root, checksum)
    committer = given.committer()
    assert committer.commit("app", 0, stage(given, committer, 0))
    # Java makes queues and index itself: it must not take a mark for a transaction's offset.
    assert java.open(root)
    assert java.call("state")["behind"] == 0
    dumped = java.dump()
    assert sum(len(queue["messages"]) for queue in dumped.values()) == ROWS
    found = java.query("orders", "k77", 0, 1 << 60)
    assert [one["prepared_offset"] >= MARK_MIN for one in found] == [True]
    java.put(message("orders", b"java", queue=0))
    dumped = java.dump()
    java.close()
    with penstock.open(root, read_only=True) as store:
        assert same(store, dumped) == ROWS + 1
        assert not list(store.verify())


def test_java_makes_the_queues_of_what_the_sink_wrote(java: JavaStore, tmp_path: Path) -> None:
    """Java's own dispatch takes marked records as it takes others: its queues are those that we made."""
    root = tmp_path / "store"
    given = target(root)
    committer = given.committer()
    committer.commit("app", 0, stage(given, committer, 0))
    with penstock.open(root, read_only=True) as store:
        before = {q: [m.body for m in store.scan("orders", queue=q)] for q in range(3)}
    for path in sorted((root / "consumequeue").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (root / "checkpoint").unlink()
    (root / "abort").touch()
    assert java.open(root)
    java.call("state")
    dumped = java.dump()
    java.close()
    assert sum(len(queue["messages"]) for queue in dumped.values()) == ROWS
    with penstock.open(root, environ={}) as store:
        assert {q: [m.body for m in store.scan("orders", queue=q)] for q in range(3)} == before
        assert same(store, dumped) == ROWS


def test_java_appends_within_a_batch_that_was_cut_short(java: JavaStore, tmp_path: Path) -> None:
    root = tmp_path / "store"
    given = target(root)

    class DiedError(Exception):
        pass

    def dies(path: Path) -> Any:
        store = open_store(given.options, None, path)
        put, count = store.lowlevel.put_staged, iter(range(7))

        def put_some(*args: Any, **more: Any) -> int:
            if next(count, None) is None:
                raise DiedError
            return put(*args, **more)

        store.lowlevel.put_staged = put_some  # type: ignore[method-assign]
        return store

    committer = given.committer()
    committer._open_store = dies
    with pytest.raises(DiedError):
        committer.commit("app", 0, stage(given, committer, 0))
    assert java.open(root)
    with pytest.raises(StoreLockedError, match="not Penstock"):
        _impatient(root).commit("app", 1, [])
    java.put(*(message("orders", b"java %d" % n, queue=0) for n in range(5)))
    java.close()
    assert not given.committer().commit("app", 0, [])
    with penstock.open(root, environ={}) as store:
        bodies = [m.body for q in range(3) for m in store.scan("orders", queue=q)]
        ours = [int(body) for body in bodies if not body.startswith(b"java")]
        assert sorted(ours) == list(range(ROWS))
        assert len(bodies) == ROWS + 5
        assert [n for n in ours if n % 3 == 0] == sorted(n for n in ours if n % 3 == 0)
        assert not list(store.verify())
    assert java.open(root)
    dumped = java.dump()
    java.close()
    with penstock.open(root, read_only=True) as store:
        assert same(store, dumped) == ROWS + 5


def _impatient(root: Path) -> SinkCommitter:
    options = {"path": str(root), "topic": "orders", "lockTimeout": "0"}
    return find_target(parse_options(options, is_stream=True)).committer()
