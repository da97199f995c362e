"""What an archive can be restored to, and which objects that takes."""

from collections.abc import Sequence
from datetime import UTC, datetime

import attrs

from penstock_replicate.ship.archive import Archive
from penstock_replicate.ship.manifest import LogPiece, Manifest, ManifestName, manifest_names
from penstock_replicate.ship.ship_errors import ArchiveError
from penstock_replicate.ship.shipper import read_manifest

# So many manifests are tried, from the newest back; older ones may name objects that are gone.
_TRIED = 16


@attrs.frozen(kw_only=True)
class Span:
    """Consecutive log that an archive holds: log offsets, and store times of its first and last records (0: not known)."""

    begin: int
    end: int
    first_ms: int
    last_ms: int


@attrs.frozen(kw_only=True)
class Survey:
    """What is in an archive.

    Attributes:
        manifest: the newest valid manifest, or the requested one.
        names: all manifests, oldest first; each is a time from which files beside the log are kept.
        passed_over: a sentence for each newer manifest that is not valid.
    """

    manifest: Manifest
    names: tuple[ManifestName, ...]
    passed_over: tuple[str, ...]

    @property
    def spans(self) -> list[Span]:
        """The consecutive parts of the log, oldest first; more than one if the store deleted bytes before they were shipped."""
        return [
            Span(
                begin=run[0].start,
                end=run[-1].stop,
                first_ms=next((piece.first_ms for piece in run if piece.first_ms), 0),
                last_ms=max(piece.last_ms for piece in run),
            )
            for run in runs(self.manifest.pieces)
        ]


def survey(archive: Archive, generation: int | None = None) -> Survey:
    """Read the newest valid manifest of an archive, or the one with the number `generation`.

    Raises `ArchiveError` if there is none, or if the requested one is not valid.
    """
    names = manifest_names(archive.names("manifests"))
    if not names:
        raise ArchiveError(
            archive.text, "", "there is no archive of penstock ship: it has no manifests"
        )
    if generation is not None:
        return _requested(archive, names, generation)
    passed_over: list[str] = []
    for name in reversed(names[-_TRIED:]):
        try:
            return Survey(
                manifest=read_manifest(archive, name),
                names=tuple(names),
                passed_over=tuple(passed_over),
            )
        except ArchiveError as error:
            if not isinstance(error.__cause__, ValueError | FileNotFoundError):
                raise
            passed_over.append(str(error))
    raise ArchiveError(
        archive.text, "manifests", f"none of the newest {len(passed_over)} is valid; of the newest: {passed_over[0]}"
    )  # fmt: skip


def _requested(archive: Archive, names: list[ManifestName], generation: int) -> Survey:
    for name in names:
        if name.number == generation:
            return Survey(manifest=read_manifest(archive, name), names=tuple(names), passed_over=())
    known = f"from {names[0].number} to {names[-1].number}"
    raise ArchiveError(
        archive.text, "manifests", f"there is no generation {generation}; there are some {known}, see --list"
    )  # fmt: skip


def runs(pieces: Sequence[LogPiece]) -> list[list[LogPiece]]:
    """Return the pieces in groups, each of which begins where the one before ends."""
    found: list[list[LogPiece]] = []
    for piece in pieces:
        if found and found[-1][-1].stop == piece.start:
            found[-1].append(piece)
        else:
            found.append([piece])
    return found


def chosen_pieces(
    archive: str, pieces: Sequence[LogPiece], last_ms: int | None, last_offset: int | None
) -> list[LogPiece]:
    """Return the consecutive pieces up to the one in which the last record before a point is; all of the last part without one.

    Raises `ArchiveError` if the point is before everything, or after everything.
    """
    if not pieces:
        return []
    at = len(pieces) - 1
    if last_ms is not None:
        at = min(at, _last_begun(archive, pieces, last_ms))
    if last_offset is not None:
        if last_offset > pieces[-1].stop or last_offset < pieces[0].start:
            ends = f"it holds log offsets {pieces[0].start} to {pieces[-1].stop}"
            raise ArchiveError(archive, "", f"log offset {last_offset} is not in it: {ends}")
        at = min(at, max(n for n, piece in enumerate(pieces) if piece.start <= last_offset))
    first = at
    while first > 0 and pieces[first - 1].stop == pieces[first].start:
        first -= 1
    return list(pieces[first : at + 1])


def _last_begun(archive: str, pieces: Sequence[LogPiece], last_ms: int) -> int:
    """Return the last piece whose first record was stored by a time; a piece without a known time belongs to the one before."""
    begun = [n for n, piece in enumerate(pieces) if piece.first_ms and piece.first_ms <= last_ms]
    later = [n for n, piece in enumerate(pieces) if piece.first_ms > last_ms]
    if not begun and later and later[0] == 0:
        raise ArchiveError(
            archive, "", f"it has nothing from that time: its first record is of {_text(pieces[0].first_ms)}, the time is {_text(last_ms)}"
        )  # fmt: skip
    # Where a clock was set back, the log ends before its first later record.
    return later[0] - 1 if later and later[0] > 0 else len(pieces) - 1 if not later else 0


def _text(time_ms: int) -> str:
    try:
        return (
            f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}.{time_ms % 1000:03d}Z"
        )
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


def side_manifest(
    archive: Archive, found: Survey, end: int, last_ms: int | None
) -> Manifest | None:
    """Return the newest manifest whose files beside the log fit a log that ends at `end`; None if there is none.

    They fit if they speak of nothing after that end, and were read by `last_ms`, if that is given.
    """
    if _fits(found.manifest, end, last_ms):
        return found.manifest
    names = [name for name in found.names if name.number < found.manifest.number]
    if last_ms is not None:
        names = [name for name in names if name.time_ms <= last_ms]
    low, high, best = 0, len(names), None
    while low < high:
        middle = (low + high) // 2
        manifest = _valid(archive, names[middle])
        if manifest is not None and _fits(manifest, end, last_ms):
            best, low = manifest, middle + 1
        else:
            high = middle
    return best


def _fits(manifest: Manifest, end: int, last_ms: int | None) -> bool:
    side = manifest.side
    if side is None or side.log_offset > end:
        return False
    return last_ms is None or side.time_ms <= last_ms


def _valid(archive: Archive, name: ManifestName) -> Manifest | None:
    try:
        return read_manifest(archive, name)
    except ArchiveError as error:
        if not isinstance(error.__cause__, ValueError | FileNotFoundError):
            raise
        return None
