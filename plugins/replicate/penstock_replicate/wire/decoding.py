"""A stream of bytes to frames, and parts of files to files, in memory for one frame and one file."""

from collections.abc import Iterator

from penstock_replicate.wire.frames import (
    HEADER,
    AnyFrame,
    FrameType,
    Side,
    check_frame,
    decode,
    parse_header,
)
from penstock_replicate.wire.limits import SIDE_BYTES_MAX, WireViolation


class FrameDecoder:
    """Decodes what a peer sends, in pieces of any size. Keeps at most one incomplete frame. Not thread-safe.

    Attributes:
        allowed: the types that the peer may send now; may be changed between two frames.
    """

    def __init__(self, allowed: frozenset[FrameType]) -> None:
        self.allowed = allowed
        self._partial = bytearray()

    def frames(self, data: bytes | memoryview) -> Iterator[AnyFrame]:
        """Yield the frames that `data` completes, in order; all must be taken. Raises `WireViolation`."""
        rest = memoryview(data)
        while True:
            if len(self._partial) < HEADER.size:
                rest = self._take(rest, HEADER.size)
                if len(self._partial) < HEADER.size:
                    return
            kind, size = parse_header(self._partial, self.allowed)
            rest = self._take(rest, HEADER.size + size)
            if len(self._partial) < HEADER.size + size:
                return
            # The frame may keep this memory, so the next one gets its own.
            whole, self._partial = self._partial, bytearray()
            check_frame(whole)
            yield decode(kind, memoryview(whole)[HEADER.size :])

    def _take(self, rest: memoryview, size: int) -> memoryview:
        """Add bytes until there are `size`; return what is left."""
        missing = size - len(self._partial)
        self._partial += rest[:missing]
        return rest[missing:]


class SideFiles:
    """Joins the parts of files beside the log. Keeps one incomplete file. Not thread-safe."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, part: Side) -> tuple[str, bytes] | None:
        """Return name and content of the file that `part` completes; None if more of it is to come."""
        if self._name not in (None, part.name):
            raise WireViolation("a part of another file before the last part of one")
        self._name = part.name
        self._parts.append(part.data)
        self._size += len(part.data)
        if self._size > SIDE_BYTES_MAX or (part.more and not part.data):
            raise WireViolation(
                f"a file beside the log of more than {SIDE_BYTES_MAX} bytes, or an empty part"
            )
        if part.more:
            return None
        whole = b"".join(self._parts)
        self._name, self._parts, self._size = None, [], 0
        return part.name, whole
