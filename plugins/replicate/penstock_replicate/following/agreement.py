"""Finds out, with a Penstock master, whether this log continues the master's; and where they part if it does not.

The answer is one of: this log can go on from its end; it differs (`DivergedError`); or it cannot follow this master at all
(`ReplicationError`, see `refusals`). Nothing is changed here.
"""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import attrs

from penstock.errors import DivergedError, ReplicationError
from penstock_replicate.following import refusals
from penstock_replicate.following.channel import ConnectionLostError
from penstock_replicate.following.comparing import (
    CommonPart,
    RawLog,
    common_part,
    count_records,
    is_equal,
    last_window,
    parting_of,
    record_start,
)
from penstock_replicate.wire.frames import Hello, RangeDigest

# More records than these are not counted: the answer is then only a number of bytes.
_COUNTED_MAX = 1_000_000
_COUNTED_BYTES_MAX = 1 << 30


@attrs.frozen
class EpochStart:
    """An epoch of either side, see `comparing.BeginsEpoch`."""

    epoch: int
    start_offset: int


@attrs.frozen(kw_only=True)
class OwnSide:
    """What this side is, for a comparison.

    Attributes:
        path: the store.
        log: its log.
        is_empty: it has no log yet.
        history: as its replica file says; None if it has none.
        epochs: as the replica file says.
    """

    path: Path
    log: RawLog
    is_empty: bool
    history: str | None
    epochs: Sequence[EpochStart]


def last_digests(own: OwnSide, hello: Hello) -> tuple[RangeDigest, ...]:
    """Return the digest of this log's last bytes that the master should have as well."""
    low = max(own.log.min_offset, hello.min_offset)
    high = min(own.log.end_offset, hello.end_offset)
    if own.is_empty or high <= low:
        return ()
    start, stop = last_window(low, high)
    return (RangeDigest(start, stop, own.log.digest(start, stop).hex()),)


AskHex = Callable[[int, int], Awaitable[str | None]]


async def disagreement(own: OwnSide, hello: Hello, master: str, ask: AskHex) -> ReplicationError | None:  # fmt: skip
    """Return why this log cannot go on from its end with what the master sends; None if it can.

    Args:
        own: this side.
        hello: what the master said of itself.
        master: its address.
        ask: returns the SHA-256 of a range of the master's log, in hexadecimal digits; None if it lacks any of it.

    Raises:
        ConnectionLostError: the master's retention deletes what is compared; to be tried again.
    """
    log = own.log
    if hello.segment_bytes != log.segment_bytes:
        return refusals.other_segments(own.path, master, log.segment_bytes, hello.segment_bytes)
    if own.is_empty:
        return None
    if own.history is not None and own.history != hello.history:
        return refusals.other_history(own.path, master, own.history, hello.history)
    theirs = [EpochStart(*pair) for pair in hello.epochs]
    common = common_part(own.epochs, log.end_offset, theirs, hello.end_offset)
    end = common.end if own.history is not None else hello.end_offset
    end = min(end, log.end_offset)
    if own.epochs and own.epochs[-1].epoch > (theirs[-1].epoch if theirs else 0):
        return refusals.stale_master(own.path, master, own.epochs[-1].epoch, hello, end)
    if log.end_offset < hello.min_offset:
        return refusals.removed_there(own.path, master, log.end_offset, hello.min_offset)
    return await _difference(own, hello, master, ask, attrs.evolve(common, end=end))


async def _difference(
    own: OwnSide, hello: Hello, master: str, ask: AskHex, common: CommonPart
) -> DivergedError | None:  # fmt: skip
    """Return where the bytes of two logs part, which can be the same up to the end of `common`; None if this one has no others."""
    log, end = own.log, common.end
    low = max(log.min_offset, hello.min_offset)

    async def their_digest(start: int, stop: int) -> bytes:
        found = await ask(start, stop)
        if found is None:
            # No sign of a difference: what the master had when it said hello is deleted meanwhile.
            raise ConnectionLostError(
                f"the master's retention has deleted log offset {start}, which was about to be compared"
            )
        return bytes.fromhex(found)

    is_same = await is_equal(log, their_digest, low, end)
    if is_same and end == log.end_offset:
        return None
    parts_at = end if is_same else record_start(log, await parting_of(log, their_digest, low, end))
    return _diverged(own, master, hello, parts_at, common.their_epoch, is_same=is_same)


def _diverged(
    own: OwnSide, master: str, hello: Hello, parts_at: int, their_epoch: int | None, *, is_same: bool
) -> DivergedError:  # fmt: skip
    extra = own.log.end_offset - parts_at
    count = None
    if extra <= _COUNTED_BYTES_MAX:
        count = count_records(own.log, parts_at, own.log.end_offset, _COUNTED_MAX)
    if not is_same:
        reason = "their bytes differ"
    elif their_epoch is not None:
        reason = f"the store there was promoted at log offset {parts_at} (epoch {their_epoch}), and this one wrote on after it"
    else:
        reason = f"the log there ends at {hello.end_offset}, before the one here"
    return DivergedError(own.path, master, reason, parts_at, extra, count)
