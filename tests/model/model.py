"""What a store must answer: a list of the messages it took, and what may have become of them.

The model knows the log's order, how much of it is durable, which topics were deleted, and how far retention went. It
knows no files, segments or indexes. Questions are plain lists (see `questions`), so that a store in another process
answers the same ones.
"""

import zlib
from typing import Any

import attrs

from penstock import Message, ReadStatus, Receipt

Place = tuple[str, int]
Question = tuple[Any, ...]


def brief(body: bytes) -> str:
    """Return what tells a body from others, for messages that are to be read."""
    return f"{body.partition(b':')[0].decode()}: {len(body)} bytes {zlib.crc32(body):08x}"


@attrs.frozen
class Sent:
    """A message that the store took; `batch` is the number of its atomic batch, 0 for none."""

    message: Message
    receipt: Receipt
    batch: int

    @property
    def end(self) -> int:
        """The log offset after the record."""
        return self.receipt.log_offset + self.receipt.size

    @property
    def place(self) -> Place:
        """Topic and queue."""
        return self.message.topic, self.receipt.queue

    def shown(self) -> list[Any]:
        """Return what readers must see of it."""
        sent, receipt = self.message, self.receipt
        return [
            sent.topic, receipt.queue, receipt.queue_offset, receipt.log_offset, receipt.store_time_ms,
            receipt.message_id, sent.tag, list(sent.keys), brief(sent.body),
        ]  # fmt: skip


