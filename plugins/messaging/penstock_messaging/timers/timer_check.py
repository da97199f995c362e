"""How far timer messages are taken in and delivered: RocketMQ 5's `config/timercheck`.

Layout (big-endian), 4096 bytes; those after the seven fields are kept::

    read_ms:i64 log_end:i64 queue_offset:i64 master_offset:i64 state_version:i64 time_ms:i64 counter:i64 zeros

`read_ms` is a second: whatever was due in seconds before it is delivered. `queue_offset` is the offset of the timer
topic that is taken in next; a slave has that of its master as well. The timer log is durable up to `log_end`. The last
three are the version that brokers compare with their slaves.
"""

from pathlib import Path
from struct import Struct

import attrs

from penstock.files import Files

_FIELDS = Struct(">7q")
_BYTES = 4096
_BYTES_MAX = 1 << 20
_COUNTER_MAX = (1 << 63) - 1
# Files of brokers before 5.0.1 end here.
_BYTES_MIN = 32


@attrs.frozen
class TimerCheck:
    """The fields of one file.

    Attributes:
        read_ms: what was due in seconds before this one is delivered.
        log_end: the end of the durable timer log.
        queue_offset: the offset of the timer topic that is taken in next.
        version: the last three fields.
        rest: the bytes after the fields.
    """

    read_ms: int
    log_end: int
    queue_offset: int
    version: tuple[int, int, int] = (0, 0, 0)
    rest: bytes = bytes(_BYTES - _FIELDS.size)


def path_of(root: Path) -> Path:
    """Return where the file is in a store's folder."""
    return root / "config" / "timercheck"


def read_check(files: Files, root: Path) -> TimerCheck | None:
    """Return the fields; None if there is no file. Raises `OSError` if unreadable, `ValueError` if too short."""
    path = path_of(root)
    if not files.exists(path):
        return None
    raw = files.read_whole(path, _BYTES_MAX)
    if len(raw) < _BYTES_MIN:
        raise ValueError(f"{path} has {len(raw)} bytes, not {_BYTES}")
    fields = _FIELDS.unpack_from(raw.ljust(_BYTES, b"\0"))
    return TimerCheck(
        fields[0], fields[1], min(fields[2:4]), fields[4:], raw.ljust(_BYTES, b"\0")[_FIELDS.size :]
    )


def write_check(files: Files, root: Path, check: TimerCheck, now_ms: int) -> TimerCheck:
    """Write the fields durably, at once or not at all, with the next version; returns them as they are written."""
    state, _, counter = check.version
    counter = counter + 1 if 0 <= counter < _COUNTER_MAX else 1
    written = attrs.evolve(check, version=(state, now_ms, counter))
    raw = _FIELDS.pack(
        check.read_ms, check.log_end, check.queue_offset, check.queue_offset, *written.version
    )
    files.make_folder_durably(path_of(root).parent)
    files.write_whole(path_of(root), raw + check.rest)
    return written
