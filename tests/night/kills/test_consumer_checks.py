"""The judge of `test_consumer_kills` finds every violation: each test breaks one guarantee in a trace that is otherwise good."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.night.kills import consumer_checks
from tests.night.kills.consumer_checks import GroupRules, Stored, Story, problems
from tests.night.kills.consumer_trace import Event, Trace, TraceReader

RULES = {
    "plain": GroupRules(ordered=False, ack_wait_s=5, max_retries=2),
    "ordered": GroupRules(ordered=True, ack_wait_s=5, max_retries=1),
    "moved": GroupRules(ordered=False, ack_wait_s=5, max_retries=1, moved=True),
}
SECOND = 1_000_000_000
Check = Callable[[Story], Sequence[str]]


class Told:
    """Makes events, a second apart unless said otherwise; those of messages and queues are of queue 0 of one topic."""

    def __init__(self, group: str = "plain") -> None:
        self.group = group
        self.events: list[Event] = []
        self.now_s = 100.0

    def wait(self, seconds: float) -> "Told":
        self.now_s += seconds
        return self

    def __call__(self, kind: str, process: str, offset: int = -1, **fields: Any) -> "Told":
        self.now_s += 1
        now_ns = int(self.now_s * SECOND)
        given: dict[str, Any] = {"since_ns": now_ns - SECOND // 100, **fields}
        if offset >= 0 or kind in ("taken", "back"):
            given = {"topic": "orders", "queue": 0, "offset": offset, **given}
        if offset >= 0:
            given.setdefault("number", f"n{offset}")
            given.setdefault("attempt", 1)
        if kind not in ("put", "exists", "killed", "ended", "started", "stopped", "continued"):
            given.setdefault("group", self.group)
        self.events.append(Event(kind, process, now_ns, **given))
        return self

    def story(self) -> Story:
        groups = {self.group: RULES[self.group]}
        return Story(self.events, groups)

    def problems(self, **options: Any) -> list[str]:
        return problems(self.story(), **options)


def good(group: str = "plain") -> Told:
    """Two members; the first acknowledges a message and is killed with another one in hand, which the second one gets."""
    told = Told(group)
    told("joined", "m1")("joined", "m2")("taken", "m1", epoch=1)
    for offset in range(3):
        told("put", "writer", number=f"n{offset}")("exists", "writer", number=f"n{offset}")
    told("out", "m1", 0, epoch=1)("acking", "m1", 0, epoch=1)("acked", "m1", 0, epoch=1)
    told("out", "m1", 1, epoch=1)("killed", "m1")
    told("taken", "m2", epoch=2)("out", "m2", 1, epoch=2)
    told("acking", "m2", 1, epoch=2)("acked", "m2", 1, epoch=2)
    return told("out", "m2", 2, epoch=2)("acking", "m2", 2, epoch=2)("acked", "m2", 2, epoch=2)


@pytest.mark.parametrize("group", ["plain", "ordered"])
def test_a_good_trace_has_no_problems(group: str) -> None:
    assert good(group).problems() == []


def only(told: Told, *parts: str, **options: Any) -> None:
    """There is one problem, and it names these parts."""
    found = told.problems(**options)
    assert len(found) == 1, found
    for part in parts:
        assert part in found[0]


# --- owners


def test_two_owners_at_a_time_are_found() -> None:
    told = good()
    told("joined", "m3")("taken", "m3", epoch=3)
    only(told, "m3", "m2", "while")


def test_an_owner_beside_a_stopped_one_is_found() -> None:
    told = good()("stopped", "m2")("joined", "m3")("taken", "m3", epoch=3)
    only(told, "m3", "m2", "while")


def test_an_owner_after_a_hand_back_or_a_kill_is_none_too_many() -> None:
    told = good()("back", "m2", epoch=2)("joined", "m3")("taken", "m3", epoch=3)("killed", "m3")
    assert told("taken", "m2", epoch=4).problems() == []


def test_an_owner_before_the_kill_is_found() -> None:
    told = Told()("joined", "m1")("taken", "m1", epoch=1)("joined", "m2")("taken", "m2", epoch=2)
    only(told("killed", "m1"), "while")


def test_an_owner_within_the_time_of_an_earlier_one_is_found_after_others_too() -> None:
    told = good()("joined", "m3")("taken", "m3", epoch=3)("back", "m3", epoch=3)
    told("taken", "m3", epoch=4)
    assert len(told.problems()) == 2


def test_an_epoch_that_does_not_grow_is_found() -> None:
    told = good()("back", "m2", epoch=2)("joined", "m3")("taken", "m3", epoch=2)
    only(told, "epoch")


def test_a_message_of_a_queue_that_a_process_never_had_is_found() -> None:
    told = Told()("joined", "m1")("out", "m1", 0, epoch=1)
    only(told, "never had")


def test_a_message_handed_out_after_the_queue_was_given_back_is_found() -> None:
    told = good()("back", "m2", epoch=2)("out", "m2", 3, epoch=2)
    only(told, "after it gave the queue back")


def test_a_message_handed_out_before_and_reported_after_is_none() -> None:
    told = good()
    before_ns = told.events[-1].at_ns + 1
    told("back", "m2", epoch=2)("out", "m2", 3, epoch=2, since_ns=before_ns)
    assert told.problems() == []


# --- again


def test_a_message_that_comes_again_for_no_reason_is_found() -> None:
    told = good()("out", "m2", 3, epoch=2)("out", "m2", 3, epoch=2)
    only(told, "plain/orders/0/3", "nothing allows that")


@pytest.mark.parametrize(("seconds", "count"), [(3.9, 1), (4, 0)])
def test_a_message_may_come_again_after_ack_wait(seconds: float, count: int) -> None:
    told = good()("out", "m2", 3, epoch=2).wait(seconds)("out", "m2", 3, epoch=2)
    assert len(told.problems()) == count


def test_a_message_may_come_again_after_ack_wait_counted_from_the_extension() -> None:
    told = good()("out", "m2", 3, epoch=2).wait(3)("extending", "m2", 3, epoch=2)
    only(told("out", "m2", 3, epoch=2), "nothing allows that")
    told = good()("out", "m2", 3, epoch=2)("extending", "m2", 3, epoch=2).wait(4)
    assert told("out", "m2", 3, epoch=2).problems() == []


def test_a_message_may_come_again_after_a_release_in_the_same_process_only() -> None:
    told = good()("out", "m2", 3, epoch=2)("releasing", "m2", 3, epoch=2)
    assert told("out", "m2", 3, epoch=2).problems() == []
    told = good()("out", "m2", 3, epoch=2)("releasing", "m9", 3, epoch=2)
    only(told("out", "m2", 3, epoch=2), "nothing allows that")


def test_a_refused_message_comes_again_from_its_queue_in_an_ordered_group_only() -> None:
    for group, count in (("ordered", 0), ("plain", 2)):
        told = good(group)("out", "m2", 3, epoch=2)("nacking", "m2", 3, epoch=2)
        told("nacked", "m2", 3, epoch=2)("out", "m2", 3, epoch=2, attempt=2)
        assert len(told.problems()) == count, group


def test_a_queue_given_back_with_a_message_out_is_found() -> None:
    told = good()("out", "m2", 3, epoch=2)("back", "m2", epoch=2)("joined", "m3")
    told("taken", "m3", epoch=3)("out", "m3", 3, epoch=3)
    only(told, "nothing allows that")


def test_a_later_death_does_not_excuse_a_queue_given_back_with_a_message_out() -> None:
    told = good()("out", "m2", 3, epoch=2)("back", "m2", epoch=2)("joined", "m3")("killed", "m2")
    told("taken", "m3", epoch=3)("out", "m3", 3, epoch=3)
    only(told, "nothing allows that")


@pytest.mark.parametrize("how", ["closing", "releasing", "ack_wait"])
def test_a_queue_may_be_given_back_when_nothing_is_out(how: str) -> None:
    told = good()("out", "m2", 3, epoch=2)
    if how == "closing":
        told("closing", "m2")
    elif how == "releasing":
        told("releasing", "m2", 3, epoch=2)
    else:
        told.wait(5)
    told("back", "m2", epoch=2)("joined", "m3")("taken", "m3", epoch=3)
    assert told("out", "m3", 3, epoch=3).problems() == []


def test_an_end_without_a_kill_or_a_hand_back_excuses_nothing() -> None:
    told = good()("out", "m2", 3, epoch=2)("ended", "m2", note="0")("joined", "m3")
    told("taken", "m3", epoch=3)("out", "m3", 3, epoch=3)
    only(told, "nothing allows that")


# --- answers


def test_an_acknowledged_message_that_comes_again_is_found() -> None:
    told = good()("killed", "m2")("joined", "m3")("taken", "m3", epoch=3)("out", "m3", 1, epoch=3)
    only(told, "was acked by m2", "m3")


def test_an_acknowledged_message_that_its_own_owner_hands_out_again_is_found() -> None:
    told = good().wait(5)("out", "m2", 1, epoch=2)
    only(told, "was acked by m2")


def test_an_ack_that_did_not_return_promises_nothing() -> None:
    told = good()("out", "m2", 3, epoch=2)("acking", "m2", 3, epoch=2)("killed", "m2")
    told("joined", "m3")("taken", "m3", epoch=3)("out", "m3", 3, epoch=3)
    assert told.problems() == []


def test_a_thread_may_have_had_a_message_before_another_one_acknowledged_it() -> None:
    told = good().wait(5)
    before_ns = int(told.now_s * SECOND)
    told("out", "m2", 3, epoch=2, since_ns=before_ns - 5 * SECOND)("acking", "m2", 3, epoch=2)
    told("acked", "m2", 3, epoch=2)("out", "m2", 3, epoch=2, since_ns=before_ns)
    assert told.problems() == []


def test_a_refused_message_that_comes_again_as_itself_is_found() -> None:
    told = good()("out", "m2", 3, epoch=2)("nacking", "m2", 3, epoch=2)("nacked", "m2", 3, epoch=2)
    told("killed", "m2")("joined", "m3")("taken", "m3", epoch=3)("out", "m3", 3, epoch=3)
    only(told, "was nacked by m2")


def test_a_dead_letter_of_an_ordered_group_that_comes_again_is_found() -> None:
    for attempt, count in ((1, 0), (2, 1)):
        told = good("ordered")("out", "m2", 3, epoch=2, attempt=attempt)
        told("nacking", "m2", 3, epoch=2, attempt=attempt)
        told("nacked", "m2", 3, epoch=2, attempt=attempt)("killed", "m2")("joined", "m3")
        told("taken", "m3", epoch=3)("out", "m3", 3, epoch=3, attempt=attempt + 1)
        assert len(told.problems()) == count


def test_a_late_refusal_of_a_message_that_was_handed_out_again_promises_nothing() -> None:
    told = good()("out", "m2", 3, epoch=2).wait(5)("out", "m2", 3, epoch=2)
    told("nacking", "m2", 3, epoch=2)("nacked", "m2", 3, epoch=2)("killed", "m2")
    told("joined", "m3")("taken", "m3", epoch=3)("out", "m3", 3, epoch=3)
    assert told.problems() == []


def test_a_copy_of_an_acknowledged_message_is_found_unless_the_writer_was_killed() -> None:
    for victim, count in ((None, 1), ("m4", 1), ("writer-2", 0)):
        told = good()
        if victim is not None:
            told("killed", victim)
        told("taken", "m2", topic="%RETRY%plain", epoch=1)
        told("out", "m2", 0, topic="%RETRY%plain", number="n2", epoch=1)
        assert len(told.problems()) == count, victim


def test_a_kill_of_the_writer_before_the_put_explains_no_copy() -> None:
    told = Told()("killed", "writer-1")
    told.events += [attrs.evolve(e, at_ns=e.at_ns + 60 * SECOND, since_ns=e.since_ns + 60 * SECOND) for e in good().events]  # fmt: skip
    told.now_s = 200
    told("taken", "m2", topic="%RETRY%plain", epoch=1)
    told("out", "m2", 0, topic="%RETRY%plain", number="n2", epoch=1)
    only(told, "n2", "comes again")


def stored(*more: Stored) -> list[Stored]:
    """One message, refused by a group until it was a dead letter; and one that was delayed."""
    wait, group = "SCHEDULE_TOPIC_XXXX", "plain"
    return [
        Stored("orders", "", "n1", 0, 1000),
        Stored(wait, f"%RETRY%{group}", "n1", 1, 2000), Stored(f"%RETRY%{group}", "", "n1", 1, 3000),
        Stored(f"%DLQ%{group}", "", "n1", 2, 4000),
        Stored(wait, "orders", "n2", 0, 1000), Stored("orders", "", "n2", 0, 2000),
        *more,
    ]  # fmt: skip


def twice(*more: Stored, kills_ms: Sequence[int] = ()) -> list[str]:
    return list(consumer_checks.stored_twice(stored(*more), "orders", kills_ms))


def test_what_is_stored_once_is_no_problem() -> None:
    assert twice() == []


@pytest.mark.parametrize(
    "copy",
    [
        Stored("SCHEDULE_TOPIC_XXXX", "%RETRY%plain", "n1", 1, 2500),
        Stored("%DLQ%plain", "", "n1", 2, 4500),
    ],
)
def test_a_retry_or_dead_letter_that_is_stored_twice_is_found_whoever_was_killed(
    copy: Stored,
) -> None:
    [found] = twice(copy, kills_ms=range(0, 9000, 10))
    assert "n1" in found
    assert "stored 2 times" in found


def test_a_copy_of_each_of_two_deliveries_is_no_problem() -> None:
    again = Stored("%RETRY%plain", "", "n1", 1, 3500)
    assert twice(again, Stored("%DLQ%plain", "", "n1", 2, 4500), kills_ms=[3200]) == []


@pytest.mark.parametrize(("kill_ms", "count"), [(None, 1), (1900, 1), (2100, 0), (20_000, 1)])
def test_a_delivery_that_is_repeated_long_before_or_after_a_kill_is_found(
    kill_ms: int | None, count: int
) -> None:
    kills_ms = [] if kill_ms is None else [kill_ms]
    found = twice(Stored("orders", "", "n2", 0, 21_000), kills_ms=kills_ms)
    assert len(found) == count


# --- all, and in order


def test_a_message_that_nobody_consumed_is_found() -> None:
    only(good()("exists", "writer", number="n9"), "has not consumed 1 of 4", "n9")


def test_a_dead_letter_is_consumed() -> None:
    assert good()("exists", "writer", number="n9")("dead", "writer", number="n9").problems() == []


def test_a_message_in_the_place_of_another_one_is_found() -> None:
    told = good()("out", "m2", 3, epoch=2, number="n9").wait(5)
    only(told("out", "m2", 3, epoch=2), "got message n3", "got n9")


def test_a_message_that_another_group_consumed_is_found() -> None:
    told = good()
    story = Story(told.events, {"plain": RULES["plain"], "ordered": RULES["ordered"]})
    assert list(consumer_checks.not_consumed(story)) == [
        "group ordered has not consumed 3 of 3 messages: ['n0', 'n1', 'n2']"
    ]


def test_a_message_that_only_one_group_consumes_is_no_loss_of_the_others() -> None:
    assert good()("exists", "writer", number="n9", group="moved").problems() == []
    only(
        good("moved")("exists", "writer", number="n9", group="moved"), "moved has not consumed 1 of"
    )


def test_a_group_that_is_moved_may_get_again_what_it_has_acknowledged() -> None:
    again: dict[str, Any] = {"epoch": 2, "number": "n0"}
    told = good("moved")("out", "m2", 0, **again)("acking", "m2", 0, **again)(
        "acked", "m2", 0, **again
    )
    assert told.problems() == []
    assert good()("out", "m2", 0, **again).problems()


def test_another_message_in_a_topic_that_was_created_again_is_no_problem() -> None:
    told = good("moved")("out", "m2", 0, epoch=2, number="new")
    assert list(consumer_checks.other_content(Story(told.events, RULES, deleted=("orders",)))) == []
    assert list(consumer_checks.other_content(Story(told.events, RULES)))


def test_a_message_of_a_paused_topic_is_found() -> None:
    only(good()("paused-out", "m2", 2, epoch=2), "had paused the topic")


def test_a_put_that_is_lost_is_found() -> None:
    only(good()("put", "writer", number="n9"), "n9", "not in the store")


def test_a_message_before_the_answer_to_the_one_before_is_found() -> None:
    told = good("ordered")("out", "m2", 3, epoch=2)("out", "m2", 4, epoch=2)
    only(told, "handed out 4 before 3 was answered")
    assert good()("out", "m2", 3, epoch=2)("out", "m2", 4, epoch=2).problems() == []


def test_a_message_that_is_skipped_is_found() -> None:
    only(good("ordered")("out", "m2", 4, epoch=2), "handed out 4 before 3 was answered")


def test_a_message_after_a_retry_that_is_still_to_come_is_found() -> None:
    told = good("ordered")("out", "m2", 3, epoch=2)("nacking", "m2", 3, epoch=2)
    only(told("out", "m2", 4, epoch=2), "handed out 4 before 3 was answered")


def test_a_message_after_a_dead_letter_is_in_order() -> None:
    told = good("ordered")("out", "m2", 3, epoch=2, attempt=2)
    told("nacking", "m2", 3, epoch=2, attempt=2)("nacked", "m2", 3, epoch=2, attempt=2)
    assert told("out", "m2", 4, epoch=2).problems() == []


# --- moves


def waiting(seconds: float, *between: tuple[str, str]) -> Told:
    """The owner of a queue is killed, and for some seconds, and after each event between, nobody takes it."""
    told = Told()("joined", "m1")("joined", "m2")("taken", "m1", epoch=1)("killed", "m1")
    told.wait(seconds - 1)
    for kind, process in between:
        told(kind, process).wait(seconds - 1)
    return told


def test_a_queue_that_does_not_move_is_found() -> None:
    only(waiting(5.5)("taken", "m2", epoch=2), "m1", "no owner for")
    assert waiting(3)("taken", "m2", epoch=2).problems() == []


def test_a_queue_that_never_moves_is_found() -> None:
    only(waiting(5.5)("put", "writer", number="n")("exists", "writer", number="n")("dead", "writer", number="n"), "no owner for")  # fmt: skip


@pytest.mark.parametrize("event", [("killed", "m3"), ("stopped", "m2"), ("closing", "m3")])
def test_the_time_to_move_counts_anew_when_the_members_change(event: tuple[str, str]) -> None:
    assert waiting(4, event)("taken", "m2", epoch=2).problems() == []


def test_the_time_to_move_goes_on_while_members_join() -> None:
    only(waiting(4, ("joined", "m3"))("taken", "m2", epoch=2), "no owner for")


def test_the_time_to_move_counts_from_the_first_join_where_nobody_was_left() -> None:
    told = Told()("joined", "m1")("taken", "m1", epoch=1)("killed", "m1").wait(20)("joined", "m2")
    assert told("taken", "m2", epoch=2).problems() == []
    told = Told()("joined", "m1")("taken", "m1", epoch=1)("killed", "m1").wait(20)("joined", "m2")
    only(told.wait(5)("taken", "m2", epoch=2), "no owner for")


def test_the_time_to_move_does_not_count_while_a_member_is_stopped() -> None:
    told = waiting(4)("stopped", "m2").wait(60)("continued", "m2")
    assert told("taken", "m2", epoch=2).problems() == []
    told = waiting(4)("stopped", "m2").wait(60)("continued", "m2").wait(5)
    only(told("taken", "m2", epoch=2), "no owner for")


# --- processes


def test_a_process_that_ends_badly_is_found() -> None:
    only(good()("ended", "m2", note="1"), "m2 ended with status 1")


@pytest.mark.parametrize("kind", ["child-out", "hung"])
def test_a_child_that_consumes_or_hangs_is_found(kind: str) -> None:
    only(good()(kind, "m2.1", note="poll"), "m2.1", "poll")


# --- the trace itself


def test_a_trace_is_read_while_it_is_written(tmp_path: Path) -> None:
    reader = TraceReader(tmp_path)
    trace = Trace(tmp_path, "m1")
    assert reader.new() == []
    trace.add("out", group="g", topic="t", queue=1, offset=2, epoch=3, number="n")
    trace.of("m1.1").add("refused", note="poll")
    first, second = reader.new()
    assert (first.process, first.message, first.epoch) == ("m1", ("g", "t", 1, 2), 3)
    assert (second.process, second.kind, second.note) == ("m1.1", "refused", "poll")
    assert first.at_ns < second.at_ns
    with (tmp_path / "m1.trace").open("ab") as file:
        file.write(b'{"kind": "ack')
        file.flush()
        assert reader.new() == []
        file.write(b'ed", "at_ns": 7}\n')
    assert [(e.kind, e.at_ns) for e in reader.new()] == [("acked", 7)]


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_queue_whose_topic_was_deleted_is_not_there_to_be_taken(is_deleted: bool) -> None:
    told = Told()("joined", "m1")("joined", "m2")("taken", "m1", epoch=1)("killed", "m1")
    if is_deleted:
        told("deleted", "writer")
    told.wait(9)("taken", "m2", epoch=2)
    story = Story(told.events, {"plain": RULES["plain"]}, deleted=("orders",))
    found = [*consumer_checks.late_moves(story, 5)]
    assert [text.partition(", had")[0] for text in found] == (
        [] if is_deleted else ["plain/orders/0 of m1, which was killed"]
    )
