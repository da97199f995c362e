"""Judges what the processes of consumer groups did (`consumer_trace`), against what consumers guarantee.

All that counts as a violation follows from the trace alone, whatever the machine's speed: an event is written after what it
reports has begun or before it ends, so that every time is on the safe side. Only `late_moves` has a limit in seconds.
"""

import bisect
import itertools
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import attrs
from tests.night.kills.consumer_trace import Event

END_NS = 1 << 62
SECOND_NS = 1_000_000_000
# A killed owner's queues must have another owner after this time.
MOVE_S = 5.0
# A writer that is killed has saved all deliveries but those of the last second; it may have been stopped in between.
DELIVERED_AGAIN_MS = 10_000

Place = tuple[str, str, int]
Message = tuple[str, str, int, int]


@attrs.frozen
class GroupRules:
    """What a group's members were told.

    Attributes:
        ordered: whether they are ordered consumers.
        ack_wait_s: their `ack_wait`.
        max_retries: their `max_retries`.
        moved: whether its members seek backward, another program commits smaller offsets, and one of its topics is deleted and
            created again: then it gets what it has consumed again, and misses nothing.
    """

    ordered: bool
    ack_wait_s: float
    max_retries: int
    moved: bool = False


@attrs.frozen
class Holding:
    """The time in which a process certainly had a queue.

    Attributes:
        process: its name.
        epoch: the epoch in which it had it.
        from_ns: when it had certainly taken it.
        to_ns: until when it certainly had it: it then gave it back, or was killed.
        back_ns: when it gave it back; `END_NS` if it did not.
    """

    process: str
    epoch: int
    from_ns: int
    to_ns: int
    back_ns: int


class Story:
    """The events of a run, in the orders in which the checks need them."""

    def __init__(
        self,
        events: Iterable[Event],
        groups: Mapping[str, GroupRules],
        deleted: Container[str] = (),
    ) -> None:
        """Sort the events; `deleted` are the topics that were deleted and created again."""
        self.deleted = deleted
        self.events = sorted(events, key=lambda event: event.at_ns)
        self.groups = groups
        self.by_message: dict[Message, list[Event]] = defaultdict(list)
        self.by_place: dict[Place, list[Event]] = defaultdict(list)
        self.ends: dict[str, int] = {}
        self.killed: set[str] = set()
        self.closings: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._backs: dict[tuple[Place, str, int], int] = {}
        for event in self.events:
            if event.offset >= 0:
                self.by_message[event.message].append(event)
            if event.queue >= 0:
                self.by_place[event.place].append(event)
            if event.kind in ("killed", "ended"):
                # A process lives at least until it is killed.
                self.ends.setdefault(event.process, event.at_ns)
            if event.kind == "killed":
                self.killed.add(event.process)
            if event.kind == "closing":
                self.closings[event.process, event.group].append(event.at_ns)
            if event.kind == "back":
                self._backs.setdefault((event.place, event.process, event.epoch), event.at_ns)

    def back_ns(self, place: Place, process: str, epoch: int) -> int:
        """Return when a process began to give a queue back; `END_NS` if it did not."""
        return self._backs.get((place, process, epoch), END_NS)

    def holdings(self, place: Place) -> list[Holding]:
        """Return who had a queue, by time."""
        found = []
        for event in self.by_place[place]:
            if event.kind == "taken":
                back_ns = self.back_ns(place, event.process, event.epoch)
                to_ns = min(back_ns, self.ends.get(event.process, END_NS))
                found.append(Holding(event.process, event.epoch, event.at_ns, to_ns, back_ns))
        return found


def problems(story: Story, *, move_s: float = MOVE_S) -> list[str]:
    """Return everything in a trace that no run may have."""
    return [
        *unexpected_ends(story),
        *two_owners(story),
        *handed_out_by_others(story),
        *again_without_reason(story),
        *again_after_the_answer(story),
        *copies_after_the_ack(story),
        *other_content(story),
        *not_consumed(story),
        *out_of_order(story),
        *late_moves(story, move_s),
        *unlike_in_children(story),
        *in_spite_of_a_pause(story),
    ]


def unexpected_ends(story: Story) -> Iterator[str]:
    """A process that nobody killed ends well."""
    for event in story.events:
        if event.kind == "ended" and event.note != "0":
            yield f"process {event.process} ended with status {event.note}"


