"""Writing in two steps: encode records anywhere into staged files, then append them in the process with the store.

For a pipeline whose tasks run in processes, or on machines, that must not hold the store's lock. A task
needs an `Encoding`, which is plain data, and writes a file (`Encoder`, `StagedWriter`). The process that opens the
store reads the file (`StagedFile.read`) and appends it batch by batch (`LowLevelStore.put_staged`).

>>> encoding = encoding_for("data")
>>> with_rows = Encoder(encoding).encode(table)
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from penstock._kernel import Batch, QueueCursor, RecordEncoder
from penstock.errors import ArgumentError, MessageTooLargeError
from penstock.files import Files
from penstock.format import arguments
from penstock.format.arrays import Int64s
from penstock.format.names import check_queue, check_topic
from penstock.format.record import BLANK_SIZE
from penstock.store.open import Opener, make_opener
from penstock.write.staged_file import MARK_MAX, MARK_MIN, StagedBatch, StagedFile, StagedWriter
from penstock.write.validation import host_bytes

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "MARK_MAX", "MARK_MIN", "EncodedBatch", "Encoder", "Encoding", "StagedBatch", "StagedFile",
    "StagedWriter", "encoding_for", "key_hashes",
]  # fmt: skip


# A batch of records: the result of `Encoder.encode` and the input of `StagedWriter`.
EncodedBatch = Batch


@attrs.frozen(kw_only=True)
class Encoding:
    """The settings for encoding records for a store without opening it.

    Attributes:
        store_host: the host in the records, address bytes and port.
        crc_property: whether each record ends with a CRC of the whole record.
        body_bytes_max: maximum size of a body in bytes.
        record_bytes_max: maximum size in bytes of a record that fits into a segment.
    """

    store_host: bytes
    crc_property: bool
    body_bytes_max: int
    record_bytes_max: int


def encoding_for(
    *paths: str | Path,
    config: str | Path | None = None,
    files: Files | None = None,
    environ: Mapping[str, str] | None = None,
    **settings: Any,
) -> Encoding:
    """Return the encoding of a store's records, as `penstock.open` with these settings would encode them.

    With multiple paths, the records fit into each of the stores. Changes nothing; a store need not exist yet.
    """
    call = "encoding_for"
    if not paths:
        raise ArgumentError(call, "paths", paths, "the path of at least one store")
    roots = [arguments.folder(call, "paths", path) for path in paths]
    first = make_opener(
        roots[0], config, files, None, None, environ, settings, call=call,
        names=("config", "files", "environ"),
    )  # fmt: skip
    openers = [_opener(first, root) for root in roots]
    log = first.config.log
    return Encoding(
        store_host=host_bytes(log.store_host),
        # A record with a CRC of the whole record is valid in every store, one without it only in some.
        crc_property=any(opener.config.log.checksum == "crc32+record" for opener in openers),
        body_bytes_max=log.body_bytes_max,
        record_bytes_max=min(opener.geometry().segment_bytes for opener in openers) - BLANK_SIZE,
    )


def _opener(like: Opener, path: Path) -> Opener:
    """Return an opener for another store with the same settings."""
    return Opener(path.absolute(), like.asked, like.registry, like.files, like.clock, None)


class Encoder:
    """Encodes records from Arrow tables, as `Store.put_arrow` does. Not thread-safe."""

    def __init__(self, encoding: Encoding, time_ms: Callable[[], int] | None = None) -> None:
        self._encoder = RecordEncoder(
            encoding.store_host, crc_property=encoding.crc_property,
            body_bytes_max=encoding.body_bytes_max, make_cursor=_cursor, time_ms=time_ms,
        )  # fmt: skip
        self._record_bytes_max = encoding.record_bytes_max

    def encode(self, table: "pa.Table | pa.RecordBatch") -> Batch:
        """Return the encoded rows of a table; accepts and refuses the same columns and values as `put_arrow`."""
        from penstock.write import from_arrow  # noqa: PLC0415 - pyarrow is an extra, and slow to import

        from_arrow.check_table("encode", table)
        batch = from_arrow.encode_table(self._encoder, table)
        largest = batch.largest
        if largest > self._record_bytes_max:
            raise MessageTooLargeError(
                "the record", largest, self._record_bytes_max,
                "a record must fit into one segment: use a shorter message",
            )  # fmt: skip
        return batch

    def writer(self, files: Files, path: Path) -> StagedWriter:
        """Return a writer of such batches into a new staged file."""
        host, has_crc = self._encoder.store_host, self._encoder.crc_property
        return StagedWriter(files, path, host, crc_property=has_crc)


def _cursor(topic: str, queue: int) -> QueueCursor:
    return QueueCursor(str(check_topic(topic)), check_queue(queue), 0)


def key_hashes(keys: "pa.Array") -> Int64s:
    """Return Java's `String.hashCode` of each string of a column, 0 for null."""
    from penstock.write import from_arrow  # noqa: PLC0415 - as in `Encoder.encode`

    return from_arrow.key_hashes(keys)
