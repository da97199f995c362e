"""What entries amount to: against a set of offsets as the model."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lanes import examples

from penstock_messaging.groups.entries import EntryKind, encode, valid_entries
from penstock_messaging.groups.fold import Fold, Position, merged

OWN = {"store": 7, "life": 0, "epoch": 3}
SPAN = 40


def fold_of(*entries: dict[str, int]) -> Fold:
    """Return the state after a TAKE and these entries."""
    raw = encode(EntryKind.TAKE, sequence=1, base=0, **OWN)
    raw += b"".join(encode(sequence=n, **OWN, **{"base": 0, **e}) for n, e in enumerate(entries, 2))
    made = Fold.of(valid_entries(raw))
    assert made is not None
    return made


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(0, SPAN), st.integers(1, 5)), max_size=30), st.integers(0, 5))
def test_acknowledged_ranges_are_merged_as_a_set_would(ranges: list[tuple[int, int]], base: int) -> None:  # fmt: skip
    entries = [{"kind": EntryKind.ACK, "offset": o, "count": c, "base": base} for o, c in ranges]
    position = fold_of(*entries).position() if entries else Position(0)
    known = set(range(base if entries else 0)).union(*(range(o, o + c) for o, c in ranges))
    assert {o for o in range(SPAN + 10) if position.is_done(o)} == known
    gaps = [second[0] - first[1] for first, second in zip(position.acked, position.acked[1:], strict=False)]  # fmt: skip
    assert all(gap > 0 for gap in gaps)
    assert all(first > position.base for first, _ in position.acked)


def test_a_refusal_is_done_and_counts_as_consumed_once_it_is_taken_in() -> None:
    fold = fold_of(
        {"kind": EntryKind.NACK, "offset": 0, "count": 1, "level": -1, "tries": 3, "number": 1},
        {"kind": EntryKind.ACK, "offset": 1, "count": 2},
    )  # fmt: skip
    assert fold.position() == Position(0, ((1, 3),), frozenset({0}))
    assert fold.nacks[1] == (1, 0, -1, 3, 1)
    fold.take_in(1)
    assert (fold.position(), fold.nacks) == (Position(3), {})


def test_a_reset_forgets_what_was_consumed_and_keeps_refusals_for_the_writer() -> None:
    fold = fold_of(
        {"kind": EntryKind.ACK, "offset": 5, "count": 9},
        {"kind": EntryKind.NACK, "offset": 20, "count": 1, "number": 1},
        {"kind": EntryKind.RETRY, "offset": 2, "tries": 4},
        {"kind": EntryKind.RESET, "offset": 2, "base": 2, "number": 2},
        {"kind": EntryKind.ACK, "offset": 3, "count": 1, "base": 2},
    )  # fmt: skip
    assert fold.position() == Position(2, ((3, 4),))
    assert (list(fold.nacks), fold.reset, fold.number) == ([1], 2, 2)
    fold.take_in(2)
    # The message at 20 is to be handed out again, although it was refused before the reset.
    assert fold.position() == Position(2, ((3, 4),))


def test_tries_count_until_the_base_passes_the_message() -> None:
    entries = [{"kind": EntryKind.RETRY, "offset": 4, "tries": n, "base": 4} for n in (1, 2)]
    fold = fold_of(*entries)
    assert fold.tries == {4: 2}
    fold.raise_base(5)
    assert fold.tries == {}


def test_clipped_at_an_end_nothing_after_it_is_left() -> None:
    fold = fold_of(
        {"kind": EntryKind.ACK, "offset": 8, "count": 5},
        {"kind": EntryKind.NACK, "offset": 11, "count": 1, "number": 1},
        {"kind": EntryKind.RETRY, "offset": 12, "tries": 1},
    )  # fmt: skip
    assert fold.reach == 13
    fold.clip(10)
    assert (fold.position(), fold.reach) == (Position(0, ((8, 10),)), 10)
    fold.clip(0)
    assert fold.position() == Position(0)


def test_no_entries_are_no_state_and_ranges_that_touch_the_base_raise_it() -> None:
    assert Fold.of(np.zeros(0, "V64")) is None
    assert merged([(3, 5), (0, 3), (7, 8)], 0) == (5, [(7, 8)])
