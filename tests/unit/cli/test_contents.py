"""What a command says that has found nothing: the topics, queues and offsets that there are."""

import pytest
from tests.conftest import OpenStore

from penstock.cli.contents import no_group, why_nothing
from penstock.store.store import Store
from penstock.testing import ManualWorkers


@pytest.fixture
def store(open_small: OpenStore) -> Store:
    made = open_small(spawn=ManualWorkers())
    for number in range(6):
        made.put("orders", b"x", queue=number % 2)
    made.put("other", b"x", queue=3)
    return made


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (("ordres",), "there is no topic 'ordres', did you mean 'orders'? Topics in the store: orders, other"),
        (("zzz", 7, 9), "there is no topic 'zzz'. Topics in the store: orders, other"),
        (("orders", 7), "topic 'orders' has no queue 7; it has queues 0 to 1"),
        (("other", 0), "topic 'other' has no queue 0; it has queue 3 only"),
        (("orders", 1, 3), "no message has queue offset 3 or a greater one; there are, in queue 1: 0 to 2"),
        (("orders", None, 9), "no message has queue offset 9 or a greater one; there are, in queue 0: 0 to 2, queue 1: 0 to 2"),
    ],
)  # fmt: skip
def test_the_reason_names_what_there_is(store: Store, where: tuple[str], text: str) -> None:
    assert why_nothing(store, *where) == text


def test_there_is_no_reason_where_messages_are(store: Store) -> None:
    assert why_nothing(store, "orders") is None
    assert why_nothing(store, "orders", 1, 2) is None
    # Another queue of the topic goes on at that offset.
    store.put("orders", b"x", queue=1)
    assert why_nothing(store, "orders", None, 3) is None


def test_many_topics_are_listed_in_part_and_queues_with_gaps_one_by_one(store: Store) -> None:
    for number in range(30):
        store.put(f"t{number:02}", b"x")
    store.put("other", b"x", queue=5)
    assert str(why_nothing(store, "zzz")).endswith("t16, t17, and 12 more")
    assert why_nothing(store, "other", 4) == "topic 'other' has no queue 4; it has queues 3, 5"


def test_an_empty_store_and_an_empty_queue_say_so(open_small: OpenStore) -> None:
    empty = open_small(spawn=ManualWorkers())
    assert why_nothing(empty, "t") == "there is no topic 't': the store has no messages"


def test_a_missing_group_is_answered_with_the_nearest_and_all() -> None:
    assert no_group("a", []) == "there is no group 'a': the store has no consumer groups"
    assert (
        no_group("biling", ["billing", "shipping"])
        == "there is no group 'biling', did you mean 'billing'? Groups in the store: billing, shipping"
    )
    assert no_group("x", ["billing"]) == "there is no group 'x'. Groups in the store: billing"
