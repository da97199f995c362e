"""Loading: the rows of a source stored as messages, each once, also if that is interrupted and run again.

Both `import` and `ingest` use it; they differ only in how a row becomes a message. Rows are stored in their order, in
batches. After some batches, the store is flushed and the position is noted (see `progress`). A second load of the
same source with the same options continues after the rows that are stored, if the source still begins with the same
rows. After a source was stored whole, only rows that were appended are stored. The same source means the same path.
"""

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import attrs

from penstock.errors import ImportFileError, MessageError, PenstockError
from penstock.escape import get_logger
from penstock.exchange.formats import STANDARD
from penstock.exchange.progress import Reached, Resumed, SourceNote, stored_from
from penstock.exchange.rows import Put, is_stored_as
from penstock.message import StoredMessage
from penstock.store.batches import with_queues
from penstock.store.store import Store

logger = get_logger(__name__)

# At most this many rows, or this many bytes of bodies and one more, are put together.
_ROWS, _BYTES = 2000, 4 << 20
# After this many rows or bytes, the position is noted, which needs a flush.
_NOTE_ROWS, _NOTE_BYTES = 50_000, 32 << 20


class LoadRow(NamedTuple):
    """A row of a source, and the message for it; or the error.

    Attributes:
        number: its number; increasing, but some may be missing.
        where: the row in words, for example "line 17".
        put: the message; None if there is an error.
        error: why there is no message.
        body: the body, or what else of the row is large; for the digest.
        facts: everything else of the row that must not change; for the digest.
    """

    number: int
    where: str
    put: Put | None
    error: MessageError | None = None
    body: bytes = b""
    facts: str = ""


Rows = Iterator[LoadRow]
OnSkip = Callable[[str, MessageError], None]
Guard = Callable[[], AbstractContextManager[None]]


@attrs.frozen(kw_only=True)
class LoadOptions:
    """The options of a load.

    Attributes:
        identity: the options that make messages of rows; with others, it is another load.
        skip_bad: skip rows that cannot be stored; the load ends at the first one otherwise.
        restart: begin with the first row, whatever an earlier load has stored.
        first: the number of the first row to store.
        on_batch: called after each batch, with its last row.
        on_skip: called for each row that is skipped, with where it is and why.
        guard: entered for each batch that is stored, counted and reported; it can delay an interrupt until all is done.
    """

    identity: object
    skip_bad: bool = False
    restart: bool = False
    first: int = 1
    on_batch: Callable[[LoadRow], None] = lambda _row: None
    on_skip: OnSkip = lambda _where, _error: None
    guard: Guard = nullcontext