def two_owners(story: Story) -> Iterator[str]:
    """At every moment at most one living process has a queue, and the epochs count up."""
    for place in story.by_place:
        before: Holding | None = None
        for holding in story.holdings(place):
            if before is not None:
                if holding.from_ns < before.to_ns:
                    yield f"{_name(place)}: {holding} while {before}"
                if holding.epoch <= before.epoch:
                    yield f"{_name(place)}: the epoch of {holding} is not above that of {before}"
                if before.to_ns > holding.to_ns:
                    continue
            before = holding


def handed_out_by_others(story: Story) -> Iterator[str]:
    """Only the owner of a queue hands out its messages, and only while it has the queue."""
    for place, events in story.by_place.items():
        holdings = {(h.process, h.epoch): h for h in story.holdings(place)}
        for event in events:
            if event.kind == "out":
                holding = holdings.get((event.process, event.epoch))
                if holding is None or event.at_ns < holding.from_ns:
                    yield f"{_name(place)}: {event.process} handed out {event.offset} in epoch {event.epoch}, which it never had"
                # It may be reported later than another thread gives the queue back, but not have been asked for later.
                elif event.since_ns > holding.back_ns:
                    yield f"{_name(place)}: {event.process} handed out {event.offset} after it gave the queue back"


# --- again


def again_without_reason(story: Story) -> Iterator[str]:
    """A message is handed out again only after a nack, a release, its owner's death or `ack_wait`."""
    for message, events in story.by_message.items():
        if story.groups[message[0]].moved:
            continue
        first: Event | None = None
        for event in events:
            if event.kind != "out":
                continue
            if first is not None and not _has_reason(story, first, event, events):
                yield f"{_name(message)} was handed out by {_who(first)} and again by {_who(event)}, and nothing allows that"
            first = event


def _has_reason(story: Story, first: Event, again: Event, events: list[Event]) -> bool:
    rules = story.groups[first.group]
    until_ns = again.at_ns
    if first.epoch != again.epoch:
        until_ns = story.back_ns(first.place, first.process, first.epoch)
        if until_ns == END_NS:
            return first.process in story.killed and story.ends[first.process] < again.at_ns
        closings = story.closings[first.process, first.group]
        if any(first.since_ns <= at_ns <= until_ns for at_ns in closings):
            return True
    allowed = {"releasing", "lost", *(("nacking",) if rules.ordered else ())}
    since_ns = first.since_ns
    for event in events:
        if event.process == first.process and first.at_ns <= event.at_ns <= again.at_ns:
            if event.kind in allowed:
                return True
            if event.kind == "extending":
                since_ns = max(since_ns, event.at_ns)
    return until_ns - since_ns >= rules.ack_wait_s * SECOND_NS


def again_after_the_answer(story: Story) -> Iterator[str]:
    """What was acknowledged, or refused for good, is not handed out from the same queue again."""
    for message, events in story.by_message.items():
        if story.groups[message[0]].moved:
            continue
        answer: Event | None = None
        outs: dict[int, int] = defaultdict(int)
        for event in events:
            if _is_final(story, event, outs[event.epoch]):
                answer = answer or event
            elif event.kind == "out":
                outs[event.epoch] += 1
                # Another thread of the same process may have had it already when the answer came.
                if answer is not None and (
                    event.epoch > answer.epoch or event.since_ns > answer.at_ns
                ):
                    yield f"{_name(message)} was {answer.kind} by {_who(answer)}, and handed out again by {_who(event)}"


def _is_final(story: Story, event: Event, outs: int) -> bool:
    """Return whether an answer ends a message; one that had been handed out more than once may be refused in vain."""
    if event.kind == "acked":
        return True
    rules = story.groups[event.group]
    is_last = not rules.ordered or event.attempt > rules.max_retries
    return event.kind == "nacked" and is_last and outs == 1


def copies_after_the_ack(story: Story) -> Iterator[str]:
    """A message that a group has acknowledged comes again only as a copy made twice, for which the writer must have been killed.

    Refused and delayed messages are stored again when they are due; a writer that is killed then may do so twice.
    """
    kills = [
        event.at_ns
        for event in story.events
        if event.kind == "killed" and event.process.startswith("writer")
    ]
    begun: dict[str, int] = {}
    acked: dict[tuple[str, str], Event] = {}
    for event in story.events:
        if event.kind == "put":
            begun.setdefault(event.number, event.since_ns)
        elif event.kind == "acked":
            acked.setdefault((event.group, event.number), event)
        elif event.kind == "out":
            answer = acked.get((event.group, event.number))
            if answer is None or answer.message == event.message or story.groups[event.group].moved:
                continue
            at = bisect.bisect_right(kills, begun.get(event.number, -1))
            if at == len(kills) or kills[at] > event.at_ns:
                yield f"message {event.number} was acked by {_who(answer)} as {_name(answer.message)}, and comes again as {_name(event.message)}"


