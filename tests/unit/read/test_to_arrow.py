"""Arrow columns of messages: what each record says, in the order of the log, only what is wanted."""

from collections.abc import Iterator

import pytest

from penstock.read.filters import RowFilter
from penstock.read.span_merge import Limits, QueueSpan
from penstock.read.to_arrow import span_batches
from penstock.store.store import Store
from penstock.testing import messages, open_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_store(tmp_path_factory.mktemp("arrow") / "s", retention=[]) as made:
        made.put_many(messages(60))
        made.flush()
        # The queues are read here without the store, which would first dispatch what was put.
        made.topics()
        yield made


def spans(store: Store) -> list[QueueSpan]:
    index = store._queue_index
    return [QueueSpan(t, q, 0, index.max_offset(t, q)) for t, q in index.queues()]


def rows(store: Store, *columns: str, limit: int = 1000, wanted: RowFilter | None = None) -> list[dict[str, object]]:  # fmt: skip
    batches = span_batches(
        store._log, store._queue_index, spans(store), columns, Limits(limit), verify=True,
        wanted=wanted or RowFilter(),
    )  # fmt: skip
    return [row for batch in batches for row in batch.to_pylist()]


def test_rows_come_in_the_order_of_the_log_with_what_was_put(store: Store) -> None:
    found = rows(store, "topic", "queue", "body", "log_offset", limit=7)
    assert [row["body"] for row in found] == [message.body for message in messages(60)]
    assert sorted(row["log_offset"] for row in found) == [row["log_offset"] for row in found]  # type: ignore[type-var] # numbers


def test_a_tag_or_key_that_a_record_has_not_is_null(store: Store) -> None:
    found = rows(store, "tag", "keys")
    assert (found[0]["tag"], found[1]["tag"]) == (None, "red")
    assert (found[0]["keys"], found[1]["keys"]) == (None, "key-1 only-1")


def test_only_what_is_wanted_comes(store: Store) -> None:
    found = rows(store, "tag", wanted=RowFilter(["red"]))
    assert (len(found), {row["tag"] for row in found}) == (20, {"red"})
    assert rows(store, "tag", wanted=RowFilter(["none"])) == []
