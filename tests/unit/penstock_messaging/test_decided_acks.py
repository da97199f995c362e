"""What the next owner of a queue must know of decisions: only of those about the turn before it."""

from pathlib import Path

import attrs
import pytest

from penstock.errors import CorruptionError
from penstock.files import Files
from penstock_messaging.groups.fold import Fold
from penstock_messaging.groups.position import Settled
from penstock_messaging.transactions.decided_acks import (
    DecidedElsewhere,
    about,
    is_passed,
    lacking,
    summary_of,
)
from penstock_messaging.transactions.decision_file import (
    AckDecision,
    DecisionFile,
    QueueAcks,
    decision_path,
)

ACKS = QueueAcks("g", "t", 0, 3, 5, 2, ((10, 12), (20, 21)))


def settled(*acked: tuple[int, int], base: int = 0, reset: int = 0) -> Settled:
    """Return a queue whose journal is the one that was decided about."""
    fold = Fold(7, 3, 5, None, base=base, acked=list(acked), reset=reset)
    return Settled(fold, None, None, base, 3, 5, reset)


def test_what_a_journal_lacks_is_all_or_nothing() -> None:
    assert lacking(ACKS, settled()) == ACKS.ranges
    assert lacking(ACKS, settled((10, 12))) == ACKS.ranges
    assert lacking(ACKS, settled((5, 30))) == ()
    assert lacking(ACKS, settled((20, 21), base=12)) == ()
    assert lacking(ACKS, settled(base=21)) == ()
    assert lacking(ACKS, settled((21, 22), base=20)) == ACKS.ranges


def test_a_later_turn_or_reset_is_not_spoken_of() -> None:
    now = settled()
    assert not is_passed(ACKS, now)
    assert not is_passed(ACKS, settled(reset=2))
    for later in (
        attrs.evolve(now, life=4), attrs.evolve(now, epoch=6), attrs.evolve(now, fold=None), settled(reset=3),
    ):  # fmt: skip
        assert is_passed(ACKS, later)
        assert lacking(ACKS, later) == ()


def test_others_are_left_out() -> None:
    assert about([ACKS], "g", "t", 0) == [ACKS]
    for other in (("h", "t", 0), ("g", "u", 0), ("g", "t", 1)):
        assert about([ACKS], *other) == []


def test_a_reader_knows_that_the_writer_must_say_it(tmp_path: Path) -> None:
    elsewhere = DecidedElsewhere(Files(), tmp_path)
    assert elsewhere.ranges("g", "t", 0, settled()) == ()
    file = DecisionFile(Files(), tmp_path, 7)
    file.replace(())
    file.append(AckDecision(1, 0, (ACKS,)))
    assert elsewhere.ranges("g", "t", 0, settled()) is None
    assert elsewhere.ranges("g", "t", 0, settled((0, 30))) == ()
    assert elsewhere.ranges("g", "t", 1, settled()) == ()
    assert elsewhere.undecided(lambda *_queue: settled()) == 1
    assert elsewhere.undecided(lambda *_queue: settled((0, 30))) == 0
    file.drop(1)
    assert elsewhere.ranges("g", "t", 0, settled()) == ()


def test_a_reader_guesses_nothing_of_a_corrupt_file(tmp_path: Path) -> None:
    file = DecisionFile(Files(), tmp_path, 7)
    file.replace(())
    file.append(AckDecision(1, 0, (ACKS,)))
    file.append(AckDecision(2, 0, (ACKS,)))
    raw = bytearray(decision_path(tmp_path).read_bytes())
    raw[80] ^= 1
    decision_path(tmp_path).write_bytes(raw)
    with pytest.raises(CorruptionError, match="open the store for writing"):
        DecidedElsewhere(Files(), tmp_path).ranges("g", "other", 0, settled())
    (line,) = summary_of(
        lambda: DecidedElsewhere(Files(), tmp_path).undecided(lambda *_: settled())
    )
    assert line.text.startswith("not known: ")
    assert line.value is None


def test_nothing_is_said_of_what_is_decided() -> None:
    assert summary_of(lambda: 0) == []
    assert summary_of(lambda: 2)[0].value == {"open": 2}
