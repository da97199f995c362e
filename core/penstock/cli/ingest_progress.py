"""Remembers how far the ingest of a source came, so that the next run goes on there and stores no row twice.

The file `penstock/ingest-<key>.json` in the store, where the key stands for the source and for how its rows become
messages. It says: the first `rows` rows of the source, whose digest is `digest`, are in the log before `log_offset`.

Invariants:
    * The file is written durably before the first row is stored, and only over rows that are durable in the log.
    * Between that and the end of the process, all records after `log_offset` are rows of this source, in order: the store has
      one writer. So what a killed run stored beyond the file's word is found by comparing the next rows with the
      records from `log_offset` on, up to the first that differs.
    * A file with `is_exact` was written at the end of a run: nothing after `log_offset` is its own.
    * It is removed when the source is stored whole.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import MessageError, NoRecordError, OffsetError, PenstockError
from penstock.escape import get_logger
from penstock.files import Files

if TYPE_CHECKING:
    from penstock.message import Message, StoredMessage
    from penstock.store.store import Store

logger = get_logger(__name__)

_VERSION = 1


class Row(NamedTuple):
    """One row to store: its body, its fields, and how far it is in the source, in bytes or in rows."""

    body: bytes
    fields: Mapping[str, Any]
    done: int


# A row that cannot be read is its error.
Rows = Iterator[Row | MessageError]


class SourceChangedError(PenstockError):
    """The source of an interrupted ingest begins with other rows than those that were stored."""


# Returns the message for a row; None for one that cannot be stored.
MessageOf = Callable[[Row], "Message | None"]


class Position:
    """How many rows of a source were dealt with, and the digest of them. Not thread-safe."""

    def __init__(self) -> None:
        self.rows = 0
        self._digest = hashlib.sha256()

    def advance(self, row: Row | MessageError) -> None:
        """Count one row, stored or skipped."""
        data = str(row).encode() if isinstance(row, MessageError) else row.body
        self._digest.update(b"%d:" % len(data))
        self._digest.update(data)
        self.rows += 1

    def digest(self) -> str:
        """Return the digest of all rows so far."""
        return self._digest.copy().hexdigest()


class IngestProgress:
    """The progress of one ingest into an open store. Not thread-safe; the store's lock excludes other processes.

    Args:
        store: the store, open for writing.
        source: the file that is ingested.
        plan: how its rows become messages; another plan is another ingest.
    """

    def __init__(self, store: "Store", source: Path, plan: Mapping[str, Any]) -> None:
        self._store = store
        self._files = Files()
        self._source = str(source.absolute())
        about = json.dumps([self._source, plan], sort_keys=True)
        key = hashlib.sha256(about.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self._path = store.path / "penstock" / f"ingest-{key}.json"
        self.position = Position()

    def begin(self, rows: Rows, message_of: MessageOf, *, restart: bool) -> Rows:
        """Return the rows that are not stored yet, and note durably where in the log they will be.

        Raises `SourceChangedError` if the source does not begin with the rows that were stored.
        """
        noted = None if restart else self._read()
        if noted is not None:
            rows = self._skip_stored(rows, noted)
            if not noted["is_exact"]:
                rows = self._skip_found(rows, message_of, noted["log_offset"])
            logger.info(
                "%d rows of %s were stored by an earlier run", self.position.rows, self._source
            )
        self.write(is_exact=False)
        return rows

    def write(self, *, is_exact: bool) -> None:
        """Note durably that all rows so far are stored; `is_exact` at the end of a run."""
        self._store.flush()
        facts = {
            "version": _VERSION, "source": self._source, "rows": self.position.rows,
            "digest": self.position.digest(), "log_offset": self._log_end(), "is_exact": is_exact,
        }  # fmt: skip
        self._files.write_whole(self._path, json.dumps(facts | {"check": _check(facts)}).encode())
        logger.debug("%d rows of %s are stored durably", self.position.rows, self._source)

    def end(self) -> None:
        """Forget the source, which is stored whole."""
        self._store.flush()
        if self._files.exists(self._path):
            self._files.remove(self._path)

    def _log_end(self) -> int:
        end: int = self._store.stats()["log_end_offset"]
        return end

    def _read(self) -> dict[str, Any] | None:
        """Return what an earlier run noted; None if there is nothing, or nothing that can be used."""
        if not self._files.exists(self._path):
            return None
        try:
            facts = json.loads(self._files.read_whole(self._path, 1 << 20))
            is_known = facts["version"] == _VERSION and facts["source"] == self._source
            is_known &= facts.pop("check") == _check(facts)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            is_known, facts = False, {}
        if not is_known:
            raise PenstockError(
                f"{self._path}: this file, which says how far an earlier ingest of {self._source} came, cannot be "
                f"read; nothing was stored. Use --restart to begin with the first row, which stores rows again"
            )
        found: dict[str, Any] = facts
        return found

    def _skip_stored(self, rows: Rows, noted: Mapping[str, Any]) -> Rows:
        """Skip the rows that were noted as stored; raise if they are not the same."""
        for row in itertools.islice(rows, max(noted["rows"], 0)):
            self.position.advance(row)
        if self.position.rows != noted["rows"] or self.position.digest() != noted["digest"]:
            raise SourceChangedError(
                f"{self._source} has changed: an earlier run stored its first {noted['rows']} rows and was "
                f"interrupted, and these rows are not the same now. Nothing was stored. Use --restart to store the "
                f"source from its first row on"
            )
        return rows

    def _skip_found(self, rows: Rows, message_of: MessageOf, log_offset: int) -> Rows:
        """Skip the rows after the noted ones that a killed run has stored, too: the records from `log_offset` on."""
        for stored in self._records(log_offset):
            for row in rows:
                message = None if isinstance(row, MessageError) else message_of(row)
                if message is not None and not _is_same(stored, message):
                    return itertools.chain([row], rows)
                self.position.advance(row)
                if message is not None:
                    break
            else:
                return rows
        return rows

    def _records(self, log_offset: int) -> Iterator["StoredMessage"]:
        """Yield the records from a log offset on."""
        at, end = log_offset, self._log_end()
        if at < self._store.stats()["log_min_offset"]:
            raise PenstockError(
                f"the log before offset {at} was deleted since an earlier ingest of {self._source} was killed, so it "
                f"is not known which rows it stored; nothing was stored now. Use --restart to begin with the first row"
            )
        while at < end:
            try:
                message = self._store.at(at)
            except NoRecordError as error:
                if error.after is None or error.after <= at:
                    return
                at = error.after
                continue
            except OffsetError:
                return
            yield message
            at += message.size


def _check(facts: Mapping[str, Any]) -> str:
    """Return what shows that a note is as it was written: a wrong number in it would store rows twice, or none."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _is_same(stored: "StoredMessage", message: "Message") -> bool:
    return (
        stored.topic == message.topic
        and stored.body == message.body
        and stored.queue == message.queue
        and stored.tag == message.tag
        and " ".join(stored.keys).split() == " ".join(message.keys).split()
    )
