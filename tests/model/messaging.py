"""What messaging must do: the records that topics get and will get, and which of them each group has answered.

The model knows records and when they are due, and no journals, marks or tables of progress. A record is one of a topic
that programs read, or one that waits in a topic of the store. Each is there because of something: nothing appears that
was not promised, nothing twice, and nothing before its time.
"""

from collections.abc import Callable

import attrs

Place = tuple[str, int]
LEVELS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
WAITING, TIMERS = "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"
HALVES, REMOVALS = ("RMQ_SYS_TRANS_HALF_TOPIC", 0), ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0)
NEVER_MS = 1 << 60
FIRST_RETRY = 3


def retries_of(group: str) -> str:
    """Return the topic of a group's retries."""
    return f"%RETRY%{group}"


def letters_of(group: str) -> str:
    """Return the topic of a group's dead letters."""
    return f"%DLQ%{group}"


@attrs.frozen(eq=False)
class Record:
    """A record that the store has; `first` is the place, by topic and id, of the message that it is a copy of."""

    place: Place
    offset: int
    log_offset: int
    body: bytes
    tag: str
    tries: int
    first: tuple[str, str]
    # Where it goes and when, if it waits.
    target: Place | None
    due_ms: int


@attrs.define(eq=False)
class Promise:
    """A record that is to appear, and has if `made`.

    Attributes:
        due_ms: when.
        source: the record that it comes of: one that waits, or one that a group has refused.
        half: the prepared message that it comes of.
        group: the group that has refused the source.
        is_sure: the step in which it was refused has ended, so that no crash takes that back.
        cancelled_at: where the log ended when it was cancelled.
    """

    place: Place
    body: bytes
    tries: int = 0
    target: str = ""
    due_ms: int = 0
    source: Record | None = None
    half: "Half | None" = None
    group: str = ""
    is_sure: bool = False
    cancelled_at: int = -1
    made: Record | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is still to come."""
        return self.made is None and self.cancelled_at < 0

    def fits(self, record: Record) -> bool:
        """Return whether a record is this one."""
        target = record.target[0] if record.target else ""
        given = record.place, record.body, record.tries, target
        return self.is_open and given == (self.place, self.body, self.tries, self.target)


@attrs.define(eq=False)
class Half:
    """A prepared message: when it is asked about next, how often it was, and what it was finished by.

    `left` are its older copies whose removal a crash may have taken, and nobody writes again.
    """

    body: bytes
    place: Place
    due_ms: int
    born_ms: int
    answers: tuple[str | None, ...]
    asked: int = 0
    in_block: bool = False
    outcome: str = ""
    left: set[int] = attrs.Factory(set)


@attrs.define
class Position:
    """How far a group is in a queue.

    Attributes:
        done: the offsets that it does not get again: acknowledged, refused, given up, or passed by `seek`.
        synced: those of them that a power cut leaves so.
        maybe: offsets that it gets again or not: nobody can know.
        deaths: of an offset, how many consumers at least and at most have died with it.
        counted: how many of them the group is known to have counted.
    """

    done: set[int] = attrs.Factory(set)
    synced: set[int] = attrs.Factory(set)
    maybe: set[int] = attrs.Factory(set)
    deaths: dict[int, tuple[int, int]] = attrs.Factory(dict)
    counted: dict[int, int] = attrs.Factory(dict)

    def copy(self) -> "Position":
        """Return a position that stays as this one is now."""
        return attrs.evolve(
            self, done=set(self.done), synced=set(self.synced), maybe=set(self.maybe), deaths=dict(self.deaths),
            counted=dict(self.counted),
        )  # fmt: skip

    def finish(self, offset: int, *, sync: bool = True) -> None:
        """Count a message as answered; a sync makes all answers before durable, too."""
        self.done.add(offset)
        self.maybe.discard(offset)
        if sync:
            self.synced |= self.done

    def seek(self, offset: int) -> None:
        """Go on at an offset."""
        self.done, self.maybe, self.deaths, self.counted = set(range(offset)), set(), {}, {}
        self.synced = set(self.done)

    def cut(self, end: int) -> None:
        """Forget the messages from an offset on."""
        for known in (self.done, self.synced, self.maybe):
            known -= {each for each in known if each >= end}
        self.deaths = {each: count for each, count in self.deaths.items() if each < end}
        self.counted = {each: count for each, count in self.counted.items() if each < end}

    def doubt(self, before: "Position", *, is_kill: bool) -> None:
        """Make this what may have survived a crash in a step that began with `before`."""
        kept = before.done & self.done if is_kill else before.synced & self.synced
        self.maybe = (before.done | self.done | before.maybe | self.maybe) - kept
        self.done, self.synced = kept, set(kept)
        for offset in before.deaths.keys() - self.deaths.keys():
            self.deaths[offset] = 0, before.deaths[offset][1]
        if not is_kill:
            # What was given, given back and counted is not on disk yet, or a part of it.
            self.deaths = {
                each: (min(least, self.counted.get(each, 0), before.counted.get(each, 0)), most + 1)
                for each, (least, most) in self.deaths.items()
            }


@attrs.define
class Model:
    """All that was promised.

    Attributes:
        records: of each queue, what it has, by queue offset.
        promises: what has appeared, and what is to.
        halves: by transaction id.
        positions: of a group, topic and queue.
    """

    records: dict[Place, list[Record]] = attrs.Factory(dict)
    promises: list[Promise] = attrs.Factory(list)
    halves: dict[str, Half] = attrs.Factory(dict)
    positions: dict[tuple[str, Place], Position] = attrs.Factory(dict)

    def position(self, group: str, place: Place) -> Position:
        """Return where a group is; it begins at the first message."""
        return self.positions.setdefault((group, place), Position())

    def base(self, group: str, place: Place) -> int:
        """Return the offset of the first message that a group has not answered."""
        done = self.position(group, place).done
        return next(each for each in range(len(done) + 1) if each not in done)

    # --- what is to come

    def refuse(self, group: str, record: Record, tries: int, level: int, most: int) -> None:
        """Promise the retry or the dead letter of a message whose try number `tries` has failed; 0 is no level."""
        if tries > most:
            place, target = (letters_of(group), 0), ""
        else:
            level = level or min(FIRST_RETRY + tries - 1, len(LEVELS_S))
            place, target = (WAITING, level - 1), retries_of(group)
        self.promises.append(Promise(place, record.body, tries, target, source=record, group=group))

    def see(self, record: Record, now_ms: int) -> Promise:
        """Take a record that has appeared, which must have been promised, and be due."""
        queue = self.records.setdefault(record.place, [])
        assert record.offset == len(queue), f"{record} where the queue has {len(queue)}"
        found = [each for each in self.promises if each.fits(record)]
        assert found, f"nobody put {record}"
        # A message that was refused twice, after a `seek`, has two.
        promise = min(found, key=lambda each: each.due_ms)
        assert promise.due_ms <= now_ms, f"{promise.due_ms - now_ms} ms too early: {record}"
        if promise.source is not None:
            self._check_order(promise)
            if record.tries:
                record = attrs.evolve(record, first=promise.source.first)
        promise.made = record
        queue.append(record)
        if record.target is not None:
            self.promises.append(
                Promise(
                    record.target, record.body, record.tries, due_ms=record.due_ms, source=record
                )
            )
        return promise

    def _check_order(self, promise: Promise) -> None:
        """What waits at one level is delivered in the order of the puts, and what waits for a time in that of times."""
        assert promise.source is not None
        place = promise.source.place
        for other in self.promises:
            if other.source is None or other.source.place != place or not other.is_open:
                continue
            is_before = place[0] == WAITING and other.source.offset < promise.source.offset
            is_sooner = place[0] == TIMERS and other.due_ms < promise.due_ms
            assert not is_before, f"{promise} before {other}"
            assert not is_sooner, f"{promise} before {other}"

    def overdue(self, now_ms: int) -> list[Promise]:
        """Return what should be there by now."""
        return [each for each in self.promises if each.is_open and each.due_ms <= now_ms]

    def next_due_ms(self, now_ms: int) -> int:
        """Return when something is to appear or to be asked about next."""
        times = [each.due_ms for each in self.promises if each.is_open]
        times += [half.due_ms for half in self.halves.values() if not half.outcome]
        return min((each for each in times if each > now_ms), default=now_ms)

    # --- prepared messages

    def finish(self, half: Half, outcome: str) -> None:
        """Commit a prepared message, or roll it back."""
        half.outcome = outcome
        if outcome == "commit":
            self.promises.append(Promise(half.place, half.body, half=half))

    def copies(self, half: Half) -> list[Record]:
        """Return the copies of a prepared message: each check makes one."""
        return [each for each in self.records.get(HALVES, []) if each.body == half.body]

    def is_open(self, half: Half) -> bool:
        """Return whether the log says neither that a prepared message was finished nor has its commit."""
        removed = {int(each.body) for each in self.records.get(REMOVALS, [])}
        is_committed = any(each.half is half and each.made is not None for each in self.promises)
        known = removed | half.left
        return not is_committed and any(each.offset not in known for each in self.copies(half))

    # --- what is lost

    def cut(self, end: int) -> None:
        """Lose the records from a log offset on."""
        for place, queue in self.records.items():
            self.records[place] = [each for each in queue if each.log_offset < end]
        for promise in self.promises:
            if promise.made is not None and promise.made.log_offset >= end:
                promise.made = None
            if promise.cancelled_at >= end:
                promise.cancelled_at = -1
        self._keep(lambda each: each.source is None or each.source.log_offset < end)
        self._keep(lambda each: each.made or each.source or each.half)
        for name, half in list(self.halves.items()):
            copies = self.copies(half)
            half.left = {each.offset for each in copies[:-1]}
            if not copies:
                del self.halves[name]
            elif half.outcome and self.is_open(half):
                half.outcome = ""
                self.promises = [
                    p for p in self.promises if p.half is not half or p.made is not None
                ]
            half.asked = len(copies) - 1

    def settle(self) -> None:
        """Take over which messages were refused in the step in which all crashed: those that have retries now."""
        for promise in [each for each in self.promises if each.group and not each.is_sure]:
            assert promise.source is not None
            position, offset = (
                self.position(promise.group, promise.source.place),
                promise.source.offset,
            )
            position.maybe.discard(offset)
            if promise.made is not None:
                position.finish(offset)
            else:
                self.promises.remove(promise)

    def _keep(self, wanted: Callable[[Promise], object]) -> None:
        self.promises = [each for each in self.promises if wanted(each)]

    def delete_topic(self, topic: str) -> None:
        """Forget the messages of a topic, and where groups are in it."""
        for place in [each for each in self.records if each[0] == topic]:
            del self.records[place]
        for key in [each for each in self.positions if each[1][0] == topic]:
            del self.positions[key]

    def delete_group(self, group: str) -> None:
        """Forget where a group is."""
        for key in [each for each in self.positions if each[0] == group]:
            del self.positions[key]
