"""The formats of files: which one a name means, and files that are compressed with gzip."""

import gzip
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from penstock.errors import ConfigError, ImportFileError

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
    """Return the format of a file, by its name unless it is given; raises `ConfigError` if it is not known, and no other is."""
    name = Path(path).name.lower()
    is_gzip = name.endswith(".gz")
    # Of a compression that is not read, the content says so better than the name.
    bare = name[: -len(ending)] if (ending := Path(name).suffix) in _COMPRESSED else name
    found = kind or _ENDINGS.get(Path(bare).suffix)
    found = found or otherwise
    if found is None:
        offered = "standard input or output has no name" if path == STANDARD else f"{path!r} does not end in one of: {', '.join(_ENDINGS)}"  # fmt: skip
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
    """Return a file with the content of `file`: decompressed if it is gzip by its first bytes, or should be by its name.

    Raises `ImportFileError` for another compression.
    """
    head = _head(file)
    if is_gzip or head.startswith(_GZIP):
        return cast("BinaryIO", gzip.GzipFile(fileobj=file, mode="rb"))
    for magic, (name, program) in _OTHERS.items():
        if head.startswith(magic):
            raise ImportFileError(
                path, "", f"it is compressed with {name}, which is not read here: pass it through {program}, and give - for "
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
