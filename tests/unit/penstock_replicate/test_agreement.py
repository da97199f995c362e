"""Does a log continue its master's? What is asked, and what is answered."""

import asyncio
from hashlib import sha256
from pathlib import Path
from struct import Struct

import attrs
import pytest

from penstock.errors import DivergedError, ReplicationError
from penstock_replicate.following.agreement import (
    EpochStart,
    OwnSide,
    disagreement,
    last_digests,
)
from penstock_replicate.following.channel import ConnectionLostError
from penstock_replicate.wire.frames import Hello

HEAD = Struct(">ii")
SEGMENT_BYTES = 1 << 20
HISTORY = "ab" * 16


@attrs.frozen(kw_only=True)
class LogInMemory:
    """A log of records of 100 bytes."""

    data: bytes
    min_offset: int = 0
    segment_bytes: int = SEGMENT_BYTES

    @property
    def end_offset(self) -> int:
        return len(self.data)

    def read(self, log_offset: int, size: int) -> bytes:
        return self.data[log_offset : log_offset + size]

    def digest(self, start: int, stop: int) -> bytes:
        return sha256(self.data[start:stop]).digest()


def records(count: int, fill: bytes = b"r") -> bytes:
    return b"".join(HEAD.pack(100, 7) + fill * 92 for _ in range(count))


def own(
    data: bytes, *epochs: tuple[int, int], history: str | None = HISTORY, low: int = 0
) -> OwnSide:
    log = LogInMemory(data=data, min_offset=low)
    starts = tuple(EpochStart(*each) for each in epochs)
    return OwnSide(path=Path("/c"), log=log, is_empty=not data, history=history, epochs=starts)


def hello(
    data: bytes, *epochs: tuple[int, int], history: str | None = HISTORY, low: int = 0
) -> Hello:
    return Hello(
        history=history, epochs=epochs, segment_bytes=SEGMENT_BYTES, min_offset=low, end_offset=len(data), store="m",
        nonce="00" * 32, needs_proof=False,
    )  # fmt: skip


def verdict(side: OwnSide, said: Hello, theirs: bytes) -> ReplicationError | None:
    async def ask(start: int, stop: int) -> str | None:
        return sha256(theirs[start:stop]).hexdigest() if said.min_offset <= start else None

    return asyncio.run(disagreement(side, said, "a:1", ask))


LOG = records(50)


@pytest.mark.parametrize("count", [0, 1, 49, 50])
def test_a_log_that_is_the_beginning_of_the_masters_goes_on(count: int) -> None:
    said = hello(LOG, (1, 0))
    assert verdict(own(LOG[: count * 100], (1, 0)), said, LOG) is None
    assert verdict(own(LOG[: count * 100], history=None), said, LOG) is None


@pytest.mark.parametrize("same", [0, 1, 17, 40])
def test_a_log_with_other_bytes_parts_at_the_record_that_differs(same: int) -> None:
    mine = records(same) + records(41 - same, b"x")
    found = verdict(own(mine, (1, 0)), hello(LOG, (1, 0)), LOG)
    assert isinstance(found, DivergedError)
    assert (found.parts_at, found.extra_bytes, found.extra_records) == (same * 100, (41 - same) * 100, 41 - same)  # fmt: skip
    assert "bytes differ" in str(found)


def test_a_longer_log_parts_where_the_masters_ends() -> None:
    found = verdict(own(records(60), (1, 0)), hello(LOG, (1, 0)), LOG)
    assert isinstance(found, DivergedError)
    assert (found.parts_at, found.extra_records) == (5000, 10)
    assert "ends at 5000" in str(found)


def test_a_master_promoted_earlier_names_its_epoch() -> None:
    mine = records(60)
    theirs = records(40) + records(30, b"n")
    found = verdict(own(mine, (1, 0)), hello(theirs, (1, 0), (2, 4000)), theirs)
    assert isinstance(found, DivergedError)
    assert (found.parts_at, found.extra_records) == (4000, 20)
    assert "promoted at log offset 4000 (epoch 2)" in str(found)


@pytest.mark.parametrize(
    ("side", "said", "text"),
    [
        (own(LOG, (1, 0), (2, 4000)), hello(LOG, (1, 0)), "is the older one"),
        (own(LOG, (1, 0), history="cd" * 16), hello(LOG, (1, 0)), "another one"),
        (own(LOG, (1, 0)), hello(records(90), (1, 0), low=6000), "retention has removed"),
        (own(LOG, (1, 0)), attrs.evolve(hello(LOG, (1, 0)), segment_bytes=5), "segments have 5 bytes"),
    ],
)  # fmt: skip
def test_what_cannot_follow_at_all_is_told_why(side: OwnSide, said: Hello, text: str) -> None:
    found = verdict(side, said, LOG)
    assert found is not None
    assert not isinstance(found, DivergedError)
    assert text in str(found)


def test_the_last_bytes_that_both_have_are_proved() -> None:
    assert last_digests(own(b""), hello(LOG)) == ()
    (found,) = last_digests(own(LOG, low=200), hello(LOG[:4000], low=300))
    assert (found.start, found.stop, found.sha256) == (300, 4000, sha256(LOG[300:4000]).hexdigest())
    assert last_digests(own(LOG), hello(records(90), low=6000)) == ()


def test_what_the_masters_retention_deletes_meanwhile_is_no_difference() -> None:
    """A follower was told that all of its log differs, and with `cut` would have cut it, when the master deleted segments after its hello."""

    async def ask(start: int, stop: int) -> None:
        return None

    side = own(LOG[:2000], (1, 0))
    with pytest.raises(ConnectionLostError, match="retention has deleted log offset 0"):
        asyncio.run(disagreement(side, hello(LOG, (1, 0)), "a:1", ask))
