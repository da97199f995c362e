"""`Store.to_reader`: all queues of some topics as one Arrow stream."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import SMALL
from tests.damage.stores import flip

import penstock
from penstock import Message, QueueSpan, Store
from penstock.errors import (
    ConfigError,
    CorruptionError,
    StoreClosedError,
    UnknownTopicError,
)
from penstock.format.arrow_schema import DEFAULT_COLUMNS, schema_of

SETTINGS: dict[str, Any] = {**SMALL}
COUNT = 600


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with penstock.open(tmp_path / "s", environ={}, **SETTINGS) as store:
        for number in range(COUNT):
            topic = ("a", "b", "other")[number % 3]
            store.put(topic, b"%d" % number, queue=number % 2, tag=("x", "y", "")[number % 5 % 3])
    return tmp_path / "s"


@pytest.fixture(params=[True, False])
def store(request: pytest.FixtureRequest, root: Path) -> Iterator[Store]:
    with penstock.open(root, environ={}, read_only=request.param) as store:
        yield store


def bodies(reader: Any) -> list[int]:
    return [int(body) for body in reader.read_all()["body"].to_pylist()]


@pytest.mark.slow
def test_all_queues_come_in_the_order_of_the_log(store: Store) -> None:
    assert bodies(store.to_reader("a")) == list(range(0, COUNT, 3))
    assert bodies(store.to_reader(["b", "a"])) == [n for n in range(COUNT) if n % 3 < 2]
    with pytest.raises(UnknownTopicError, match="did you mean"):
        store.to_reader("othr")


def test_the_schema_is_known_before_anything_is_read(store: Store) -> None:
    assert store.to_reader("a").schema == schema_of(DEFAULT_COLUMNS)
    assert store.to_reader("a", ["body", "tag"], until=0).schema.names == ["body", "tag"]
    with pytest.raises(ConfigError, match="no column 'boddy'"):
        store.to_reader("a", ["boddy"])


def test_one_number_is_for_one_queue(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "s", environ={}, **SETTINGS) as store:
        store.put_many(Message("t", b"%d" % number, queue=0) for number in range(9))
        assert bodies(store.to_reader("t", start=2, stop=5)) == [2, 3, 4]
        assert bodies(store.to_reader("t", start=-3, stop=99)) == list(range(9))
        store.put("t", b"9", queue=1)
        with pytest.raises(ValueError, match="could mean any of 2 queues"):
            store.to_reader("t", start=2)
        with pytest.raises(
            ValueError, match="of the topics that are read, and 'other' is not one of them"
        ):
            store.to_reader("t", stop={("other", 1): 2})


@pytest.mark.parametrize("tag", ["*", "x || y"])
def test_a_corrupt_record_stops_nobody(tag: str, root: Path, caplog: Any) -> None:
    """It is left out, named in the log and counted, as in `scan`; a job that must have all is told."""
    with penstock.open(root, environ={}, read_only=True) as store:
        message = next(m for m in store.scan("a", queue=0, start=40) if m.tag == "x")
        segment = next(s for s in sorted((root / "commitlog").iterdir(), reverse=True) if int(s.name) <= message.log_offset)  # fmt: skip
        flip(segment, 8 * (message.log_offset - int(segment.name) + 89))
        left = [m.body for m in store.scan("a", tag=tag)]
        assert store.to_arrow("a", tag=tag)["body"].to_pylist() == left
        assert store.stats()["damaged_reads"] == 2
        assert str(segment) in caplog.text
        with pytest.raises(CorruptionError, match="commitlog"):
            [*store.lowlevel.arrow_spans([QueueSpan("a", 0, 0, 100)])]


def test_it_ends_with_its_store(root: Path) -> None:
    with penstock.open(root, environ={}, read_only=True) as store:
        reader = store.to_reader("a", rows=10)
        assert reader.read_next_batch().num_rows == 10
    with pytest.raises(StoreClosedError):
        reader.read_next_batch()
