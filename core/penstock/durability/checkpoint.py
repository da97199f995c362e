"""RocketMQ's `checkpoint` file: store times up to which the parts of a store are durable.

Layout (big-endian, 4096 bytes, the rest zero)::

    0 physicMsgTimestamp i64   8 logicsMsgTimestamp i64   16 indexMsgTimestamp i64
    24 masterFlushedOffset i64   32 confirmPhyOffset i64   (both 0: Penstock does not replicate)

Every record up to the first time is durable in the log, up to the second in the queues, up to the third in the index.
A time that is too early only makes recovery start earlier; one that is too late loses entries. So a time is written
only after the sync of the files it describes. Not checksummed, because the Java store reads the values directly.
Source: spec section 5.
"""

import struct
from pathlib import Path
from typing import NamedTuple

from penstock.files import Files

CHECKPOINT_BYTES = 4096
_TIMES = struct.Struct(">qqqqq")


class Times(NamedTuple):
    """The three times in Unix milliseconds; 0 means not known."""

    log_ms: int = 0
    queues_ms: int = 0
    index_ms: int = 0


class Checkpoint:
    """The checkpoint file of a store opened for writing. One writer."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self._path = root / "checkpoint"

    def read(self) -> Times:
        """Return the times; zeros where the file is missing or too short to hold them."""
        if not self._files.exists(self._path):
            return Times()
        data = self._files.read_whole(self._path)
        if len(data) < _TIMES.size:
            return Times()
        return Times(*(max(0, value) for value in _TIMES.unpack_from(data)[:3]))

    def write(self, times: Times) -> None:
        """Write the times and make them durable."""
        if not self._files.exists(self._path):
            self._files.write_whole(self._path, bytes(CHECKPOINT_BYTES))
        file = self._files.open(self._path, writable=True)
        try:
            if file.size < CHECKPOINT_BYTES:
                file.resize(CHECKPOINT_BYTES)
            file.pwrite(_TIMES.pack(*times, 0, 0), 0)
            file.sync()
        finally:
            file.close()
