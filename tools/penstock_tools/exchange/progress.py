"""How far a source was stored: a note beside the store, so that an interrupted load goes on without duplicates.

A source is whatever gives the same rows in the same order each time: a file, for example. Its note is
`penstock/loads/<digest>` in the store's folder: one line, a CRC-32C and JSON, written atomically. It says that the
first `rows` rows of the source were processed, with a digest of them, and that everything stored for them is below
log offset `log_offset` and durable. `importing` uses it.

Invariants:
    * The note is written after a flush: a crash never leaves a note that says more than the log has.
    * The note may say less than the log has. Which rows after it are stored is derived from the log, not from the note:
      rows are stored in their order, so those stored are the first ones, and they are found in the log after
      `log_offset` in the same order.
    * A note with `is_exact` was written at the end of a run: no row after it is stored, whatever the log has.

Losing the side folder loses the note: the source is then loaded again from its beginning. If other programs store
messages between the interruption and the next load, these are skipped when rows are compared; one that equals
the next row in every field would be taken for it.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import attrs

from penstock.errors import NoRecordError, StorageError
from penstock.files import Files, read_line, write_line
from penstock.format.names import SIDE_FOLDER
from penstock.message import StoredMessage
from penstock.store.store import Store

FOLDER = "loads"
_ADVICE = (
    "find out which rows are stored; --restart begins with the first row, and stores those again"
)
_INT64 = 1 << 63


@attrs.frozen(kw_only=True)
class Reached:
    """The content of a note.

    Attributes:
        rows: how many rows of the source were processed, including those that were skipped.
        stored: how many messages were stored for them.
        skipped: how many rows were skipped because they cannot be stored.
        digest: a digest of these rows, as `importing` computes it.
        log_offset: everything stored for these rows is below this log offset.
        is_exact: no row after these is stored.
        is_complete: the source had no further rows.
        source: the source in words, for people.
    """

    rows: int = 0
    stored: int = 0
    skipped: int = 0
    digest: str = ""
    log_offset: int = 0
    is_exact: bool = False
    is_complete: bool = False
    source: str = ""


class SourceNote:
    """The note of one source in one store. One writer: only the process that has the store open for writing.

    Args:
        root: the store's folder.
        identity: what distinguishes this source, and the way it is loaded, from any other; only its digest is stored.
        files: the file system.
    """

    def __init__(self, root: Path, identity: bytes, files: Files) -> None:
        self._files = files
        digest = hashlib.blake2b(identity, digest_size=16).hexdigest()
        self.path = root / SIDE_FOLDER / FOLDER / digest

    def read(self) -> Reached | None:
        """Return what the note says, None if there is none; raises `CorruptionError` if it is corrupt."""
        return read_line(self._files, self.path, _reached, _ADVICE)

    def write(self, reached: Reached) -> None:
        """Write the note durably; the caller has flushed the store up to `log_offset`."""
        self._files.make_folder_durably(self.path.parent)
        write_line(self._files, self.path, attrs.asdict(reached))


def _reached(found: dict[str, object]) -> Reached:
    for name in ("rows", "stored", "skipped", "log_offset"):
        value = found[name]
        if type(value) is not int or not 0 <= value < _INT64:
            raise ValueError(f"{name} {value!r}")
    return Reached(
        rows=int(str(found["rows"])), stored=int(str(found["stored"])),
        skipped=int(str(found["skipped"])), log_offset=int(str(found["log_offset"])),
        digest=str(found["digest"]), is_exact=found["is_exact"] is True,
        is_complete=found["is_complete"] is True, source=str(found["source"]),
    )  # fmt: skip


def stored_from(store: Store, log_offset: int) -> Iterator[StoredMessage]:
    """Yield the messages of the log from a log offset on, at which a record begins or the log ends.

    Raises `StorageError` if the log does not reach to that offset: then it is not known which messages are stored.
    """
    figures = store.stats()
    low, end = int(figures["log_min_offset"]), int(figures["log_end_offset"] or 0)
    if not low <= log_offset <= end:
        raise StorageError(
            f"messages from log offset {log_offset} on were deleted or cut off: the log has {low} to {end}, so it is "
            "not known which rows are stored already; --restart begins with the first row, and stores rows again"
        )
    at = log_offset
    while at < end:
        try:
            message = store.at(at)
        except NoRecordError as error:
            # Filler at the end of a segment.
            if error.after is None or error.after <= at:
                return
            at = error.after
        else:
            yield message
            at += message.size