class Stored(NamedTuple):
    """A message in the store at the end: where it is, and what it is a copy of.

    Attributes:
        topic: the topic that holds it.
        target: the topic that it waits for; "" if it does not wait.
        number: what the message says of itself.
        tries: how often it was retried.
        stored_ms: when it was stored.
    """

    topic: str
    target: str
    number: str
    tries: int
    stored_ms: int


def stored_twice(
    messages: Iterable[Stored], topic: str, kills_ms: Sequence[int], moved: Container[str] = ()
) -> Iterator[str]:
    """One retry, or one dead letter, is stored for each refusal, and each delayed message is delivered once.

    A copy counts more than one try if consumers were killed with the message. A writer that is killed may deliver again what it had delivered shortly before.

    Args:
        messages: everything in the store.
        topic: the topic that the groups consume.
        kills_ms: when writers were killed, on the clock of `stored_ms`.
        moved: the groups that may refuse the same message again.
    """
    waiting: dict[tuple[str, str, int], int] = defaultdict(int)
    there: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for each in messages:
        if each.target:
            waiting[each.target, each.number, each.tries] += 1
        else:
            there[each.topic, each.number, each.tries].append(each.stored_ms)
    made = {key: count for key, count in waiting.items() if key[2]}
    made |= {key: len(times) for key, times in there.items() if key[0].startswith("%DLQ%")}
    for (target, number, tries), count in made.items():
        sources = [topic, f"%RETRY%{target.rpartition('%')[2]}"]
        refusals = sum(
            len(there.get((source, number, before), ()))
            for source in sources
            for before in range(tries)
        )
        if count > refusals and target.rpartition("%")[2] not in moved:
            yield f"message {number}, refused at try {tries} in {refusals} copies, was stored {count} times for {target}"
    for key, times in there.items():
        times.sort()
        if key in waiting and len(times) > waiting[key] and not _explains(kills_ms, times[0]):
            yield f"message {key[1]}, try {key[2]}, was delivered {len(times)} times to {key[0]}, at {times}, without a kill"


def _explains(kills_ms: Sequence[int], delivered_ms: int) -> bool:
    return any(delivered_ms - 1 <= kill <= delivered_ms + DELIVERED_AGAIN_MS for kill in kills_ms)


# --- all, and in order


def other_content(story: Story) -> Iterator[str]:
    """A message that was handed out stays what it is: no recovery of a killed writer's store removes it, or puts another in its place."""
    seen: dict[tuple[str, int, int], Event] = {}
    for event in story.events:
        if event.kind == "out" and event.topic not in story.deleted:
            first = seen.setdefault((event.topic, event.queue, event.offset), event)
            if first.number != event.number:
                yield f"{_name(event.message)}: {_who(event)} got message {event.number}, and {_who(first)} got {first.number}"


def not_consumed(story: Story) -> Iterator[str]:
    """Every stored message is consumed at least once, or becomes a dead letter; every acknowledged put is stored."""
    there = {(event.group, event.number) for event in story.events if event.kind == "exists"}
    for event in story.events:
        if event.kind == "put" and ("", event.number) not in there:
            yield f"message {event.number} was put by {event.process}, and is not in the store"
    for group in story.groups:
        # Some are in topics that only one group consumes.
        stored = {number for only, number in there if only in ("", group)}
        done = {
            event.number
            for event in story.events
            if event.group == group and event.kind in ("acking", "dead")
        }
        left = sorted(stored - done)
        if left:
            yield f"group {group} has not consumed {len(left)} of {len(stored)} messages: {left[:10]}"


def out_of_order(story: Story) -> Iterator[str]:
    """An ordered group gets a queue's messages in order, each after the one before was acknowledged or became a dead letter."""
    for place, events in story.by_place.items():
        if not story.groups[place[0]].ordered:
            continue
        following = 0
        for event in events:
            if event.kind == "out" and event.offset > following:
                yield f"{_name(place)}: {_who(event)} handed out {event.offset} before {following} was answered"
                following = event.offset
            if event.offset == following and _may_be_final(story, event):
                following += 1


def _may_be_final(story: Story, event: Event) -> bool:
    """Return whether an answer was begun that would be final, or the process was killed in the last try."""
    if event.kind == "acking":
        return True
    is_refused = event.kind == "nacking" or (event.kind == "out" and event.process in story.killed)
    return is_refused and event.attempt > story.groups[event.group].max_retries


