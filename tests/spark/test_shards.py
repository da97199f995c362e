"""Shards of a dataset that are not there: one is made once, and never passed over after that. No Spark in here."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from penstock.errors import StorageError
from penstock.files import Files
from penstock_spark.sink.commit import Decision, Part, SinkCommitter
from penstock_spark.sink.options import SinkOptions, parse_options
from penstock_spark.sink.rows import Stager, staged_name
from penstock_spark.sink.writer import Target, find_target
from penstock_spark.stores import MADE, MANIFEST, find_stores, make_dataset


def options_for(root: Path, **more: str) -> SinkOptions:
    sizes = {"set.geometry.segment_bytes": "65536", "set.geometry.index_slots": "20",
             "set.geometry.index_entries": "60"}  # fmt: skip
    given = {"path": str(root), "topic": "t", "txnAppId": "a", "txnVersion": "0", **sizes, **more}
    return parse_options(given, is_stream=False)


def staged(target: Target, committer: SinkCommitter, batch: int, shards: int = 2) -> list[Part]:
    """Stage two rows for each shard, a task each."""
    found = []
    for shard in range(shards):
        name = staged_name("a", str(batch), shard, 0)
        stager = Stager(Files(), committer.ledger.staging, name, shard, target.encoding)
        bodies = [b"%d.%d.%d" % (batch, shard, row) for row in range(2)]
        stager.add(pa.table({"topic": ["t"] * 2, "body": bodies, "queue": [0] * 2}), shard)
        part = stager.finish()
        assert part is not None
        found.append(part)
    return found


def write(root: Path, batch: int) -> bool:
    target = find_target(options_for(root))
    committer = target.committer()
    return committer.commit("a", batch, staged(target, committer, batch, len(target.shards)))


def bodies(shard: Path) -> list[bytes]:
    with penstock.open(shard, read_only=True, environ={}) as store:
        return [bytes(message.body) for message in store.scan("t", queue=0)]


def unmount(shard: Path, away: Path) -> None:
    shard.rename(away)
    shard.mkdir()


def mount(shard: Path, away: Path) -> None:
    shutil.rmtree(shard)
    away.rename(shard)


def test_a_shard_that_is_not_mounted_is_not_made_anew(tmp_path: Path) -> None:
    """An empty store took its place, and what was written to it lay under the mount point afterwards."""
    root, away = tmp_path / "d", tmp_path / "away"
    find_target(options_for(root, shards="2"))
    assert write(root, 0)
    unmount(root / "shard-001", away)
    with pytest.raises(StorageError, match=r"shard-001, a shard of .* mount its disk"):
        write(root, 1)
    assert list((root / "shard-001").iterdir()) == []
    mount(root / "shard-001", away)
    assert write(root, 1)
    for number in range(2):
        expected = [b"%d.%d.%d" % (batch, number, row) for batch in range(2) for row in range(2)]
        assert bodies(root / f"shard-{number:03d}") == expected


def test_a_shard_that_goes_while_a_query_runs_is_missed_before_anything_is_decided(
    tmp_path: Path,
) -> None:
    root, away = tmp_path / "d", tmp_path / "away"
    target = find_target(options_for(root, shards="2"))
    committer = target.committer()
    parts = staged(target, committer, 0)
    unmount(root / "shard-001", away)
    with pytest.raises(StorageError, match="shard-001"):
        committer.commit("a", 0, parts)
    assert not committer.ledger.has_decision()
    mount(root / "shard-001", away)
    # And one that goes between the decision and its append.
    decide = committer.ledger.decide

    def decide_and_lose(decision: Decision) -> None:
        decide(decision)
        unmount(root / "shard-001", away)

    committer.ledger.decide = decide_and_lose  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="shard-001") as raised:
        committer.commit("a", 0, parts)
    assert "Do not write it again" in raised.value.__notes__[0]
    assert list((root / "shard-001").iterdir()) == []
    mount(root / "shard-001", away)
    assert not target.committer().commit("a", 0, parts)
    assert bodies(root / "shard-001") == [b"0.1.0", b"0.1.1"]


def test_a_store_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    root = tmp_path / "s"
    assert write(root, 0)
    shutil.rmtree(root / "commitlog")
    with pytest.raises(StorageError, match="a store, existed before"):
        write(root, 1)


def test_a_dataset_that_was_half_made_is_finished(tmp_path: Path) -> None:
    root = tmp_path / "d"
    first = make_dataset(root, 2)[0]
    with penstock.open(first, environ={}, **options_for(root).settings):
        pass
    assert len(find_target(options_for(root)).shards) == 2
    assert (root / "shard-001" / "commitlog").is_dir()


def test_readers_and_the_sink_know_a_made_dataset_by_its_mark(tmp_path: Path) -> None:
    root = tmp_path / "d"
    find_target(options_for(root, shards="2"))
    (root / MADE).unlink()
    shutil.rmtree(root / "shard-001")
    # Not known to have been whole: a shard that is still to come.
    for path in (str(root), f"{tmp_path}/*"):
        assert [one.name for one in find_stores([path]).stores] == [str(root / "shard-000")]
    (root / MADE).touch()
    for path in (str(root), f"{tmp_path}/*"):
        with pytest.raises(StorageError, match="shard-001"):
            find_stores([path])
    with pytest.raises(StorageError, match="shard-001"):
        find_target(options_for(root))


def test_a_copy_at_a_url_that_lacks_a_shard_is_refused(tmp_path: Path) -> None:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    root = tmp_path / "d"
    find_target(options_for(root, shards="2"))
    memory.pipe(f"/lacking/d/{MANIFEST}", (root / MANIFEST).read_bytes())
    memory.put(str(root / "shard-000"), "/lacking/d/shard-000", queue=0, recursive=True)
    assert len(find_stores(["memory://lacking/d"]).stores) == 1
    memory.pipe(f"/lacking/d/{MADE}", (root / MADE).read_bytes())
    with pytest.raises(StorageError, match="shard-001"):
        find_stores(["memory://lacking/d"])
    memory.rm("/lacking", recursive=True)
