"""Every error Penstock raises on purpose.

* PenstockError
    + ConfigError                  the configuration cannot be used; nothing was opened or written
        - UnknownStrategyError     lists the installed names
        - GeometryError            the store was made with other sizes; names both
        - ConflictError            two strategies that cannot be combined, with the reason
    + PluginError                  an installed plugin breaks its contract
        - PluginLoadError          names the distribution
        - DuplicateStrategyError   names both offers
    + ArgumentError (ValueError)   an argument of a call has a value that the call cannot use; nothing was done
        - ArgumentTypeError (TypeError)  an argument of another type; nothing was done
    + MessageError (ValueError)    the caller's message cannot be stored; nothing was written
        - TopicError               a topic name that is refused, with the reason
            + LongTopicError       a name that older brokers on this directory cannot read
            + UnknownTopicError    no topic has that name, and topics are not created by messages
            + TopicExistsError     a topic has that name already
            + TopicPermissionError the topic's configuration forbids messages
        - QueueError               a queue number that is out of range
            + TopicQueueError      a queue number that the topic does not have
        - PropertyError            a property, key or tag that the format cannot hold
        - MessageTooLargeError     body, properties or record over a limit
        - CommitError              a consumer group's offset that is refused, with the reason
        - ImportFileError          a file that cannot be imported, or a row of it; names file and row
    + OffsetError (LookupError)    nothing to read there: trimmed away, or not written yet
        - NoRecordError            no record begins at that log offset; names the nearest records
    + PreparedFinishedError        a prepared message was committed or rolled back before
    + MissingExtraError            an optional package is needed; names the install line
    + StorageError
        - NotAStoreError           the directory is not a message store
        - UnreadableError          the disk refuses to return the bytes of a file that the call needs
        - StrayFileError           a file that does not belong in a store's folder
        - ForeignContentError      a broker's queues, keys or offsets in a form that Penstock does not understand
        - CorruptionError          path, position, what was expected, what was found
        - FormatVersionError       written by another version
        - StoreLockedError         another process has it open, or this one
        - FollowerError            the store is a copy that follows a master, and takes records from it only
        - ReplicationError         a master or a copy cannot be followed or served; names the peer and the reason
            + DivergedError        the two logs differ; names the log offset where they part
        - OutcomeUnknownError      the process that has it open was asked for a change, and did not answer
        - StoreFailedError         a flush failed earlier: close, reopen, recover
        - StoreClosedError         the store was closed
        - ForkedStoreError         a child process tried to use its parent's store
        - ConsumerClosedError      the consumer was closed
        - LostQueueError           a consumer answered a message of a queue that it no longer has
        - AlreadyAnsweredError     a message has an answer already, or is part of a transaction
        - QueueHeldError           a queue is held by a consumer; names its process
        - TransactionEndedError    a transaction was used outside of its `with` block
        - ReadOnlyError            the store was opened for reading
        - DiskFullError            no space left; nothing of the message was stored
        - SystemLimitError         no descriptor or memory left; nothing of the message was stored
        - BusyError                the store cannot keep up; nothing was stored, try again
        - DispatcherFailedError    queues or index lack stored messages; an answer would omit them

Details are available as attributes. Each message says what happened, to which file or argument, and what to do. An
`OSError` passes through unless the failure makes the store unusable.
"""

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from penstock.escape import near, shown, visible


