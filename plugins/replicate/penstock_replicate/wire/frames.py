"""What two Penstock peers send each other, and the checks of it.

Layout (big-endian)::

    frame     := length:u32  type:u8  check:u32  payload[length - 1]
    HELLO     := JSON, see `Hello`
    AUTH      := proof[32], see `proof`
    FOLLOW    := JSON, see `Follow`
    REFUSED   := JSON, see `Refused`
    DATA      := log_offset:i64  compression:u8  data_check:u32  bytes    # compression 0: as in the log; 1: zlib
    ACK       := received_end:i64  flushed_end:i64
    SIDE      := more:u8  name_length:u16  name  bytes                # a file beside the log, or a part of one
    REMOVED   := before:i64  topic
    COVERAGE  := JSON, see `CoverageNote`
    DIGEST    := JSON, see `DigestQuestion`
    DIGEST_IS := JSON, see `DigestAnswer`
    HEARTBEAT := visible_end:i64  time_ms:i64

A conversation, after the greeting of `plain`::

    master    HELLO                                     within the greeting
    follower  HELLO, AUTH if it has a secret
    master    AUTH if it has a secret, REFUSED if it will not go on
    follower  DIGEST as often as it wants, each answered by DIGEST_IS; then FOLLOW
    master    REFUSED, after which it still answers DIGEST; or COVERAGE, SIDE, then DATA, REMOVED, SIDE and HEARTBEAT as they come
    follower  ACK after what it received, and after what it synced

DATA begins where the last one ended, first at `Follow.end_offset`; at the log's first byte if the follower's log is empty. REMOVED comes
when the follower has got everything before `before`, and nothing after it. Unknown keys of JSON objects are ignored.

`check` is the CRC-32 of length, type and payload, without the bytes of DATA, whose CRC-32 is `data_check`; so no acknowledgement, offset or
file is believed that was changed on the way. `data_check` is 0 where nothing is to be checked: each record in the bytes ends in a CRC of
its own, which the follower was told by COVERAGE to expect.
"""

import json
import zlib
from collections.abc import Iterator, Mapping
from enum import IntEnum, StrEnum
from struct import Struct
from typing import Any, ClassVar, Protocol

import attrs

from penstock_replicate.wire.limits import (
    DATA_BYTES_MAX,
    DIGEST_BYTES_MAX,
    DIGESTS_MAX,
    FRAME_BYTES_MAX,
    HELLO_BYTES_MAX,
    JSON_BYTES_MAX,
    NAME_MAX,
    NONCE_BYTES,
    RANGES_MAX,
    TEXT_MAX,
    WireViolation,
    ascending,
    epochs_of,
    facts_of,
    flag_of,
    hex_of,
    int_of,
    list_of,
    parse_object,
    text_of,
    utf8_of,
)  # fmt: skip
from penstock_replicate.wire.proof import PROOF_BYTES

WIRE_VERSION = 1
HEADER = Struct(">IBI")
_CHECKED = Struct(">IB")
_DATA = Struct(">qBI")
_TWO = Struct(">qq")
_SIDE = Struct(">BH")
_REMOVED = Struct(">q")
HISTORY_BYTES = 16
DIGEST_SIZE = 32
ZLIB_LEVEL = 1
View = bytes | bytearray | memoryview


class FrameType(IntEnum):
    """The type byte of a frame."""

    HELLO = 1
    AUTH = 2
    FOLLOW = 3
    REFUSED = 4
    DATA = 5
    ACK = 6
    SIDE = 7
    REMOVED = 8
    COVERAGE = 9
    DIGEST = 10
    DIGEST_IS = 11
    HEARTBEAT = 12


class RefusalCode(StrEnum):
    """Why a master does not serve a follower; a newer master may have other codes."""

    VERSION = "version"
    SECRET = "secret"
    HISTORY = "history"
    SEGMENT_BYTES = "segment-bytes"
    REMOVED = "removed"
    LONGER = "longer"
    DIVERGED = "diverged"
    DIFFERS = "differs"
    STALE_MASTER = "stale-master"
    CLOSING = "closing"


