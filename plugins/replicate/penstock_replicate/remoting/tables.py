"""What a slave asks its master for: the files beside the log as the bodies of answers, and back.

Bodies are compact JSON, in which Java's keys that are integers have no quotes; ours have them, and every broker reads both. A body
becomes a file with the tables that this file has and no others; a file with no version gets one, since slaves of 5.x need it.

A check point of timers is the begin of `config/timercheck`, seven numbers of 64 bits. The place in the timer log is another one on
each machine, and is left at 0.
"""

import json
from collections.abc import Mapping
from struct import Struct
from typing import Any

import attrs

from penstock.format.rocketmq_json import parse_rocketmq_json
from penstock_replicate.beside.side_names import check_content
from penstock_replicate.remoting.remoting_frames import RemotingError

ALL_TOPICS, ALL_OFFSETS, ALL_DELAYS, ALL_GROUPS = 21, 43, 45, 201
ALL_REQUEST_MODES, TIMER_CHECK, TIMER_METRICS = 402, 60, 61
BROKER_FIGURES = 28

_NO_VERSION = {"counter": 0, "stateVersion": 0, "timestamp": 0}
_VERSION = "dataVersion"
_TIMER = Struct(">7q")
_TIMER_FILE_BYTES = 4096
_END = "commitLogMaxOffset"


@attrs.frozen
class TableRequest:
    """One request of a slave.

    Attributes:
        code: of the request.
        name: of the file beside the log.
        tables: what of the answer's JSON belongs to the file, the first one always; none if it is no JSON.
    """

    code: int
    name: str
    tables: tuple[str, ...]


TABLE_REQUESTS = (
    TableRequest(ALL_TOPICS, "config/topics.json", ("topicConfigTable",)),
    TableRequest(ALL_GROUPS, "config/subscriptionGroup.json", ("subscriptionGroupTable", "forbiddenTable")),
    TableRequest(ALL_OFFSETS, "config/consumerOffset.json", ("offsetTable",)),
    TableRequest(ALL_DELAYS, "config/delayOffset.json", ("offsetTable",)),
    TableRequest(TIMER_CHECK, "config/timercheck", ()),
)  # fmt: skip
# What a slave asks for besides, and gets as if there were none; a master's own are not needed for anything here.
_EMPTY = {
    ALL_REQUEST_MODES: b'{"messageRequestModeMap":{}}',
    TIMER_METRICS: b'{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},"timingCount":{}}',
}


def file_of(request: TableRequest, body: bytes) -> bytes:
    """Return the content of the file that an answer amounts to; raises `RemotingError` if it is no answer of a master."""
    try:
        data = _json_file(request, body) if request.tables else _timer_file(body)
        check_content(request.name, data)
    except (ValueError, RecursionError) as error:
        raise RemotingError(
            f"the answer to request {request.code} cannot be used: {error}"
        ) from error
    return data


def _json_file(request: TableRequest, body: bytes) -> bytes:
    whole = parse_rocketmq_json(body.decode())
    names = (_VERSION, *request.tables)
    kept = {name: whole[name] for name in sorted(names) if whole.get(name) is not None}
    # As a broker writes its files, which people read.
    text = json.dumps(kept, indent="\t", separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace")


def _timer_file(body: bytes) -> bytes:
    if len(body) < _TIMER.size:
        raise ValueError(f"a check point of timers has {len(body)} bytes, not {_TIMER.size}")
    read_ms, _, taken, of_master, *version = _TIMER.unpack_from(body)
    # A broker's two numbers differ only on a slave; a master that was one may not have caught up.
    queue_offset = min(taken, of_master) if of_master > 0 else taken
    packed = _TIMER.pack(read_ms, 0, queue_offset, queue_offset, *version)
    return packed.ljust(_TIMER_FILE_BYTES, b"\0")


def answer_to(code: int, contents: Mapping[str, bytes]) -> bytes | None:
    """Return the body of an answer; None if nothing is known that this request asks for.

    Args:
        code: of the request.
        contents: of the files beside the log, by name.
    """
    if code in _EMPTY:
        return _EMPTY[code]
    request = next((each for each in TABLE_REQUESTS if each.code == code), None)
    if request is None:
        return None
    data = contents.get(request.name)
    if not request.tables:
        return None if data is None else data[: _TIMER.size].ljust(_TIMER.size, b"\0")
    whole = {} if data is None else parse_rocketmq_json(data.decode("utf-8-sig"))
    sent: dict[str, Any] = {_VERSION: whole.get(_VERSION) or _NO_VERSION, request.tables[0]: {}}
    sent |= {name: whole[name] for name in request.tables if name in whole}
    text = json.dumps(sent, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace")


def log_end_in(body: bytes) -> int:
    """Return the end of a broker's log in its figures; raises `RemotingError` if they lack it."""
    try:
        table = parse_rocketmq_json(body.decode())["table"]
        found = int(str(table[_END])) if isinstance(table, dict) else -1
    except (ValueError, KeyError) as error:
        raise RemotingError(f"the figures of a broker cannot be used: {error!r}") from error
    if not 0 <= found < 1 << 63:
        raise RemotingError(f"a broker says that its log ends at {found}")
    return found