# --- moves


def late_moves(story: Story, move_s: float) -> Iterator[str]:
    """The queues of a killed owner have another one soon, unless another member is killed or stopped meanwhile.

    The time counts anew from each such event, since the queue may just then have belonged to that member; it does not count while
    any member is stopped: a stopped member keeps its share. A queue whose topic is deleted is not there to be taken.
    """
    calm = CalmTimes(story)
    deletions = [event.at_ns for event in story.events if event.kind == "deleted"]
    for place in story.by_place:
        holdings = story.holdings(place)
        for at, holding in enumerate(holdings):
            died_ns = story.ends.get(holding.process, END_NS)
            if holding.process not in story.killed or holding.back_ns < died_ns:
                continue
            taken_ns = holdings[at + 1].from_ns if at + 1 < len(holdings) else calm.last_ns
            if place[1] in story.deleted:
                gone = (each for each in deletions if each > holding.from_ns)
                taken_ns = min(taken_ns, next(gone, END_NS))
            waited_s = calm.longest_ns(place[0], died_ns, taken_ns) / SECOND_NS
            if waited_s > move_s:
                yield f"{_name(place)} of {holding.process}, which was killed, had no owner for {waited_s:.1f} s"


class CalmTimes:
    """When the members of each group were the same, alive and not stopped."""

    def __init__(self, story: Story) -> None:
        self.last_ns = story.events[-1].at_ns if story.events else 0
        self._times: dict[str, list[tuple[int, int]]] = {}
        for group in story.groups:
            self._times[group] = list(self._of(story, group))

    def _of(self, story: Story, group: str) -> Iterator[tuple[int, int]]:
        members: dict[str, int] = {}
        stopped: set[str] = set()
        began_ns = 0
        for event in story.events:
            was_calm = bool(members) and not stopped
            # Also of a process that has not said yet that it joined; forked children never join.
            changes = "." not in event.process
            if event.group == group and event.kind in ("joined", "closing"):
                members[event.process] = members.get(event.process, 0) + (
                    1 if event.kind == "joined" else -1
                )
                if members[event.process] <= 0:
                    del members[event.process]
                changes = event.kind == "closing" or not was_calm
            elif event.kind == "stopped":
                stopped.add(event.process)
            elif event.kind in ("killed", "ended", "continued"):
                stopped.discard(event.process)
                if event.kind != "continued":
                    members.pop(event.process, None)
            else:
                continue
            if not changes:
                continue
            if was_calm:
                yield began_ns, event.at_ns
            began_ns = event.at_ns
        if members and not stopped:
            yield began_ns, self.last_ns

    def longest_ns(self, group: str, from_ns: int, to_ns: int) -> int:
        """Return the longest calm time between two moments."""
        return max(
            (
                min(end, to_ns) - max(begin, from_ns)
                for begin, end in self._times[group]
                if end > from_ns and begin < to_ns
            ),
            default=0,
        )


# --- forked children


def unlike_in_children(story: Story) -> Iterator[str]:
    """A forked child gets nothing from the consumers and the store of its parent, and is told so at once."""
    for event in story.events:
        if event.kind == "child-out":
            yield f"{event.process}, a forked child, got {event.note}"
        elif event.kind == "hung":
            yield f"{event.process}, a forked child, hangs: {event.note}"


def in_spite_of_a_pause(story: Story) -> Iterator[str]:
    """A consumer hands out nothing of a topic that it has paused."""
    for event in story.events:
        if event.kind == "paused-out":
            yield f"{_name(event.message)} was handed out by {_who(event)}, which had paused the topic"


def _name(place: tuple[object, ...]) -> str:
    return "/".join(map(str, place))


def _who(event: Event) -> str:
    return f"{event.process} in epoch {event.epoch} at {event.at_ns / SECOND_NS:.3f}"


def figures(story: Story) -> dict[str, int]:
    """Return how often what happened, so that a run that tries nothing is noticed."""
    found: dict[str, int] = defaultdict(int)
    for event in story.events:
        found[event.kind] += 1
    for events in story.by_message.values():
        outs = [event for event in events if event.kind == "out"]
        for first, again in itertools.pairwise(outs):
            if first.epoch == again.epoch:
                found["again in an epoch"] += 1
            elif first.process in story.killed:
                found["again after a kill"] += 1
            else:
                found["again after a hand-back"] += 1
    return dict(found)
