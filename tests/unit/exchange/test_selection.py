"""Which messages are exported."""

import pytest
from tests.conftest import OpenStore

from penstock.errors import ConfigError
from penstock.exchange.selection import Selection
from penstock.message import Message
from penstock.store.store import Store
from penstock.testing.control import ManualClock


def bodies(store: Store, **conditions: object) -> list[int]:
    selection = Selection(**conditions)  # type: ignore[arg-type] # as the test gives them
    return [int(m.body) for m in selection.messages(store, selection.spans(store))]


@pytest.fixture
def store(open_small: OpenStore) -> Store:
    """Twelve messages, one each second."""
    clock = ManualClock(1000)
    store = open_small(clock=clock)
    for number in range(12):
        store.put(
            "ab"[number % 2], b"%d" % number, queue=number % 3, tag="xyz"[number % 3], keys=[f"k{number % 4}", "all"]
        )  # fmt: skip
        clock.now_ms += 1000
    return store


@pytest.mark.parametrize(("conditions", "expected"), [
    ({}, list(range(12))), ({"topics": ["b"]}, [1, 3, 5, 7, 9, 11]), ({"topics": ["b", "a"]}, list(range(12))),
    ({"queues": [1]}, [1, 4, 7, 10]), ({"queues": [0, 2], "topics": ["a"]}, [0, 2, 6, 8]), ({"tag": "x || z"}, [0, 2, 3, 5, 6, 8, 9, 11]),
    ({"tag": "none"}, []), ({"keys": ["k1"]}, [1, 5, 9]), ({"keys": ["k1", "k2"]}, [1, 2, 5, 6, 9, 10]),
    ({"begin_ms": 3000}, list(range(2, 12))), ({"begin_ms": 3001}, list(range(3, 12))), ({"end_ms": 3000}, [0, 1, 2]),
    ({"end_ms": 2999}, [0, 1]), ({"begin_ms": 3000, "end_ms": 5000}, [2, 3, 4]), ({"begin_ms": 9000, "end_ms": 3000}, []),
    ({"topics": ["a"], "keys": ["k2"], "tag": "z", "begin_ms": 1}, [2]),
])  # fmt: skip
def test_all_conditions_hold(store: Store, conditions: dict[str, object], expected: list[int]) -> None:  # fmt: skip
    with store:
        assert bodies(store, **conditions) == expected


def test_what_is_not_there_is_an_error_that_says_what_is(store: Store) -> None:
    with store:
        with pytest.raises(ConfigError, match="no topic 'c'; topics in the store: a, b"):
            bodies(store, topics=["c"])
        with pytest.raises(ConfigError, match=r"no queue 7; queues: \[0, 1, 2\]"):
            bodies(store, queues=[7])


def test_a_message_that_is_put_later_is_not_exported(store: Store) -> None:
    with store:
        selection = Selection()
        spans = selection.spans(store)
        store.put("a", b"12")
        assert len(list(selection.messages(store, spans))) == 12


def test_queues_of_other_topics_messages_are_exported_only_if_named(store: Store) -> None:
    """The queues of `%LMQ%` topics refer to records of other topics, which would be exported twice."""
    with store:
        store.put("%LMQ%x", b"12")
        assert bodies(store) == list(range(12))
        assert bodies(store, topics=["%LMQ%x"]) == [12]


def test_messages_that_wait_are_exported_only_if_their_topic_is_named(store: Store) -> None:
    """A message that waits to be committed may never be; one that waits for its time is delivered later."""
    with store:
        names = ["RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"]
        store.put_copies([(Message(name, b"%d" % (20 + n)), b"") for n, name in enumerate(names)])
        assert bodies(store) == list(range(12))
        assert bodies(store, topics=["a", "rmq_sys_wheel_timer"]) == [0, 2, 4, 6, 8, 10, 21]
