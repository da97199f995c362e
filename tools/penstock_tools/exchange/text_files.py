"""The formats of files by their names, compression with gzip, and rows of text.

Rows of text are NDJSON (one JSON object per line), CSV (RFC 4180, with a header), or lines that mean nothing here.

The text is UTF-8, with or without a byte order mark. A row is read as the fields of a message, as described below, or
whole, as values by the names of the file.

Bytes are exact in both. A body is in `body` if it is text, else in `body_base64`: in NDJSON any valid UTF-8 is text,
in CSV also only if it has no control characters other than tab, line feed and carriage return. `properties_text`
is in `properties_text_base64`. In NDJSON, `keys` is a list; in CSV it is the keys separated by spaces, and
`properties` is a JSON object. An empty field of a CSV file is not set.

A line, and a field of a CSV file, have a maximum length, so the memory used is bounded whatever the file holds.
"""

import base64
import binascii
import codecs
import csv
import gzip
import io
import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from penstock.errors import ConfigError, ImportFileError
from penstock.escape import visible_json
from penstock_tools.exchange.rows import COLUMNS, NUMBERS, ColumnError, MessageRow, key_list

NDJSON, CSV, PARQUET, ARROW = "ndjson", "csv", "parquet", "arrow"
FORMATS = (NDJSON, CSV, PARQUET, ARROW)
# Only read: every line is a row, whatever it holds.
LINES = "lines"
# Formats whose rows are lines of text; only these are compressed as a whole.
TEXT_FORMATS = (NDJSON, CSV, LINES)
# As `gzip` compresses by default; a higher one takes a multiple of the time.
_LEVEL = 6
_ENDINGS = {
    ".ndjson": NDJSON,
    ".jsonl": NDJSON,
    ".csv": CSV,
    ".parquet": PARQUET,
    ".arrow": ARROW,
    ".feather": ARROW,
}
STANDARD = "-"
_GZIP = b"\x1f\x8b"
# How compressed files begin, and the programs that read them.
_OTHERS = {
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -dc"),
    b"\xfd7zXZ\x00": ("xz", "xz -dc"),
    b"\x04\x22\x4d\x18": ("lz4", "lz4 -dc"),
    b"\xff\x06\x00\x00sNaPpY": ("snappy", "snzip -dc"),
    b"PK\x03\x04": ("zip", "unzip -p"),
    b"\x1f\x9d": ("compress", "uncompress -c"),
    **{b"BZh%d1AY&SY" % level: ("bzip2", "bzip2 -dc") for level in range(1, 10)},
}
_COMPRESSED = {".gz", ".zst", ".xz", ".bz2", ".lz4", ".zip"}
_HEAD_BYTES = max(map(len, _OTHERS))


class FileFormat(NamedTuple):
    """The format of a file, and whether it is compressed with gzip."""

    format: str
    is_gzip: bool


def kind_of(path: str, kind: str | None = None, otherwise: str | None = None) -> FileFormat:
    """Return the format of a file, by its name unless it is given; raises `ConfigError` if it is not known."""
    name = Path(path).name.lower()
    is_gzip = name.endswith(".gz")
    # If a compression is not read, the error about the content says so better than one about the name.
    bare = name[: -len(ending)] if (ending := Path(name).suffix) in _COMPRESSED else name
    found = kind or _ENDINGS.get(Path(bare).suffix)
    found = found or otherwise
    if found is None:
        offered = f"{path!r} does not end in one of: {', '.join(_ENDINGS)}"
        if path == STANDARD:
            offered = "standard input or output has no name"
        raise ConfigError(
            f"the format is not known, since {offered}; give it as one of: {', '.join(FORMATS)}"
        )
    if found not in (*FORMATS, otherwise):
        raise ConfigError(f"format {found!r} is not one of: {', '.join(FORMATS)}")
    if is_gzip and found not in TEXT_FORMATS:
        raise ConfigError(
            f"{path!r}: {found} files have a compression of their own; leave out '.gz'"
        )
    return FileFormat(found, is_gzip)


def compressed(file: BinaryIO) -> BinaryIO:
    """Return a file whose content is written to `file` compressed; closing it leaves `file` open."""
    return cast("BinaryIO", gzip.GzipFile("", "wb", _LEVEL, file, mtime=0))


def plain_text(file: BinaryIO, path: str, *, is_gzip: bool) -> BinaryIO:
    """Return a file with the content of `file`: decompressed if its first bytes, or its name, say gzip.

    Raises `ImportFileError` for another compression.
    """
    head = _head(file)
    if is_gzip or head.startswith(_GZIP):
        return cast("BinaryIO", gzip.GzipFile(fileobj=file, mode="rb"))
    for magic, (name, program) in _OTHERS.items():
        if head.startswith(magic):
            raise ImportFileError(
                path, "",
                f"it is compressed with {name}, which is not read here: pass it through {program}, and give - for "
                f"standard input",
            )  # fmt: skip
    return file


