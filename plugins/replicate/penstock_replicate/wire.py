"""What a Penstock master and its follower send each other, and the checks of it.

Layout (big-endian)::

    first report := i64 -1                         # from the follower, which connects
    greeting     := "PENSTOCK"                     # from the master, only after the first report
    frame        := length:u32  type:u8  head_crc:u32  crc:u32  payload[length]      # both CRC-32C
    "J"          := JSON object, see `KINDS`
    "D"          := log_offset:i64  bytes          # from the master: the log's bytes
    "A"          := received:i64  flushed:i64      # from the follower: what its system has, and what its disk has
    "H"          := visible:i64                    # from the master: its log is visible up to there

`crc` is that of length, type and payload, of every frame: filler between two records has no checksum of its own.
`head_crc` is that of length and type: a length that was changed would be waited for, while heartbeats come.
A master of RocketMQ takes -1 for the report of a slave that has nothing yet, so no other broker is misled by it.

Conversation::

    F  first report
    M  greeting, hello
    F  hello; M answers by `prove` if there is a secret
    F  `ask` as often as it needs, which M answers by `digest`
    F  follow
    M  accept, then D and H, and `file` in parts, see `beside`; `level` after the last one of a reading
    F  A, and `level` when they are written

Either side may say `bye` at any time, and then closes. Unknown keys of a JSON object are ignored.
"""

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any

import attrs

from penstock.contracts import Epoch, frame, frame_end
from penstock.escape import shown

if TYPE_CHECKING:
    # It imports ssl, which is slow; this module is imported at every start.
    from penstock_replicate.secret import Secret

VERSION = 1
FIRST_REPORT = (-1).to_bytes(8, "big", signed=True)
GREETING = b"PENSTOCK"
OFFSET_MAX = (1 << 62) - 1
DATA_BYTES_MAX = 1 << 20
_LONG_BYTES = 64 << 10
# One question makes the other side read as much.
DIGEST_BYTES_MAX = 1 << 20
# Of each list, the newest are sent: more than that many unclean openings are compared by digests only.
EPOCHS_MAX = 512
TEXT_MAX = 1000
FILE_BYTES_MAX = 64 << 20
CONTROL_BYTES_MAX = 64 << 10
# An `accept` holds `penstock/ranges`, which has at most 1 MiB.
ACCEPT_BYTES_MAX = 2 << 20

_KIND_AT, _HEADER_BYTES = 4, 13
_OFFSET = Struct(">q")
_TWO = Struct(">qq")


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of "HOST:PORT" or "[HOST]:PORT"; raises `ValueError` if it is neither."""
    host, _, port = str(address).rpartition(":")
    if not host or not port.isdecimal() or int(port) >= 1 << 16:
        raise ValueError(f"{address!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


class WireViolation(Exception):  # noqa: N818 - it never leaves this package
    """The peer sent what the protocol does not allow; the connection is closed."""


@attrs.frozen
class Control:
    """A JSON frame: `kind` is a key of `KINDS`, and `fields` has its fields, which were checked."""

    kind: str
    fields: Mapping[str, Any]


@attrs.frozen
class Data:
    """Bytes of the log from `log_offset` on; a record may go on in the next frame."""

    log_offset: int
    data: bytes | memoryview


@attrs.frozen
class Ack:
    """A follower's system has all whole records before `received`, durably those before `flushed`."""

    received: int
    flushed: int


@attrs.frozen
class Heartbeat:
    """A master's log is visible up to `visible`."""

    visible: int


Frame = Control | Data | Ack | Heartbeat
Limits = dict[bytes, int]
# The most bytes that a payload of each type may have; other types are refused.
ONLY_CONTROL: Limits = {b"J": CONTROL_BYTES_MAX}
BEFORE_ACCEPT: Limits = {b"J": ACCEPT_BYTES_MAX}
FROM_MASTER: Limits = {**ONLY_CONTROL, b"D": _OFFSET.size + DATA_BYTES_MAX, b"H": _OFFSET.size}
FROM_FOLLOWER: Limits = {**ONLY_CONTROL, b"A": _TWO.size}


def control(kind: str, **fields: Any) -> bytes:
    """Return a JSON frame."""
    assert fields.keys() == KINDS[kind].keys(), kind
    return frame(b"J", json.dumps({"is": kind, **fields}, separators=(",", ":")).encode())


