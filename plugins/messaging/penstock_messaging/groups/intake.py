"""Takes the journals of all groups in: raises the committed offsets, and turns refused messages into retries.

Only the process that holds the store for writing does this: it is woken when a member, of any process, has refused
messages, synced acknowledgements, or given a queue back. The first answer is taken in at once, and those of the next
`GAP_S` together, so that the files are not written too often. It looks by itself every `INTERVAL_S` while a group has
members, and not at all otherwise. For each group, in this order:

    1. marks: which events are pending, and from which committed offset to which
    2. the retries of refused messages, and a flush
    3. the committed offsets of all queues, in one write
    4. marks: the events are taken in

A kill between two of them is harmless. After 1, the next round finds pending events, and looks for their retries in the
log from the mark's log offset on, by first message id and number of tries. After 2 it finds them. After 3 the committed
offset is the mark's new one. If there are no events, the fourth step is left to the next round.

A journal may speak of messages beyond the end of its queue, which were lost with the log's tail. That is dropped:
from the journal, if it has no owner; else the queue gets another generation, so that the owner loses it. So it does if
somebody else has moved the committed offset. So may the start of a group be, which is lowered before the first put.
"""

import threading
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import attrs

from penstock import Message, StoredMessage
from penstock.contracts import WorkWakes
from penstock.errors import MessageError, PenstockError, StorageError
from penstock.escape import get_logger
from penstock_messaging.groups.entries import GROUP_SETTING
from penstock_messaging.groups.fold import Nack, merged
from penstock_messaging.groups.journal_cursor import JournalCursor
from penstock_messaging.groups.marks import Mark, Marks, usable_marks, write_marks
from penstock_messaging.groups.members import living_members
from penstock_messaging.groups.paths import GroupPaths, groups_of
from penstock_messaging.groups.position import (
    VOIDED_BITS,
    GroupProgress,
    level_of,
    resolve_position,
)
from penstock_messaging.groups.reset import delete_group
from penstock_messaging.groups.retries_made import RetriesMade
from penstock_messaging.groups.starts import lower_starts
from penstock_messaging.groups.taking import Groups

logger = get_logger(__name__)

INTERVAL_S = 1.0
# The pause after something was taken in; longer if that takes long, so that at most a tenth of the time goes into it.
GAP_S = 0.1
_GAP_ROUNDS = 10
# Refused messages of one group that are read, copied and flushed together.
_NACKS_MAX = 4096
# Bodies of copies that are put together.
_COPY_BYTES = 8 << 20
Copy = tuple[Message, bytes]
_DROPPED, _KEPT = "dropped", "not taken in yet"
_LOST = "it is about messages that were lost with the end of the log"


class Retries(Protocol):
    """Turns a nacked message into a retry or a dead letter."""

    def copy(
        self,
        message: StoredMessage,
        group: str,
        level: int | None,
        tries: int | None,
        count: int,
        reason: bytes,
    ) -> Copy | None:
        """Return the copy to put: a delayed retry, or a dead letter; None if the group has no retries.

        Args:
            message: the refused message.
            group: the group that refused it.
            level: its delay level; None: by the number of tries so far; -1: a dead letter; -2: after deaths, too.
            tries: after how many retries it becomes a dead letter; None for the group's own number.
            count: how many tries of this message have ended.
            reason: why the group refused it; empty if it did not say.
        """

    def letters(self, message: StoredMessage, group: str, given: Copy) -> Iterable[Copy]:
        """Return a message as a dead letter, in ever smaller forms: for one whose copy `given` cannot be stored."""

    def origin(self, message: StoredMessage) -> tuple[str, int]:
        """Return the id of the message that a copy was first made of, else its own, and how often it was retried."""

    def were_put(self) -> None:
        """Called after retries were put, so that they are delivered when they are due."""


@attrs.frozen
class IntakePlan:
    """The part of one queue's journal that is taken in.

    Attributes:
        queue: (topic, queue).
        nacks: the refused messages to copy.
        mark: the mark to write first.
        done: the mark to write at the end.
        was_pending: an earlier round may have put some of the copies.
    """

    queue: tuple[str, int]
    nacks: Sequence[Nack]
    mark: Mark
    done: Mark
    was_pending: bool = False

    @classmethod
    def void(cls, queue: tuple[str, int], resolved: GroupProgress, committed: int) -> "IntakePlan":  # fmt: skip
        """Return the plan that drops a journal, since somebody else has moved the committed offset."""
        number = resolved.number
        mark = Mark(
            resolved.generation + 1, resolved.epoch, number, number, 0, committed, committed
        )
        return cls(queue, (), mark, mark)

    @classmethod
    def cut(
        cls, queue: tuple[str, int], nacks: Sequence[Nack], first: Mark, resolved: GroupProgress, end: int, *,
        was_pending: bool,
    ) -> "IntakePlan":  # fmt: skip
        """Return the plan that takes in what is before the end of a queue with lost messages, and drops the journal."""
        known = tuple(nack for nack in nacks if nack.offset < end)
        number = resolved.number
        done = Mark(
            resolved.generation + 1, resolved.epoch, number, number, 0, first.new, first.new
        )
        return cls(queue, known, first, done, was_pending)

    @property
    def has_events(self) -> bool:
        """Whether the mark must say at once that they are taken in."""
        return self.done.taken > self.mark.taken or self.done.generation != self.mark.generation


