"""One request or answer of the remoting protocol, in bytes.

Layout (big-endian)::

    frame  := length:u32 mark:u32 header body      # length: of what follows it, at most 16 MiB
    mark   := codec:u8 header_bytes:u24            # codec 0: JSON, 1: binary
    binary := code:i16 language:u8 version:i16 opaque:i32 flag:i32 remark_bytes:i32 remark fields_bytes:i32 field*
    field  := key_bytes:i16 key value_bytes:i32 value

A JSON header is an object with the same names, `extFields` for the fields, and `serializeTypeCurrentRPC`; keys that are not known are
ignored. An answer has the codec and the `opaque` of its request; each side counts its own requests.

Frames come from anybody: whatever is not one raises `RemotingError`, after which the connection must be closed, and no number in a
frame makes this module take more memory than the bytes that came.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import attrs

# A broker closes the connection at a larger one.
FRAME_BYTES_MAX = 16 << 20
HEADER_BYTES_MAX = 1 << 20
FIELDS_MAX = 1000
JSON_CODEC, BINARY_CODEC = 0, 1
IS_RESPONSE, IS_ONE_WAY = 1, 2
SUCCESS, SYSTEM_ERROR, NOT_SUPPORTED = 0, 1, 3

_LENGTH = struct.Struct(">I")
_MARK = struct.Struct(">II")
_HEAD = struct.Struct(">hBhiii")
_KEY, _VALUE = struct.Struct(">h"), struct.Struct(">i")
_INT16, _INT32 = 1 << 15, 1 << 31
# The ordinals of JAVA, and of release 4.9.8: both versions of the peer take its answers as their own.
_LANGUAGES = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS",
)  # fmt: skip
_PYTHON = _LANGUAGES.index("PYTHON")
# From 4.9.4 on keys of JSON that are numbers are sent with quotes where the answer allows it.
VERSION = 409
_NO_FIELDS: Mapping[str, str] = MappingProxyType({})


class RemotingError(ConnectionError):
    """The other side has sent what is no frame of the remoting protocol; the connection is of no use any more."""


@attrs.frozen(kw_only=True)
class RemotingFrame:
    """A request or an answer.

    Attributes:
        code: of a request what is asked for, of an answer how it went: 0 is success.
        opaque: the number by which the answer to a request is known.
        flag: `IS_RESPONSE` and `IS_ONE_WAY`.
        remark: what a person may want to know.
        fields: the named values, all of them text.
        body: the rest.
        version: of the sender; 0 if it did not say.
        codec: of the header.
    """

    code: int
    opaque: int = 0
    flag: int = 0
    remark: str = ""
    fields: Mapping[str, str] = _NO_FIELDS
    body: bytes = b""
    version: int = VERSION
    codec: int = JSON_CODEC

    @property
    def is_response(self) -> bool:
        """Whether it answers a request."""
        return bool(self.flag & IS_RESPONSE)

    @property
    def is_one_way(self) -> bool:
        """Whether no answer is expected."""
        return bool(self.flag & IS_ONE_WAY)

    def answer(
        self,
        code: int = SUCCESS,
        *,
        remark: str = "",
        fields: Mapping[str, str] = _NO_FIELDS,
        body: bytes = b"",
    ) -> "RemotingFrame":
        """Return the answer to this request, in its codec."""
        return RemotingFrame(
            code=code, opaque=self.opaque, flag=IS_RESPONSE, remark=remark, fields=fields, body=body, codec=self.codec,
        )  # fmt: skip

    def encode(self) -> bytes:
        """Return the frame's bytes; raises `ValueError` if it is too large."""
        header = _binary(self) if self.codec == BINARY_CODEC else _json(self)
        length = 4 + len(header) + len(self.body)
        if length > FRAME_BYTES_MAX or len(header) > HEADER_BYTES_MAX:
            raise ValueError(f"a frame of {length} bytes is too large, the limit is {FRAME_BYTES_MAX}")  # fmt: skip
        return b"".join((_MARK.pack(length, self.codec << 24 | len(header)), header, self.body))


def _json(frame: RemotingFrame) -> bytes:
    head: dict[str, Any] = {
        "code": frame.code, "language": "PYTHON", "version": frame.version, "opaque": frame.opaque, "flag": frame.flag,
        "serializeTypeCurrentRPC": "JSON", "extFields": dict(frame.fields),
    }  # fmt: skip
    if frame.remark:
        head["remark"] = frame.remark
    # Without spaces: a client of another language finds its way by the text.
    return json.dumps(head, separators=(",", ":")).encode()


