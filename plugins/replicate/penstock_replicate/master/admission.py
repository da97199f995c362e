"""May a follower go on from the end of its log with what the master sends? Decided by facts, before a byte is sent.

The order of questions: the sizes of segments; the history; the epochs; the ends of both logs; the digests of the last bytes. A follower
that is refused keeps its log: nothing is ever cut here.
"""

from collections.abc import Callable

from penstock_replicate.wire.frames import EpochPair, Follow, Hello, RefusalCode, Refused

Digest = Callable[[int, int], str | None]


def refusal(mine: Hello, theirs: Hello, follow: Follow, digest: Digest) -> Refused | None:
    """Return why a follower is refused; None if it is not.

    Args:
        mine: what the master says of itself now.
        theirs: what the follower has said of itself.
        follow: what it asks for.
        digest: returns the SHA-256 of a range of the master's log, None if it lacks any of it.
    """
    if theirs.segment_bytes != mine.segment_bytes:
        return Refused(
            RefusalCode.SEGMENT_BYTES,
            f"a commit-log file has {mine.segment_bytes} bytes here and {theirs.segment_bytes} bytes there; "
            "make the follower's store anew, with the same segment_bytes",
            {"master_segment_bytes": mine.segment_bytes, "follower_segment_bytes": theirs.segment_bytes},
        )  # fmt: skip
    if follow.is_empty:
        return None
    return (
        _by_history(mine, theirs)
        or _by_epochs(mine, theirs, follow.end_offset)
        or _by_ends(mine, follow.end_offset)
        or _by_digests(mine, theirs, follow, digest)
    )


def _by_history(mine: Hello, theirs: Hello) -> Refused | None:
    if theirs.history in (None, mine.history):
        return None
    return Refused(
        RefusalCode.HISTORY,
        f"the log here has history {mine.history} and the log there {theirs.history}: they never were copies of each other; "
        "give the follower an empty folder",
        {"master_history": mine.history, "follower_history": theirs.history},
    )  # fmt: skip


def _by_epochs(mine: Hello, theirs: Hello, end_offset: int) -> Refused | None:
    if (
        theirs.history is None
        or not theirs.epochs
        or theirs.epochs[-1] == (mine.epochs or (None,))[-1]
    ):
        # The same epoch: only the ends and the bytes can differ.
        return None
    part_at = parting(mine.epochs, mine.end_offset, theirs.epochs, end_offset)
    newest, newest_there = (mine.epochs[-1][0] if mine.epochs else 0), theirs.epochs[-1][0]
    facts: dict[str, int | str | None] = {
        "part_at": part_at, "master_epoch": newest, "follower_epoch": newest_there, "follower_end": end_offset,
    }  # fmt: skip
    if newest_there > newest:
        return Refused(
            RefusalCode.STALE_MASTER,
            f"the store here is in epoch {newest} and the one there in epoch {newest_there}: a copy was promoted after this one was "
            f"master; the logs part at log offset {part_at}. Make this store follow the newer one",
            facts,
        )  # fmt: skip
    if part_at < end_offset:
        return Refused(
            RefusalCode.DIVERGED,
            f"the log there has {end_offset - part_at} bytes after log offset {part_at}, where the log here was continued by another "
            f"master (epoch {newest}); they are only there. Save them if they matter, then cut the follower's log at {part_at}",
            facts,
        )  # fmt: skip
    return None


def parting(
    mine: tuple[EpochPair, ...], my_end: int, theirs: tuple[EpochPair, ...], their_end: int
) -> int:
    """Return the log offset up to which two logs of one history are the same at most, as far as their epochs say."""
    common = {pair[0]: pair[1] for pair in mine}
    last = max((pair[0] for pair in theirs if common.get(pair[0]) == pair[1]), default=None)
    if last is None:
        # No epoch in common: the lists may be cut at their beginning, and the digests decide.
        newer = [pair[1] for pair in (*mine[:1], *theirs[:1])]
        return min(my_end, their_end, *newer) if newer else min(my_end, their_end)
    mine_next = next((start for epoch, start in mine if epoch > last), my_end)
    theirs_next = next((start for epoch, start in theirs if epoch > last), their_end)
    return min(mine_next, theirs_next, my_end, their_end)


def _by_ends(mine: Hello, end_offset: int) -> Refused | None:
    if end_offset > mine.end_offset:
        return Refused(
            RefusalCode.LONGER,
            f"the log there ends at {end_offset} and the log here at {mine.end_offset}: the follower has {end_offset - mine.end_offset} "
            "bytes that this master lacks. Promote it if they matter, otherwise cut its log",
            {"part_at": mine.end_offset, "master_end": mine.end_offset, "follower_end": end_offset},
        )  # fmt: skip
    if end_offset < mine.min_offset:
        return removed(end_offset, mine.min_offset)
    return None


def removed(end_offset: int, min_offset: int) -> Refused:
    """Return the refusal of a follower whose next byte retention has deleted."""
    return Refused(
        RefusalCode.REMOVED,
        f"the log there ends at {end_offset}, and the log here begins at {min_offset}: retention has deleted what is between. "
        "Make a full copy: give the follower an empty folder",
        {"follower_end": end_offset, "master_min": min_offset},
    )


def _by_digests(mine: Hello, theirs: Hello, follow: Follow, digest: Digest) -> Refused | None:
    compared = 0
    for one in follow.digests:
        found = None if one.sha256 is None else digest(one.start, one.stop)
        if found is None:
            continue
        compared += 1
        if found != one.sha256:
            return Refused(
                RefusalCode.DIFFERS,
                f"the bytes from log offset {one.start} to {one.stop} differ here and there; ask for digests to find where the logs part",
                {"start": one.start, "stop": one.stop},
            )  # fmt: skip
    if not compared and theirs.history is None:
        return Refused(
            RefusalCode.DIFFERS,
            f"the log there ends at {follow.end_offset}, and nothing shows that it is the same as the log here: it has no history, and no "
            f"digest of bytes that are here, from log offset {mine.min_offset} on",
            {"follower_end": follow.end_offset, "master_min": mine.min_offset},
        )  # fmt: skip
    return None