class Frame(Protocol):
    """One thing that a peer says."""

    type: ClassVar[FrameType]

    def payload(self) -> bytes:
        """Return the frame's bytes after its type."""


EpochPair = tuple[int, int]


def _json(facts: Mapping[str, Any]) -> bytes:
    return json.dumps(facts, separators=(",", ":")).encode()


def _history_of(value: object) -> str | None:
    return None if value is None else hex_of(value, "history", HISTORY_BYTES)


@attrs.frozen(kw_only=True)
class Hello:
    """Who a peer is.

    Attributes:
        history: names the line of stores whose logs continue each other; None if the log is empty, or came from RocketMQ.
        epochs: of its log, ascending, each with the log offset at which it began.
        min_offset: the first byte that the log still has.
        end_offset: the end of what a reader of the log may see.
        store: the store's name, for people.
        nonce: for the proof of the secret.
        needs_proof: it goes on only with a peer that proves the secret.
        version: of this protocol.
    """

    type: ClassVar[FrameType] = FrameType.HELLO
    history: str | None
    epochs: tuple[EpochPair, ...]
    segment_bytes: int
    min_offset: int
    end_offset: int
    store: str
    nonce: str
    needs_proof: bool
    version: int = WIRE_VERSION

    def payload(self) -> bytes:
        """See `Frame`."""
        return _json(attrs.asdict(self))

    @classmethod
    def parse(cls, payload: View) -> "Hello":
        """Return the checked content."""
        facts = parse_object(payload, "a hello")
        hello = cls(
            version=int_of(facts.get("version"), "version", 1, 1 << 30),
            history=_history_of(facts.get("history")),
            epochs=epochs_of(facts.get("epochs")),
            segment_bytes=int_of(facts.get("segment_bytes"), "segment_bytes", 1, 1 << 40),
            min_offset=int_of(facts.get("min_offset"), "min_offset"),
            end_offset=int_of(facts.get("end_offset"), "end_offset"),
            store=text_of(facts.get("store"), "store"),
            nonce=hex_of(facts.get("nonce"), "nonce", NONCE_BYTES),
            needs_proof=flag_of(facts.get("needs_proof"), "needs_proof"),
        )
        ascending((hello.min_offset, hello.end_offset), "min_offset and end_offset")
        return hello


@attrs.frozen
class Auth:
    """The proof of the shared secret."""

    type: ClassVar[FrameType] = FrameType.AUTH
    proof: bytes

    def payload(self) -> bytes:
        """See `Frame`."""
        return self.proof

    @classmethod
    def parse(cls, payload: View) -> "Auth":
        """Return the checked content."""
        if len(payload) != PROOF_BYTES:
            raise WireViolation(f"a proof of {len(payload)} bytes")
        return cls(bytes(payload))


@attrs.frozen
class RangeDigest:
    """The SHA-256 of the log's bytes from `start` to `stop`; None if the log does not have them all."""

    start: int
    stop: int
    sha256: str | None


def _digest_of(item: object) -> RangeDigest:
    if type(item) is not list or len(item) != 3:  # noqa: PLR2004 - start, stop, digest
        raise WireViolation("a digest is not a list of three")
    start, stop = _range_of(item[:2])
    return RangeDigest(
        start, stop, None if item[2] is None else hex_of(item[2], "sha256", DIGEST_SIZE)
    )


def _range_of(item: object) -> tuple[int, int]:
    """Return a range whose digest may be asked for."""
    if type(item) is not list or len(item) != 2:  # noqa: PLR2004 - a pair
        raise WireViolation("a range is not a pair")
    start, stop = int_of(item[0], "a range's start"), int_of(item[1], "a range's stop")
    if not 0 < stop - start <= DIGEST_BYTES_MAX:
        raise WireViolation(f"a range of {stop - start} bytes; 1 to {DIGEST_BYTES_MAX} are allowed")
    return start, stop


