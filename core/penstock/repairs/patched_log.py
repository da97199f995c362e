"""The log as it will be after the repair; derived files are compared with it and rebuilt from it.

Patches replace the bytes of the files, the log ends at the cut, and a file that is too short reads as zeros
after its end. Read-only; without the store's lock, the files may change during the reads.
"""

from pathlib import Path
from typing import NamedTuple

from penstock.errors import OffsetError
from penstock.files import Files
from penstock.format.columns import Buffer
from penstock.format.names import NAME_DIGITS
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog


class Patch(NamedTuple):
    """Bytes to write at a log offset; `why` is a sentence that explains them."""

    log_offset: int
    data: bytes
    why: str


class PatchedLog(SegmentedLog):
    """A log with patches. Not thread-safe.

    Attributes:
        patches: the bytes that will be written.
        cut: log offset at which the log will end; None for no cut.
        short: segments whose files are too short, with their lengths.
        strays: files in the folder that are not segments.
    """

    def __init__(self, files: Files, folder: Path, segment_bytes: int) -> None:
        super().__init__(files, folder, segment_bytes, mapped=False)
        self.patches: list[Patch] = []
        self.cut: int | None = None
        self.short: dict[int, int] = {}
        self.strays: list[Path] = []
        found = []
        for entry in files.entries(folder):
            if entry.is_folder:
                continue
            name, size = entry.name, entry.size
            is_name = len(name) >= NAME_DIGITS and name.isascii() and name.isdigit()
            if not (entry.is_file and is_name and int(name) % segment_bytes == 0) or (
                size > segment_bytes
            ):
                self.strays.append(entry.path)
                continue
            if size < segment_bytes:
                self.short[int(name)] = size
            found.append(Segment(files, entry.path, int(name), segment_bytes))
        self._segments = tuple(found)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments that remain after the cut, oldest first."""
        if self.cut is None:
            return self._segments
        return tuple(s for s in self._segments if s.base_offset < self.cut) or self._segments[:1]

    @property
    def after_cut(self) -> tuple[Segment, ...]:
        """The segments that the cut removes entirely."""
        return self._segments[len(self.segments) :]

    def refresh(self) -> None:
        """Do nothing: the repair applies to the segments found at the start."""

    def read_from(
        self, segment: Segment, log_offset: int, size: int, *, is_copied: bool = True
    ) -> Buffer:
        """See `SegmentedLog`; always a copy."""
        position = log_offset - segment.base_offset
        if position < 0 or size < 0 or position + size > segment.capacity:
            raise OffsetError(log_offset, segment.base_offset, segment.end_offset)
        data = segment.pread(size, position)
        stop = log_offset + size
        patches = [p for p in self.patches if log_offset < p.log_offset + len(p.data)]
        patches = [p for p in patches if p.log_offset < stop]
        if len(data) == size and not patches and (self.cut is None or stop <= self.cut):
            return data
        made = bytearray(data.ljust(size, b"\0"))
        for patch in patches:
            for at, byte in enumerate(patch.data, patch.log_offset - log_offset):
                if 0 <= at < size:
                    made[at] = byte
        if self.cut is not None and stop > self.cut:
            keep = max(self.cut - log_offset, 0)
            made[keep:] = bytes(size - keep)
        return bytes(made)
