"""The files that travel beside the log, and the checks of their contents.

They are, in the order in which they are sent and written:

    penstock/store-id              the number in the journals of consumers: a follower's own consumers need one, too
    penstock/auto-topics           which topics were created by messages; before the list of topics, as their writer has it
    config/topics.json             topics
    config/subscriptionGroup.json  consumer groups
    config/consumerOffset.json     offsets of groups, and how far half messages are finished
    config/delayOffset.json        how far each delay level is delivered
    config/timercheck              how far timer messages are taken in and delivered

Not sent: `timerlog/` and `timerwheel`, which are rebuilt from the timer topic below the offset in `timercheck`; and
`penstock/groups` and `penstock/decisions`, which belong to the consumers of one machine. A group goes on from its offset: what was
acknowledged after a message that was not is delivered again, as by a broker.
"""

import json
import re
from collections.abc import Callable
from struct import Struct

import attrs

from penstock.format.rocketmq_json import parse_rocketmq_json

# As the readers of these files have it.
JSON_BYTES_MAX = 64 << 20
_TIMER_BYTES_MAX = 4096
_TIMER = Struct(">7q")
# Files of brokers before 5.0.1 end here.
_TIMER_BYTES_MIN = 32
_STORE_ID = re.compile(rb"[0-9a-f]{16}\n")
_STORE_ID_BYTES = 17


@attrs.frozen(kw_only=True)
class SideName:
    """One of the files.

    Attributes:
        path: from the store's folder, with `/`; it is also the name on the wire.
        bytes_max: the largest content.
        check: raises `ValueError` if a content is none of this file.
        has_spare: the content before is kept in `<name>.bak`, as by a broker.
        is_kept: a follower that has the file keeps its own.
    """

    path: str
    bytes_max: int = JSON_BYTES_MAX
    check: Callable[[bytes], None]
    has_spare: bool = False
    is_kept: bool = False


def _parsed(data: bytes) -> dict[str, object]:
    # Also of no text at all: the reading raises `UnicodeDecodeError`, which is a `ValueError`.
    return parse_rocketmq_json(data.decode("utf-8-sig"))


def _table_check(name: str) -> Callable[[bytes], None]:
    """Return a check for JSON in which `name` is an object."""

    def check(data: bytes) -> None:
        whole = _parsed(data)
        if not isinstance(whole.get(name), dict):
            raise ValueError(f"its {name} is not an object")  # noqa: TRY004 - callers handle both alike
        version = whole.get("dataVersion", {})
        if version is not None and not isinstance(version, dict):
            raise ValueError("its dataVersion is not an object")

    return check


def _check_offsets(data: bytes) -> None:
    _table_check("offsetTable")(data)
    table = _parsed(data)["offsetTable"]
    assert isinstance(table, dict)
    for name, queues in table.items():
        if not isinstance(queues, dict):
            raise ValueError(f"its entry {name[:80]!r} is not an object")  # noqa: TRY004 - callers handle both alike


def _check_timers(data: bytes) -> None:
    if len(data) < _TIMER_BYTES_MIN:
        raise ValueError(f"it has {len(data)} bytes, not {_TIMER_BYTES_MAX}")
    read_ms, log_end, queue_offset, _ = _TIMER.unpack_from(data.ljust(_TIMER.size, b"\0"))[:4]
    if min(read_ms, log_end, queue_offset) < 0:
        raise ValueError(f"it says that timers are at {read_ms}, {log_end} and {queue_offset}")


def _check_counts(data: bytes) -> None:
    found = json.loads(data)
    if not isinstance(found, dict) or not all(type(count) is int for count in found.values()):
        raise ValueError("it is no object of numbers")


def _check_store_id(data: bytes) -> None:
    if not _STORE_ID.fullmatch(data):
        raise ValueError("it is not 16 hexadecimal digits and a line end")


SIDE_NAMES = {
    each.path: each
    for each in (
        SideName(
            path="penstock/store-id",
            bytes_max=_STORE_ID_BYTES,
            check=_check_store_id,
            is_kept=True,
        ),
        SideName(path="penstock/auto-topics", check=_check_counts),
        SideName(path="config/topics.json", check=_table_check("topicConfigTable"), has_spare=True),
        SideName(
            path="config/subscriptionGroup.json",
            check=_table_check("subscriptionGroupTable"),
            has_spare=True,
        ),
        SideName(path="config/consumerOffset.json", check=_check_offsets, has_spare=True),
        SideName(path="config/delayOffset.json", check=_table_check("offsetTable"), has_spare=True),
        SideName(path="config/timercheck", bytes_max=_TIMER_BYTES_MAX, check=_check_timers),
    )
}


def check_size(name: str, data: bytes) -> SideName:
    """Return the file of a name; raises `ValueError` if no file of that name travels, or if it is never so large."""
    side = SIDE_NAMES.get(name)
    if side is None:
        raise ValueError(f"no file {name[:80]!r} travels beside the log")
    if len(data) > side.bytes_max:
        raise ValueError(f"{name} has {len(data)} bytes, the limit is {side.bytes_max}")
    return side


def check_content(name: str, data: bytes) -> SideName:
    """Do the same, and raise `ValueError` if the file never has such a content."""
    side = check_size(name, data)
    try:
        side.check(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the content of {name} cannot be used: {error}") from error
    return side
