"""RocketMQ's remoting protocol, as far as a copy of a broker asks for what is beside the log.

Layout (big-endian)::

    frame  := length:u32 codec:u8 header_bytes:u24 header body     # length: of what follows it, at most 16 MiB
    header := JSON object with code, opaque, flag, remark          # codec 0
    header := code:i16 language:i8 version:i16 opaque:i32 flag:i32 remark_bytes:i32 remark more    # codec 1

An answer has the `opaque` of its request, and code 0 if it was served. Its body is a file of the broker, in a form that
brokers read.

The log comes over another connection, so an answer may be ahead of what has come. The last request of several asks
where the broker's log ends: what was answered before speaks of nothing after that, and is written when the copy is
durable up to there. Heartbeats do not tell it: what they know may be older than the answer.
"""

import json
import struct
from collections.abc import Callable
from typing import Any

from penstock.format.rocketmq_json import parse_rocketmq_json
from penstock_replicate.line import LineError
from penstock_replicate.peer import SideFile
from penstock_replicate.wire import WireViolation

FRAME_BYTES_MAX = 16 << 20
# Of a header, and of the figures of a broker, which are parsed at once.
_PARSED_BYTES_MAX = 1 << 20
_REMARK_CHARACTERS = 200
_IS_ANSWER = 1
_JSON, _BINARY = 0, 1
_HEAD = struct.Struct(">hbhiii")
_SIZE_BYTES = 4
# What asks for which file. The last to be written is asked for first, as by `beside.MasterFiles`.
_TIMERS, _FIGURES = 60, 28
_FILES = {
    _TIMERS: "config/timercheck",
    45: "config/delayOffset.json",
    43: "config/consumerOffset.json",
    201: "config/subscriptionGroup.json",
    21: "config/topics.json",
}
# Of the seven numbers that a broker sends, and of the file that begins with them.
_CHECK_BYTES, _TIMERS_BYTES = 56, 4096


def request(code: int, opaque: int) -> bytes:
    """Return the bytes of a request without a body."""
    head = {"code": code, "language": "PYTHON", "version": 409, "opaque": opaque, "flag": 0}
    header = json.dumps({**head, "serializeTypeCurrentRPC": "JSON"}).encode()
    return struct.pack(">II", _SIZE_BYTES + len(header), len(header)) + header


def _header(codec: int, header: bytes) -> tuple[int, int, int, str]:
    """Return code, opaque, flag and remark; raises `WireViolation` if it is no header."""
    try:
        if codec == _BINARY:
            code, _, _, opaque, flag, size = _HEAD.unpack_from(header)
            remark = header[_HEAD.size : _HEAD.size + max(size, 0)].decode()
        elif codec == _JSON:
            found = json.loads(header)
            code, opaque, flag = (found[name] for name in ("code", "opaque", "flag"))
            remark = str(found.get("remark") or "")
        else:
            raise WireViolation(f"a header in codec {codec}")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, struct.error) as error:
        raise WireViolation(f"a header that cannot be read ({error!r:.100})") from error
    if not type(code) is type(opaque) is type(flag) is int:
        raise WireViolation("a header whose numbers are none")
    return code, opaque, flag, remark[:_REMARK_CHARACTERS]


def _log_end(figures: bytes) -> int:
    """Return where the broker's log ends, as its figures say; raises `WireViolation` if they do not."""
    try:
        table: Any = parse_rocketmq_json(figures.decode())["table"]
        end = int(str(table["commitLogMaxOffset"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise WireViolation(f"figures without the end of the log ({error!r:.100})") from error
    if not 0 <= end < 1 << 63:
        raise WireViolation("a log that ends where none can")
    return end


class Broker:
    """Asks a broker for what is beside its log, over one connection. For one thread.

    Args:
        send: sends bytes.
        receive: returns bytes that have come, nothing if nothing comes for now.
    """

    def __init__(
        self, send: Callable[[bytes], object], receive: Callable[[], bytes | memoryview]
    ) -> None:
        self._send, self._receive = send, receive
        self._held = bytearray()
        self._opaque = 0

    def ask(self, early: bytes = b"") -> tuple[list[SideFile], list[str]]:
        """Return the files, in the order in which they are to be written, and what the broker has refused, in words.

        `early` is what has come since the last call. Raises `LineError` if the answers cannot be used, and what `send`
        and `receive` raise.
        """
        self._held += early
        try:
            return self._answers()
        except WireViolation as error:
            raise LineError(f"the broker breaks the protocol: {error}") from error

    def _answers(self) -> tuple[list[SideFile], list[str]]:
        bodies, refusals = dict[int, bytes](), list[str]()
        for asked in (*_FILES, _FIGURES):
            code, remark, body = self._answer(asked)
            if code == 0:
                bodies[asked] = body
            elif asked == _FIGURES:
                raise LineError(f"it does not say where its log ends: code {code} {remark}")
            elif asked != _TIMERS:
                # Brokers of 4.x have no timers, and those of 5.x may have none.
                refusals.append(f"{_FILES[asked]} is refused: code {code} {remark}")
        log_end = _log_end(bodies[_FIGURES][:_PARSED_BYTES_MAX])
        if len(bodies.get(_TIMERS, b"")) >= _CHECK_BYTES:
            bodies[_TIMERS] = bodies[_TIMERS][:_CHECK_BYTES].ljust(_TIMERS_BYTES, b"\0")
        made = [
            (name, bodies[asked]) for asked, name in reversed(_FILES.items()) if asked in bodies
        ]
        return [SideFile(name, log_end, body) for name, body in made], refusals

    def _answer(self, asked: int) -> tuple[int, str, bytes]:
        """Ask for something; return the code, the remark and the body of the answer."""
        self._opaque += 1
        self._send(request(asked, self._opaque))
        while True:
            size = int.from_bytes(self._next(_SIZE_BYTES), "big")
            if not _SIZE_BYTES <= size <= FRAME_BYTES_MAX:
                raise WireViolation(f"a frame of {size} bytes")
            frame = self._next(size)
            header_bytes = int.from_bytes(frame[1:_SIZE_BYTES], "big")
            begin = _SIZE_BYTES + header_bytes
            if begin > size or header_bytes > _PARSED_BYTES_MAX:
                raise WireViolation(f"a header of {header_bytes} bytes in a frame of {size}")
            code, opaque, flag, remark = _header(frame[0], frame[_SIZE_BYTES:begin])
            # A request of the broker's own needs no answer.
            if flag & _IS_ANSWER:
                if opaque != self._opaque:
                    raise WireViolation("an answer to no request that is open")
                return code, remark, frame[begin:]

    def _next(self, size: int) -> bytes:
        """Return the next bytes, as soon as all of them have come."""
        while len(self._held) < size:
            self._held += self._receive()
        found = bytes(self._held[:size])
        del self._held[:size]
        return found
