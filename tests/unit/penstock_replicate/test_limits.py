import pytest

from penstock_replicate.wire import limits
from penstock_replicate.wire.limits import WireViolation


def test_numbers_flags_and_texts_are_of_their_type() -> None:
    assert limits.int_of(7, "n", 0, 7) == 7
    assert limits.flag_of(False, "f") is False
    assert limits.text_of("a", "t") == "a"
    assert limits.hex_of("0aff", "h", 2) == "0aff"
    for wrong in (True, 8, -1, "7", None, 7.0):
        with pytest.raises(WireViolation):
            limits.int_of(wrong, "n", 0, 7)
    for wrong in (1, None, "x" * 256):
        with pytest.raises(WireViolation):
            limits.text_of(wrong, "t")
    for wrong in ("0AFF", "0aff\n", "0af", 1):
        with pytest.raises(WireViolation):
            limits.hex_of(wrong, "h", 2)


WRONG_FACTS: list[object] = [
    {"a": []}, {"a": 1.5}, {"a": True}, {"a" * 300: 1}, {"a": "b" * 3000}, {str(n): n for n in range(40)}, [],
]  # fmt: skip


def test_facts_are_few_and_small() -> None:
    assert limits.facts_of({"a": 1, "b": "c", "d": None}, "f")
    for wrong in WRONG_FACTS:
        with pytest.raises(WireViolation):
            limits.facts_of(wrong, "f")


def test_epochs_ascend() -> None:
    assert limits.epochs_of([[1, 0], [2, 0]]) == ((1, 0), (2, 0))
    with pytest.raises(WireViolation):
        limits.epochs_of([[1, 0], [1, 0]])


def test_an_epoch_leaves_room_for_the_next_promotion() -> None:
    assert limits.epochs_of([[limits.EPOCH_MAX, 0]]) == ((limits.EPOCH_MAX, 0),)
    for wrong in ([[limits.EPOCH_MAX + 1, 0]], [[1, limits.EPOCH_MAX + 1]]):
        with pytest.raises(WireViolation):
            limits.epochs_of(wrong)
