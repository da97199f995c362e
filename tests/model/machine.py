"""Plays stories on a store, and holds every answer against the model."""

import struct
from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import Any

from tests.model.model import Model, Question
from tests.model.questions import ask
from tests.model.story import Player, StoryEnded
from tests.model.worlds import KEPT_SEGMENTS, World

from penstock import Durability, Message, Receipt

WEIGHTS = {
    "put": 24, "put_many": 24, "atomic": 8, "submit": 4, "flush": 4, "work": 8, "ask": 16, "compare": 4, "discard": 8,
    "retain": 2, "delete": 2, "commit": 8, "close": 3, "kill": 3, "cut": 4, "doom": 4, "verify": 2,
}  # fmt: skip
TOPICS, QUEUES, GROUPS = ("a", "b", "c"), 2, ("g", "h")
# Two have the same hash in Java.
TAGS, KEYS = ("", "red", "Aa", "BB"), ("Aa", "BB", "k1", "k2", "k3")
HOUR = 3_600_000
BLANK, MAGIC_BLANK, SECTOR = 8, 0xCBD43194 - (1 << 32), 512


class Machine(Player):
    """One story: a store, its model, and the steps."""

    weights = WEIGHTS

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.model = Model()
        # The model when the step began.
        self._before = self.model
        self._sent = 0
        self._batches = 0
        self._lost: Message | None = None
        # Of a topic, a tag and keys: the size of a record without its body.
        self._heads: dict[tuple[str, ...], int] = {}
        self.store = world.open()

    def _begin(self, chance: Random) -> None:
        # Rarely, the clock jumps an hour back.
        self.world.clock.now_ms += chance.choices((0, 1, 300, -HOUR), (6, 6, 6, 1))[0]
        self._before = self.model.snapshot()

    def _end(self) -> None:
        self.store.close()

    # --- putting

    def _message(self, chance: Random) -> Message:
        self._sent += 1
        start, size = b"%d:" % self._sent, chance.choice((0, 40, 150, 400, 1200))
        body = start + bytes([self._sent % 256]) * chance.randint(0, size)
        lost, self._lost = self._lost, None
        if lost is not None:
            # As long as what a crash took from here: behind it, bytes that were not erased would be records again.
            body = start + lost.body[len(start) :]
            return Message(lost.topic, body, queue=lost.queue, tag=lost.tag, keys=lost.keys)
        topic, tag = chance.choices(TOPICS, (6, 3, 1))[0], chance.choice(TAGS)
        keys = sorted({chance.choice(KEYS) for _ in range(chance.choice((0, 1, 1, 2)))})
        head = self._heads.get((topic, tag, *keys))
        if head is not None and chance.random() < 0.2:
            # The record ends about where its segment does, and leaves room for a blank record or not; or one sector
            # before, so that the head of filler is on two sectors.
            segment = self.world.settings["geometry.segment_bytes"]
            left = chance.choice((chance.randint(0, 16), SECTOR + chance.randint(1, 7)))
            rest = segment - self.model.end % segment - head - left
            body = start.ljust(rest, b"=") if rest < 4000 else body
        return Message(topic, body, queue=chance.randrange(QUEUES), tag=tag, keys=keys)

    def _taken(
        self,
        messages: list[Message],
        receipts: Sequence[Receipt],
        batch: int = 0,
        *,
        waits: bool = True,
    ) -> None:
        size, end = self.world.settings["geometry.segment_bytes"], self.model.end
        for receipt in receipts:
            assert receipt.log_offset in (end, -(-end // size) * size), f"not at {end}: {receipt}"
            room = size - receipt.log_offset % size - receipt.size
            assert room >= BLANK, f"a segment must end in a blank record: {receipt}"
            end = receipt.log_offset + receipt.size
        assert not batch or receipts[0].log_offset // size == end // size, "a batch in two segments"
        self.model.take(messages, list(receipts), batch)
        write, flush = self.world.settings["write"], self.world.settings["flush"]
        if write == "mmap" or (write == "file" and (flush != "sync" or waits)):
            self.model.held = end
        if receipts[-1].durability is Durability.ON_DISK:
            self._is_durable(end)
        else:
            assert flush != "sync" or not waits, f"a put that waits: {receipts[-1]}"

    def _is_durable(self, end: int) -> None:
        self.model.durable = max(self.model.durable, end)
        self.model.held = max(self.model.held, end)

    def _put(self, chance: Random) -> None:
        # Under `sync`, what nobody waits for is shown once it is durable: with threads, at any moment.
        one, waits = self._message(chance), chance.random() < 0.8 or not self.world.can_die
        receipt = self.store.put(
            one.topic, one.body, queue=one.queue, tag=one.tag, keys=one.keys, wait=waits
        )
        self._heads[one.topic, one.tag, *one.keys] = receipt.size - len(one.body)
        self._taken([one], [receipt], waits=waits)

    def _put_many(self, chance: Random) -> None:
        messages = [self._message(chance) for _ in range(chance.randint(1, 25))]
        self._taken(messages, self.store.put_many(messages))

    def _atomic(self, chance: Random) -> None:
        messages = [self._message(chance) for _ in range(chance.randint(2, 4))]
        self._batches += 1
        self._taken(messages, self.store.put_many(messages, atomic=True), self._batches)

    def _submit(self, chance: Random) -> None:
        one = self._message(chance)
        future = self.store.submit(one.topic, one.body, queue=one.queue, tag=one.tag, keys=one.keys)
        if not future.done():
            self.world.work()
        self._taken([one], [future.result(60)])

    def _flush(self, _chance: Random) -> None:
        end = self.store.flush()
        assert end >= self.model.end
        self._is_durable(end)

    def _work(self, _chance: Random) -> None:
        self.world.clock.now_ms += 500
        self.world.work()
        self._see_retention()

    # --- reading

    def _ask(self, chance: Random) -> None:
        self._check(self._answers, [self._question(chance) for _ in range(6)])

    def _answers(self, given: list[Question]) -> list[Any]:
        return [ask(self.store, each) for each in given]

    def _compare(self, chance: Random) -> None:
        """Ask somebody else; what was put is published by a round of the background work."""
        self.store.stats()
        self._work(chance)
        if self._image is None:
            self._check(self.world.answers, [self._question(chance) for _ in range(8)])

    def _question(self, chance: Random) -> Question:
        topic, queue = chance.choice(TOPICS), chance.randrange(QUEUES)
        low, high = self.model.bounds(topic, queue)
        visible = self.model.visible(topic)
        offset = chance.randint(max(low - 2, -1), high + 2)
        time_ms = (
            chance.choice(visible).receipt.store_time_ms + chance.randint(-1, 1) if visible else 5
        )
        tag = chance.choice(("*", "*", "red", "red || BB", "Aa", "green"))
        key, limit = chance.choice(KEYS), chance.choice((1, 2, 3, 32))
        return chance.choice((
            ("read", topic, queue, offset, limit, tag), ("read", topic, queue, low, 32, "*"),
            ("scan", topic, chance.choice((None, queue)), chance.choice((None, 0, offset))),
            ("find", topic, key, limit, None, None), ("find", topic, key, 64, time_ms, time_ms + 500),
            ("offset_at", topic, queue, time_ms, chance.choice(("lower", "upper"))),
            ("bounds", topic, queue), ("queues",), ("committed", chance.choice(GROUPS), topic, queue),
            ("get", chance.choice(visible).receipt.message_id) if visible else ("queues",),
            *(("get", sent.receipt.message_id) for sent in self.model.log[:1]),
        ))  # fmt: skip

    def _whole(self) -> list[Question]:
        """Return questions for everything that is there."""
        places = [(topic, queue) for topic in TOPICS for queue in range(QUEUES)]
        return [
            ("queues",), *(("bounds", *place) for place in places), *(("scan", topic, None, None) for topic in TOPICS),
            *(("scan", *place, None) for place in places),
            *(("find", topic, key, 64, None, None) for topic in TOPICS for key in KEYS),
            *(("committed", group, *place) for group in GROUPS for place in places),
        ]  # fmt: skip

    def _check(self, answer: Callable[[list[Question]], list[Any]], given: list[Question]) -> None:
        for question, found in zip(given, answer(given), strict=True):
            expected = self.model.answer(question)
            assert found == expected, f"{question}: {found} instead of {expected}"

    def _verify(self, _chance: Random) -> None:
        self.world.work()
        self._see_retention()
        findings = [each for each in self.store.verify(deep=True) if not each.is_note]
        assert not findings, f"verify: {findings[0]}"

    # --- deleting, committing

    def _discard(self, chance: Random) -> None:
        size = self.world.settings["geometry.segment_bytes"]
        ends = [0, *(sent.end for sent in self.model.log)]
        limit = chance.choice((chance.choice(ends), ends[-1]))
        gone = self.store.discard_before(log_offset=limit)
        stats = self.store.stats()
        low = stats["log_min_offset"]
        last = low + (stats["segments"] - 1) * size
        assert low == max(self.model.low, min(limit // size * size, last)), (
            f"discarded before {limit}: {low}"
        )
        assert gone * size == low - self.model.low
        self.model.low = low
        self._is_durable(low)

    def _retain(self, _chance: Random) -> None:
        self.store.retain()
        self._see_retention()

    def _see_retention(self) -> None:
        """Take over what retention may have deleted, and what is durable by now."""
        size, stats = self.world.settings["geometry.segment_bytes"], self.store.stats()
        gone, more = divmod(stats["log_min_offset"] - self.model.low, size)
        allowed = (
            stats["segments"] + gone - KEPT_SEGMENTS if self.world.settings["retention"] else 0
        )
        assert 0 <= gone <= max(allowed, 0), f"retention deleted {gone} segments, not {allowed}"
        assert more == 0
        self.model.low = stats["log_min_offset"]
        self._is_durable(stats["flushed_offset"])

    def _delete(self, chance: Random) -> None:
        topic = chance.choice(TOPICS)
        if self.model.visible(topic):
            end = self.store.stats()["log_end_offset"]
            self.store.delete_topic(topic)
            self.model.delete_topic(topic, end)

    def _commit(self, chance: Random) -> None:
        place = chance.choice(TOPICS), chance.randrange(QUEUES)
        if self.model.visible(*place):
            group, high = chance.choice(GROUPS), self.model.bounds(*place)[1]
            offset = chance.choice((high, chance.randint(0, high)))
            self.store.commit_offset(group, *place, offset=offset)
            self.model.committed[group, *place] = offset

    # --- ending, coming back

    def _close(self, _chance: Random) -> None:
        self.store.close()
        self._is_durable(self.model.end)
        self.store = self.world.open()
        report = self.store.recovery
        assert report is not None
        assert (report.state, report.mended) == ("clean", ()), f"after a close: {report}"
        self._see_retention()
        self._check(self._answers, self._whole())

    def _open(self) -> None:
        self.store = self.world.open()

    def _reconcile(self, *, is_kill: bool) -> None:
        self._survive(is_kill=is_kill)
        self._check(self._answers, self._whole())
        findings = [each for each in self.store.verify() if not each.is_note]
        assert not findings, f"after a crash, verify: {findings[0]}"
        self._check_filler()

    def _check_filler(self) -> None:
        """Between records of two segments is filler as RocketMQ writes it: a copy of the log takes no other."""
        size = self.world.settings["geometry.segment_bytes"]
        for last, first in pairwise(self.model.log):
            at, room = last.end % size, first.receipt.log_offset - last.end
            if room and last.receipt.log_offset >= self.model.low:
                name = f"{last.end - at:020d}"
                found = self.world.files.read_whole(self.world.folder / "commitlog" / name)[at:]
                head = struct.pack(">ii", room, MAGIC_BLANK)
                assert found == head.ljust(room, b"\0"), (
                    f"not filler of {room} bytes: {found[:16].hex()}"
                )

    def _survive(self, *, is_kill: bool) -> None:
        """Make the model that of what survived, which must be between what was promised and what was done."""
        before, model, stats = self._before, self.model, self.store.stats()
        end, low = stats["log_end_offset"], stats["log_min_offset"]
        least = before.held if is_kill else before.durable
        assert end >= least, f"the log ends at {end}, and {least} was promised"
        assert before.low <= low <= model.low, f"the log begins at {low}, not at {model.low}"
        for topic, count in list(model.lives.items()):
            if self.store.lowlevel.topic_generation(topic) != count:
                lived = before.lives.get(topic, 0)
                assert self.store.lowlevel.topic_generation(topic) == lived, (
                    f"{topic} is there again"
                )
                # It was not yet deleted.
                model.lives[topic], model.deleted[topic] = lived, before.deleted.get(topic, 0)
        model.low = low
        lost = model.cut(end)
        self._lost = lost[0].message if lost else None
        for place in {sent.place for sent in [*model.log, *lost]}:
            is_empty = not model.visible(*place)
            if is_empty and not is_kill:
                at, wanted = self.store.max_offset(*place), model.bounds(*place)[1]
                assert at >= wanted, f"{place} goes on at {at}, not at {wanted}"
                assert model.low or at == wanted, f"{place} begins at {at}, not at {wanted}"
                if at > wanted:
                    # A power cut took its entries and a file before them. If the log begins after 0, retention may
                    # have deleted that file, so the store gives no offset of it again.
                    raise StoryEnded
        for key in {**before.committed, **model.committed}:
            count = len(model.queue(*key[1:]))
            offers = [each.committed.get(key) for each in (before, model)]
            # That of a queue that was lost stays until it begins again.
            allowed = [at if at is None else min(at, count) for at in offers] + (
                offers if not count else []
            )
            found = self.store.committed_offset(*key)
            assert found in allowed, f"{key}: {found} is committed, and not one of {allowed}"
            model.committed[key] = found
