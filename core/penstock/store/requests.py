r"""Requests: another process asks the one that has the store open for writing to call a method of its store.

    penstock/requests/<id>.new       a request that is being written
    penstock/requests/<id>.request   a complete one
    penstock/requests/<id>.taken     the writer works on it; it appends the answer, and removes the name

    file := request "\n" [answer "\n"]     # each is JSON; `KINDS` has the values that JSON lacks

A client (`asking`) keeps its file open and locked while it waits, and reads the answer through its own descriptor.
Nothing is synced: after a crash of the machine nobody waits.

Invariants:
    * A request is carried out at most once. The writer renames it first. One that it finds renamed is of a writer that
      has died: it is answered with "unknown".
    * A request is withdrawn or carried out, never both: a client withdraws it by removing the name that the writer
      renames.
    * A file that nobody has locked belongs to a client that has ended: it is removed, and not carried out.
    * Content is not trusted: only what `CALLS` lists is called, with arguments of the types in `KINDS`.
"""

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock import errors
from penstock._kernel import Receipts
from penstock.contracts import Context, Extension, Stoppable, TopicConfig
from penstock.contracts.base import NoOptions
from penstock.errors import PenstockError, PreparedFinishedError, StorageError
from penstock.escape import get_logger, shown
from penstock.files import Entry, File
from penstock.format.names import SIDE_FOLDER
from penstock.message import Durability, Message, PutStatus, Receipt
from penstock.runtime.waking import REQUESTS, Wakes, WorkWaiter
from penstock.store.store import Store

logger = get_logger(__name__)

FOLDER, NEW, WHOLE, TAKEN = "requests", ".new", ".request", ".taken"
# Of one request or answer: a batch of an import has at most 4 MiB of bodies and one more message.
BYTES_MAX = 64 << 20
# The pause if wakes do not arrive.
_INTERVAL_S = 1.0
_UNKNOWN = b'["unknown"]\n'


# What may be asked for: methods and a property of `LowLevelStore`, `_finish_prepared`, and `FollowedStore.let_go`.
CALLS = frozenset(
    {
        "put", "put_many", "put_copies", "check", "add_queue", "flush", "retain", "stats", "create_topic",
        "alter_topic", "delete_topic", "delete_group", "cancel_delayed", "commit_offset", "body_bytes_max",
        "finish_prepared", "let_go",
    }
)  # fmt: skip


# Those that change nothing by themselves.
READING = frozenset({"check", "flush", "stats", "body_bytes_max"})


def call(store: Any, name: str, args: Iterable[Any], named: Mapping[str, Any]) -> Any:
    """Return what a call of `CALLS` returns, on a store that is open for writing; refuses any other."""
    if name not in CALLS:
        raise StorageError(f"no other process may ask for {shown(name)}; nothing was done")
    if name == "finish_prepared":
        return _finish_prepared(store, *args, **named)
    found = getattr(store, name, None)
    if found is None:
        raise StorageError(f"{name} cannot be asked of this store; nothing was done")
    return found(*args, **named) if callable(found) else found


def _finish_prepared(store: Store, place: list[Any], *, commits: bool) -> Receipt | None:
    """Commit or roll back the oldest prepared message of this id, group, topic and queue."""
    for each in store.prepared():
        if [each.transaction_id, each.group, each.topic, each.queue] == place:
            return each.commit() if commits else each.rollback()  # type: ignore[func-returns-value] # None
    raise PreparedFinishedError(str(place[0]), "finished")


_FIELDS = (
    "topic", "body", "queue", "tag", "keys", "properties", "flag", "delay_level", "born_time_ms", "born_host", "wait",
    "sys_flag", "reconsume_times", "prepared_offset", "partition_key", "delay", "deliver_at",
)  # fmt: skip
_DEFAULTS = tuple((name, getattr(Message("", b""), name)) for name in _FIELDS)
# A value that JSON lacks is an object of one member, whose name is the kind: its class, how it is taken apart, and made
# again.
KINDS: Mapping[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "bytes": (bytes, lambda v: base64.b64encode(v).decode(), lambda v: base64.b64decode(v, validate=True)),
    "mapping": (Mapping, lambda v: v.items(), dict),
    "message": (
        Message, lambda v: {name: own for name, default in _DEFAULTS if (own := getattr(v, name)) != default},
        lambda v: Message(**{"topic": "", "body": b"", **v}),
    ),
    "receipt": (
        Receipt, list, lambda v: Receipt(PutStatus(v[0]), v[1], v[2], v[3], v[4], v[5], Durability(v[6]), v[7]),
    ),
    "topic": (TopicConfig, list, lambda v: TopicConfig(*v)),
}  # fmt: skip


