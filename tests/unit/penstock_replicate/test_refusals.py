"""Each refusal says what, where, and what to do."""

from pathlib import Path

import pytest

from penstock.errors import ReplicationError
from penstock_replicate.following import refusals
from penstock_replicate.wire.frames import Hello, RefusalCode, Refused

HELLO = Hello(
    history="ab" * 16, epochs=((1, 0),), segment_bytes=1 << 30, min_offset=0, end_offset=9, store="m", nonce="00" * 32, needs_proof=False,
)  # fmt: skip
STORE, MASTER = Path("/data"), "a:1"


@pytest.mark.parametrize(
    ("error", "facts", "needs_copy"),
    [
        (refusals.other_segments(STORE, MASTER, 100, 200), ("100", "200", "segment_bytes"), True),
        (refusals.other_border(STORE, MASTER, 100, 250), ("100", "250", "mappedFileSizeCommitLog"), False),
        (refusals.other_history(STORE, MASTER, "cd" * 16, "ab" * 16), ("cdcdcdcd", "abababab"), True),
        (refusals.other_history(STORE, MASTER, "cd" * 16, None), ("no known history",), True),
        (refusals.removed_there(STORE, MASTER, 5, 50), ("5", "50", "45"), True),
        (refusals.stale_master(STORE, MASTER, 3, HELLO, 77), ("epoch 1", "epoch 3", "77"), False),
        (refusals.needs_secret(STORE, MASTER), ("secret_file",), False),
        (refusals.no_proof(STORE, MASTER), ("secret_file",), False),
        (refusals.bad_bytes(STORE, MASTER, 5, "bad at 7"), ("5 times", "bad at 7"), True),
        (refusals.refused(STORE, MASTER, Refused("removed", "gone.", {"part_at": 7})), ("gone",), True),
        (refusals.refused(STORE, MASTER, Refused(RefusalCode.SECRET, "who?")), ("who?", "both sides"), False),
        (refusals.refused(STORE, MASTER, Refused("new-code", "of later")), ("of later",), True),
    ],
)  # fmt: skip
def test_a_refusal_names_both_sides_and_says_what_to_do(
    error: ReplicationError, facts: tuple[str, ...], needs_copy: bool
) -> None:
    text = str(error)
    assert text.startswith("/data cannot follow a:1: ")
    assert "Its log was not changed" in text
    assert all(fact in text for fact in facts)
    assert error.needs_copy is needs_copy
    assert ("--full-copy" in text) == needs_copy