def _head(file: BinaryIO) -> bytes:
    """Return the first bytes of what is left of a file, without reading them; empty if a pipe does not allow that."""
    if file.seekable():
        at = file.tell()
        head = file.read(_HEAD_BYTES)
        file.seek(at)
        return head
    return cast("bytes", getattr(file, "peek", lambda _: b"")(_HEAD_BYTES))


_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# What text in a CSV file must not contain: some readers end a line, or the file, at such a character.
_NOT_IN_CSV = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_BYTES_COLUMNS = {"body": "body_base64", "properties_text": "properties_text_base64"}
CSV_COLUMNS = (
    *(name for name in COLUMNS if name not in _BYTES_COLUMNS),
    "properties_text_base64",
    "body",
    "body_base64",
)
# Every name that a line of text may have.
NAMES = frozenset({*CSV_COLUMNS})
# Six characters for a control character in JSON, and some room for the other fields.
_GROWTH, _ROOM = 8, 1 << 20
# How UTF-32 and UTF-16 begin, if marked.
_WIDE_MARKS = (codecs.BOM_UTF32_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_csv_limit = threading.Lock()


class FileRow(NamedTuple):
    """One row of a file.

    Attributes:
        number: 1 for the first row after a header.
        where: the row in words, for example "line 17".
        fields: the values by name, typed as in `MessageRow` unless the row is read whole; None if it is not valid.
        error: why it is not valid.
        whole: the line, or the row as JSON, if the row is read whole.
    """

    number: int
    where: str
    fields: Mapping[str, Any] | None
    error: ColumnError | None = None
    whole: bytes = b""


class ColumnNames:
    """Which names of a file mean which fields of a message.

    Args:
        renamed: names of the file by the names of `NAMES` that they mean.
        ignores_unknown: leave out columns whose names are not known, instead of refusing them.
    """

    def __init__(self, renamed: Mapping[str, str] | None = None, *, ignores_unknown: bool = False):
        self._meaning = {there: here for here, there in (renamed or {}).items()}
        self._ignores_unknown = ignores_unknown

    def known(self, names: Iterable[str], known: frozenset[str] = NAMES) -> dict[str, str]:
        """Return the meaning of each name of a file that has one; raises `ColumnError` for others, unless ignored."""
        given = list(names)
        for there in self._meaning:
            if there not in given:
                raise ColumnError(there, f"is not there; the columns are: {', '.join(given)}")
        found: dict[str, str] = {}
        for name in given:
            meant = self._meaning.get(name, name)
            if meant not in known:
                if self._ignores_unknown:
                    continue
                raise ColumnError(
                    name,
                    "is not a field of a message: name the field that it means with --column FIELD=NAME, or leave out "
                    f"such columns with --ignore-unknown; the fields are: {', '.join(sorted(known))}",
                )
            if meant in found.values():
                raise ColumnError(name, f"is the second one that means {meant!r}")
            found[name] = meant
        return found

    def apply(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row with the names of fields, as `known` does."""
        if not self._meaning and row.keys() <= NAMES:
            return row
        return {meant: row[name] for name, meant in self.known(row).items()}


# --- written


class NdjsonWriter:
    """Writes rows as NDJSON. Not thread-safe."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, rows: Sequence[MessageRow]) -> None:
        """Write some rows."""
        # Joined, since one call is faster than one for each row.
        self._file.write("".join([json_line(row) + "\n" for row in rows]).encode())

    def finish(self) -> None:
        """Do nothing: the last line ends the file."""


def json_line(row: MessageRow) -> str:
    """Return a row as one line of JSON that is safe on a terminal."""
    facts = row._asdict()
    facts["keys"] = key_list(row.keys)
    body, text = facts.pop("body"), facts.pop("properties_text")
    if text is not None:
        facts["properties_text_base64"] = _base64(text)
    try:
        facts["body"] = body.decode()
    except UnicodeDecodeError:
        facts["body_base64"] = _base64(body)
    return visible_json(_ENCODE(facts))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class CsvWriter:
    """Writes rows as CSV, the header first. Not thread-safe."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._text = io.StringIO(newline="")
        self._writer = csv.writer(self._text)
        self._put([CSV_COLUMNS])

    def _put(self, lines: Iterable[Sequence[object]]) -> None:
        self._writer.writerows(lines)
        self._file.write(self._text.getvalue().encode())
        self._text.seek(0)
        self._text.truncate()

    def write(self, rows: Sequence[MessageRow]) -> None:
        """Write some rows."""
        self._put(map(_csv_line, rows))

    def finish(self) -> None:
        """Do nothing: the last line ends the file."""


def _csv_line(row: MessageRow) -> Sequence[object]:
    plain = list(row[:-1])
    at = COLUMNS.index("properties_text")
    text = plain.pop(at)
    plain[at - 1] = visible_json(_ENCODE(row.properties)) if row.properties else ""
    return (*plain, "" if text is None else _base64(cast("bytes", text)), *_csv_body(row.body))


def _csv_body(body: bytes) -> tuple[str, str]:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return "", _base64(body)
    return ("", _base64(body)) if _NOT_IN_CSV.search(text) else (text, "")


# --- read


def row_bytes_max(body_bytes_max: int) -> int:
    """Return the maximum length in bytes of a line, for bodies of at most this size."""
    return body_bytes_max * _GROWTH + _ROOM


def ndjson_rows(
    file: BinaryIO, path: str, names: ColumnNames | None, *, skip: int = 0, line_bytes_max: int
) -> Iterator[FileRow]:
    """Yield the rows of an NDJSON file; each line is a row, empty ones are left out.

    Args:
        file: the file.
        path: its name for errors.
        names: what the names mean; None to read the rows whole.
        skip: how many lines to skip at the start.
        line_bytes_max: raise `ImportFileError` for a longer line.
    """
    for number, line in enumerate(_lines(file, path, line_bytes_max), 1):
        if number <= skip or not line.strip():
            continue
        where = f"line {number}"
        whole = line.rstrip(b"\r\n")
        try:
            fields = json_object(whole) if names is None else _fields_of(line, names)
        except ColumnError as error:
            yield FileRow(number, where, None, error, whole)
        else:
            yield FileRow(number, where, fields, None, whole)


def line_rows(
    file: BinaryIO, path: str, _names: ColumnNames | None, *, skip: int = 0, line_bytes_max: int
) -> Iterator[FileRow]:
    """Yield the lines of a file, whatever they hold, as whole rows with the fields `line` and `number`."""
    for number, line in enumerate(_lines(file, path, line_bytes_max), 1):
        if number > skip:
            whole = line.rstrip(b"\r\n")
            fields = {"line": whole.decode("utf-8", "replace"), "number": number}
            yield FileRow(number, f"line {number}", fields, None, whole)


def _lines(file: BinaryIO, path: str, limit: int) -> Iterator[bytes]:
    """Yield the lines without a byte order mark; raises `ImportFileError` for a long line, UTF-16 and UTF-32."""
    number = 0
    while line := file.readline(limit + 1):
        number += 1
        if len(line) > limit:
            raise ImportFileError(
                path, f"line {number}",
                f"the line is longer than {limit} bytes; bodies of this length cannot be stored here"
            )  # fmt: skip
        if number == 1:
            if line.startswith(_WIDE_MARKS):
                raise ImportFileError(
                    path, "",
                    "it is UTF-16 or UTF-32 text, by its first bytes: convert it to UTF-8, for example with iconv"
                )  # fmt: skip
            line = line.removeprefix(codecs.BOM_UTF8)
        yield line


def json_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line; raises `ColumnError` if it is something else."""
    try:
        found = json.loads(line.decode(), object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        raise ColumnError("", f"the line is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise ColumnError("", "the line is not a JSON object")
    return found


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {double!r} occurs twice in an object")
    return found


def json_of(values: Mapping[str, Any]) -> bytes:
    """Return the values of a row as JSON; raises `ColumnError` for a value that JSON, or UTF-8, does not have."""
    try:
        return json.dumps(values, ensure_ascii=False, allow_nan=False, default=plain).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise ColumnError("", f"the row cannot be written as JSON: {error}") from error


def plain(value: object) -> str:
    """Return the text of a value that JSON lacks: a time in ISO 8601, a decimal with all digits, bytes in UTF-8."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal | timedelta):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__} has no text")


def joined_keys(keys: Sequence[object], name: str = "keys") -> str:
    """Return a list of keys as one text; raises `ColumnError` if a reader could not separate them again."""
    for key in keys:
        _check(name, "" if key is None else key, str, "a list of strings")
        if not key or (len(keys) > 1 and " " in str(key)):
            raise ColumnError(
                name,
                f"has the key {key!r}: spaces separate keys, so none of a list may have one, or be empty",
            )
    return " ".join(map(str, keys))


def _fields_of(line: bytes, names: ColumnNames) -> dict[str, Any]:
    fields = names.apply(json_object(line))
    for name in ("topic", "tag", "born_host"):
        _check(name, fields.get(name), str, "a string")
    _check("properties", fields.get("properties"), dict, "an object of strings")
    for name, value in (fields.get("properties") or {}).items():
        _check(f"properties.{name}", value, str, "a string")
    keys = fields.get("keys")
    if isinstance(keys, list):
        fields["keys"] = joined_keys(keys)
    else:
        _check("keys", keys, str, "a list of strings")
    return decoded(fields)


def _check(name: str, value: object, kind: type, expected: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise ColumnError(name, f"is {_ENCODE(value)[:80]}, and must be {expected}")


def decoded(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields with bytes in place of text and base64."""
    for name, encoded_name in _BYTES_COLUMNS.items():
        encoded, text = fields.pop(encoded_name, None), fields.get(name)
        if encoded is not None and text is not None:
            raise ColumnError(
                encoded_name, f"and column {name!r} are both set; one of them is the value"
            )
        if encoded is not None:
            fields[name] = _from_base64(encoded_name, encoded)
        elif text is not None:
            fields[name] = _utf8(name, text)
    return fields


def _from_base64(name: str, text: object) -> bytes:
    try:
        if not isinstance(text, str):
            raise TypeError(f"it is {type(text).__name__}")  # noqa: TRY301 - one message for every reason
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise ColumnError(name, f"is not base64: {error}") from error


def _utf8(name: str, text: object) -> bytes:
    if not isinstance(text, str):
        raise ColumnError(
            name, f"is {_ENCODE(text)[:80]}, and must be a string; to store whole lines, use ingest"
        )
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ColumnError(name, f"is not valid UTF-8 ({error.reason})") from error


def csv_rows(
    file: BinaryIO, path: str, names: ColumnNames | None, *, skip: int = 0, line_bytes_max: int
) -> Iterator[FileRow]:
    """Yield the rows of a CSV file, as `ndjson_rows` does; the first row is a header of names."""
    with _csv_limit:
        # A setting of the whole process. It is only increased.
        csv.field_size_limit(max(csv.field_size_limit(), line_bytes_max))
    reader = csv.reader(
        (line.decode("utf-8", "surrogateescape") for line in _lines(file, path, line_bytes_max)),
        strict=True,
    )
    header = _next(reader, path, 1)
    if header is None:
        raise ImportFileError(path, "", "the file is empty: a CSV file begins with a header")
    try:
        if names is None:
            check_names(header)
        meaning = None if names is None else names.known(header)
    except ColumnError as error:
        raise ImportFileError(path, "line 1", str(error)) from error
    number, line = 0, reader.line_num + 1
    while (values := _next(reader, path, line)) is not None:
        where, line = f"line {line}", reader.line_num + 1
        if not values:
            continue
        number += 1
        if number <= skip:
            continue
        try:
            _check_count(header, values)
            if meaning is None:
                fields = dict(zip(header, values, strict=True))
                for name, value in fields.items():
                    # Raises for bytes that are not UTF-8, which are lone surrogates here.
                    _utf8(name, value)
                yield FileRow(number, where, fields, None, json_of(fields))
            else:
                yield FileRow(number, where, _csv_fields(header, values, meaning))
        except ColumnError as error:
            yield FileRow(number, where, None, error)


def _next(reader: Iterator[list[str]], path: str, line: int) -> list[str] | None:
    try:
        return next(reader, None)
    except csv.Error as error:
        raise ImportFileError(path, f"line {line}", f"it is not valid CSV: {error}") from error


def check_names(names: Sequence[str]) -> None:
    """Raise `ColumnError` if a file has two columns of one name: only one of the values could be kept."""
    for name in names:
        if names.count(name) > 1:
            raise ColumnError(name, "is there twice")


def _check_count(header: Sequence[str], values: Sequence[str]) -> None:
    if len(values) != len(header):
        raise ColumnError(
            header[min(len(values), len(header) - 1)],
            f"and others do not match: the row has {len(values)} fields, the header {len(header)}",
        )


def _csv_fields(
    header: Sequence[str], values: Sequence[str], meaning: Mapping[str, str]
) -> dict[str, Any]:
    found: dict[str, Any] = {
        meaning[name]: value
        for name, value in zip(header, values, strict=True)
        if value and name in meaning
    }
    for name in found.keys() & NUMBERS.keys():
        found[name] = _whole(name, found[name])
    if "properties" in found:
        found["properties"] = _properties(found["properties"])
    if "body" not in found and "body_base64" not in found and _BODIES & set(meaning.values()):
        found["body"] = ""
    for name in ("topic", "tag", "keys", "born_host"):
        if name in found:
            # Raises for bytes that are not UTF-8, which are lone surrogates here.
            _utf8(name, found[name])
    return decoded(found)


_BODIES = {"body", "body_base64"}


def _whole(name: str, text: str) -> int:
    if not _WHOLE.fullmatch(text.strip()):
        raise ColumnError(name, f"is {text[:80]!r}, and must be an integer")
    return int(text)


def _properties(text: str) -> dict[str, str]:
    try:
        found = json.loads(text, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        raise ColumnError("properties", f"is not a JSON object ({error})") from error
    _check("properties", found, dict, "an object of strings")
    for name, value in found.items():
        _check(f"properties.{name}", value, str, "a string")
    return cast("dict[str, str]", found)