def line_of(value: object) -> bytes:
    """Return a value as a line of JSON; what is of no known type as its text."""

    def plain(value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        for kind, (cls, taken_apart, _) in KINDS.items():
            if isinstance(value, cls):
                return {kind: plain(taken_apart(value))}
        return [plain(each) for each in value] if isinstance(value, Iterable) else str(value)

    return json.dumps(plain(value)).encode() + b"\n"


def _value_of(data: bytes) -> Any:
    """Return the value of one complete line; raises various errors for anything else."""
    if data.find(b"\n") != len(data) - 1:
        raise ValueError("not one line of JSON")

    def made(found: dict[str, Any]) -> Any:
        ((kind, value),) = found.items()
        return KINDS[kind][2](value)

    return json.loads(data, object_hook=made)


def _failed(error: BaseException) -> bytes:
    """Return the answer for a call that has raised."""
    if not isinstance(error, PenstockError):
        error = StorageError(str(error) or repr(error))
    # Of a plugin's error, the client may not have the class.
    name = next(c.__name__ for c in type(error).__mro__ if vars(errors).get(c.__name__) is c)
    return line_of(["failed", name, error.args, vars(error)])


def parse_answer(data: bytes) -> tuple[Any, PenstockError | None] | None:
    """Return what a call has returned, and what it has raised; None if the answer does not say."""
    with suppress(ValueError, TypeError, KeyError, IndexError, RecursionError):
        match _value_of(data):
            case ["done", result]:
                return result, None
            case ["failed", str(name), list(args), dict(attributes)]:
                cls = vars(errors)[name]
                if issubclass(cls, PenstockError):
                    error = cls.__new__(cls)
                    error.args = tuple(args)
                    vars(error).update(attributes)
                    return None, error
    return None


class RequestDesk(Extension):
    """Carries out requests in the process that has the store open for writing, in a thread of its own."""

    name = "requests"

    def __init__(self, context: Context, wakes: Wakes) -> None:
        super().__init__(NoOptions(), context, {})
        self._files, self._readers = context.files, wakes
        self._folder = context.root / SIDE_FOLDER / FOLDER
        self._wakes = WorkWaiter(wakes, REQUESTS)
        self._store: Any = None
        self._worker: Stoppable | None = None
        self._trouble = ""

    def attach(self, store: Any) -> None:
        """See `Extension`; `store` may also be a `FollowedStore`."""
        self._store = store
        self._worker = self.context.spawn("penstock-requests", self._step, self._wakes)

    def detach(self) -> None:
        """See `Extension`. A client whose request is not taken yet opens the store itself."""
        if self._worker is not None:
            self._worker.stop()

    def _step(self) -> float | None:
        """Carry out what is asked for; return the seconds until the next call, None if it must be woken."""
        arrive = self._wakes.ask()
        found: list[Entry] = []
        try:
            if self._files.is_folder(self._folder):
                found = self._files.entries(self._folder)
        except OSError as error:
            self._warn(error)
        for entry in found:
            try:
                if not entry.is_folder:
                    self._take(entry.path)
            except OSError as error:
                self._warn(error)
        return None if arrive else _INTERVAL_S

    def _warn(self, error: OSError) -> None:
        if str(error) != self._trouble:
            self._trouble = str(error)
            logger.warning("a request of another process is not carried out: %s", error)

    def _take(self, path: Path) -> None:
        """Carry out the request in a file, if it is one; raises `OSError` if the folder cannot be changed."""
        taken = path.with_suffix(TAKEN)
        # The client removes a request that it withdraws.
        with suppress(FileNotFoundError):
            # A link may lead to a file that somebody else has locked.
            if not self._files.is_locked(path) or self._files.has_other_names(path):
                self._files.remove(path)
            elif path.suffix in (WHOLE, TAKEN):
                if path != taken:
                    self._files.rename(path, taken)
                try:
                    file = self._files.open(taken, writable=True)
                    file.pwrite(_UNKNOWN if path == taken else self._answer(file), file.size)
                except Exception:
                    logger.exception("a request could not be answered")
                # A client that finds neither a name nor an answer does not wait any longer.
                self._files.remove(taken)
                self._readers.wake(always=True)

    def _answer(self, file: File) -> bytes:
        """Do what a request says, and return the answer."""
        try:
            # One that is cut off at the limit has no line end.
            name, args, named = _value_of(file.pread(BYTES_MAX, 0))
        except Exception as error:
            return _failed(StorageError(f"the request is refused, and nothing was done: {error!r}"))
        try:
            result = call(self._store, name, args, named)
        except BaseException as error:
            # Also what ends a thread: others wait for this one.
            return _failed(error)
        # Nobody needs thousands of receipts.
        return line_of(["done", None if isinstance(result, Receipts) else result])