def _pack_digests(digests: tuple[RangeDigest, ...]) -> list[list[int | str | None]]:
    return [[one.start, one.stop, one.sha256] for one in digests]


@attrs.frozen(kw_only=True)
class Follow:
    """A follower asks for the log from its own end on.

    Attributes:
        end_offset: the end of its log, of whole records; 0 with `is_empty`.
        is_empty: it has no log: it begins at the master's first byte.
        digests: of the last bytes of its log, so that the master finds out whether the logs are the same.
        compress: it takes DATA that is compressed with zlib.
        wants_side: it wants the files beside the log.
    """

    type: ClassVar[FrameType] = FrameType.FOLLOW
    end_offset: int
    is_empty: bool
    digests: tuple[RangeDigest, ...] = ()
    compress: bool = True
    wants_side: bool = True

    def payload(self) -> bytes:
        """See `Frame`."""
        return _json(attrs.asdict(self, recurse=False) | {"digests": _pack_digests(self.digests)})

    @classmethod
    def parse(cls, payload: View) -> "Follow":
        """Return the checked content."""
        facts = parse_object(payload, "a request to follow")
        follow = cls(
            end_offset=int_of(facts.get("end_offset"), "end_offset"),
            is_empty=flag_of(facts.get("is_empty"), "is_empty"),
            digests=tuple(map(_digest_of, list_of(facts.get("digests"), "digests", DIGESTS_MAX))),
            compress=flag_of(facts.get("compress"), "compress"),
            wants_side=flag_of(facts.get("wants_side"), "wants_side"),
        )
        if follow.is_empty and (follow.end_offset or follow.digests):
            raise WireViolation("an empty log with an end or with digests")
        if any(one.stop > follow.end_offset for one in follow.digests):
            raise WireViolation("a digest of bytes after the end of the follower's log")
        return follow


@attrs.frozen
class Refused:
    """A master does not serve this follower.

    Attributes:
        code: one of `RefusalCode`, or of a newer master.
        text: a sentence for people.
        facts: numbers and texts that `text` speaks of, by name, such as `part_at`: the log offset from which on the logs differ.
    """

    type: ClassVar[FrameType] = FrameType.REFUSED
    code: str
    text: str
    facts: Mapping[str, int | str | None] = attrs.Factory(dict)

    def payload(self) -> bytes:
        """See `Frame`."""
        return _json({"code": self.code, "text": self.text[:TEXT_MAX], "facts": self.facts})

    @classmethod
    def parse(cls, payload: View) -> "Refused":
        """Return the checked content."""
        facts = parse_object(payload, "a refusal")
        return cls(
            text_of(facts.get("code"), "code", 40),
            text_of(facts.get("text"), "text", TEXT_MAX),
            facts_of(facts.get("facts"), "facts"),
        )


@attrs.frozen
class Data:
    """Bytes of the log from `log_offset` on; a record may continue in the next frame."""

    type: ClassVar[FrameType] = FrameType.DATA
    log_offset: int
    data: View

    def payload(self) -> bytes:
        """See `Frame`."""
        return _DATA.pack(self.log_offset, 0, zlib.crc32(self.data)) + self.data

    @classmethod
    def parse(cls, payload: View) -> "Data":
        """Return the checked content, decompressed."""
        if len(payload) < _DATA.size:
            raise WireViolation("data without a log offset")
        log_offset, compression, data_check = _DATA.unpack_from(payload)
        data: View = memoryview(payload)[_DATA.size :]
        if data_check and zlib.crc32(data) != data_check:
            raise WireViolation(f"data of log offset {log_offset} that was changed on the way")
        if compression == 1:
            data = _decompressed(data)
        elif compression:
            raise WireViolation(f"data with compression {compression}")
        if not 0 < len(data) <= DATA_BYTES_MAX:
            raise WireViolation(f"data of {len(data)} bytes")
        int_of(log_offset + len(data), "the end of data", len(data))
        return cls(log_offset, data)


