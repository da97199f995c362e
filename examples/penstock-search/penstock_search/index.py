"""A dispatcher that keeps the words of message bodies in an SQLite FTS5 table.

One file, `fulltext/index.sqlite`, in the store's folder. A row's id is its record's log offset; the
table `state` has one row, the index's progress as a log offset. Both are written in one
transaction, so after a crash they agree, and records of an uncommitted transaction are dispatched again.
"""

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import attrs

from penstock import Dispatcher
from penstock.contracts import Checker, Context, DispatchBatch, Finding, Trust

logger = logging.getLogger(__name__)

# "pstk" and "text": distinguishes this plugin's file from a foreign one.
_APPLICATION_ID = 0x70737478
_SCHEMA = """
create virtual table words using fts5(topic unindexed, tag, keys, body, tokenize = '{tokenizer}');
create table state (progress integer not null);
insert into state values (0);
pragma application_id = {application};
"""


class NoIndexError(Exception):
    """The store has no full-text index."""


class Hit(NamedTuple):
    """One message that matches: where it is, and the words around the match."""

    log_offset: int
    snippet: str


@attrs.frozen(kw_only=True)
class FullTextOptions:
    """Options of the full-text dispatcher.

    Attributes:
        tokenizer: FTS5's name for how text is split into words, as "unicode61", "porter" or "trigram".
        body_bytes_max: number of bytes of a body that are indexed.
    """

    tokenizer: str = attrs.field(
        default="unicode61", validator=attrs.validators.matches_re(r"[a-z0-9_ ]+")
    )
    body_bytes_max: int = attrs.field(default=65536, validator=attrs.validators.ge(1))


def path_of(root: Path) -> Path:
    """Return the path of a store's index."""
    return root / "fulltext" / "index.sqlite"


def _open_read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _check(database: sqlite3.Connection) -> None:
    """Raise if pages or words are corrupt; reads the whole file."""
    (fault,) = database.execute("pragma quick_check(1)").fetchone()
    if fault != "ok":
        raise sqlite3.DatabaseError(fault)
    database.execute("insert into words(words) values ('integrity-check')")