@attrs.define
class Model:
    """All that was promised.

    Attributes:
        log: every message that is in the log, in its order; also those of deleted topics, and those that retention deleted.
        durable: the log offset below which a power cut loses nothing.
        held: the log offset below which the death of the process loses nothing.
        low: the log offset below which retention deleted everything.
        deleted: topic to the log offset at which it was deleted last.
        lives: topic to how often it was deleted.
        committed: (group, topic, queue) to the offset that the group committed.
    """

    log: list[Sent] = attrs.Factory(list)
    durable: int = 0
    held: int = 0
    low: int = 0
    deleted: dict[str, int] = attrs.Factory(dict)
    lives: dict[str, int] = attrs.Factory(dict)
    committed: dict[tuple[str, str, int], int | None] = attrs.Factory(dict)

    def snapshot(self) -> "Model":
        """Return a model that stays as this one is now."""
        copied = {
            name: type(value)(value) for name, value in attrs.asdict(self, recurse=False).items()
        }
        return Model(**copied)

    @property
    def end(self) -> int:
        """The log offset after the last record."""
        return self.log[-1].end if self.log else 0

    # --- what happens

    def take(self, messages: list[Message], receipts: list[Receipt], batch: int = 0) -> None:
        """Add messages, and check their receipts."""
        assert len(receipts) == len(messages), "a receipt for each message"
        for message, receipt in zip(messages, receipts, strict=True):
            sent = Sent(message, receipt, batch)
            count = len(self.queue(*sent.place))
            assert receipt.queue_offset == count, f"{sent.place} has {count} messages: {receipt}"
            if self.log:
                assert receipt.store_time_ms >= self.log[-1].receipt.store_time_ms, "time goes back"
            if not count:
                # Offsets of a queue that was lost are set back when it begins again.
                for key, offset in self.committed.items():
                    if key[1:] == sent.place and offset is not None:
                        self.committed[key] = 0
            self.log.append(sent)

    def delete_topic(self, topic: str, log_end: int) -> None:
        """Forget a topic."""
        self.deleted[topic] = log_end
        self.lives[topic] = self.lives.get(topic, 0) + 1
        self.committed = {key: at for key, at in self.committed.items() if key[1] != topic}

    def cut(self, end: int) -> list[Sent]:
        """Lose everything from a log offset on; returns the messages."""
        lost = [sent for sent in self.log if sent.end > end]
        self.log = self.log[: len(self.log) - len(lost)]
        if lost and lost[0].batch and self.log:
            assert self.log[-1].batch != lost[0].batch, "a part of an atomic batch survived"
        self.deleted = {topic: min(at, end) for topic, at in self.deleted.items()}
        self.durable = self.held = end
        return lost

    # --- what must be there

    def queue(self, topic: str, queue: int) -> list[Sent]:
        """Return all messages that a queue ever had, since its topic was deleted."""
        since = self.deleted.get(topic, 0)
        return [
            sent
            for sent in self.log
            if sent.place == (topic, queue) and sent.receipt.log_offset >= since
        ]

    def visible(self, topic: str, queue: int | None = None) -> list[Sent]:
        """Return the messages that can be read, in the order of the log."""
        least = max(self.low, self.deleted.get(topic, 0))
        return [
            sent
            for sent in self.log
            if sent.message.topic == topic
            and sent.receipt.log_offset >= least
            and queue in (None, sent.receipt.queue)
        ]

    def bounds(self, topic: str, queue: int) -> tuple[int, int]:
        """Return the queue offsets of the first message that can be read, and of the next one that is put."""
        high = len(self.queue(topic, queue))
        return high - len(self.visible(topic, queue)), high

    def answer(self, question: Question) -> Any:
        """Return what the store must answer."""
        name, *given = question
        return getattr(self, f"_{name}")(*given)

    def _read(self, topic: str, queue: int, offset: int, limit: int, tag: str) -> list[Any]:
        low, high = self.bounds(topic, queue)
        if high == 0:
            return [ReadStatus.NO_MESSAGE_IN_QUEUE, 0, low, high, []]
        if offset < low:
            return [ReadStatus.OFFSET_TOO_SMALL, low, low, high, []]
        if offset >= high:
            is_end = offset == high
            status = ReadStatus.OFFSET_OVERFLOW_ONE if is_end else ReadStatus.OFFSET_OVERFLOW_BADLY
            return [status, high, low, high, []]
        wanted = [word.strip() for word in tag.split("||")]
        rest = self.queue(topic, queue)[offset:]
        found = [sent for sent in rest if tag == "*" or sent.message.tag in wanted][:limit]
        following = found[-1].receipt.queue_offset + 1 if len(found) == limit else high
        status = ReadStatus.FOUND if found else ReadStatus.NO_MATCHED_MESSAGE
        return [status, following, low, high, [sent.shown() for sent in found]]

    def _scan(self, topic: str, queue: int | None, start: int | None) -> list[Any]:
        found = self.visible(topic, queue)
        return [sent.shown() for sent in found if sent.receipt.queue_offset >= (start or 0)]

    def _find(
        self, topic: str, key: str, limit: int, begin_ms: int | None, end_ms: int | None
    ) -> list[Any]:
        found = [
            sent
            for sent in self.visible(topic)
            if key in sent.message.keys
            and (begin_ms or 0) <= sent.receipt.store_time_ms <= (end_ms or 1 << 60)
        ]
        return [sent.shown() for sent in found[-limit:]]

    def _get(self, message_id: str) -> list[Any] | None:
        (sent,) = (sent for sent in self.log if sent.receipt.message_id == message_id)
        return sent.shown() if sent.receipt.log_offset >= self.low else None

    def _offset_at(self, topic: str, queue: int, time_ms: int, boundary: str) -> int:
        low, is_upper = self.bounds(topic, queue)[0], boundary == "upper"
        times = [sent.receipt.store_time_ms for sent in self.visible(topic, queue)]
        older = sum(each < time_ms + is_upper for each in times)
        return max(low + older - is_upper, low)

    def _bounds(self, topic: str, queue: int) -> list[int]:
        return list(self.bounds(topic, queue))

    def _queues(self) -> list[Any]:
        places = {sent.place for sent in self.log}
        return sorted(list(place) for place in places if self.visible(*place))

    def _committed(self, group: str, topic: str, queue: int) -> int | None:
        return self.committed.get((group, topic, queue))