def _decompressed(data: View) -> bytes:
    """Return what was compressed, whose size is bounded before memory is used."""
    unzip = zlib.decompressobj()
    try:
        found = unzip.decompress(data, DATA_BYTES_MAX)
    except zlib.error as error:
        raise WireViolation(f"data that zlib cannot decompress: {error}") from error
    if not unzip.eof or unzip.unused_data:
        raise WireViolation("data whose compressed form does not end where the frame ends")
    return found


@attrs.frozen
class Ack:
    """A follower's log has all whole records before `received_end`, and they are durable before `flushed_end`."""

    type: ClassVar[FrameType] = FrameType.ACK
    received_end: int
    flushed_end: int

    def payload(self) -> bytes:
        """See `Frame`."""
        return _TWO.pack(self.received_end, self.flushed_end)

    @classmethod
    def parse(cls, payload: View) -> "Ack":
        """Return the checked content."""
        ack = cls(*_two_of(payload, "an acknowledgement"))
        ascending((0, ack.flushed_end, ack.received_end), "the ends of an acknowledgement")
        return ack


def _two_of(payload: View, what: str) -> tuple[int, int]:
    if len(payload) != _TWO.size:
        raise WireViolation(f"{what} of {len(payload)} bytes")
    first, second = _TWO.unpack(payload)
    return first, second


@attrs.frozen
class Side:
    """A file beside the log, or a part of one: the last part has `more` False. See `side_frames` and `decoding.SideFiles`."""

    type: ClassVar[FrameType] = FrameType.SIDE
    name: str
    data: bytes
    more: bool = False

    def payload(self) -> bytes:
        """See `Frame`."""
        name = self.name.encode()
        return _SIDE.pack(self.more, len(name)) + name + self.data

    @classmethod
    def parse(cls, payload: View) -> "Side":
        """Return the checked content. Whether a file of that name may be written is the follower's to decide."""
        if len(payload) < _SIDE.size:
            raise WireViolation("a file beside the log without a name")
        more, size = _SIDE.unpack_from(payload)
        name = bytes(payload[_SIDE.size : _SIDE.size + size])
        if more > 1 or not 0 < size <= NAME_MAX or len(name) != size:
            raise WireViolation("a file beside the log whose name is not valid")
        return cls(
            utf8_of(name, "the name of a file"), bytes(payload[_SIDE.size + size :]), more == 1
        )


@attrs.frozen
class Removed:
    """The records of a topic before log offset `before` are removed."""

    type: ClassVar[FrameType] = FrameType.REMOVED
    before: int
    topic: str

    def payload(self) -> bytes:
        """See `Frame`."""
        return _REMOVED.pack(self.before) + self.topic.encode()

    @classmethod
    def parse(cls, payload: View) -> "Removed":
        """Return the checked content."""
        if not _REMOVED.size < len(payload) <= _REMOVED.size + NAME_MAX:
            raise WireViolation("a removed topic whose name is not valid")
        (before,) = _REMOVED.unpack_from(payload)
        topic = utf8_of(bytes(payload[_REMOVED.size :]), "the name of a topic")
        return cls(int_of(before, "before"), topic)


WrittenPart = tuple[int, int | None, str]


