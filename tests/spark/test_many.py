"""Many stores in one read: lists, patterns, datasets; and how long planning takes. No JVM but for one test."""

import itertools
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Message
from penstock.errors import ConfigError, NotAStoreError, StorageError
from penstock_spark.jobs.tasks import stores_of
from penstock_spark.source import offsets
from penstock_spark.source.offsets import survey
from penstock_spark.source.options import parse_options
from penstock_spark.source.tasks import plan, read_spans
from penstock_spark.stores import (
    MANIFEST,
    Location,
    Locations,
    StoreSpan,
    find_stores,
    make_dataset,
)

SMALL: dict[str, Any] = {"geometry.segment_bytes": 16384, "geometry.queue_entries": 100}

LARGE: dict[str, Any] = {"geometry.segment_bytes": 1 << 20}


def put(root: Path, count: int, topics: int = 2, queues: int = 2) -> None:
    with penstock.open(root, environ={}, **SMALL) as store:
        for topic in range(topics):
            if f"t{topic}" not in store.topic_configs():
                store.create_topic(f"t{topic}", queues=max(queues, 8))
        places = [(f"t{n % topics}", n // topics % queues) for n in range(count)]
        store.put_many([Message(topic, b"x" * 30, queue=queue) for topic, queue in places])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        put(tmp_path / name, 12)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("none")
    return tmp_path


def tasks(paths: str, **more: str) -> list[list[StoreSpan]]:
    options = parse_options({"paths" if paths.startswith("[") else "path": paths, **more})
    locations = find_stores(options.paths)
    return plan(survey(options, locations), locations.stores, options.min_partitions)


def count(paths: str, **more: str) -> dict[str, int]:
    options = parse_options({"path": "/", **more})
    found: dict[str, int] = {}
    for task in tasks(paths, **more):
        for batch in read_spans(options, ("store", "offset"), task):
            for name in batch.column(0).to_pylist():
                found[name] = found.get(name, 0) + 1
    return found


def test_a_list_a_pattern_and_one_path_say_where_each_row_is_from(root: Path) -> None:
    a, b, c = (str(root / name) for name in "abc")
    assert count(a) == {a: 12}
    assert count(f'["{a}", "{c}", "{a}"]') == {a: 12, c: 12}
    assert count(f"{root}/[ab]") == {a: 12, b: 12}
    # What holds nothing yet is no store yet; a file is none.
    assert count(f"{root}/*") == {a: 12, b: 12, c: 12}
    assert count(f"file:{root}/a") == {a: 12}


def test_small_stores_share_a_task(root: Path) -> None:
    (task,) = tasks(f"{root}/*")
    assert {span.store for span in task} == {str(root / name) for name in "abc"}
    assert len(tasks(f"{root}/*", minPartitions="3")) >= 3


def test_a_dataset_is_its_shards(tmp_path: Path) -> None:
    folders = make_dataset(tmp_path / "d", 3)
    assert count(str(tmp_path / "d")) == {}
    put(folders[1], 5)
    put(folders[2], 7)
    put(tmp_path / "d" / "stray", 9)
    assert count(str(tmp_path / "d")) == {str(folders[1]): 5, str(folders[2]): 7}
    assert count(f"{tmp_path}/*") == {str(folders[1]): 5, str(folders[2]): 7}
    assert not find_stores([str(tmp_path / "d")]).is_one
    (tmp_path / "d" / MANIFEST).write_text("{}")
    with pytest.raises(StorageError, match="not a valid manifest"):
        count(str(tmp_path / "d"))


def test_offsets_of_several_stores_name_the_store(root: Path) -> None:
    both = f"{root}/[ab]"
    some = f'{{"{root}/a":{{"t0":{{"0":2}}}}}}'
    assert count(both, startingOffsets=some) == {str(root / "a"): 10, str(root / "b"): 12}
    with pytest.raises(ConfigError, match="several stores are read"):
        count(both, startingOffsets='{"t0":{"0":2}}')
    with pytest.raises(ConfigError, match="there is no store '/x'"):
        count(both, startingOffsets='{"/x":{"t0":{"0":2}}}')


def test_a_topic_may_be_in_some_of_the_stores(root: Path) -> None:
    put(root / "b", 6, topics=3)
    assert count(f"{root}/*", subscribe="t2") == {str(root / "b"): 2}
    with pytest.raises(
        ConfigError, match="no topic 'nope' in any of the stores; there are: t0, t1, t2"
    ):
        count(f"{root}/*", subscribe="nope")


def test_the_working_directory_is_not_part_of_a_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `run[1]`, the stores of `run1` were read: the pattern was made absolute before it was matched."""
    here, other = tmp_path / "run[1]" / "day-1", tmp_path / "run1" / "day-1"
    for store in (here, other):
        (store / "commitlog").mkdir(parents=True)
    monkeypatch.chdir(here.parent)
    for pattern in ("day-*", "./day-[1]", "day-1/../day-?/"):
        assert find_stores([pattern]).stores == (Location(str(here)),)
        assert stores_of(pattern) == [here]
    assert find_stores(["../run?/day-*"]).stores == (Location(str(other)),)


def test_one_that_is_no_store_is_named(root: Path) -> None:
    (root / "junk").mkdir()
    (root / "junk" / "thing").write_text("x")
    with pytest.raises(NotAStoreError, match="junk is not a message store"):
        count(f"{root}/*")
    with pytest.raises(NotAStoreError, match="/nope is not a message store: there is nothing"):
        count(f'["{root}/a", "{root}/nope"]')


def test_a_large_store_is_cut_by_bytes_in_the_order_of_its_log(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "s", environ={}, **LARGE) as store:
        for _ in range(40):
            # One queue has few large records, the other many small ones; the third comes late.
            store.put("t", b"x" * 50_000, queue=0)
            store.put_many([Message("t", b"x" * 400, queue=1) for _ in range(100)])
        store.put_many([Message("t", b"x" * 400, queue=2) for _ in range(1000)])
    with penstock.open(tmp_path / "s", read_only=True, environ={}) as store:
        found = tasks(str(tmp_path / "s"), minPartitions="8")
        assert len(found) == 8
        sizes, ends = [], []
        for task in found:
            spans = [span.span for span in task]
            parts = list(store.lowlevel.arrow_spans(spans, ["size", "log_offset"]))
            sizes.append(sum(sum(part.column(0).to_pylist()) for part in parts))
            offsets = [at for part in parts for at in part.column(1).to_pylist()]
            assert offsets == sorted(offsets)
            ends.append((offsets[0], offsets[-1]))
    mean = sum(sizes) / 8
    assert all(0.6 * mean < size < 1.4 * mean for size in sizes)
    # Tasks lie behind each other in the log, but for what is estimated.
    assert all(after[0] > before[0] for before, after in itertools.pairwise(ends))
    assert sum(after[0] < before[1] - 60_000 for before, after in itertools.pairwise(ends)) <= 2


def test_many_stores_are_asked_in_children(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = f'{{"{root}/a":{{"t0":{{"0":2}}}}}}'
    options = parse_options({"path": f"{root}/*", "startingOffsets": some})
    locations = find_stores(options.paths)
    alone = survey(options, locations)
    monkeypatch.setattr(offsets, "_MANY_LOCAL", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(offsets, "open_store", None)
    # Not here, so in another process.
    assert survey(options, locations) == alone
    monkeypatch.undo()
    monkeypatch.setattr(offsets, "_MANY_LOCAL", 2)
    shutil.rmtree(root / "b")
    with pytest.raises(NotAStoreError, match="/b is not a message store"):
        survey(options, locations)


def test_planning_takes_few_calls_for_each_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand stores of a hundred queues are planned in seconds: each queue is listed once and read once."""
    put(tmp_path / "s", 400, topics=5, queues=20)
    options = parse_options({"path": str(tmp_path / "s")})
    calls = {"scandir": 0, "open": 0, "pread": 0}
    for name in calls:
        real = getattr(os, name)

        def counted(*arguments: Any, _real: Any = real, _name: str = name, **named: Any) -> Any:
            calls[_name] += 1
            return _real(*arguments, **named)

        monkeypatch.setattr(os, name, counted)
    locations = Locations(find_stores(options.paths).stores, is_one=True)
    found = plan(survey(options, locations), locations.stores, 0)
    monkeypatch.undo()
    assert sum(len(task) for task in found) == 100
    assert calls["scandir"] < 100 + 40
    # Of the store as a whole: its profile, ranges and marks, and what says that something is not understood.
    assert calls["open"] < 100 + 20
    assert calls["pread"] < 100 + 15
    began = time.perf_counter()
    survey(options, locations)
    print(f"{time.perf_counter() - began:.3f} s for 100 queues")


def test_spark_reads_a_list_and_a_pattern(spark: Any, root: Path) -> None:
    frame = spark.read.format("penstock").schema("store string, offset bigint")
    listed = frame.load([str(root / "a"), str(root / "b")])
    assert {row.store: row["count"] for row in listed.groupBy("store").count().collect()} == {
        str(root / name): 12 for name in "ab"
    }
    assert spark.read.format("penstock").load(f"{root}/*").count() == 36
