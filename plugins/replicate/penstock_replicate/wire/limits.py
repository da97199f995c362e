"""Sizes that no side of a replication connection may exceed, and the checks of what a peer says.

A peer is not trusted: each length is checked before memory is reserved for it, and each value before it is used. What breaks a rule is a
`WireViolation`; the connection is then closed, and its reason is shown as the copy's last error.
"""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

# Offsets are signed 64-bit numbers on the wire and in the log.
OFFSET_MAX = (1 << 63) - 1
DATA_BYTES_MAX = 4 << 20
FRAME_BYTES_MAX = DATA_BYTES_MAX + 64
# What a master sends at once to a Penstock follower: large enough for the speed of a disk, small enough to be fair to others.
SEND_BYTES = 1 << 20
HELLO_BYTES_MAX = 256 << 10
JSON_BYTES_MAX = 1 << 20
TEXT_MAX = 2000
NAME_MAX = 255
EPOCHS_MAX = 4096
# As the file of a store's role has it, less the epoch that a promotion adds.
EPOCH_MAX = (1 << 62) - 1
FACTS_MAX = 32
RANGES_MAX = 4096
# What one question about digests may make the other side read.
DIGESTS_MAX = 64
DIGEST_BYTES_MAX = 1 << 20
# A file beside the log; one that is larger than a frame comes in several.
SIDE_BYTES_MAX = 64 << 20
NONCE_BYTES = 32
_HEX = re.compile(r"(?:[0-9a-f]{2})+\Z")


class WireViolation(Exception):  # noqa: N818 - not an error of a caller: it never leaves this package
    """The peer sent what the protocol does not allow. The text says what, and is safe to show after escaping."""


def parse_object(payload: bytes | bytearray | memoryview, what: str) -> dict[str, Any]:
    """Return the JSON object in a payload."""
    try:
        found = json.loads(bytes(payload))
    except (ValueError, RecursionError) as error:
        raise WireViolation(f"{what} is not JSON") from error
    if type(found) is not dict:
        raise WireViolation(f"{what} is not a JSON object")
    return found


def int_of(value: object, what: str, low: int = 0, high: int = OFFSET_MAX) -> int:
    """Return a whole number from `low` to `high`."""
    if type(value) is not int or not low <= value <= high:
        raise WireViolation(f"{what} is not a whole number from {low} to {high}")
    return value


def flag_of(value: object, what: str) -> bool:
    """Return a bool."""
    if type(value) is not bool:
        raise WireViolation(f"{what} is not true or false")
    return value


def text_of(value: object, what: str, longest: int = NAME_MAX) -> str:
    """Return a text of at most `longest` characters."""
    if type(value) is not str or len(value) > longest:
        raise WireViolation(f"{what} is not a text of at most {longest} characters")
    return value


def hex_of(value: object, what: str, size: int) -> str:
    """Return the hexadecimal text of `size` bytes."""
    if type(value) is not str or len(value) != 2 * size or not _HEX.match(value):
        raise WireViolation(f"{what} is not {size} bytes in hexadecimal digits")
    return value


def list_of(value: object, what: str, longest: int) -> list[Any]:
    """Return a list of at most `longest` items."""
    if type(value) is not list or len(value) > longest:
        raise WireViolation(f"{what} is not a list of at most {longest} items")
    return value


def facts_of(value: object, what: str) -> Mapping[str, int | str | None]:
    """Return a small object whose values are numbers, texts or null."""
    if type(value) is not dict or len(value) > FACTS_MAX:
        raise WireViolation(f"{what} is not an object of at most {FACTS_MAX} facts")
    for name, fact in value.items():
        if len(name) > NAME_MAX or not (
            fact is None
            or (type(fact) is int and -OFFSET_MAX <= fact <= OFFSET_MAX)
            or (type(fact) is str and len(fact) <= TEXT_MAX)
        ):
            raise WireViolation(f"{what} has a fact that is no number and no short text")
    return value


def ascending(offsets: Sequence[int], what: str) -> None:
    """Refuse offsets that do not ascend."""
    if any(first > second for first, second in itertools.pairwise(offsets)):
        raise WireViolation(f"{what} do not ascend")


def epochs_of(value: object) -> tuple[tuple[int, int], ...]:
    """Return the checked epochs, each with the log offset at which it began."""
    pairs = []
    for item in list_of(value, "epochs", EPOCHS_MAX):
        if type(item) is not list or len(item) != 2:  # noqa: PLR2004 - a pair
            raise WireViolation("an epoch is not a pair")
        pairs.append(
            (
                int_of(item[0], "an epoch", 0, EPOCH_MAX),
                int_of(item[1], "an epoch's start", 0, EPOCH_MAX),
            )
        )
    if any(first[0] >= second[0] for first, second in itertools.pairwise(pairs)):
        raise WireViolation("epochs do not ascend")
    ascending([start for _, start in pairs], "starts of epochs")
    return tuple(pairs)


def utf8_of(data: bytes, what: str) -> str:
    """Return the text of UTF-8 bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise WireViolation(f"{what} is not UTF-8") from error