def _binary(frame: RemotingFrame) -> bytes:
    remark = frame.remark.encode()
    parts = []
    for name, value in frame.fields.items():
        key, text = name.encode(), value.encode()
        parts += [_KEY.pack(len(key)), key, _VALUE.pack(len(text)), text]
    fields = b"".join(parts)
    head = _HEAD.pack(frame.code, _PYTHON, frame.version, frame.opaque, frame.flag, len(remark))
    return b"".join((head, remark, _VALUE.pack(len(fields)), fields))


def decode(raw: bytes) -> RemotingFrame:
    """Return the frame in the bytes that follow the length; raises `RemotingError` if there is none."""
    if len(raw) < _LENGTH.size:
        raise RemotingError(f"a frame of {len(raw)} bytes has no header")
    (mark,) = _LENGTH.unpack_from(raw)
    codec, size = mark >> 24, mark & 0xFFFFFF
    end = _LENGTH.size + size
    if size > HEADER_BYTES_MAX or end > len(raw):
        raise RemotingError(f"a header of {size} bytes in a frame of {len(raw)} bytes")
    header, body = raw[_LENGTH.size : end], raw[end:]
    try:
        if codec == JSON_CODEC:
            return _from_json(header, body)
        if codec == BINARY_CODEC:
            return _from_binary(header, body)
    except (ValueError, TypeError, struct.error, RecursionError) as error:
        raise RemotingError(f"a header that cannot be read: {error}") from error
    raise RemotingError(f"codec {codec} of a header; known are {JSON_CODEC} and {BINARY_CODEC}")


def _from_json(header: bytes, body: bytes) -> RemotingFrame:
    head = json.loads(header)
    if not isinstance(head, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - one error for all that is no header
    fields = head.get("extFields") or {}
    if not isinstance(fields, dict) or len(fields) > FIELDS_MAX:
        raise ValueError("extFields is no object of a header")
    given = {name: _number(head, name) for name in ("code", "opaque", "flag", "version")}
    remark = head.get("remark")
    return RemotingFrame(
        **given, remark=remark if isinstance(remark, str) else "", body=body,
        # Java writes texts only; null is one that was not given.
        fields={name: str(value) for name, value in fields.items() if value is not None},
    )  # fmt: skip


def _number(head: Mapping[str, object], name: str) -> int:
    value = head.get(name, 0)
    if type(value) is not int or not -_INT32 <= value < _INT32:
        raise ValueError(f"{name} is {str(value)[:40]!r}")
    return value


def _from_binary(header: bytes, body: bytes) -> RemotingFrame:
    code, _, version, opaque, flag, size = _HEAD.unpack_from(header)
    remark, at = _text(header, _HEAD.size, size)
    (size,) = _VALUE.unpack_from(header, at)
    at += _VALUE.size
    if not 0 <= size <= len(header) - at:
        raise ValueError(f"fields of {size} bytes, {len(header) - at} are left")
    return RemotingFrame(
        code=code, opaque=opaque, flag=flag, version=version, remark=remark, body=body, codec=BINARY_CODEC,
        fields=dict(_fields(header, at, at + size)),
    )  # fmt: skip


def _fields(header: bytes, at: int, end: int) -> Iterator[tuple[str, str]]:
    count = 0
    while at < end:
        count += 1
        if count > FIELDS_MAX:
            raise ValueError(f"more than {FIELDS_MAX} fields")
        (size,) = _KEY.unpack_from(header, at)
        name, at = _text(header, at + _KEY.size, size)
        (size,) = _VALUE.unpack_from(header, at)
        value, at = _text(header, at + _VALUE.size, size)
        yield name, value


def _text(header: bytes, at: int, size: int) -> tuple[str, int]:
    if not 0 <= size <= len(header) - at:
        raise ValueError(f"a text of {size} bytes, {len(header) - at} are left")
    return header[at : at + size].decode(), at + size


class RemotingDecoder:
    """Takes the bytes of a connection, and returns the frames in them. Not thread-safe.

    Args:
        frame_bytes_max: a longer frame is an error, as soon as its length is there.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._max = frame_bytes_max
        self._held = bytearray()

    def feed(self, data: bytes) -> list[RemotingFrame]:
        """Return the frames that are whole now; raises `RemotingError`, after which nothing more is to be fed."""
        self._held += data
        found, at = [], 0
        while len(self._held) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._held, at)
            if not _LENGTH.size <= length <= self._max:
                raise RemotingError(f"a frame of {length} bytes; {_LENGTH.size} to {self._max} are expected")  # fmt: skip
            end = at + _LENGTH.size + length
            if end > len(self._held):
                break
            found.append(decode(bytes(self._held[at + _LENGTH.size : end])))
            at = end
        del self._held[:at]
        return found
