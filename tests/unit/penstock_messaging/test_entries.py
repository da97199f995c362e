"""Entries of a journal: what is read of bytes that are torn, of another owner, or hostile."""

import pytest

from penstock_messaging.groups.entries import (
    ENTRY_BYTES,
    NUMBER_MAX,
    EntryKind,
    encode,
    valid_entries,
)

OWN = {"store": 7, "life": 0, "epoch": 3, "base": 0}


def made(count: int, first: int = 1) -> bytes:
    """Return a file of a TAKE and acknowledgements."""
    parts = [encode(EntryKind.TAKE, sequence=first, **OWN)]
    parts += [
        encode(EntryKind.ACK, sequence=first + n, offset=n, count=1, **OWN) for n in range(1, count)
    ]
    return b"".join(parts)


def test_a_torn_last_entry_is_not_read() -> None:
    whole = made(5)
    for cut in range(1, ENTRY_BYTES):
        assert len(valid_entries(whole[:-cut].ljust(4096, b"\0"))) == 4
    assert len(valid_entries(whole.ljust(4096, b"\0"))) == 5


def test_entries_after_a_torn_one_are_not_read() -> None:
    whole = bytearray(made(6))
    whole[3 * ENTRY_BYTES + 20] ^= 1
    assert len(valid_entries(bytes(whole))) == 3


@pytest.mark.parametrize("change", [{"store": 8}, {"life": 1}, {"epoch": 2}, {"epoch": 4}])
def test_entries_of_another_owner_are_not_read(change: dict[str, int]) -> None:
    other = encode(EntryKind.ACK, sequence=4, offset=3, count=1, **{**OWN, **change})
    assert len(valid_entries(made(3) + other)) == 3


def test_an_older_file_at_the_same_place_is_not_read_on() -> None:
    """The entries that an earlier owner left have other sequence numbers."""
    assert len(valid_entries(made(3, first=10) + made(6)[3 * ENTRY_BYTES :])) == 3


@pytest.mark.parametrize("wrong", [
    {"base": -1}, {"base": NUMBER_MAX + 1}, {"offset": -2}, {"offset": NUMBER_MAX + 1}, {"number": -1},
])  # fmt: skip
def test_impossible_numbers_end_the_file(wrong: dict[str, int]) -> None:
    hostile = encode(EntryKind.ACK, sequence=3, **{**OWN, "count": 1, **wrong})
    assert len(valid_entries(made(2) + hostile)) == 2


def test_a_file_must_begin_with_a_take_and_a_later_part_follows_its_last_entry() -> None:
    whole = made(6)
    assert len(valid_entries(whole[ENTRY_BYTES:])) == 0
    head = valid_entries(whole[: 2 * ENTRY_BYTES])
    assert len(valid_entries(whole[2 * ENTRY_BYTES :], head[-1:])) == 4
    assert len(valid_entries(whole[3 * ENTRY_BYTES :], head[-1:])) == 0
    assert len(valid_entries(b"", head[-1:])) == 0
