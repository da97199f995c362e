"""Which ranges of the log Penstock itself wrote: the file `penstock/written`.

Layout: JSON, `{"ranges": [[start, stop], ...], "certain_from": N}`, ascending log offsets; only the last `stop` may
be null, and that range goes on as far as Penstock appends. It is written durably before the first append of an
opening that follows another program.

A record in one of these ranges is never taken for one of a deleted topic (see `deletions`), so whatever is in
doubt counts as ours: a side folder of an older version, which has no such file, and a file that cannot be read.
Before `certain_from` the ranges are such a doubt.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import attrs
import numpy as np
import numpy.typing as npt

from penstock.errors import FormatVersionError
from penstock.files import Files
from penstock.javatext import Int64s
from penstock.progress import SIDE_FOLDER, Progress, SideFolder, State, lock_mtime_ns

_NO_END = 1 << 62
_SIZE_MAX = 1 << 20

Pair = tuple[int, int]


@attrs.frozen
class Written:
    """Ranges [start, stop) of the log that Penstock wrote, ascending; before `certain_from`, that it may have written.

    Safe from any thread.
    """

    ranges: tuple[Pair, ...] = ((0, _NO_END),)
    certain_from: int = _NO_END

    def written_by_us(self, log_offset: int) -> bool:
        """Return whether Penstock wrote the record at a log offset, or may have."""
        return any(start <= log_offset < stop for start, stop in self.ranges)

    def are_ours(self, log_offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Return `written_by_us` of each log offset."""
        ours = np.zeros(len(log_offsets), np.bool_)
        for start, stop in self.ranges:
            ours |= (log_offsets >= start) & (log_offsets < stop)
        return ours

    def is_one_run(self, first: int, last: int) -> bool:
        """Return whether Penstock, and no other program, surely wrote everything from one log offset to another."""
        is_ours = any(start <= first and last < stop for start, stop in self.ranges)
        return is_ours and first >= self.certain_from


def read_written(files: Files, root: Path) -> Written:
    """Return what Penstock wrote of the log as it is now."""
    try:
        state = Progress(files, root).read()
    except FormatVersionError:
        return Written()
    is_ours = state.lock_mtime_ns != 0 and state.lock_mtime_ns == lock_mtime_ns(files, root)
    return _known(files, root, state, is_ours=is_ours)


def note_opening(files: Files, root: Path, state: State, log_end: int, *, is_ours: bool) -> Written:
    """Note durably that Penstock appends from `log_end` on; returns all that it wrote.

    Args:
        files: the file system.
        root: the store's folder.
        state: what the progress file said before this opening.
        log_end: the end of the log.
        is_ours: no other program has opened the store for writing since Penstock did.
    """
    before = _known(files, root, state, is_ours=is_ours)
    ranges = tuple(_joined([*before.ranges, (log_end, _NO_END)]))
    now = Written(ranges, min(before.certain_from, log_end))
    if now != _read(files, root):
        listed = [[start, None if stop == _NO_END else stop] for start, stop in ranges]
        text = json.dumps({"ranges": listed, "certain_from": now.certain_from})
        files.write_whole(root / SIDE_FOLDER / "written", text.encode())
    return now


def _known(files: Files, root: Path, state: State, *, is_ours: bool) -> Written:
    """Return what was written before; another program's records come after the last that we knew of."""
    known = _read(files, root)
    if known is None:
        # Older versions left no such file; without their marks Penstock was never here.
        known = Written() if state.lock_mtime_ns else Written((), 0)
    if is_ours or not state.lock_mtime_ns:
        # Without marks, as a repair that was killed leaves it, it is not known where another program began.
        return known
    clean = SideFolder(files, root).read_clean()
    end = max(state.flushed_offset, state.visible_offset, clean.log_end if clean else 0)
    cut = ((start, min(stop, end)) for start, stop in known.ranges)
    return attrs.evolve(known, ranges=tuple((start, stop) for start, stop in cut if start < stop))


def _read(files: Files, root: Path) -> Written | None:
    """Return the ranges as they are written down; None where there is no file."""
    path = root / SIDE_FOLDER / "written"
    if not files.exists(path):
        return None
    try:
        about = json.loads(files.read_whole(path, _SIZE_MAX))
        listed = [(int(a), _NO_END if b is None else int(b)) for a, b in about["ranges"]]
        return Written(tuple(_joined(listed)), int(about["certain_from"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, OSError):
        return Written()


def _joined(ranges: Iterable[Pair]) -> list[Pair]:
    """Return the ranges ascending, those that touch as one."""
    joined: list[Pair] = []
    for start, stop in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        else:
            joined.append((start, stop))
    return joined
