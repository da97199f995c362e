"""Plays stories of messaging: members of groups in two processes get what `producers` puts, and answer; all may crash.

What a member gets is compared each time that it gets something.
"""

from contextlib import suppress
from random import Random

import attrs
from tests.model.messaging import LEVELS_S, Place, Position, Record, retries_of
from tests.model.producers import QUEUES, TOPICS, Producing
from tests.model.worlds import Crew, DiskWorld, World

from penstock import Store
from penstock.contracts import ConsumedMessage, Consumer
from penstock.errors import AlreadyAnsweredError, PenstockError, QueueHeldError
from penstock.testing import KilledError

WEIGHTS = {
    "put": 16, "delay": 8, "cancel": 2, "transaction": 6, "move": 5, "prepare": 6, "finish": 6, "join": 8, "leave": 4,
    "poll": 16, "drain": 16, "ack": 14, "nack": 12, "release": 4, "extend": 2, "late": 4, "seek": 5, "pause": 2,
    "tick": 20, "lag": 4, "flush": 2, "delete_topic": 2, "delete_group": 1, "commit": 2, "guest": 2, "close": 3,
    "kill": 4, "cut": 10, "doom": 4,
}  # fmt: skip
GROUPS = "g", "h"
ACK_WAIT_MS = 20_000


@attrs.define(eq=False)
class Given:
    """One delivery of a message."""

    message: ConsumedMessage
    place: Place
    offset: int
    since_ms: int


@attrs.define(eq=False)
class Member:
    """A member of a group.

    Attributes:
        out: what it has and has not answered.
        late: what it had: it was redelivered since, or is answered.
        reached: of each queue that it has, the first offset that it was not given or passed yet.
    """

    group: str
    consumer: Consumer
    is_guest: bool
    out: dict[tuple[Place, int], Given] = attrs.Factory(dict)
    late: list[Given] = attrs.Factory(list)
    reached: dict[Place, int] = attrs.Factory(dict)
    paused: set[str] = attrs.Factory(set)

    def lose(self, place: Place) -> None:
        """Forget a queue."""
        self.reached.pop(place, None)
        for key in [each for each in self.out if each[0] == place]:
            del self.out[key]
        self.late = [each for each in self.late if each.place != place]


@attrs.frozen
class Rules:
    """The options of all consumers of a group."""

    tag: str
    max_retries: int
    max_in_flight: int

    def wants(self, record: Record) -> bool:
        """Return whether members get a record; retries are not filtered."""
        words = [word.strip() for word in self.tag.split("||")]
        return self.tag == "*" or record.place[0].startswith("%") or record.tag in words