@attrs.frozen(kw_only=True)
class CoverageNote:
    """Which records end in a CRC of their own, as `penstock/ranges` of the master says.

    Attributes:
        written: ranges that Penstock wrote: start, stop (None if it includes what is appended), and the checksum's name.
        perhaps: ranges that Penstock or another program may have written.
        gaps: ranges that a repair covered with a blank record.
    """

    type: ClassVar[FrameType] = FrameType.COVERAGE
    written: tuple[WrittenPart, ...] = ()
    perhaps: tuple[tuple[int, int | None], ...] = ()
    gaps: tuple[tuple[int, int], ...] = ()

    def payload(self) -> bytes:
        """See `Frame`."""
        return _json(attrs.asdict(self))

    @classmethod
    def parse(cls, payload: View) -> "CoverageNote":
        """Return the checked content."""
        facts = parse_object(payload, "a coverage")
        written = tuple(
            (*_part_of(item[:2]), text_of(item[2], "a checksum", 40))
            for item in list_of(facts.get("written"), "written", RANGES_MAX)
            if _is_list_of(3, item)
        )
        perhaps = tuple(map(_part_of, list_of(facts.get("perhaps"), "perhaps", RANGES_MAX)))
        gaps = [_part_of(item) for item in list_of(facts.get("gaps"), "gaps", RANGES_MAX)]
        edges = [edge for start, stop, _ in written for edge in (start, _stop_of(stop))]
        ascending(edges, "ranges of a coverage")
        return cls(
            written=written,
            perhaps=perhaps,
            gaps=tuple((start, int_of(stop, "the stop of a gap")) for start, stop in gaps),
        )


def _is_list_of(size: int, item: object) -> bool:
    if type(item) is not list or len(item) != size:
        raise WireViolation(f"a range of a coverage is not a list of {size}")
    return True


def _part_of(item: object) -> tuple[int, int | None]:
    if type(item) is not list or len(item) != 2:  # noqa: PLR2004 - a pair
        raise WireViolation("a range of a coverage is not a pair")
    start, stop = item
    begin = int_of(start, "a range's start", 0, 1 << 62)
    return begin, None if stop is None else int_of(stop, "a range's stop", begin, 1 << 62)


def _stop_of(stop: int | None) -> int:
    return 1 << 62 if stop is None else stop


@attrs.frozen
class DigestQuestion:
    """What are the digests of these ranges of the other side's log?"""

    type: ClassVar[FrameType] = FrameType.DIGEST
    ranges: tuple[tuple[int, int], ...]

    def payload(self) -> bytes:
        """See `Frame`."""
        return _json({"ranges": self.ranges})

    @classmethod
    def parse(cls, payload: View) -> "DigestQuestion":
        """Return the checked content."""
        found = list_of(parse_object(payload, "a question").get("ranges"), "ranges", DIGESTS_MAX)
        return cls(tuple(map(_range_of, found)))


@attrs.frozen
class DigestAnswer:
    """The digests that a `DigestQuestion` asked for, in its order."""

    type: ClassVar[FrameType] = FrameType.DIGEST_IS
    digests: tuple[RangeDigest, ...]

    def payload(self) -> bytes:
        """See `Frame`."""
        return _json({"digests": _pack_digests(self.digests)})

    @classmethod
    def parse(cls, payload: View) -> "DigestAnswer":
        """Return the checked content."""
        found = list_of(parse_object(payload, "an answer").get("digests"), "digests", DIGESTS_MAX)
        return cls(tuple(map(_digest_of, found)))


@attrs.frozen
class Heartbeat:
    """The master's log is visible up to `visible_end`, at its wall-clock time `time_ms`."""

    type: ClassVar[FrameType] = FrameType.HEARTBEAT
    visible_end: int
    time_ms: int

    def payload(self) -> bytes:
        """See `Frame`."""
        return _TWO.pack(self.visible_end, self.time_ms)

    @classmethod
    def parse(cls, payload: View) -> "Heartbeat":
        """Return the checked content."""
        visible_end, time_ms = _two_of(payload, "a heartbeat")
        return cls(int_of(visible_end, "visible_end"), int_of(time_ms, "time_ms"))


