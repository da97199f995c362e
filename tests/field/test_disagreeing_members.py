"""Members of one group with other tags or starts: what one excludes would count as done for the other."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import ArgumentError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with penstock.open(tmp_path / "store") as store:
        for tag in ("a", "b") * 4:
            store.put("t", tag.encode(), queue=None, tag=tag)
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("option", "first", "second"),
    [("tag", "a", "b"), ("tag", "*", "a"), ("start", "earliest", "latest"), ("start", 5, 6)],
)
def test_the_later_one_is_refused_with_both_texts(
    path: Path, option: str, first: Any, second: Any
) -> None:
    with penstock.open(path) as writer, penstock.open(path, read_only=True) as reader:
        with writer.consumer("g", "t", **{option: first}) as consumer:
            for store in (writer, reader):
                with pytest.raises(ArgumentError) as refused:
                    store.consumer("g", "t", **{option: second})
                assert f"{option}={second!r}" in str(refused.value)
                assert f"must be {first!r}" in str(refused.value)
                assert f"process {os.getpid()}" in str(refused.value)
            assert len(consumer.assignment()) == 5
        # The group has no living member: what is selected may change.
        reader.consumer("g", "t", **{option: second}).close()


def test_the_next_selection_goes_on_where_the_group_is(path: Path) -> None:
    with penstock.open(path) as store:
        with store.consumer("g", "t", tag="a") as consumer:
            with pytest.raises(ArgumentError):
                store.consumer("g", "t", tag="b")
            while any(each.lag for each in consumer.lag()):
                consumer.ack(consumer.poll(10))
        for tag in ("a", "b"):
            store.put("t", tag.encode(), queue=0, tag=tag)
        with store.consumer("g", "t", tag="b") as consumer:
            assert [each.body for each in consumer.poll(10)] == [b"b"]


@pytest.mark.parametrize("tag", ["\u3000a", "a\u00a0"])
def test_tags_with_spaces_of_other_scripts_differ(path: Path, tag: str) -> None:
    with penstock.open(path) as store, store.consumer("g", "t", tag=f" {tag}\t"):
        store.consumer("g", "t", tag=tag).close()
        with pytest.raises(ArgumentError, match="the members of a group agree on it"):
            store.consumer("g", "t", tag=tag.strip())


def test_the_same_tags_in_other_words_agree(path: Path) -> None:
    with penstock.open(path) as store, store.consumer("g", "t", tag="a || b"):
        store.consumer("g", "t", tag="b||a").close()


def test_members_without_a_common_topic_are_independent(path: Path) -> None:
    with penstock.open(path) as store, store.consumer("g", "t", tag="a"):
        store.consumer("g", "u", tag="b", start="latest").close()
        for shared in ("*", ["u", "t"]):
            with pytest.raises(ArgumentError, match="tag"):
                store.consumer("g", shared, tag="b")


def test_broadcast_readers_are_each_their_own(path: Path) -> None:
    with penstock.open(path) as store, store.consumer("g", "t", tag="a", broadcast=True):
        store.consumer("g", "t", tag="b", broadcast=True, start="earliest").close()
        with store.consumer("g", "t", tag="c"):
            pass


def test_of_threads_that_join_together_one_is_a_member(path: Path) -> None:
    found: list[Any] = []
    begin = threading.Barrier(4)

    def join(tag: str) -> None:
        begin.wait()
        try:
            found.append(store.consumer("g", "t", tag=tag))
        except ArgumentError:
            found.append(None)

    with penstock.open(path) as store:
        threads = [threading.Thread(target=join, args=(tag,)) for tag in "abcd"]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert found.count(None) == 3
