"""The formats of files: which one a name means, and files that are compressed with gzip."""

import gzip
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from penstock.errors import ConfigError

NDJSON, CSV, PARQUET, ARROW = "ndjson", "csv", "parquet", "arrow"
FORMATS = (NDJSON, CSV, PARQUET, ARROW)
# Formats whose rows are lines of text; only these are compressed as a whole.
TEXT_FORMATS = (NDJSON, CSV)
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


class FileFormat(NamedTuple):
    """The format of a file, and whether it is compressed with gzip."""

    format: str
    is_gzip: bool


def kind_of(path: str, kind: str | None = None) -> FileFormat:
    """Return the format of a file, by its name unless it is given; raises `ConfigError` if it is not known."""
    name = Path(path).name.lower()
    is_gzip = name.endswith(".gz")
    found = kind or _ENDINGS.get(Path(name.removesuffix(".gz")).suffix)
    if found is None:
        offered = "standard input or output has no name" if path == STANDARD else f"{path!r} does not end in one of: {', '.join(_ENDINGS)}"  # fmt: skip
        raise ConfigError(
            f"the format is not known, since {offered}; give it as one of: {', '.join(FORMATS)}"
        )
    if found not in FORMATS:
        raise ConfigError(f"format {found!r} is not one of: {', '.join(FORMATS)}")
    if is_gzip and found not in TEXT_FORMATS:
        raise ConfigError(
            f"{path!r}: {found} files have a compression of their own; leave out '.gz'"
        )
    return FileFormat(found, is_gzip)


def compressed(file: BinaryIO) -> BinaryIO:
    """Return a file whose content is written to `file` compressed; closing it leaves `file` open."""
    return cast("BinaryIO", gzip.GzipFile("", "wb", _LEVEL, file, mtime=0))


def decompressed(file: BinaryIO) -> BinaryIO:
    """Return a file with the decompressed content of `file`."""
    return cast("BinaryIO", gzip.GzipFile(fileobj=file, mode="rb"))