class Loader:
    """Stores the rows of one source, once. Not thread-safe.

    Args:
        store: the store, open for writing.
        file: the source; a load from a pipe, or from standard input, is not noted and cannot be continued.
        path: its name; `-` for standard input.
        options: how it is loaded.

    Attributes:
        before: how far earlier loads of this source came.
        reached: how far it is loaded now.
        topics: messages stored by this load, by topic.
    """

    def __init__(self, store: Store, file: BinaryIO, path: str, options: LoadOptions) -> None:
        self._store = store
        self._options = options
        self._file = file
        self._path = path
        self._note: SourceNote | None = None
        if path != STANDARD and file.seekable():
            facts = json.dumps([str(Path(path).resolve()), options.identity], sort_keys=True)
            self._note = SourceNote(store.path, facts.encode(), store.lowlevel.files)
        self._start = Reached(rows=options.first - 1, source=path)
        self.before = self.reached = self._start
        self.topics: Counter[str] = Counter()
        self._digest = hashlib.blake2b(digest_size=16)
        self._unnoted_rows = self._unnoted_bytes = 0
        self._is_storing = False

    @property
    def is_noted(self) -> bool:
        """Whether a second load of the same source continues this one."""
        return self._note is not None

    def load(self, rows_of: Callable[[], Rows]) -> None:
        """Store all rows that are not stored yet.

        Args:
            rows_of: returns the rows from the first one to store on, as the file has them from where it is.
        """
        # The store refuses here, before the source is read, if it cannot be written.
        self._store.flush()
        rows = self._remaining(rows_of)
        try:
            self._store_all(rows)
        except BaseException as error:
            self._stop(error)
            raise
        self._end()

    def _remaining(self, rows_of: Callable[[], Rows]) -> Rows:
        """Return the rows that are not stored, and note where in the log they will be."""
        found = None
        if self._note is not None and not self._options.restart:
            found = self._note.read()
        begin = self._file.tell() if found is not None else 0
        rows = rows_of()
        if found is not None:
            if self._begins_with(rows, found):
                self.reached = found
                if not found.is_exact:
                    rows = self._after_stored(rows, found.log_offset)
                logger.info("%d rows of %s are processed already", self.reached.rows, self._path)
            elif found.is_complete:
                # It was stored whole, and is another one now.
                self._digest = hashlib.blake2b(digest_size=16)
                self._file.seek(begin)
                rows = rows_of()
            else:
                raise ImportFileError(
                    self._path, "",
                    f"it has changed: its first {found.rows} rows were processed by an earlier run, which was interrupted, "
                    f"and they are not the same now. Nothing was stored. --restart begins with the first row",
                )  # fmt: skip
        self.before = self.reached
        self._write_note()
        return rows

    def _begins_with(self, rows: Rows, found: Reached) -> bool:
        """Read the rows of a note, and return whether they are the same."""
        number = self._start.rows
        while number < found.rows and (row := next(rows, None)) is not None:
            self._add_to_digest(row)
            number = row.number
        return number == found.rows and self._digest.hexdigest() == found.digest

    def _after_stored(self, rows: Rows, log_offset: int) -> Rows:
        stored = stored_from(self._store, log_offset)

        def on_row(row: LoadRow, is_stored: bool) -> None:
            self._count([row], is_stored=is_stored)

        return Resumed(rows, stored, _is_same, self._is_bad, on_row).rest()

    def _is_bad(self, row: LoadRow) -> bool:
        """Return whether the store refuses a row."""
        if row.put is None:
            return True
        try:
            self._store.lowlevel.check(*row.put)
        except MessageError:
            return True
        return False

    def _store_all(self, rows: Rows) -> None:
        for group in groups_of(rows):
            with self._options.guard():
                self._is_storing = True
                self._store_group(group)
                self._is_storing = False
                self._options.on_batch(group[-1])
            if self._unnoted_rows >= _NOTE_ROWS or self._unnoted_bytes >= _NOTE_BYTES:
                self._write_note()

    def _store_group(self, group: list[LoadRow]) -> None:
        """Store rows; those of one kind that follow each other are appended together."""
        for kind, rows in itertools.groupby(group, _kind):
            run = list(rows)
            if kind == _BAD:
                for row in run:
                    self._refuse(row, row.error or MessageError("the row is not valid"))
            else:
                self._append(run, is_plain=kind == _PLAIN)

    def _append(self, run: list[LoadRow], *, is_plain: bool) -> None:
        puts = [row.put for row in run if row.put is not None]
        try:
            if is_plain:
                messages = [put.message for put in puts]
                places = [(message.topic, message.queue) for message in messages]
                with_queues(
                    self._store.lowlevel.add_queue, places, lambda: self._store.put_many(messages)
                )
            else:
                self._store.lowlevel.put_copies([(put.message, put.text or b"") for put in puts])
        except MessageError as error:
            if len(run) == 1:
                self._refuse(run[0], error)
                return
            # Nothing of them is stored. One by one, it shows which row it is.
            for row in run:
                self._append([row], is_plain=is_plain)
            return
        self._count(run, is_stored=True)
        self.topics.update([put.message.topic for put in puts])

    def _refuse(self, row: LoadRow, error: MessageError) -> None:
        """Skip a row that cannot be stored, or raise why."""
        if self._options.skip_bad:
            logger.info("a row is skipped: %s: %s", row.where, error)
            self._options.on_skip(row.where, error)
            self._count([row], is_stored=False)
            return
        # All rows before it are counted, and nothing of it is stored.
        self._is_storing = False
        goes_on = (
            "run the same command again" if self.is_noted else "give the rows from this one on"
        )
        raise ImportFileError(
            self._path, row.where,
            f"{error}. The rows before it are stored, this one and those after it are not: correct it and {goes_on}, or "
            f"skip such rows with --skip-bad",
        ) from error  # fmt: skip

    def _count(self, rows: Sequence[LoadRow], *, is_stored: bool) -> None:
        for row in rows:
            self._add_to_digest(row)
        reached, count = self.reached, len(rows)
        self.reached = attrs.evolve(
            reached, rows=rows[-1].number, stored=reached.stored + count * is_stored,
            skipped=reached.skipped + count * (not is_stored),
        )  # fmt: skip
        self._unnoted_rows += count
        self._unnoted_bytes += sum(len(row.body) for row in rows)

    def _add_to_digest(self, row: LoadRow) -> None:
        facts = row.facts.encode("utf-8", "surrogatepass")
        self._digest.update(b"%d,%d:%b%b" % (len(facts), len(row.body), facts, row.body))

    def _stop(self, error: BaseException) -> None:
        """Note how far the load came, if that is known; what is not noted is found in the log by the next one."""
        if self._note is None:
            return
        if not self._is_storing:
            with suppress(PenstockError, OSError):
                self._write_note(is_exact=True)
        if isinstance(error, PenstockError | OSError) and not isinstance(error, ImportFileError):
            error.add_note(
                f"{self.reached.rows} rows of {self._path} are processed; run the same command again to continue"
            )

    def _end(self) -> None:
        """Note that the source is stored whole."""
        self._write_note(is_exact=True, is_complete=True)

    def _write_note(self, *, is_exact: bool = False, is_complete: bool = False) -> None:
        """Make everything durable, then note it."""
        self.reached = attrs.evolve(
            self.reached, log_offset=self._store.flush(), digest=self._digest.hexdigest(), source=self._path,
            is_exact=is_exact, is_complete=is_complete,
        )  # fmt: skip
        self._unnoted_rows = self._unnoted_bytes = 0
        if self._note is not None:
            self._note.write(self.reached)
            logger.debug("%d rows of %s are stored durably", self.reached.rows, self._path)


_BAD, _PLAIN, _RECORD = range(3)


def _kind(row: LoadRow) -> int:
    if row.put is None:
        return _BAD
    return _PLAIN if row.put.text is None else _RECORD


def _is_same(row: LoadRow, message: StoredMessage) -> bool:
    return row.put is not None and is_stored_as(row.put, message)


def groups_of(rows: Iterable[LoadRow]) -> Iterator[list[LoadRow]]:
    """Yield rows in groups of bounded size; a group ends with the row that makes it too large."""
    group: list[LoadRow] = []
    size = 0
    try:
        for row in rows:
            group.append(row)
            size += len(row.body)
            if len(group) >= _ROWS or size >= _BYTES:
                yield group
                group, size = [], 0
    except ImportFileError:
        # The source is not valid from here on; the rows before are.
        if group:
            yield group
        raise
    if group:
        yield group
