"""A manifest: which objects make up the log up to some log offset, and which files were beside it.

Layout: two lines, JSON and the SHA-256 of its bytes::

    {"format": 1, "number": 17, "time_ms": ..., "history": "<32 hex>", "epoch": 1, "segment_bytes": 67108864,
     "pieces": [[start, stop, size, "<sha256>", "none"|"zlib", first_ms, last_ms, weight], ...],
     "tail": [start, "<sha256>"], "side": null | {"number": 17, "size": ..., "sha256": ..., "log_offset": ..., "time_ms": ...}}
    <64 hex>

`pieces` ascend and do not overlap; each is within one segment. Where one does not begin at the end of the one before, the store had
deleted what is missing before it was shipped. `size` and `sha256` are of the object as it is stored. `first_ms` is the store time of
the first record, `last_ms` of a record near the end, neither later; 0 if not known. `weight` is 0 for a whole segment, else how many
rounds the piece holds. `tail` has the SHA-256 of the log's last bytes, from `start` on.

Everything is checked before use: an archive may have been changed by anybody who can write there.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import attrs

from penstock.format.names import segment_name

FORMAT = 1
MANIFEST_BYTES_MAX = 256 << 20
SIDE_STORED_MAX = 256 << 20
COMPRESSIONS = ("none", "zlib")
_OFFSET_MAX = 1 << 62
_SEGMENT_MIN, _SEGMENT_MAX, _PAGE = 4096, 1 << 30, 4096
# zlib adds little to bytes that it cannot shorten.
_GROWTH, _GROWTH_FIXED = 1.01, 1024
_HEX = re.compile(r"[0-9a-f]+")
_SHA_DIGITS, _HISTORY_DIGITS = 64, 32
_NAME = re.compile(r"(\d{20})-(\d{1,19})\.json")
_NOT_UNDERSTOOD = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


@attrs.frozen(kw_only=True)
class LogPiece:
    """A range of the log that is one object."""

    start: int
    stop: int
    size: int
    sha256: str
    compress: str
    first_ms: int
    last_ms: int
    weight: int

    @property
    def name(self) -> str:
        """The object's name."""
        return piece_name(self.start, self.stop, self.compress)


def piece_name(start: int, stop: int, compress: str) -> str:
    """Return the name of the object of a range."""
    suffix = "" if compress == "none" else f".{compress}"
    return f"log/{segment_name(start)}-{segment_name(stop)}{suffix}"


@attrs.frozen(kw_only=True)
class SideVersion:
    """Which object holds the files beside the log; they say nothing about the log from `log_offset` on."""

    number: int
    size: int
    sha256: str
    log_offset: int
    time_ms: int

    @property
    def name(self) -> str:
        """The object's name."""
        return side_name(self.number)


def side_name(number: int) -> str:
    """Return the name of the object with the files beside the log, as of a manifest."""
    return f"side/{number:020d}.zlib"


@attrs.frozen(kw_only=True)
class Manifest:
    """One state of an archive."""

    number: int
    time_ms: int
    history: str
    epoch: int
    segment_bytes: int
    pieces: tuple[LogPiece, ...]
    tail_start: int
    tail_sha256: str
    side: SideVersion | None = None

    @property
    def begin(self) -> int:
        """Log offset of the first byte."""
        return self.pieces[0].start if self.pieces else 0

    @property
    def end(self) -> int:
        """Log offset after the last byte."""
        return self.pieces[-1].stop if self.pieces else 0

    @property
    def name(self) -> str:
        """The object's name."""
        return ManifestName(self.number, self.time_ms).text


class ManifestName(NamedTuple):
    """Number and time of a manifest, as its name has them."""

    number: int
    time_ms: int

    @property
    def text(self) -> str:
        """The object's name."""
        return f"manifests/{self.number:020d}-{self.time_ms}.json"


def manifest_names(names: Sequence[str]) -> list[ManifestName]:
    """Return the manifests among the names of a folder, oldest first; other names are passed over."""
    found = (_NAME.fullmatch(name) for name in names)
    return sorted(ManifestName(int(each[1]), int(each[2])) for each in found if each)