class PenstockError(Exception):
    """Base of every error raised on purpose; nothing else derives from it.

    The text is safe to print: parts that come from a caller, a disk or a plugin are escaped. The attributes
    hold the same values unescaped.
    """

    def __str__(self) -> str:
        return visible(super().__str__())

    # A subclass may take any arguments: a copy gets its text and attributes from the original, not from `__init__`.
    def __reduce__(self) -> tuple[Any, ...]:
        args, state = self._parts()
        kept = {name: _portable(value) for name, value in state.items()}
        return _restored, (type(self), tuple(map(_portable, args)), kept)

    def __copy__(self) -> Self:
        copied: Self = _restored(type(self), *self._parts())
        return copied

    def _parts(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what Python's own error is made from, and the attributes by name, those in slots too."""
        args, found = super().__reduce__()[1], object.__getstate__(self)
        plain, slots = found if isinstance(found, tuple) else (found, None)
        assert isinstance(args, tuple)
        return args, {"args": self.args, **(plain or {}), **(slots or {})}


def _restored(cls: type[PenstockError], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    """Return an error with these attributes, without a call of its `__init__`."""
    made = cls.__new__(cls, *args)
    for name, value in state.items():
        # A class may be frozen.
        object.__setattr__(made, name, value)
    return made


def _portable(value: object) -> object:
    """Return a value that `pickle` takes: the value, or its text if it is, say, a lock or a local function."""
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:
        return shown(value)
    return value


class ConfigError(PenstockError):
    """The configuration cannot be used; nothing was opened or written."""


class UnknownStrategyError(ConfigError):
    """The configuration names a strategy that no installed plugin offers."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind = kind
        self.name = name
        self.known = tuple(sorted(known))
        offered = ", ".join(self.known) or "none"
        hint = near(name, self.known)
        super().__init__(f"no {kind} strategy is called {name!r}; installed: {offered}{hint}")


class GeometryError(ConfigError):
    """The configured file sizes differ from those that the store was created with."""

    def __init__(self, key: str, asked: int, found: int, source: str) -> None:
        self.key, self.asked, self.found = key, asked, found
        super().__init__(
            f"{key} is {asked} in the configuration, but the store has {found} ({source}); "
            f"sizes are fixed when a store is created: remove {key} from the configuration, or set it to {found}"
        )


class ConflictError(ConfigError):
    """The configured strategies cannot be combined."""

    def __init__(self, kind: str, name: str, reason: str) -> None:
        self.kind, self.name, self.reason = kind, name, reason
        super().__init__(f"{kind} strategy {name!r} is refused here: {reason}")


class PluginError(PenstockError):
    """An installed plugin breaks its contract."""


class PluginLoadError(PluginError):
    """An installed plugin could not be imported or registered."""

    def __init__(self, plugin: str, distribution: str, reason: str) -> None:
        self.plugin, self.distribution, self.reason = plugin, distribution, reason
        super().__init__(
            f"plugin {plugin!r} of distribution {distribution!r} did not load: {reason}; "
            f"uninstall it, or block it with plugins.block"
        )


class DuplicateStrategyError(PluginError):
    """Two plugins offer a strategy of the same kind and name, so the name is ambiguous."""

    def __init__(self, kind: str, name: str, first: str, second: str) -> None:
        self.kind, self.name, self.first, self.second = kind, name, first, second
        super().__init__(f"{kind} strategy {name!r} is offered by both {first!r} and {second!r}")


class ArgumentError(PenstockError, ValueError):
    """An argument of a call has a value that the call cannot use; nothing was read or changed.

    Attributes:
        call: the name of the function.
        argument: the name of the argument.
        value: what the caller passed.
        expected: what the argument must be.
    """

    def __init__(self, call: str, argument: str, value: object, expected: str) -> None:
        self.call, self.argument, self.value, self.expected = call, argument, value, expected
        super().__init__(
            f"{call}({argument}={shown(value)}) is refused: {argument} {self._reason()}; nothing was done"
        )

    def _reason(self) -> str:
        return f"must be {self.expected}"


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument of a call has a type that the call cannot use; nothing was read or changed."""

    def _reason(self) -> str:
        return f"has type {type(self.value).__name__}, and must be {self.expected}"


class MessageError(PenstockError, ValueError):
    """The caller's message cannot be stored; nothing was written."""


class TopicError(MessageError):
    """A topic name that cannot be the name of a folder, or that the format cannot hold."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        self.reason = reason
        super().__init__(f"topic {topic!r} is refused: {reason}")


class LongTopicError(TopicError):
    """A topic of over 127 bytes, in a directory whose brokers may be too old to read such records."""

    def __init__(self, topic: str, size: int, limit: int) -> None:
        super().__init__(
            topic,
            f"it has {size} bytes, and a broker created this directory. Brokers before 5.0 end their log at the first "
            f"record whose topic has over {limit} bytes; set log.long_topics = true if no such broker opens this "
            "directory",
        )


class UnknownTopicError(TopicError):
    """The store has no topic of that name."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        self.reason = reason
        MessageError.__init__(self, f"there is no topic {topic!r}{reason}")


class TopicExistsError(TopicError):
    """A topic has that name already; its configuration is unchanged."""


class TopicPermissionError(TopicError):
    """The topic's configuration forbids messages (`perm` without 2); a broker would store them."""

    def __init__(self, topic: str, perm: int) -> None:
        self.perm = perm
        super().__init__(
            topic,
            f"its configuration forbids messages (perm {perm} lacks 2, write); nothing was stored. A broker would "
            "store them. To allow them, set perm with Store.alter_topic or `penstock topic alter`",
        )


class QueueError(MessageError):
    """A queue number outside 0 .. the limit."""

    def __init__(self, queue: object, limit: int) -> None:
        self.queue = queue
        self.limit = limit
        super().__init__(
            f"queue {shown(queue)} is refused: it must be a whole number, 0 to {limit}"
        )


class TopicQueueError(QueueError):
    """A queue number that the topic's configuration does not have.

    Attributes:
        topic: the topic.
        queue: the queue number.
        limit: the topic's greatest queue number.
    """

    def __init__(self, topic: str, queue: int, count: int) -> None:
        self.topic = topic
        super().__init__(queue, count - 1)
        text = (
            f"queue {queue} of topic {topic!r} is refused: the topic has {count} queues, from 0 to {count - 1}; "
            "nothing was stored. Put to one of these, or give the topic more with Store.alter_topic or `penstock topic "
            "alter`"
        )
        self.args = (text,)


class PropertyError(MessageError):
    """A property, key or tag that the properties text cannot hold."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"property {name!r} is refused: {reason}")


class MessageTooLargeError(MessageError):
    """A body, a properties text or a whole record over its limit."""

    def __init__(self, what: str, size: int, limit: int, advice: str) -> None:
        self.what, self.size, self.limit = what, size, limit
        super().__init__(f"{what} has {size} bytes, the limit is {limit}; {advice}")


class ImportFileError(MessageError):
    """A file that cannot be imported, or a row of it that cannot be stored.

    Attributes:
        path: the file; `-` for standard input.
        where: the line or row, for example "line 17"; empty if the whole file is refused.
        reason: what is wrong, and what to do.
    """

    def __init__(self, path: str, where: str, reason: str) -> None:
        self.path, self.where, self.reason = path, where, reason
        super().__init__(f"{path}{f', {where}' if where else ''}: {reason}")


class CommitError(MessageError):
    """A consumer group's offset that is refused; the offset committed earlier is kept."""

    def __init__(self, group: str, topic: str, queue: int, offset: object, reason: str) -> None:
        self.group = group
        self.topic = topic
        self.queue = queue
        self.offset = offset
        self.reason = reason
        super().__init__(
            f"offset {shown(offset)} of group {group!r} in queue {topic}/{queue} is refused: {reason}; "
            f"nothing was written, the offset committed earlier is kept"
        )


class OffsetError(PenstockError, LookupError):
    """Nothing can be read at that offset."""

    def __init__(
        self, offset: int, low: int, high: int, what: str = "log offset", text: str = ""
    ) -> None:
        self.offset, self.low, self.high = offset, low, high
        where = "outside the range that the store holds"
        if what == "log offset" and low <= offset < high:
            where = "in a segment that is gone, between those that the store holds"
        super().__init__(text or f"{what} {offset} is {where}, {low} to {high} (exclusive)")


class NoRecordError(OffsetError):
    """No record begins at that log offset, and the log is intact there.

    Attributes:
        before: the log offset of the nearest record before this offset; None if there is none.
        after: the log offset at which the next record begins, or will begin; None if that is not known.
    """

    def __init__(self, offset: int, before: int | None, after: int | None, why: str) -> None:
        self.before = before
        self.after = after
        super().__init__(
            offset, 0 if before is None else before, offset if after is None else after
        )
        nearest = [
            text
            for place, text in (
                (before, f"the nearest record before it begins at {before}"),
                (after, f"the next one at {after}"),
            )
            if place is not None
        ]
        self.args = (f"no record begins at log offset {offset}: {'; '.join([why, *nearest])}",)


class MissingExtraError(PenstockError):
    """An optional package is needed and not installed."""

    def __init__(self, package: str, extra: str, what: str) -> None:
        self.package = package
        self.extra = extra
        super().__init__(
            f"{what} needs {package}; install it with: pip install 'penstock[{extra}]'"
        )


class StorageError(PenstockError):
    """The content of the disk, or a failing disk, keeps the store from working."""


class NotAStoreError(StorageError):
    """The directory is not a message store."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path} is not a message store: {reason}")


class UnreadableError(StorageError):
    """The disk returns an error for a file that the call must read whole.

    Attributes:
        path: the file.
        reason: the system's error.
    """

    def __init__(self, path: Path, reason: str, advice: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path} cannot be read ({reason}); {advice}")


class StrayFileError(StorageError):
    """The folder holds a file that the format does not allow there; nothing was changed."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(
            f"{path} does not belong there: {reason}; nothing was changed. Move it out of the store and open again"
        )


class ForeignContentError(StorageError):
    """The directory holds a broker's data in a form that Penstock does not understand, and the call needs that data.

    Attributes:
        path: the store's folder.
        kinds: the names of the kinds found, as in docs/broker-directories.md.
    """

    def __init__(self, path: Path, what: str, found: Iterable[tuple[str, str]]) -> None:
        self.path = path
        listed = list(found)
        self.kinds = tuple(kind for kind, _ in listed)
        texts = "; ".join(text for _, text in listed)
        super().__init__(
            f"{what}: {path} holds data that this Penstock does not understand: {texts}. Nothing was changed. Open it "
            f"with read_only=True to read the rest, and leave writing to the broker (docs/broker-directories.md)"
        )


class CorruptionError(StorageError):
    """Bytes on disk differ from those that were written there."""

    def __init__(
        self, path: Path, position: int, expected: str, found: str, advice: str = ""
    ) -> None:
        self.path, self.position, self.expected, self.found = path, position, expected, found
        tail = f"; {advice}" if advice else ""
        super().__init__(
            f"{path} is corrupt at byte {position}: expected {expected}, found {found}{tail}"
        )


class FormatVersionError(StorageError):
    """A file was written by a version of Penstock that this one does not know."""

    def __init__(self, path: Path, found: str, known: str) -> None:
        self.path = path
        self.found = found
        super().__init__(
            f"{path} has format version {found}; this Penstock knows {known}: upgrade Penstock"
        )


class StoreLockedError(StorageError):
    """The store is open for writing: in another process, or in this one."""

    def __init__(self, path: Path, holder: str) -> None:
        self.path = path
        self.holder = holder
        where = "already" if holder.startswith("this process") else "elsewhere"
        super().__init__(
            f"{path} is open for writing {where} ({holder}); close it there, "
            f"or open it here with read_only=True"
        )


class FollowerError(StorageError):
    """The store is a copy that follows a master: it takes records from that master only."""

    def __init__(self, path: Path, master: str | None, call: str) -> None:
        self.path, self.master, self.call = path, master, call
        super().__init__(
            f"{path} is a copy that follows {master or 'a master'}, so {call} is refused; nothing was changed. Open it "
            "with read_only=True"
        )


class ReplicationError(StorageError):
    """A master could not be followed; the store at `path` is unchanged, or does not exist.

    Attributes:
        master: "HOST:PORT"; `path` is the folder of the copy.
        needs_copy: the master no longer has what this copy lacks, so only a new copy can follow it.
    """

    def __init__(self, path: Path, master: str, reason: str, needs_copy: bool = False) -> None:
        self.path, self.master, self.reason, self.needs_copy = path, master, reason, needs_copy
        hint = "; follow it with an empty folder" if needs_copy else ""
        super().__init__(f"{path} cannot follow {master}: {reason}{hint}")


class DivergedError(ReplicationError):
    """The log of a copy and that of its master differ.

    Attributes:
        parts_at: both logs are equal before this log offset.
        end_offset: the end of the copy's log.
    """

    def __init__(
        self, path: Path, master: str, parts_at: int, end_offset: int, reason: str
    ) -> None:
        self.parts_at = parts_at
        self.end_offset = end_offset
        super().__init__(path, master, reason, needs_copy=True)


class OutcomeUnknownError(StorageError):
    """The process that has the store open for writing has begun a requested change, and has not answered.

    Attributes:
        path: the store's folder.
        holder: the process.
        call: the method of the store that it was asked to call.
        done: the method that it has called before for the same command; "" if there is none.
        begun: whether it has begun with `call`.
    """

    def __init__(
        self, path: Path, holder: str, call: str, done: str = "", begun: bool = True
    ) -> None:
        self.path, self.holder, self.call = path, holder, call
        self.done, self.begun = done, begun
        first = f"{done} was done; " if done else ""
        who = f"the process that has the store open for writing ({holder})"
        super().__init__(
            f"{path}: {first}it is not known whether {call} was done: it was begun by {who}, which was killed since, "
            "or needs longer. Look at the store before you try again"
            if begun
            else f"{path}: {first}{call} was not: {who} has not begun it in time. Look at the store before you try "
            "again"
        )


class StoreFailedError(StorageError):
    """A sync, a write or the flush policy failed: the store takes no more writes; what was not durable may be lost."""

    def __init__(self, reason: str, durable_offset: int) -> None:
        self.reason = reason
        self.durable_offset = durable_offset
        super().__init__(
            f"the store takes no more writes: {reason}; every byte below log offset {durable_offset} "
            f"is on disk, bytes after it may be lost: close the store, check the disk, open the store again"
        )


class StoreClosedError(StorageError):
    """The store was closed."""

    def __init__(self) -> None:
        super().__init__("the store is closed; open it again to use it")


class ForkedStoreError(StorageError):
    """The process was forked while the store was open: the store belongs to the parent process only."""

    def __init__(self, path: Path, parent: int) -> None:
        self.path = path
        self.parent = parent
        super().__init__(
            f"{path} was opened by process {parent}, and its forked child processes cannot use it; nothing was "
            f"changed. Open the store again in the child, with read_only=True while the parent has it open"
        )


class ConsumerClosedError(StorageError):
    """The consumer was closed."""

    def __init__(self, group: str) -> None:
        self.group = group
        super().__init__(
            f"the consumer of group {shown(group)} is closed, and delivers no more messages; make a new one"
        )


class LostQueueError(StorageError):
    """A consumer answered a message of a queue that it no longer has: another consumer gets the message again."""

    def __init__(
        self, topic: str, queue: int, reason: str = "it was handed back to the group"
    ) -> None:
        self.topic, self.queue, self.reason = topic, queue, reason
        super().__init__(
            f"queue {queue} of topic {shown(topic)} is no longer this consumer's: {reason}. The answer does not count: "
            "the message may be redelivered, to this consumer or another one"
        )


class AlreadyAnsweredError(StorageError):
    """A message cannot be answered now: a transaction acknowledges it, or it has an answer, or was redelivered."""

    def __init__(self, topic: str, queue: int, offset: int, reason: str) -> None:
        self.topic, self.queue, self.offset, self.reason = topic, queue, offset, reason
        super().__init__(
            f"message {offset} of topic {shown(topic)}, queue {queue}, is not answered by this call, and nothing was "
            f"recorded: {reason}. Answer each message once"
        )


class QueueHeldError(StorageError):
    """A consumer has a queue that only one program may change at a time, or lives where none may; nothing was changed.

    Without a queue (`topic` is "*"), the group has a living consumer.
    """

    def __init__(self, group: str, topic: str, queue: int, holder: str) -> None:
        self.group, self.topic, self.queue, self.holder = group, topic, queue, holder
        if topic == "*":
            name = shown(group)
            text = f"group {name} has a consumer, {holder}; the group was not changed. Close that consumer first"
        else:
            text = (
                f"queue {queue} of topic {shown(topic)} is held by a consumer of group {shown(group)}, {holder}; its "
                f"position was not changed. Close that consumer first, or call its seek()"
            )
        super().__init__(text)


class TransactionEndedError(StorageError):
    """A transaction was used before its `with` block began, or after it ended; nothing was stored."""

    def __init__(self, call: str) -> None:
        self.call = call
        super().__init__(
            f"{call} is refused: the transaction is used outside of its `with` block, at the end of which its messages "
            "are stored or dropped; nothing was stored. Begin a new one with store.transaction()"
        )


class ReadOnlyError(StorageError):
    """The store was opened for reading only, or has corruption that prevents writing."""

    def __init__(self, reason: str = "it was opened with read_only=True") -> None:
        self.reason = reason
        super().__init__(f"the store cannot be written: {reason}")


class DiskFullError(StorageError):
    """No space is left; nothing of the message was stored, and reads continue to work."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        super().__init__(
            f"no space for {size} bytes at {path}; nothing was stored. Free space and try again: "
            f"the store continues without a restart"
        )


class SystemLimitError(StorageError):
    """This process has reached a system limit (descriptors, memory, file size); nothing was stored."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"a system limit is reached: {reason}; nothing was stored. Raise the limit (ulimit -n, -v, "
            f"-f), or close other files, and try again: the store continues without a restart"
        )


class BusyError(StorageError):
    """The store cannot keep up; nothing of the message was stored, and the caller may put it again."""

    def __init__(self, what: str, waited_ms: int) -> None:
        self.what = what
        self.waited_ms = waited_ms
        super().__init__(
            f"{what} for {waited_ms} ms; nothing was stored. Put more slowly and try again: "
            f"the disk is too slow, or another thread appends a large batch"
        )


class PreparedFinishedError(PenstockError):
    """A prepared message was committed or rolled back before; nothing was stored by this call.

    Attributes:
        transaction_id: of the message.
        outcome: what became of it.
    """

    def __init__(self, transaction_id: str, outcome: str) -> None:
        self.transaction_id = transaction_id
        self.outcome = outcome
        super().__init__(
            f"prepared message {transaction_id} was {outcome} before; nothing was stored by this call. Finish each "
            "prepared message once"
        )


class DispatcherFailedError(StorageError):
    """A dispatcher fails, so its files lack messages that are stored; an answer from those files would be wrong."""

    def __init__(self, name: str, reason: str, reached: int, end: int) -> None:
        self.name, self.reason, self.reached, self.end = name, reason, reached, end
        super().__init__(
            f"dispatcher {name} fails ({reason}): its files have the messages below log offset {reached} and lack "
            f"those from {reached} to {end}, which are stored and not lost. Reads that need this dispatcher fail until "
            "it catches up. Check the disk; the store retries by itself, see stats()"
        )
