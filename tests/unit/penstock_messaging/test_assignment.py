"""Shares of queues: complete, without overlap, and RocketMQ's."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_messaging.groups.assignment import assigned, average_share


def test_shares_are_those_of_allocate_message_queue_averagely() -> None:
    queues = [("t", n) for n in range(8)]
    shares = [[n for _, n in average_share(m, ["a", "b", "c"], queues)] for m in "abc"]
    assert shares == [[0, 1, 2], [3, 4, 5], [6, 7]]
    few = [average_share(m, ["a", "b", "c"], queues[:2]) for m in "abcd"]
    assert few == [[("t", 0)], [("t", 1)], [], []]


def wants_topic(member: str, topic: str) -> bool:
    """Return whether a member subscribes: to more topics, the later its last letter."""
    return ord(topic) - ord("s") <= ord(member[-1]) - ord("a")


NAMES = st.lists(st.text("abcdef", min_size=1, max_size=2), unique=True, max_size=5)


@pytest.mark.slow
@given(NAMES, st.dictionaries(st.sampled_from("stuv"), st.integers(1, 6), max_size=4))
def test_each_queue_has_exactly_one_member_that_subscribes_to_it(
    members: list[str], topics: dict[str, int]
) -> None:
    wants = {member: partial(wants_topic, member) for member in members}
    there = {topic: range(count) for topic, count in topics.items()}
    shares = {m: assigned(m, wants, there) for m in members}
    everything = [queue for share in shares.values() for queue in share]
    assert len(everything) == len(set(everything))
    wanted = {(t, q) for t, qs in there.items() for q in qs if any(w(t) for w in wants.values())}
    assert set(everything) == wanted
    assert all(wants[m](topic) for m, share in shares.items() for topic, _ in share)


def test_one_who_is_not_a_living_member_gets_nothing() -> None:
    assert assigned("x", {"a": lambda _: True}, {"t": [0]}) == set()
    assert assigned("x", {}, {"t": [0]}) == set()
