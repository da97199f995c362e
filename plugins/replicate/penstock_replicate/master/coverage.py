"""Reads `penstock/ranges`, which says which records end in a CRC of their own, so that a follower can expect the same of them."""

import json
from pathlib import Path

from penstock.contracts import SIDE_FOLDER
from penstock.escape import get_logger
from penstock.files import Files
from penstock_replicate.wire.frames import CoverageNote
from penstock_replicate.wire.limits import WireViolation

logger = get_logger(__name__)
_SIZE_MAX = 1 << 20
_COVERING = "crc32+record"


def read_coverage(files: Files, root: Path) -> CoverageNote:
    """Return what the file says; nothing if it cannot be read, which costs a follower protection and no data."""
    path = root / SIDE_FOLDER / "ranges"
    try:
        about = json.loads(files.read_whole(path, _SIZE_MAX))["about"]
        note = CoverageNote(
            written=tuple((one["start"], one["stop"], one["checksum"]) for one in about["ranges"]),
            perhaps=tuple((start, stop) for start, stop in about["perhaps"]),
            gaps=tuple((start, stop) for start, stop in about["gaps"]),
        )
        return CoverageNote.parse(note.payload())
    except FileNotFoundError:
        return CoverageNote()
    except (OSError, ValueError, TypeError, KeyError, RecursionError, WireViolation) as error:
        logger.warning(
            "%s cannot be read (%s): followers do not know which records must end in a checksum of their own", path, error,
        )  # fmt: skip
        return CoverageNote()


def covered_from(note: CoverageNote) -> int | None:
    """Return the log offset from which on all records end in a CRC of their own; None if there is none."""
    starts = [
        start for start, stop, checksum in note.written if stop is None and checksum == _COVERING
    ]
    return max([*starts, *(stop for _, stop in note.gaps)]) if starts else None
