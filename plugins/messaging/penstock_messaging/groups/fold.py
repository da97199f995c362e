"""The state after a journal's entries: what the group has consumed of a queue, and what waits for the writer."""

import bisect
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import attrs

from penstock_messaging.groups.entries import GROUP_SETTING, NUMBER_MAX, Entries, EntryKind

Range = tuple[int, int]
# More than a consumer delivers at a time.
_OUT_MAX = 1 << 20


class Nack(NamedTuple):
    """A refused message that the writer has not turned into a retry yet; see `entries` for its fields."""

    number: int
    offset: int
    level: int
    tries: int
    ended: int = 1
    reason: bytes = b""


@attrs.frozen
class Position:
    """How far a group has consumed a queue.

    Attributes:
        base: the group has consumed all messages below this offset.
        acked: ranges (first, end) of acknowledged offsets above `base`, sorted, disjoint and not adjacent.
        nacked: refused offsets that wait for the writer; they are not redelivered.
        tries: offset to the number of tries so far, of messages in ordered retry, or whose consumer died.
        died: the offsets of those whose last try ended with their consumer's death.
    """

    base: int
    acked: tuple[Range, ...] = ()
    nacked: frozenset[int] = frozenset()
    tries: dict[int, int] = attrs.Factory(dict)
    died: frozenset[int] = frozenset()

    def is_done(self, offset: int) -> bool:
        """Return whether the message at an offset is not to be delivered."""
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


def ranges_of(offsets: Sequence[int]) -> list[Range]:
    """Return sorted offsets as ranges (first, end)."""
    found: list[Range] = []
    for offset in offsets:
        if found and offset == found[-1][1]:
            found[-1] = found[-1][0], offset + 1
        else:
            found.append((offset, offset + 1))
    return found


@attrs.define
class Fold:
    """The state after some entries of one file; the first of them is its CLAIM. Not thread-safe.

    Attributes:
        store, generation, epoch: those of all its entries.
        seen: the committed offset when the queue was taken; None if there was none.
        moved: somebody else had committed that offset.
        base, acked: as in `Position`; refusals do not count here.
        nacks: refusals by number, whether the writer has taken them in or not.
        tries, died: as in `Position`.
        out: the offsets that are delivered and have no answer.
        number: of the last event.
        reset: number of the last reset, 0 if there was none.
    """

    store: int
    generation: int
    epoch: int
    seen: int | None
    moved: bool = False
    base: int = 0
    acked: list[Range] = attrs.Factory(list)
    nacks: dict[int, Nack] = attrs.Factory(dict)
    tries: dict[int, int] = attrs.Factory(dict)
    died: set[int] = attrs.Factory(set)
    out: set[int] = attrs.Factory(set)
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
            int(head["store"]), int(head["generation"]), int(head["epoch"]),
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
                number, int(entry["offset"]), int(entry["level"]), int(entry["tries"]),
                int(entry["count"]), bytes(entry["reason"]),
            )  # fmt: skip
        if len(entries):
            self.number = max(self.number, int(entries["number"].max()))
        resets = (kinds == EntryKind.RESET).nonzero()[0]
        if len(resets):
            last = entries[resets[-1]]
            self.base, self.acked, self.tries = int(last["offset"]), [], {}
            self.died, self.out = set(), set()
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
        self.died.difference_update(retries["offset"].tolist())
        self.died.update(retries["offset"][retries["level"] == 1].tolist())
        is_open = (kinds == EntryKind.OUT) & (entries["offset"] + entries["count"] > self.base)
        moves = entries[is_open | (kinds == EntryKind.FREE) | (kinds == EntryKind.RETRY)]
        for kind, first, count in zip(
            moves["kind"].tolist(), moves["offset"].tolist(), moves["count"].tolist(), strict=True
        ):
            some = range(max(first, self.base), first + min(count, _OUT_MAX))
            if kind == EntryKind.OUT:
                self.out.update(some)
            elif kind == EntryKind.RETRY:
                self.out.discard(first)
            else:
                self.out.difference_update(some if count else set(self.out))
        self._forget_done()

    def _forget_done(self) -> None:
        """Drop the tries of messages that are done, and what is out of these."""
        if self.tries:
            self.tries = {offset: n for offset, n in self.tries.items() if offset >= self.base}
            self.died &= self.tries.keys()
        if self.out:
            refused = {nack.offset for nack in self.nacks.values() if nack.number > self.reset}
            self.out = {n for n in self.out - refused if n >= self.base and not self._is_acked(n)}

    def _is_acked(self, offset: int) -> bool:
        at = bisect.bisect_right(self.acked, (offset, NUMBER_MAX)) - 1
        return at >= 0 and offset < self.acked[at][1]

    def end_deliveries(self) -> None:
        """Count a try of everything that is out: its consumer died with it."""
        self._forget_done()
        for offset in self.out:
            self.tries[offset] = min(self.tries.get(offset, 0) + 1, GROUP_SETTING)
        self.died |= self.out
        self.out = set()

    def take_in(self, number: int) -> None:
        """Drop the refusals that the writer has taken in: those up to `number`; their messages count as consumed."""
        done = [self.nacks.pop(each) for each in [n for n in self.nacks if n <= number]]
        ranges = [(nack.offset, nack.offset + 1) for nack in done if nack.number > self.reset]
        self.base, self.acked = merged([*self.acked, *ranges], self.base)

    def raise_base(self, base: int) -> None:
        """Raise the base to a greater one, and over the ranges that touch it."""
        self.base, self.acked = merged(self.acked, max(self.base, base))
        self._forget_done()

    @property
    def reach(self) -> int:
        """The offset after the last message that the journal speaks of."""
        stops = (stop for _, stop in self.acked)
        offsets = (*(nack.offset for nack in self.nacks.values()), *self.tries, *self.out)
        return max([self.base, *stops, *(offset + 1 for offset in offsets)])

    def clip(self, end: int) -> None:
        """Drop everything about offsets from `end` on."""
        self.base = min(self.base, end)
        self.acked = [(first, min(stop, end)) for first, stop in self.acked if first < end]
        self.nacks = {number: nack for number, nack in self.nacks.items() if nack.offset < end}
        self.tries = {offset: n for offset, n in self.tries.items() if offset < end}
        self.died &= self.tries.keys()
        self.out = {offset for offset in self.out if offset < end}

    def position(self) -> Position:
        """Return the position, with all refusals that were not taken in."""
        waiting = frozenset(n.offset for n in self.nacks.values() if n.number > self.reset)
        return Position(
            self.base, tuple(self.acked), waiting, dict(self.tries), frozenset(self.died)
        )