def bye(code: str, text: str) -> bytes:
    """Return the frame that says why a side closes the connection."""
    return control("bye", code=code, text=text[:TEXT_MAX])


def data_parts(log_offset: int, data: bytes | memoryview) -> Sequence[bytes | memoryview]:
    """Return the parts of a frame of the log's bytes: they are not copied if they are many."""
    is_apart = len(data) >= _LONG_BYTES
    head = frame(b"D", _OFFSET.pack(log_offset), data, is_apart=is_apart)
    return (head, data) if is_apart else (head,)


def ack_frame(received: int, flushed: int) -> bytes:
    """Return an acknowledgement."""
    return frame(b"A", _TWO.pack(received, flushed))


def heartbeat_frame(visible: int) -> bytes:
    """Return a heartbeat."""
    return frame(b"H", _OFFSET.pack(visible))


class FrameReader:
    """Turns bytes of a connection into checked frames. Not thread-safe.

    Attributes:
        limits: which types of frames may come now, and how long their payloads may be.
        held_bytes: how much of an incomplete frame is in memory: less than its header and the limit of its type.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held_bytes = 0
        # What has come of an incomplete frame, and how many bytes are needed to go on.
        self._pieces: list[bytes | memoryview] = []
        self._needed = _HEADER_BYTES

    def take(self, data: bytes | memoryview) -> Iterator[Frame]:
        """Yield the frames that `data` completes; `limits` may be changed between two of them.

        Nothing is copied unless a frame comes in pieces.

        Raises `WireViolation` at the first frame that is not allowed or was changed on the way.
        """
        self._pieces.append(data)
        self.held_bytes += len(data)
        if self.held_bytes < self._needed:
            return
        view = memoryview(data if len(self._pieces) == 1 else b"".join(self._pieces))
        start = 0
        try:
            while (stop := frame_end(view, start, self.limits)) <= self.held_bytes:
                if stop < 0:
                    raise _violation(bytes(view[start:]), stop)
                kind = bytes(view[start + _KIND_AT : start + _KIND_AT + 1])
                payload, start = view[start + _HEADER_BYTES : stop], stop
                yield _DECODERS[kind](payload)
            self._needed = stop - start
        finally:
            rest = view[start:]
            self._pieces, self.held_bytes = [rest] if rest else [], len(rest)

    def give_back(self) -> int:
        """Forget what is held, the last bytes of those that came last, which will come again; return how much."""
        held, self._pieces, self.held_bytes = self.held_bytes, [], 0
        self._needed = _HEADER_BYTES
        return held


def _violation(frame: bytes, reason: int) -> WireViolation:
    kind, length = shown(frame[_KIND_AT : _KIND_AT + 1]), int.from_bytes(frame[:_KIND_AT], "big")
    return WireViolation({
        -1: "a frame whose length or type was changed on the way",
        -2: f"a frame of type {kind} and {length} bytes",
        -3: f"a frame of type {kind} with a wrong CRC",
    }[reason])  # fmt: skip


def _parse_control(payload: memoryview) -> Control:
    try:
        found = json.loads(bytes(payload))
    except (ValueError, RecursionError) as error:
        raise WireViolation("a control frame that is not JSON") from error
    kind = found.get("is") if type(found) is dict else None
    if type(kind) is not str or kind not in KINDS:
        raise WireViolation(f"a control frame of unknown kind {shown(kind)}")
    fields = {}
    for name, check in KINDS[kind].items():
        try:
            fields[name] = check(found.get(name))
        except (TypeError, ValueError) as error:
            raise WireViolation(f"{kind}: {name} is {shown(found.get(name))}") from error
    return Control(kind, fields)


def _parse_data(payload: memoryview) -> Data:
    if len(payload) <= _OFFSET.size:
        raise WireViolation("a data frame without bytes")
    (log_offset,) = _OFFSET.unpack_from(payload)
    if not 0 <= log_offset <= OFFSET_MAX - len(payload):
        raise WireViolation(f"data of log offset {log_offset}")
    return Data(log_offset, payload[_OFFSET.size :])


def _parse_offsets(kind: type, layout: Struct, payload: memoryview) -> Any:
    if len(payload) != layout.size:
        raise WireViolation(f"{kind.__name__} of {len(payload)} bytes")
    offsets = layout.unpack(payload)
    if not all(0 <= each <= OFFSET_MAX for each in offsets):
        raise WireViolation(f"{kind.__name__} of log offsets {offsets}")
    return kind(*offsets)


_DECODERS: Mapping[bytes, Callable[[Any], Frame]] = {
    b"J": _parse_control,
    b"D": _parse_data,
    b"A": partial(_parse_offsets, Ack, _TWO),
    b"H": partial(_parse_offsets, Heartbeat, _OFFSET),
}


# The checks of JSON values: each returns what was meant, or raises `ValueError`.
def _that(kind: type, is_right: Callable[[Any], object] = lambda value: True) -> Callable[[Any], Any]:  # fmt: skip
    def check(value: Any) -> Any:
        if type(value) is not kind or not is_right(value):
            raise ValueError
        return value

    return check


def _whole(low: int = 0, high: int = OFFSET_MAX) -> Callable[[Any], int]:
    return _that(int, lambda value: low <= value <= high)


def _text(longest: int) -> Callable[[Any], str]:
    return _that(str, lambda value: len(value) <= longest)


def _digits(count: int) -> Callable[[Any], str]:
    return _that(str, re.compile(f"[0-9a-f]{{{count}}}").fullmatch)


def _base64(value: object) -> bytes:
    return base64.b64decode(_text(CONTROL_BYTES_MAX)(value), validate=True)


def _optional(check: Callable[[object], Any]) -> Callable[[object], Any]:
    return lambda value: None if value is None else check(value)


def _epochs(value: object) -> tuple[Epoch, ...]:
    listed = _that(list, lambda value: len(value) <= EPOCHS_MAX)(value)
    found = tuple(
        Epoch(_offset(number), _offset(opening), _offset(start), _store_id(by))
        for number, opening, start, by in listed
    )
    if sorted({epoch[:2] for epoch in found}) != [epoch[:2] for epoch in found]:
        raise ValueError
    return found


_offset, _store_id = _whole(), _digits(16)
KINDS: Mapping[str, Mapping[str, Callable[[object], Any]]] = {
    # Of both. `history` is null if the log is empty; a follower without a store has no `segment_bytes`.
    "hello": {
        "version": _whole(VERSION, VERSION),
        "history": _optional(_digits(32)),
        "store": _store_id,
        "segment_bytes": _optional(_whole(4096, 1 << 30)),
        "min": _offset,
        "end": _offset,
        "epochs": _epochs,
        # null without a secret; a follower's proof answers the master's nonce, which answers by `prove`.
        "nonce": _optional(_digits(32)),
        "proof": _optional(_digits(64)),
    },
    "prove": {"proof": _digits(64)},
    "ask": {"start": _offset, "stop": _offset},
    # null: the master does not have all the bytes.
    "digest": {"start": _offset, "stop": _offset, "sha256": _optional(_digits(64))},
    "follow": {"log_offset": _offset},
    "accept": {"log_offset": _offset, "ranges": _that(dict)},
    # A part of a file beside the log, which has `size` bytes: those from `start` on.
    "file": {
        "name": _text(40),
        "log_end": _offset,
        "size": _whole(1, FILE_BYTES_MAX),
        "start": _offset,
        "data": _base64,
    },
    # Of the master: all files of a reading were sent. Of the follower: they are written.
    "level": {"number": _offset},
    "bye": {"code": _text(40), "text": _text(TEXT_MAX)},
}


def hello_of(secret: "Secret | None", epochs: Sequence[Epoch], **facts: Any) -> dict[str, Any]:
    """Return what a side says of itself first, with the newest of its epochs, as many as may be sent."""
    nonce = None if secret is None else secret.nonce
    newest = epochs[-EPOCHS_MAX:]
    return {"version": VERSION, "epochs": newest, "nonce": nonce, "proof": None, **facts}


def refusal_of(master: Mapping[str, Any], copy: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return code and text if two stores, by what they say of themselves, cannot be master and copy; else None."""
    is_empty = copy["history"] is None and copy["end"] == copy["min"]
    if copy["history"] != master["history"] and not is_empty:
        return "history", "the two are not copies of one store"
    own, theirs = copy["segment_bytes"], master["segment_bytes"]
    if own not in (None, theirs):
        return "segment-bytes", f"the copy's segments have {own} bytes, and the master's {theirs}"
    newest, known = (
        max((epoch.number for epoch in side["epochs"]), default=0) for side in (copy, master)
    )
    if newest > known:
        promoted = f"a copy was promoted and is of epoch {newest}"
        return "stale-master", f"{promoted}: the store that it has followed is no longer the master"
    return None