class FullTextDispatcher(Dispatcher):
    """Finds messages by the words of their bodies. Safe from any thread: one lock guards the database."""

    name = "full-text"
    Options = FullTextOptions
    # SQLite opens its files itself, so Penstock's file layer cannot inject failures into them or count them.
    capabilities = frozenset({"own-files"})

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(options, context)
        self._path = path_of(context.root)
        self._lock = threading.Lock()
        self._progress = 0
        self._database: sqlite3.Connection | None = None

    @property
    def progress(self) -> int:
        """See `Dispatcher`."""
        return self._progress

    # --- opening

    def load(self, trust: Trust) -> list[str]:
        """See `Dispatcher`: the progress is stored in the file; the log's end is its upper bound."""
        mended = []
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            self._open(look_closely=not trust.is_clean)
        except sqlite3.DatabaseError as error:
            mended.append(self._set_aside(error))
            self._open(look_closely=False)
        end = trust.log.end_offset
        if self._progress > end:
            mended.append(
                f"the full-text index was {self._progress - end} bytes ahead of the log; cut"
            )
            self.truncate(end)
        # The process may have died after retention deleted a segment and before it called `trim`.
        self.trim(trust.log.min_offset)
        return mended

    def _open(self, *, look_closely: bool) -> None:
        database = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
        try:
            database.execute("pragma journal_mode = wal")
            # A commit that is not synced survives the death of the process; `flush` makes it survive the machine's.
            database.execute("pragma synchronous = normal")
            if not database.execute("select count(*) from sqlite_schema").fetchone()[0]:
                made = _SCHEMA.format(tokenizer=self.options.tokenizer, application=_APPLICATION_ID)
                database.executescript(f"begin; {made} commit;")
            (application,) = database.execute("pragma application_id").fetchone()
            if application != _APPLICATION_ID:
                raise sqlite3.DatabaseError("it is another program's database")
            if look_closely:
                _check(database)
            (self._progress,) = database.execute("select progress from state").fetchone()
        except (sqlite3.Error, TypeError) as error:
            database.close()
            raise sqlite3.DatabaseError(str(error)) from error
        self._database = database

    def _set_aside(self, error: Exception) -> str:
        """Rename a file that cannot be used; the index is rebuilt from the log."""
        aside = self._path.with_suffix(f".damaged-{self.context.clock.time_ms()}")
        self._path.rename(aside)
        for ending in ("-wal", "-shm"):
            self._path.with_name(self._path.name + ending).unlink(missing_ok=True)
        return f"renamed the unusable index to {aside.name} ({error}); rebuilt the full-text index"

    # --- dispatching records

    def dispatch(self, batch: DispatchBatch) -> None:
        """See `Dispatcher`: rows and progress in one transaction."""
        with self._lock:
            database = self._writable()
            database.execute("begin")
            try:
                database.executemany(
                    "insert or replace into words(rowid, topic, tag, keys, body) values (?, ?, ?, ?, ?)",
                    self._rows(batch),
                )
                reached = max(self._progress, batch.end_offset)
                database.execute("update state set progress = ?", (reached,))
                database.execute("commit")
            except BaseException:
                database.execute("rollback")
                raise
            self._progress = reached

    def _rows(self, batch: DispatchBatch) -> Iterator[tuple[int, str, str, str, str]]:
        for row in range(len(batch)):
            message = batch.message(row)
            try:
                text = message.body[: self.options.body_bytes_max].decode("utf-8", "ignore")
                message.body.decode()
            except UnicodeDecodeError:
                text = ""
            yield message.log_offset, message.topic, message.tag, " ".join(message.keys), text

    def _writable(self) -> sqlite3.Connection:
        if self._database is None:
            raise NoIndexError("the full-text index is not open")
        return self._database

    # --- durability, cutting, trimming

    def flush(self) -> int:
        """See `Dispatcher`: a checkpoint moves the commits into the main file and syncs both."""
        with self._lock:
            database = self._writable()
            reached = self._progress
            database.execute("pragma synchronous = full")
            (busy, _, _) = database.execute("pragma wal_checkpoint(full)").fetchone()
            database.execute("pragma synchronous = normal")
            # A reader in another process blocked it: nothing was promised, the caller retries.
            return self._flushed if busy else self._note(reached)

    _flushed = 0

    def _note(self, reached: int) -> int:
        self._flushed = reached
        return reached

    def truncate(self, log_offset: int) -> None:
        """See `Dispatcher`."""
        with self._lock:
            database = self._writable()
            reached = min(self._progress, log_offset)
            database.execute("begin")
            database.execute("delete from words where rowid >= ?", (log_offset,))
            database.execute("update state set progress = ?", (reached,))
            database.execute("commit")
            self._progress = reached
            self._flushed = min(self._flushed, reached)

    def trim(self, log_offset: int) -> None:
        """See `Dispatcher`."""
        with self._lock:
            self._writable().execute("delete from words where rowid < ?", (log_offset,))

    def stats(self) -> dict[str, int]:
        """See `Strategy`."""
        if self._database is None:
            return {}
        with self._lock:
            (rows,) = self._database.execute("select count(*) from words").fetchone()
        return {"messages": rows}

    def close(self) -> None:
        """See `Dispatcher`."""
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    # --- look-ups and checks

    def contents(self) -> dict[int, str]:
        """Return the indexed body of every message by its log offset; of a store opened read-only, too."""
        if not self._path.exists():
            return {}
        with contextlib.closing(_open_read_only(self._path)) as database:
            return dict(database.execute("select rowid, body from words"))

    def checker(self) -> Checker:
        """See `Dispatcher`."""
        return _FullTextChecker(self, self._path)


class _FullTextChecker(Checker):
    """Compares the rows with the log. The dispatcher may not be loaded: the store may be opened read-only."""

    def __init__(self, dispatcher: FullTextDispatcher, path: Path) -> None:
        self._dispatcher = dispatcher
        self._path = path
        self._left: dict[int, str] | None = None

    def start(self) -> Iterator[Finding]:
        """See `Checker`: not before, since the messages that `verify` passes must be in the rows."""
        try:
            self._left = self._dispatcher.contents()
        except sqlite3.Error as error:
            yield self._finding(-1, f"the full-text index cannot be read: {error}")

    def batch(self, batch: DispatchBatch) -> Iterator[Finding]:
        """See `Checker`."""
        if self._left is None:
            return
        for log_offset, _, _, _, body in self._dispatcher._rows(batch):
            found = self._left.pop(log_offset, None)
            if found is None:
                yield self._finding(log_offset, "a message is missing from the full-text index")
            elif found != body:
                yield self._finding(log_offset, "the full-text index has other words for a message")

    def finish(self, end: int) -> Iterator[Finding]:
        """See `Checker`."""
        for log_offset in self._left or ():
            if log_offset < end:
                yield self._finding(log_offset, "the full-text index points to no message")

    def _finding(self, log_offset: int, text: str) -> Finding:
        return Finding("full-text", self._path, -1, log_offset, text)


def search(root: Path, query: str, topic: str | None, limit: int) -> list[Hit]:
    """Return the newest messages that match, read-only, also while another process writes.

    Raises `NoIndexError` if there is no index, `sqlite3.OperationalError` for a query that FTS5 cannot parse.
    """
    path = path_of(root)
    if not path.exists():
        raise NoIndexError(f"{root} has no full-text index")
    with contextlib.closing(_open_read_only(path)) as database:
        found = database.execute(
            "select rowid, snippet(words, 3, '[', ']', ' ... ', 12) from words "
            "where words match ? and (? is null or topic = ?) order by rowid desc limit ?",
            (query, topic, topic, limit),
        ).fetchall()
    return [Hit(*row) for row in found]
