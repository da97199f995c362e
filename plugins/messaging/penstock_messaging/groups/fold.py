"""What the entries of a journal amount to: which messages of a queue the group has consumed, and what waits for the writer."""

from collections.abc import Iterable
from typing import NamedTuple

import attrs

from penstock_messaging.groups.entries import Entries, EntryKind

Range = tuple[int, int]


class Nack(NamedTuple):
    """A refused message that the writer has not turned into a retry yet; see `entries` for its fields."""

    number: int
    offset: int
    level: int
    tries: int


@attrs.frozen
class Position:
    """How far a group has consumed a queue.

    Attributes:
        base: the group has consumed all messages below this offset.
        acked: ranges (first, end) of acknowledged offsets above `base`, sorted, disjoint and not adjacent.
        nacked: refused offsets that wait for the writer; they are not handed out again.
        tries: offset to the number of tries so far, of messages that an ordered consumer tries again.
    """

    base: int
    acked: tuple[Range, ...] = ()
    nacked: frozenset[int] = frozenset()
    tries: dict[int, int] = attrs.Factory(dict)

    def is_done(self, offset: int) -> bool:
        """Return whether the message at an offset is not to be handed out."""
        return (
            offset < self.base
            or offset in self.nacked
            or any(first <= offset < end for first, end in self.acked)
        )


def merged(ranges: Iterable[Range], base: int) -> tuple[int, list[Range]]:
    """Return a base, raised over the ranges that touch it, and the ranges above it: sorted, disjoint, not adjacent."""
    found: list[Range] = []
    for first, end in sorted(ranges):
        if first <= base:
            base = max(base, end)
        elif found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((first, end))
    return base, found


@attrs.define
class Fold:
    """The state after some entries of one file; the first of them is its TAKE. Not thread-safe.

    Attributes:
        store, life, epoch: those of all its entries.
        seen: the committed offset when the queue was taken; None if there was none.
        moved: somebody else had committed that offset.
        base, acked: as in `Position`; refusals do not count here.
        nacks: refusals by number, whether the writer has taken them in or not.
        tries: as in `Position`.
        number: of the last event.
        reset: number of the last reset, 0 if there was none.
    """

    store: int
    life: int
    epoch: int
    seen: int | None
    moved: bool = False
    base: int = 0
    acked: list[Range] = attrs.Factory(list)
    nacks: dict[int, Nack] = attrs.Factory(dict)
    tries: dict[int, int] = attrs.Factory(dict)
    number: int = 0
    reset: int = 0

    @classmethod
    def of(cls, entries: Entries) -> "Fold | None":
        """Return the state after the entries of a whole file; None if there are none."""
        if not len(entries):
            return None
        head = entries[0]
        seen = int(head["offset"])
        made = cls(
            int(head["store"]), int(head["life"]), int(head["epoch"]),
            None if seen < 0 else seen, int(head["count"]) == 1,
        )  # fmt: skip
        made.apply(entries)
        return made

    def apply(self, entries: Entries) -> None:
        """Add the entries that follow those added before."""
        kinds = entries["kind"]
        for entry in entries[kinds == EntryKind.NACK]:
            number = int(entry["number"])
            self.nacks[number] = Nack(
                number, int(entry["offset"]), int(entry["level"]), int(entry["tries"])
            )
        if len(entries):
            self.number = max(self.number, int(entries["number"].max()))
        resets = (kinds == EntryKind.RESET).nonzero()[0]
        if len(resets):
            last = entries[resets[-1]]
            self.base, self.acked, self.tries = int(last["offset"]), [], {}
            self.reset = int(last["number"])
            entries = entries[resets[-1] + 1 :]
        if len(entries):
            self._add(entries)

    def _add(self, entries: Entries) -> None:
        self.base = max(self.base, int(entries["base"].max()))
        kinds = entries["kind"]
        acks = entries[kinds == EntryKind.ACK]
        firsts = acks["offset"].tolist()
        ranges = [(f, f + c) for f, c in zip(firsts, acks["count"].tolist(), strict=True)]
        self.base, self.acked = merged([*self.acked, *ranges], self.base)
        retries = entries[kinds == EntryKind.RETRY]
        self.tries.update(zip(retries["offset"].tolist(), retries["tries"].tolist(), strict=True))
        if self.tries:
            self.tries = {offset: n for offset, n in self.tries.items() if offset >= self.base}

    def take_in(self, number: int) -> None:
        """Drop the refusals that the writer has taken in: those up to `number`; their messages count as consumed."""
        done = [self.nacks.pop(each) for each in [n for n in self.nacks if n <= number]]
        ranges = [(nack.offset, nack.offset + 1) for nack in done if nack.number > self.reset]
        self.base, self.acked = merged([*self.acked, *ranges], self.base)

    def raise_base(self, base: int) -> None:
        """Raise the base to a greater one, and over the ranges that touch it."""
        self.base, self.acked = merged(self.acked, max(self.base, base))
        self.tries = {offset: n for offset, n in self.tries.items() if offset >= self.base}

    @property
    def reach(self) -> int:
        """The offset after the last message that the journal speaks of."""
        stops = (stop for _, stop in self.acked)
        return max([self.base, *stops, *(nack.offset + 1 for nack in self.nacks.values())])

    def clip(self, end: int) -> None:
        """Drop everything about offsets from `end` on."""
        self.base = min(self.base, end)
        self.acked = [(first, min(stop, end)) for first, stop in self.acked if first < end]
        self.nacks = {number: nack for number, nack in self.nacks.items() if nack.offset < end}
        self.tries = {offset: n for offset, n in self.tries.items() if offset < end}

    def position(self) -> Position:
        """Return the position, with all refusals that were not taken in."""
        waiting = frozenset(n.offset for n in self.nacks.values() if n.number > self.reset)
        return Position(self.base, tuple(self.acked), waiting, dict(self.tries))