def side_numbers(names: Sequence[str]) -> list[int]:
    """Return the numbers of the objects with files beside the log among the names of a folder, ascending."""
    found = (re.fullmatch(r"(\d{20})\.zlib", name) for name in names)
    return sorted(int(each[1]) for each in found if each)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return a manifest's bytes."""
    side = None if manifest.side is None else attrs.asdict(manifest.side)
    about = {
        "format": FORMAT,
        "number": manifest.number,
        "time_ms": manifest.time_ms,
        "history": manifest.history,
        "epoch": manifest.epoch,
        "segment_bytes": manifest.segment_bytes,
        "pieces": [attrs.astuple(piece) for piece in manifest.pieces],
        "tail": [manifest.tail_start, manifest.tail_sha256],
        "side": side,
    }
    line = json.dumps(about, separators=(",", ":")).encode()
    return line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"


def decode_manifest(data: bytes, name: ManifestName) -> Manifest:
    """Return the manifest of these bytes; raises `ValueError` with what is wrong if it is not whole, or not of that name."""
    line, _, rest = data.partition(b"\n")
    if rest != hashlib.sha256(line).hexdigest().encode() + b"\n":
        raise ValueError("its digest is not that of its content")
    try:
        about = json.loads(line)
        if about["format"] != FORMAT:
            raise ValueError(f"it has format {about['format']!r}, this Penstock reads {FORMAT}")
        return _checked(about, name)
    except _NOT_UNDERSTOOD as error:
        raise ValueError(f"it cannot be understood ({error})") from error


def _checked(about: dict[str, Any], name: ManifestName) -> Manifest:
    segment_bytes = _whole(about, "segment_bytes", _SEGMENT_MAX, least=_SEGMENT_MIN)
    if segment_bytes % _PAGE:
        raise ValueError(f"segment_bytes {segment_bytes} is not a multiple of {_PAGE}")
    found = ManifestName(_whole(about, "number"), _whole(about, "time_ms"))
    if found != name:
        raise ValueError(f"it says that it is {found.text}")
    pieces = tuple(_pieces(about["pieces"], segment_bytes))
    tail_start, tail_sha256 = about["tail"]
    return Manifest(
        number=found.number,
        time_ms=found.time_ms,
        history=_hex(about["history"], _HISTORY_DIGITS),
        epoch=_whole(about, "epoch"),
        segment_bytes=segment_bytes,
        pieces=pieces,
        tail_start=_number("tail", tail_start, 0, pieces[-1].stop if pieces else 0),
        tail_sha256=_hex(tail_sha256, _SHA_DIGITS),
        side=None if about["side"] is None else _side(about["side"], found.number),
    )


def _pieces(listed: object, segment_bytes: int) -> Iterator[LogPiece]:
    if not isinstance(listed, list):
        raise ValueError("pieces is not a list")  # noqa: TRY004 - callers handle both alike
    at = 0
    for start, stop, size, sha256, compress, first_ms, last_ms, weight in listed:
        _number("start", start, at, _OFFSET_MAX)
        _number("stop", stop, start + 1, start - start % segment_bytes + segment_bytes)
        if compress not in COMPRESSIONS:
            raise ValueError(f"compression {compress!r} is not known")
        span = stop - start
        most = span if compress == "none" else int(span * _GROWTH) + _GROWTH_FIXED
        least = span if compress == "none" else 1
        yield LogPiece(
            start=start,
            stop=stop,
            size=_number("size", size, least, most),
            sha256=_hex(sha256, _SHA_DIGITS),
            compress=compress,
            first_ms=_number("first_ms", first_ms, 0, _OFFSET_MAX),
            last_ms=_number("last_ms", last_ms, 0, _OFFSET_MAX),
            weight=_number("weight", weight, 0, _OFFSET_MAX),
        )
        at = stop


def _side(about: dict[str, Any], number: int) -> SideVersion:
    return SideVersion(
        number=_whole(about, "number", number),
        size=_whole(about, "size", SIDE_STORED_MAX),
        sha256=_hex(about["sha256"], _SHA_DIGITS),
        log_offset=_whole(about, "log_offset"),
        time_ms=_whole(about, "time_ms"),
    )


def _whole(about: dict[str, Any], name: str, most: int = _OFFSET_MAX, *, least: int = 0) -> int:
    return _number(name, about[name], least, most)


def _number(name: str, value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is {str(value)[:40]}, not a whole number from {least} to {most}")
    return value


def _hex(value: object, digits: int) -> str:
    if not isinstance(value, str) or len(value) != digits or not _HEX.fullmatch(value):
        raise ValueError(f"{str(value)[:80]!r} is not {digits} hexadecimal digits")
    return value