class Messaging(Producing):
    """One story: a store, the members of its groups, and the model."""

    weights = WEIGHTS

    def __init__(self, world: World) -> None:
        self.rules = {
            group: Rules(
                world.chance.choice(("*", "*", "red || Aa")),
                world.chance.choice((0, 1, 1, 2)), world.chance.choice((2, 1000)),
            )
            for group in GROUPS
        }  # fmt: skip
        self.members: list[Member] = []
        self.guest: tuple[Store, Crew] | None = None
        # When the step began; and what members were given in it.
        self._before: dict[tuple[str, Place], Position] = {}
        self._held: dict[tuple[str, Place, int], Given] = {}
        self._given_since: set[tuple[str, Place, int]] = set()
        super().__init__(world)

    # --- steps

    def _remember(self) -> None:
        super()._remember()
        self._before = {key: each.copy() for key, each in self.model.positions.items()}
        self._held = self._out()
        self._given_since = set()

    def _out(self) -> dict[tuple[str, Place, int], Given]:
        return {(m.group, *key): given for m in self.members for key, given in m.out.items()}

    def _look(self) -> None:
        self._see()
        for member in self.members:
            self._look_at(member)

    def _end(self) -> None:
        for member in self.members:
            member.consumer.close()
        if self.guest is not None:
            self.guest[0].close()
        self.store.close()

    def _look_at(self, member: Member) -> None:
        """Take over which queues a member has lost."""
        has = set(member.consumer.assignment())
        for place in {*member.reached, *(key[0] for key in member.out)} - has:
            member.lose(place)
        others = [m for m in self.members if m.group == member.group and m is not member]
        for other in others:
            both = has & set(other.consumer.assignment())
            assert not both, f"two members have {both}"

    # --- time

    def _round(self) -> None:
        super()._round()
        if self.guest is not None:
            self.guest[1].run_all()
        for member in self.members:
            self._look_at(member)

    def _tick(self, chance: Random) -> None:
        times = [each.since_ms + ACK_WAIT_MS for m in self.members for each in m.out.values()]
        due_ms = min(
            [self.model.next_due_ms(self.now), *(each for each in times if each > self.now)]
        )
        ms = chance.choice((500, 1000, 10_000, ACK_WAIT_MS, 120_000, due_ms - self.now))
        if ms == due_ms - self.now and ms > 0:
            self._pass(ms - 1)
            self._see()
            self._pass(1)
        else:
            self._pass(ms)
        self._see()
        assert not self.model.overdue(self.now), f"not there: {self.model.overdue(self.now)[0]}"
        halves = self.model.halves.values()
        late = [h for h in halves if not h.outcome and h.due_ms <= self.now]
        assert not late, f"nobody was asked about {late[0]}"
        for member in [each for each in self.members if any(map(self._is_late, each.out.values()))]:
            self._get_all(member, chance)
        if ms >= 1000:
            for position in self.model.positions.values():
                position.synced |= position.done
            for group in GROUPS:
                self._check_shares(group)

    def _check_shares(self, group: str) -> None:
        mine = [each for each in self.members if each.group == group]
        for member in mine:
            self._look_at(member)
        if not mine or any(each.out for each in mine):
            return
        there = self.store.topics(system=True)
        wanted = {(t, q) for t in (*TOPICS, retries_of(group)) for q in there.get(t, ())}
        has = [set(each.consumer.assignment()) for each in mine]
        owned = {place for each in has for place in each}
        assert wanted <= owned, f"nobody has {wanted - owned}"
        counts = sorted(map(len, has))
        assert counts[-1] - counts[0] <= 1, f"shares of {counts}"

    # --- members

    def _join(self, chance: Random) -> None:
        group, rules = chance.choice(GROUPS), None
        if sum(each.group == group for each in self.members) > 2:
            return
        rules = self.rules[group]
        is_guest = chance.random() < 0.3
        if is_guest and self.guest is None:
            self.guest = self.world.beside()
        store = self.guest[0] if is_guest and self.guest else self.store
        consumer = store.consumer(
            group, TOPICS, tag=rules.tag, max_retries=rules.max_retries, max_in_flight=rules.max_in_flight,
            ack_wait=ACK_WAIT_MS / 1000,
        )  # fmt: skip
        self.members.append(Member(group, consumer, is_guest))

    def _guest(self, _chance: Random) -> None:
        """Let the second process end."""
        if self.guest is not None:
            self.guest[0].close()
            self.guest = None
            self._drop([each for each in self.members if each.is_guest])

    def _leave(self, chance: Random) -> None:
        if self.members:
            member = chance.choice(self.members)
            member.consumer.close()
            self._drop([member])

    def _drop(self, members: list[Member]) -> None:
        self.members = [each for each in self.members if each not in members]

    def _any(self, chance: Random) -> Member:
        if not self.members:
            self._join(chance)
        return chance.choice(self.members)

    # --- what a member gets

    def _poll(self, chance: Random) -> None:
        member = self._any(chance)
        self._round()
        self._look()
        self._get(member, chance.choice((1, 2, 100)))

    def _drain(self, chance: Random) -> None:
        self._get_all(self._any(chance), chance)

    def _get_all(self, member: Member, chance: Random) -> None:
        """Get all that there is."""
        # The second time, with the queues that are new; and a dead letter of a guest is put by the writer in between.
        for _ in range(3):
            self._round()
            self._look()
            while self._get(member, chance.choice((1, 2, 100))):
                pass
        self._exhausted(member)

    def _get(self, member: Member, limit: int) -> bool:
        got = member.consumer.poll(limit, timeout=0)
        assert len(got) <= limit
        for message in got:
            self._given(member, message)
        unanswered = [each for each in member.out.values() if not self._is_late(each)]
        assert len(unanswered) <= self.rules[member.group].max_in_flight
        return bool(got)

    def _is_late(self, given: Given) -> bool:
        return self.now - given.since_ms >= ACK_WAIT_MS

    def _given(self, member: Member, message: ConsumedMessage) -> None:
        place, offset = (message.stored.topic, message.queue), message.queue_offset
        record, position = (
            self.model.records[place][offset],
            self.model.position(member.group, place),
        )
        assert message.body == record.body
        assert (message.topic, message.message_id) == record.first
        assert self.rules[member.group].wants(record)
        assert message.topic not in member.paused
        assert place in member.consumer.assignment(), f"{place} is not this member's"
        assert offset not in position.done, f"{record} was answered"
        least, most = position.deaths.get(offset, (0, 0))
        deaths = message.attempt - 1 - record.tries
        assert least <= deaths <= most, f"attempt {message.attempt} of {record}: {least} to {most}"
        position.deaths[offset], position.counted[offset] = (deaths, deaths), deaths
        position.maybe.discard(offset)
        for other in self.members:
            given = other.out.get((place, offset)) if other.group == member.group else None
            if given is not None:
                assert other is member, f"{record} is another member's"
                assert self._is_late(given), f"{record} is not answered, and has its time"
                member.late.append(given)
        if deaths and message.attempt > self.rules[member.group].max_retries:
            beside = [each for key, each in member.out.items() if key != (place, offset)]
            assert all(map(self._is_late, beside)), f"the last try of {record} is not alone"
        self._check_order(member, place, offset)
        member.out[place, offset] = Given(message, place, offset, self.now)
        self._given_since.add((member.group, place, offset))

    def _check_order(self, member: Member, place: Place, offset: int) -> None:
        """What was not given before is given in the order of the queue."""
        position, rules = self.model.position(member.group, place), self.rules[member.group]
        for before in range(member.reached.get(place, 0), offset):
            record = self.model.records[place][before]
            if before in position.maybe and not self._is_dead(member.group, record):
                position.finish(before, sync=False)
            is_open = before not in position.done and rules.wants(record)
            is_open &= record.first[0] not in member.paused
            assert not is_open or self._is_dead(member.group, record), f"{record} was left out"
        member.reached[place] = max(member.reached.get(place, 0), offset + 1)

    def _is_dead(self, group: str, record: Record) -> bool:
        """Return whether so many consumers have died with a message that it is given up."""
        deaths = self.model.position(group, record.place).deaths.get(record.offset, (0, 0))[1]
        return deaths > 1 and record.tries + deaths > self.rules[group].max_retries

    def _explain(self, group: str, letter: Record) -> None:
        """Promise a dead letter if it is one of a message whose consumers have died."""
        if any(each.fits(letter) for each in self.model.promises):
            return
        for (name, place), position in self.model.positions.items():
            for offset in position.deaths if name == group else ():
                record = self.model.records[place][offset]
                is_it = record.body == letter.body and offset not in position.done
                if is_it and self._is_dead(group, record):
                    position.finish(offset)
                    self.model.refuse(group, record, letter.tries, 0, -1)
                    return

    def _may_be_alone(self, member: Member, place: Place) -> bool:
        """Return whether a message of a queue may be one that is given only while nothing else is."""
        position, most = (
            self.model.position(member.group, place),
            self.rules[member.group].max_retries,
        )
        return any(
            offset not in position.done and deaths and self.model.records[place][offset].tries + deaths >= most
            for offset, (_, deaths) in position.deaths.items()
        )  # fmt: skip

    def _exhausted(self, member: Member) -> None:
        """Hold that a member which gets nothing has got all of its queues."""
        rules, has = self.rules[member.group], member.consumer.assignment()
        is_full = len(member.out) >= rules.max_in_flight
        is_shared = sum(each.group == member.group for each in self.members) > 1
        if member.out and any(self._may_be_alone(member, each) for each in has):
            return
        for place in has:
            position = self.model.position(member.group, place)
            busy = {key[1] for key in member.out if key[0] == place}
            if is_full or member.paused or (busy and is_shared):
                continue
            for record in self.model.records.get(place, []):
                offset = record.offset
                if offset in position.done or not rules.wants(record):
                    continue
                if offset in busy:
                    assert not self._is_late(member.out[place, offset]), f"{record} is late"
                    continue
                if self._is_dead(member.group, record):
                    continue
                assert offset in position.maybe, f"{record} is not given to group {member.group}"
                position.finish(offset, sync=False)

    # --- what a member answers

    def _some(self, chance: Random, *, own: bool = False) -> tuple[Member, list[Given]] | None:
        if not any(each.out for each in self.members):
            self._drain(chance)
        members = [each for each in self.members if each.out and not (own and each.is_guest)]
        if not members:
            return None
        member = chance.choice(members)
        out = list(member.out.values())
        return member, chance.sample(out, min(len(out), chance.choice((1, 1, 3, 100))))

    def _ack(self, chance: Random) -> None:
        found = self._some(chance)
        if found is not None:
            member, some = found
            sync = chance.random() < 0.6
            member.consumer.ack([each.message for each in some], sync=sync)
            self._answered(member, some, sync=sync)

    def _answered(self, member: Member, some: list[Given], *, sync: bool = True) -> None:
        for each in some:
            self.model.position(member.group, each.place).finish(each.offset, sync=sync)
            member.out.pop((each.place, each.offset), None)
            member.late.append(each)

    def _nack(self, chance: Random) -> None:
        found = self._some(chance)
        if found is not None:
            member, some = found
            level = chance.choice((0, 0, 1, 3, 5))
            delay = LEVELS_S[level - 1] - chance.choice((0, 0.5)) if level else None
            for each in some:
                record = self.model.records[each.place][each.offset]
                most = self.rules[member.group].max_retries
                self.model.refuse(member.group, record, each.message.attempt, level, most)
            member.consumer.nack([each.message for each in some], delay=delay)
            self._answered(member, some)

    def _release(self, chance: Random) -> None:
        found = self._some(chance)
        if found is not None:
            member, some = found
            member.consumer.release([each.message for each in some])
            for each in some:
                del member.out[each.place, each.offset]
            again = member.consumer.poll(len(some), timeout=0)
            for message in again:
                self._given(member, message)
            keys = {(each.place, each.offset) for each in some}
            places = [((m.stored.topic, m.queue), m.queue_offset) for m in again]
            for place in {each.place for each in some}:
                back = [each for each in places if each in keys and each[0] == place]
                assert back == sorted(back), f"given back, and out of order: {back}"

    def _extend(self, chance: Random) -> None:
        found = self._some(chance)
        if found is not None:
            member, some = found
            member.consumer.extend([each.message for each in some])
            for each in some:
                if not self._is_late(each):
                    each.since_ms = self.now

    def _late(self, chance: Random) -> None:
        """Answer what was redelivered since, or answered."""
        member = self._any(chance)
        if not member.late:
            return
        given = chance.choice(member.late)
        position, key = self.model.position(member.group, given.place), (given.place, given.offset)
        is_open = given.offset not in position.done
        try:
            if chance.random() < 0.5:
                # As long as nobody has it, this may count.
                if key not in member.out or not self._is_late(member.out[key]):
                    member.consumer.nack(given.message)
                return
            member.consumer.ack(given.message)
        except AlreadyAnsweredError:
            assert not is_open, "nobody has answered"
            return
        if is_open:
            position.finish(given.offset)
            if key in member.out:
                member.late.append(member.out.pop(key))

    def _move(self, chance: Random) -> None:
        """Acknowledge and put in one transaction."""
        found = self._some(chance, own=True)
        if found is None:
            return
        member, some = found
        given = [self._message(chance) for _ in range(chance.randint(1, 3))]
        fails = chance.random() < 0.3
        with suppress(ZeroDivisionError), self.store.transaction() as tx:
            tx.put_many(given)
            tx.ack([each.message for each in some])
            if fails:
                raise ZeroDivisionError
        if fails:
            for each in some:
                each.since_ms = self.now
            return
        for message in given:
            self._promise(message)
        self._synced = max(self._synced, tx.receipts[-1].log_offset + tx.receipts[-1].size)
        self._answered(member, some)

    def _seek(self, chance: Random) -> None:
        member = self._any(chance)
        self._round()
        places = member.consumer.assignment()
        if not places or any(key[0] in places for key in member.out):
            return
        place = chance.choice(places)
        end = len(self.model.records.get(place, []))
        offset = chance.randint(0, end)
        member.consumer.seek(*place, offset=offset)
        self.model.position(member.group, place).seek(offset)
        member.lose(place)
        member.reached[place] = offset

    def _pause(self, chance: Random) -> None:
        member = self._any(chance)
        if member.paused:
            member.consumer.resume()
            member.paused.clear()
        else:
            topic = chance.choice(TOPICS)
            member.consumer.pause(topic)
            member.paused.add(topic)

    def _lag(self, _chance: Random) -> None:
        self._pass(0)
        self._see()
        for member in self.members:
            if self.rules[member.group].tag != "*":
                continue
            for lag in member.consumer.lag():
                place = lag.topic, lag.queue
                position = self.model.position(member.group, place)
                count = len(self.model.records.get(place, []))
                dead = sum(
                    self._is_dead(member.group, r)
                    for r in self.model.records.get(place, [])
                    if r.offset not in position.done
                )
                if not (position.maybe or dead):
                    expected = self.model.base(member.group, place), count - len(position.done)
                    assert (lag.offset, lag.lag) == expected, f"{lag}, and not {expected}"

    # --- deleting, and other programs

    def _calm(self) -> None:
        """Let all be done that is to be, so that what is deleted then is known."""
        self.world.work()
        self._pass(0)
        self._see()

    def _delete_topic(self, chance: Random) -> None:
        topic = chance.choice(TOPICS)
        if topic not in self.store.topics() or self._is_doomed():
            return
        self._calm()
        self.store.delete_topic(topic)
        self.model.delete_topic(topic)
        for member in self.members:
            for queue in range(QUEUES):
                member.lose((topic, queue))
        # That messages which have waited were delivered to it is known by their copies until it is saved.
        for _ in range(2):
            self._pass(1000)

    def _delete_group(self, chance: Random) -> None:
        group = chance.choice(GROUPS)
        if self._is_doomed():
            return
        self._calm()
        if any(each.group == group for each in self.members):
            with suppress(QueueHeldError):
                self.store.delete_group(group)
                raise AssertionError("deleted, and it has members")
        else:
            self.store.delete_group(group)
            self.model.delete_group(group)

    def _commit(self, chance: Random) -> None:
        """Let another program commit an offset of a group without members."""
        group, place = chance.choice(GROUPS), (chance.choice(TOPICS), chance.randrange(QUEUES))
        count = len(self.model.records.get(place, []))
        if not count or self._is_doomed() or any(each.group == group for each in self.members):
            return
        self._calm()
        offset = chance.randint(0, count)
        if self.store.committed_offset(group, *place) != offset:
            self.store.commit_offset(group, *place, offset=offset)
            self.model.position(group, place).seek(offset)
            self._calm()

    def _is_doomed(self) -> bool:
        return isinstance(self.world, DiskWorld) and self.world.files.plan.watch is not None

    # --- ending, coming back

    def _close(self, _chance: Random) -> None:
        self.store.close()
        self._drop([each for each in self.members if not each.is_guest])
        for position in self.model.positions.values():
            position.synced |= position.done
        self._open()
        report = self.store.recovery
        assert report is not None
        assert (report.state, report.mended) == ("clean", ()), f"after a close: {report}"
        self._synced = self.store.stats()["flushed_offset"]
        self._take_halves()
        self._see()
        self._check_committed()

    def _check_committed(self) -> None:
        """Hold that another program goes on where a group is."""
        for (group, place), position in self.model.positions.items():
            committed = self.store.committed_offset(group, *place) or 0
            base = self.model.base(group, place)
            dead = [
                each for each in self.model.records.get(place, [])
                if each.offset not in position.done and self._is_dead(group, each)
            ]  # fmt: skip
            if self.rules[group].tag == "*" and not (position.maybe or dead):
                assert committed == base, f"{committed} is committed of {group}, {place}: {base}"

    def _reconcile(self, *, is_kill: bool) -> None:
        super()._reconcile(is_kill=is_kill)
        if self.world.chance.random() < 0.7:
            self._join(self.world.chance)
            self._get_all(self.members[0], self.world.chance)

    def _forget(self, *, is_kill: bool) -> None:
        """All that a member has counts as tried: surely, if only the process has died."""
        held = self._out()
        for key in {*held, *self._held, *self._given_since} if is_kill else ():
            group, place, offset = key
            position = self.model.position(group, place)
            least, most = position.deaths.get(offset, (0, 0))
            is_sure = key in held and held[key] is self._held.get(key)
            position.deaths[offset] = least + is_sure, most + 1
        _free([*(each.consumer for each in self.members), *self._dead, *(self.guest or ())[:1]])
        self.members, self.guest, self._dead = [], None, []
        for at, known in self.model.positions.items():
            known.doubt(self._before.get(at, Position()), is_kill=is_kill)
            known.cut(len(self.model.records.get(at[1], [])))


def _free(opened: list[Consumer | Store]) -> None:
    """Free what consumers and stores of a dead process keep; each call goes on where the last one has failed."""
    for _ in range(2 * QUEUES * len(TOPICS)):
        for each in opened:
            with suppress(KilledError, PenstockError, OSError):
                each.close()
