"""What an archive keeps. Everything here is a decision; `shipper` removes.

* The newest manifests (`generations`) and every object that they name.
* Of older manifests, for the files beside the log at that time: one of each ten minutes of the last day, one of each hour before
  that, back to `retention_hours`. Their logs are parts of the newest one's.
* Segments, until their last record is `retention_hours` older than the newest record; those that the store itself still has
  are always kept.
"""

from collections.abc import Collection, Sequence

from penstock_replicate.ship.manifest import LogPiece, ManifestName
from penstock_replicate.ship.planning import WHOLE

_DAY_MS = 24 * 3_600_000
_FINE_MS, _COARSE_MS = 600_000, 3_600_000


def kept_manifests(
    names: Sequence[ManifestName], now_ms: int, *, generations: int, retention_ms: int
) -> list[ManifestName]:
    """Return the manifests to keep, oldest first; `names` are all of them, oldest first. `retention_ms` 0 is for ever."""
    newest, older = names[-generations:], names[:-generations]
    kept: dict[tuple[int, int], ManifestName] = {}
    for name in older:
        age_ms = max(now_ms - name.time_ms, 0)
        if retention_ms and age_ms > retention_ms:
            continue
        step_ms = _FINE_MS if age_ms < _DAY_MS else _COARSE_MS
        # The last one of each step.
        kept[step_ms, name.time_ms // step_ms] = name
    return [*sorted(kept.values()), *newest]


def kept_sides(numbers: Sequence[int], kept: Sequence[ManifestName]) -> set[int]:
    """Return which objects with files beside the log are needed: for each manifest the last one not after it."""
    wanted, at, ordered = set[int](), -1, sorted(numbers)
    for name in kept:
        while at + 1 < len(ordered) and ordered[at + 1] <= name.number:
            at += 1
        if at >= 0:
            wanted.add(ordered[at])
    # Written for a manifest that is not there yet.
    newest = kept[-1].number if kept else -1
    return wanted | {number for number in ordered if number > newest}


def kept_pieces(
    pieces: Sequence[LogPiece], min_offset: int, newest_ms: int, retention_ms: int
) -> tuple[LogPiece, ...]:
    """Return the pieces without the old segments; `newest_ms` is the time of the newest record. `retention_ms` 0 is for ever."""
    first = 0
    while retention_ms and first < len(pieces) - 1:
        piece = pieces[first]
        is_old = piece.weight == WHOLE and 0 < piece.last_ms < newest_ms - retention_ms
        if not is_old or piece.stop > min_offset:
            break
        first += 1
    return tuple(pieces[first:])


def unnamed(
    present: Collection[str], manifests_pieces: Collection[tuple[LogPiece, ...]]
) -> list[str]:
    """Return which objects of the log no manifest names, sorted."""
    named = {piece.name for pieces in manifests_pieces for piece in pieces}
    return sorted(set(present) - named)
