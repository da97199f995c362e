"""The reasons for which a store does not follow a master at all, each with what to do."""

from collections.abc import Mapping
from pathlib import Path

from penstock.errors import ReplicationError
from penstock_replicate.wire.frames import Hello, RefusalCode, Refused

FULL_COPY = "To copy the master anew and keep this store's folder under another name, use `--full-copy` (full_copy=True)"


def other_segments(path: Path, master: str, own: int, theirs: int) -> ReplicationError:
    """Return the error for a master whose segments have another size."""
    return ReplicationError(
        path,
        master,
        f"its segments have {theirs} bytes, and those here {own}; a copy must have the same (log.segment_bytes, "
        f"in a broker mappedFileSizeCommitLog)",
        FULL_COPY,
        {"own_segment_bytes": own, "master_segment_bytes": theirs},
        needs_copy=True,
    )


def other_border(path: Path, master: str, own: int, log_offset: int) -> ReplicationError:
    """Return the error for a RocketMQ master whose file begins at a log offset where no segment can begin here."""
    return ReplicationError(
        path,
        master,
        f"one of its files begins at log offset {log_offset}, which is no multiple of {own}, the size of segments here: its "
        f"mappedFileSizeCommitLog is another one",
        "Copy it into a new folder, with log.segment_bytes set to the master's mappedFileSizeCommitLog",
        {"own_segment_bytes": own, "log_offset": log_offset},
    )


def other_history(path: Path, master: str, own: str, theirs: str | None) -> ReplicationError:
    """Return the error for a master whose log is that of another store."""
    whose = f"of history {theirs[:8]}" if theirs else "of no known history"
    return ReplicationError(
        path,
        master,
        f"the store there is another one ({whose}), and this store is of history {own[:8]}: their logs have nothing in common",
        f"Check the address. {FULL_COPY}",
        {"own_history": own, "master_history": theirs},
        needs_copy=True,
    )


def removed_there(path: Path, master: str, own_end: int, min_offset: int) -> ReplicationError:
    """Return the error for a master whose retention has removed what comes next."""
    return ReplicationError(
        path,
        master,
        f"its retention has removed the log before {min_offset}, and the log here ends at {own_end}: "
        f"{min_offset - own_end} bytes between them are lost to this copy",
        FULL_COPY,
        {"own_end": own_end, "master_min_offset": min_offset},
        needs_copy=True,
    )


def stale_master(path: Path, master: str, own_epoch: int, hello: Hello, parts_at: int) -> ReplicationError:  # fmt: skip
    """Return the error for a master that another store was promoted in place of."""
    epoch = hello.epochs[-1][0] if hello.epochs else 0
    return ReplicationError(
        path,
        master,
        f"it is a master of epoch {epoch}, and this store knows epoch {own_epoch}, which began at log offset {parts_at} with a "
        f"promotion: there are two masters of one history, and {master} is the older one. What it wrote after log offset "
        f"{parts_at} is not in the newer one",
        f"Let {master} follow the newer master (`penstock replica follow`), which says what is only there",
        {"own_epoch": own_epoch, "master_epoch": epoch, "parts_at": parts_at},
    )


def needs_secret(path: Path, master: str) -> ReplicationError:
    """Return the error for a master that wants a proof, where no secret is configured."""
    return ReplicationError(
        path, master, "it wants a proof of the shared secret", "Give the file of the secret with secret_file"
    )  # fmt: skip


def no_proof(path: Path, master: str) -> ReplicationError:
    """Return the error for a master that does not know the shared secret."""
    return ReplicationError(
        path, master, "it does not prove that it knows the shared secret", "Check secret_file on both sides, and the address"
    )  # fmt: skip


def bad_bytes(path: Path, master: str, count: int, text: str) -> ReplicationError:
    """Return the error for a master that sends again and again what is no record where this log ends."""
    return ReplicationError(
        path,
        master,
        f"{text}; it was sent {count} times, so it was not changed on the way: the logs differ, or the master's is corrupt there",
        f"Run `penstock verify` on the master's store. {FULL_COPY}",
        needs_copy=True,
    )


_ADVICE: Mapping[str, str] = {
    RefusalCode.SECRET: "Check secret_file on both sides",
    RefusalCode.VERSION: "Upgrade the older Penstock",
    RefusalCode.STALE_MASTER: "Find out which of the two stores is to be the master",
}


def refused(path: Path, master: str, frame: Refused) -> ReplicationError:
    """Return the error for a refusal by the master."""
    advice = _ADVICE.get(frame.code)
    text = frame.text.strip().rstrip(".")
    return ReplicationError(
        path, master, f"it refuses: {text}", advice or FULL_COPY, {"code": frame.code, **frame.facts}, needs_copy=advice is None,
    )  # fmt: skip