AnyFrame = (
    Hello | Auth | Follow | Refused | Data | Ack | Side | Removed | CoverageNote | DigestQuestion | DigestAnswer | Heartbeat
)  # fmt: skip
_CLASSES: dict[FrameType, Any] = {
    one.type: one
    for one in (
        Hello, Auth, Follow, Refused, Data, Ack, Side, Removed, CoverageNote, DigestQuestion, DigestAnswer, Heartbeat,
    )
}  # fmt: skip
PAYLOAD_BYTES_MAX = {
    FrameType.HELLO: HELLO_BYTES_MAX,
    FrameType.AUTH: PROOF_BYTES,
    FrameType.FOLLOW: 64 << 10,
    FrameType.REFUSED: 64 << 10,
    FrameType.DATA: _DATA.size + DATA_BYTES_MAX,
    FrameType.ACK: _TWO.size,
    FrameType.SIDE: FRAME_BYTES_MAX - 1,
    FrameType.REMOVED: _REMOVED.size + NAME_MAX,
    FrameType.COVERAGE: JSON_BYTES_MAX,
    FrameType.DIGEST: 64 << 10,
    FrameType.DIGEST_IS: 64 << 10,
    FrameType.HEARTBEAT: _TWO.size,
}
FROM_MASTER = frozenset(
    {FrameType.REFUSED, FrameType.DATA, FrameType.SIDE, FrameType.REMOVED, FrameType.COVERAGE, FrameType.DIGEST_IS, FrameType.HEARTBEAT}
)  # fmt: skip


def _header(kind: FrameType, checked: bytes, size: int) -> bytes:
    """Return the header of a payload of `size` bytes, of which the first are `checked`."""
    length = size + 1
    return HEADER.pack(length, kind, zlib.crc32(checked, zlib.crc32(_CHECKED.pack(length, kind))))


def encode(frame: Frame) -> bytes:
    """Return a whole frame."""
    payload = frame.payload()
    checked = payload[: _DATA.size] if frame.type is FrameType.DATA else payload
    return _header(frame.type, checked, len(payload)) + payload


def encode_data_header(
    log_offset: int, size: int, data_check: int = 0, *, zipped: bool = False
) -> bytes:
    """Return what precedes `size` bytes of a DATA frame, which are sent after it."""
    start = _DATA.pack(log_offset, zipped, data_check)
    return _header(FrameType.DATA, start, _DATA.size + size) + start


def side_frames(name: str, data: bytes) -> Iterator[Side]:
    """Yield the frames of a whole file beside the log."""
    step = DATA_BYTES_MAX - NAME_MAX
    for start in range(0, max(len(data), 1), step):
        yield Side(name, data[start : start + step], start + step < len(data))


def parse_header(header: View, allowed: frozenset[FrameType]) -> tuple[FrameType, int]:
    """Return the type and the payload's size of the frame that begins with this header, if the peer may send it now."""
    length, number, _ = HEADER.unpack_from(header)
    try:
        kind = FrameType(number)
    except ValueError as error:
        raise WireViolation(f"a frame of unknown type {number}") from error
    if kind not in allowed:
        raise WireViolation(f"a frame {kind.name} that is not expected here")
    if not 0 < length <= PAYLOAD_BYTES_MAX[kind] + 1:
        raise WireViolation(f"a frame {kind.name} of {length} bytes")
    return kind, length - 1


def check_frame(whole: View) -> None:
    """Raise `WireViolation` if a frame is not as it was sent; the bytes of DATA are checked when they are decoded."""
    length, number, check = HEADER.unpack_from(whole)
    stop = HEADER.size + (_DATA.size if number == FrameType.DATA else length - 1)
    if (
        zlib.crc32(memoryview(whole)[HEADER.size : stop], zlib.crc32(_CHECKED.pack(length, number)))
        != check
    ):
        raise WireViolation(f"a frame {FrameType(number).name} that was changed on the way")


def decode(kind: FrameType, payload: View) -> AnyFrame:
    """Return the checked content of a frame."""
    found: AnyFrame = _CLASSES[kind].parse(payload)
    return found