class Intake:
    """The service that takes journals in. Safe from any thread."""

    def __init__(self, groups: Groups, retries: Retries, wakes: WorkWakes) -> None:
        self._groups = groups
        self._wakes = wakes
        self._retries = retries
        self._files = groups.context.files
        self._lock = threading.Lock()
        self._cursors: dict[tuple[str, str, int], JournalCursor] = {}
        self._marks: dict[str, Marks] = {}
        # Groups whose marks on disk name an offset before the committed one as well.
        self._unconfirmed: set[str] = set()
        self._noted: dict[tuple[str, str, int], str] = {}
        self._trouble = ""
        self._has_worked = self._has_left = False
        self.retried = 0

    def step(self) -> float | None:
        """Take in what is new; return the seconds until the next call, None if it must be woken.

        A failure is logged once, and tried again.
        """
        arrive = self._wakes.ask()
        # Before the look: what a member has answered before its end is seen by it.
        has_members = self._has_members()
        now_ns = self._groups.context.clock.monotonic_ns
        began_ns = now_ns()
        try:
            has_worked = self.take_all()
            self._trouble = ""
        except (PenstockError, OSError) as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                logger.warning(
                    "what consumers have answered is not taken in: %s; it is kept in their journals, and tried again",
                    error
                )  # fmt: skip
            self._wakes.go_on()
            return INTERVAL_S
        if has_worked:
            self._wakes.go_on()
            took_s = (now_ns() - began_ns) / 1e9
            return min(max(GAP_S, took_s * _GAP_ROUNDS), INTERVAL_S)
        return INTERVAL_S if has_members or self._has_left or not arrive else None

    def _has_members(self) -> bool:
        """Return whether a group has a living member of any process, which may die before it wakes the writer."""
        root = self._groups.context.root
        try:
            names = groups_of(self._files, root)
            return any(living_members(self._files, self._groups.paths(each)) for each in names)
        except OSError:
            return True

    def take_all(self) -> bool:
        """Take in everything that the journals hold; return whether there was anything.

        Raises what the disk or the store raises, after all groups had their turn.
        """
        failures: list[Exception] = []
        with self._lock:
            self._has_worked = self._has_left = False
            for group in groups_of(self._files, self._groups.context.root):
                try:
                    while self._round(group):
                        pass
                except (PenstockError, OSError) as error:
                    failures.append(error)
        if failures:
            raise failures[0]
        return self._has_worked

    def delete(self, group: str) -> None:
        """Delete a group, and forget what is known of it; raises `QueueHeldError` if a consumer lives."""
        with self._lock:
            try:
                delete_group(self._groups, group)
            finally:
                # Also of one that was deleted in part.
                self._marks.pop(group, None)
                self._unconfirmed.discard(group)
                for known in (self._cursors, self._noted):
                    for key in [key for key in known if key[0] == group]:
                        known.pop(key)

    # --- one group

    def _round(self, group: str) -> bool:
        """Take in some events of a group, and all acknowledgements; return whether more is left."""
        paths = self._groups.paths(group)
        marks = self._marks.get(group)
        if marks is None:
            # The first round is before the first put.
            lower_starts(self._files, paths, self._groups.generation, self._groups.store.max_offset)
            marks = self._marks[group] = usable_marks(self._files, paths)
        plans, is_more = self._plans(paths, marks)
        if not plans:
            self._confirm(paths, marks)
            return False
        self._has_worked = True
        plans = self._with_log_end(plans)
        changed = {plan.queue: plan.mark for plan in plans}
        if any(marks.get(queue) != mark for queue, mark in changed.items()):
            self._write(paths, marks, changed)
        self._put_copies(group, plans)
        # What waits for the copies' sync may have deleted a topic.
        plans = [
            plan
            for plan in plans
            if plan.mark.generation >> VOIDED_BITS == self._groups.generation(plan.queue[0])
        ]
        self._groups.store.move_offsets(
            {
                (group, *plan.queue): (None if plan.mark.old < 0 else plan.mark.old, plan.mark.new)
                for plan in plans
                if plan.mark.old != plan.mark.new
            }
        )
        done = {plan.queue: plan.done for plan in plans}
        if any(plan.has_events for plan in plans):
            self._write(paths, marks, done)
            self._unconfirmed.discard(group)
        else:
            # In this process, an offset before the committed one is known to be somebody else's.
            marks.update(done)
            self._unconfirmed.add(group)
        return is_more

    def _with_log_end(self, plans: list[IntakePlan]) -> list[IntakePlan]:
        """Note in the marks where the retries will be in the log, if there are any."""
        if not any(plan.nacks and not plan.was_pending for plan in plans):
            return plans
        log_end = self._groups.store.flush()
        return [
            plan
            if plan.was_pending
            else attrs.evolve(plan, mark=attrs.evolve(plan.mark, log_end=log_end))
            for plan in plans
        ]

    def _write(
        self, paths: GroupPaths, marks: Marks, changed: Mapping[tuple[str, int], Mark]
    ) -> None:
        try:
            write_marks(self._files, paths, {**marks, **changed})
        except BaseException:
            # Which of the two contents is on disk is not known.
            self._marks.pop(paths.group, None)
            raise
        marks.update(changed)

    def _confirm(self, paths: GroupPaths, marks: Marks) -> None:
        if paths.group in self._unconfirmed:
            self._has_worked = True
            self._write(paths, marks, {})
            self._unconfirmed.discard(paths.group)

    def _plans(self, paths: GroupPaths, marks: Marks) -> tuple[list[IntakePlan], bool]:
        """Return what to take in of each queue, and whether more is left."""
        plans, room, is_more = [], _NACKS_MAX, False
        known = self._groups.store.topics(system=True)
        for topic, queue in paths.journals(self._files):
            cursor = self._cursor(paths, topic, queue)
            try:
                cursor.refresh()
                plan = self._plan(
                    paths.group, (topic, queue), cursor, marks.get((topic, queue)), room,
                    is_known=queue in known.get(topic, ()),
                )  # fmt: skip
            except (OSError, StorageError) as error:
                # The other queues do not wait for it. Nobody may wake the writer for it again.
                self._has_left = True
                self._note(paths.group, (topic, queue), f"{_KEPT}: {error}")
                continue
            if plan is not None:
                room -= len(plan.nacks)
                is_more = is_more or bool(plan.nacks)
                plans.append(plan)
        return plans, is_more

    def _cursor(self, paths: GroupPaths, topic: str, queue: int) -> JournalCursor:
        key = paths.group, topic, queue
        if key not in self._cursors:
            self._cursors[key] = JournalCursor(self._files, paths.journal(topic, queue))
        return self._cursors[key]

    def _plan(
        self, group: str, at: tuple[str, int], cursor: JournalCursor, mark: Mark | None, room: int, *, is_known: bool,
    ) -> IntakePlan | None:  # fmt: skip
        """Return what to take in of a queue; None if nothing."""
        if cursor.fold is None:
            return None
        store = self._groups.store
        committed = store.committed_offset(group, *at)
        # Read after the journal: it has no offset of a message that is put later.
        end = store.max_offset(*at)

        def now() -> GroupProgress:
            return resolve_position(
                cursor.fold, mark, committed,
                store_id=self._groups.store_id, topic_generation=self._groups.generation(at[0]), end=end,
            )  # fmt: skip

        resolved = now()
        if resolved.fold is not None and resolved.fold.reach > end and self._trim(group, at, end):
            cursor.refresh()
            resolved = now()
        if resolved.fold is not None and not is_known:
            # No message of it is left. Its committed offset is set back when it gets its first one.
            return (
                IntakePlan.void(at, resolved, _as_mark(committed))
                if resolved.fold.reach > end
                else None
            )
        if resolved.fold is not None:
            known = resolved.mark or Mark(resolved.generation)
            return self._plan_valid(at, cursor, resolved, known, _as_mark(committed), end, room)
        if resolved.note:
            self._note(group, at, f"{_DROPPED}: {resolved.note}")
        return IntakePlan.void(at, resolved, _as_mark(committed)) if resolved.moved else None

    def _trim(self, group: str, at: tuple[str, int], end: int) -> bool:
        """Drop what a journal says of messages lost with the log's tail; return False if it has a living owner."""
        owned = self._groups.claim(group, *at, member="the writer", begin=lambda: 0, end=end)
        if owned is None:
            return False
        self._note(group, at, f"{_DROPPED}: {_LOST}")
        owned.hand_back()
        return True

    def _plan_valid(
        self, at: tuple[str, int], cursor: JournalCursor, resolved: GroupProgress, mark: Mark, old: int, end: int,
        room: int,
    ) -> IntakePlan | None:  # fmt: skip
        """Return what to take in of a journal that counts, up to `room` refused messages."""
        fold = resolved.fold
        assert fold is not None
        waiting = sorted(fold.nacks.values())
        batch, left = waiting[:room], waiting[room:]
        upto = fold.number
        if left:
            upto = batch[-1].number if batch else mark.taken
        upto = max(upto, mark.taken)
        ranges = [(n.offset, n.offset + 1) for n in batch if n.number > fold.reset]
        base, _ = merged([*fold.acked, *ranges], resolved.base or 0)
        reached = max(base, fold.reach)
        # A broker must get what is not taken in yet.
        new = min([base, *(n.offset for n in left if n.number > fold.reset)])
        if fold.reset > upto:
            new = old
        elif fold.reset <= mark.taken:
            new = max(new, old)
        new = min(new, end)
        was_pending = mark.pending > mark.taken
        if upto > mark.taken:
            cursor.sync()
        first = Mark(
            resolved.generation, fold.epoch, mark.taken, max(upto, mark.pending),
            mark.log_end if was_pending else 0, old, new,
        )  # fmt: skip
        done = attrs.evolve(first, taken=upto, old=new)
        if reached > end and not left:
            return IntakePlan.cut(at, batch, first, resolved, end, was_pending=was_pending)
        if upto == mark.taken and new == old:
            return None
        return IntakePlan(at, batch, first, done, was_pending)

    # --- retries

    def _put_copies(self, group: str, plans: Sequence[IntakePlan]) -> None:
        """Put the retries of all refused messages, durably, except for those that an earlier round has put."""
        if not any(plan.nacks for plan in plans):
            return
        begun = [plan.mark.log_end for plan in plans if plan.was_pending and plan.nacks]
        made: Container[tuple[str, int]] = ()
        if begun:
            made = RetriesMade(self._groups.store, group, min(begun), self._retries.origin)
        copies: list[tuple[StoredMessage, Copy]] = []
        size = 0
        for plan in plans:
            for nack in plan.nacks:
                copy = self._copy(group, plan.queue, nack, made if plan.was_pending else ())
                if copy is None:
                    continue
                copies.append(copy)
                size += len(copy[1][0].body)
                if size >= _COPY_BYTES:
                    self._put(group, copies)
                    copies, size = [], 0
        self._put(group, copies)
        self._groups.store.flush()
        self._retries.were_put()

    def _copy(
        self, group: str, at: tuple[str, int], nack: Nack, made: Container[tuple[str, int]]
    ) -> tuple[StoredMessage, Copy] | None:
        """Return a refused message, and its retry; None if it is there already, or cannot be made."""
        found = self._groups.store.read(*at, nack.offset, 1).messages
        if not found or found[0].queue_offset != nack.offset:
            logger.warning(
                "group %s: the message at offset %d of queue %s/%d was refused, and is not retried: it is deleted or "
                "corrupt",
                group, nack.offset, *at,
            )  # fmt: skip
            return None
        message = found[0]
        first_id, tries = self._retries.origin(message)
        if (first_id, tries + nack.ended) in made:
            return None
        self.retried += 1
        copy = self._retries.copy(
            message, group, nack.level or None,
            None if nack.tries == GROUP_SETTING else nack.tries, nack.ended, nack.reason,
        )  # fmt: skip
        return None if copy is None else (message, copy)

    def _put(self, group: str, copies: Sequence[tuple[StoredMessage, Copy]]) -> None:
        if not copies:
            return
        try:
            self._groups.store.put_copies([copy for _, copy in copies])
        except MessageError:
            # A retry that cannot be stored must not hold up the others.
            for message, copy in copies:
                self._put_one(group, message, copy)

    def _put_one(self, group: str, message: StoredMessage, copy: Copy) -> None:
        """Put the retry of a message; or a dead letter, if the properties of a retry have no room in it."""
        store, place = (
            self._groups.store,
            (group, message.queue_offset, message.topic, message.queue),
        )
        try:
            store.put_copies([copy])
        except MessageError as error:
            for letter in self._retries.letters(message, group, copy):
                with suppress(MessageError):
                    store.put_copies([letter])
                    logger.error(  # noqa: TRY400 - the message is complete without a traceback
                        "group %s: the refused message at offset %d of queue %s/%d is a dead letter now, since it "
                        "cannot be stored as a retry: %s", *place, error,
                    )  # fmt: skip
                    return
            logger.error(  # noqa: TRY400 - as above
                "group %s: the refused message at offset %d of queue %s/%d can be stored neither as a retry nor as a "
                "dead letter, and is not redelivered: %s", *place, error,
            )  # fmt: skip

    def _note(self, group: str, at: tuple[str, int], note: str) -> None:
        """Log once what becomes of a journal that is not taken in, and why."""
        if self._noted.get((group, *at)) != note:
            self._noted[group, *at] = note
            logger.log(
                level_of(note),
                "group %s, queue %s/%d: what its journal had recorded since the last committed offset is %s",
                group, *at, note,
            )  # fmt: skip


def _as_mark(committed: int | None) -> int:
    return -1 if committed is None else committed
