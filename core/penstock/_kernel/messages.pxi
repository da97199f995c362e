# The objects that a caller passes and gets back: messages and receipts.

def _made_message(dict fields, kind=Message):
    """Return an unpickled message."""
    return kind(**fields)


cdef object keys_of(keys):
    """Return keys as a tuple. A string, or what is no sequence, is kept, so that `put` refuses it clearly."""
    if type(keys) is tuple or isinstance(keys, str) or not hasattr(type(keys), "__iter__"):
        return keys
    return tuple(keys)


cdef class Message:
    """Message(topic, body, *, queue=None, tag="", keys=(), properties=None, flag=0, delay_level=0, born_time_ms=None, born_host=None, wait=True, sys_flag=0, reconsume_times=0, prepared_offset=0, partition_key=None, delay=0, deliver_at=None)
--

A message to be stored.

    Attributes:
        topic: 1 to 127 UTF-8 bytes (up to 255 with long topics), no `/`, no control characters.
        body: any bytes, up to `log.body_bytes_max` (4 MiB).
        queue: the queue's number within the topic, from 0; by default in turn, or by `partition_key`.
        tag: one word to filter by; empty for no tag.
        keys: texts to find the message by; none has a space, which separates them in the record.
        properties: further text pairs; values must not be empty.
        flag: 32 bits for the caller, stored unchanged.
        delay_level: 1 to 18: deliver the message later, after 1 s to 2 h (docs/delays.md); 0 at once.
        delay: deliver the message so long after the put: seconds, or a `timedelta`; 0 at once.
        deliver_at: deliver the message at this time: a `datetime` with a time zone, or Unix seconds; None at once.
        born_time_ms: when the message was created; the time of the put if None.
        born_host: "address:port" of the producer; the store's own if None.
        wait: False returns at once under a flush policy that would wait.
        sys_flag: RocketMQ's SYSFLAG bits; address bits are set by the store.
        reconsume_times: how often the message was delivered before, for copies.
        prepared_offset: log offset of the prepared message, for copies of transactions.
        partition_key: text that picks the queue, by Java's hash of it; equal keys have the same queue.
    """

    cdef public object topic, body, queue, tag, properties, flag, delay_level, born_time_ms, born_host, wait
    cdef public object sys_flag, reconsume_times, prepared_offset, partition_key, delay, deliver_at
    cdef object _keys

    def __init__(self, topic, body, *, queue=None, tag="", keys=(), properties=None, flag=0, delay_level=0,
                 born_time_ms=None, born_host=None, wait=True, sys_flag=0, reconsume_times=0, prepared_offset=0,
                 partition_key=None, delay=0, deliver_at=None):
        self.topic, self.body, self.queue, self.tag = topic, body, queue, tag
        self._keys = keys_of(keys)
        self.properties = {} if properties is None else properties
        self.flag, self.delay_level, self.born_time_ms, self.born_host = flag, delay_level, born_time_ms, born_host
        self.wait, self.sys_flag = wait, sys_flag
        self.reconsume_times, self.prepared_offset, self.partition_key = reconsume_times, prepared_offset, partition_key
        self.delay, self.deliver_at = delay, deliver_at

    @property
    def keys(self):
        """Texts to find the message by, as a tuple."""
        return self._keys

    @keys.setter
    def keys(self, keys):
        self._keys = keys_of(keys)

    cdef tuple _fields(self):
        return (
            self.topic, self.body, self.queue, self.tag, self._keys, self.properties, self.flag, self.delay_level,
            self.born_time_ms, self.born_host, self.wait, self.sys_flag, self.reconsume_times, self.prepared_offset,
            self.partition_key, self.delay, self.deliver_at,
        )

    def __eq__(self, other):
        if type(other) is not type(self):
            return NotImplemented
        return self._fields() == (<Message>other)._fields()

    __hash__ = None

    def __repr__(self):
        pairs = zip(MESSAGE_FIELDS[2:], self._fields()[2:], Message("", b"")._fields()[2:], strict=True)
        words = "".join([f", {name}={value!r}" for name, value, usual in pairs if value != usual])
        return f"Message(topic={self.topic!r}, body={body_shown(self.body)}{words})"

    def __reduce__(self):
        return _made_message, (dict(zip(MESSAGE_FIELDS, self._fields(), strict=True)), type(self))

    def __replace__(self, **changes):
        """Return a copy with some fields changed, for `copy.replace`."""
        return type(self)(**{**dict(zip(MESSAGE_FIELDS, self._fields(), strict=True)), **changes})


# Bytes of a body that the repr of a message shows.
cdef enum: BODY_SHOWN = 32


cdef str body_shown(body):
    """Return the first bytes of a body, as Python writes them; anything else as it is."""
    if not isinstance(body, (bytes, bytearray, memoryview)) or len(body) <= BODY_SHOWN:
        return repr(body)
    return f"{bytes(body[:BODY_SHOWN])!r}... ({len(body)} bytes)"


cdef str time_shown(time_ms):
    """Return a time as ISO 8601 writes it; the number if no calendar has it."""
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return str(time_ms)


cdef tuple MESSAGE_FIELDS = (
    "topic", "body", "queue", "tag", "keys", "properties", "flag", "delay_level", "born_time_ms", "born_host", "wait",
    "sys_flag", "reconsume_times", "prepared_offset", "partition_key", "delay", "deliver_at",
)


def _made_receipt(*fields):
    """Return an unpickled receipt."""
    return Receipt(*fields)


# It holds only numbers, enum values and bytes, so it cannot be part of a reference cycle.
@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class Receipt:
    """The answer to a put: where the message is, and how durable it is known to be.

    Behaves like a named tuple of its fields when it is iterated, indexed, compared or hashed.

    Attributes:
        status: `PUT_OK`; or, for a message that is in the log, `FLUSH_DISK_TIMEOUT` if it was not synced in time,
            `FLUSH_SLAVE_TIMEOUT` if not enough copies had it in time, and `SLAVE_NOT_AVAILABLE` if too few copies were
            in sync to wait for them.
        log_offset: byte address of the record in the commit log.
        queue: the queue's number.
        queue_offset: the message's ordinal in its queue.
        store_time_ms: Unix milliseconds, never less than that of the record before it in the log.
        size: the record's length in bytes.
        durability: a `Durability`; after a time-out of the disk it is unknown, after one of copies it says nothing of
            them.
        store_host: address and port as the record stores them, for `message_id`.
    """

    cdef readonly object status, durability, store_host
    cdef readonly int64_t log_offset, queue_offset, store_time_ms
    cdef readonly int32_t queue, size

    _fields = (
        "status", "log_offset", "queue", "queue_offset", "store_time_ms", "size", "durability", "store_host",
    )
    __match_args__ = _fields

    def __init__(self, status, int64_t log_offset, int32_t queue, int64_t queue_offset, int64_t store_time_ms,
                 int32_t size, durability, store_host):
        self.status, self.durability, self.store_host = status, durability, store_host
        self.log_offset, self.queue_offset, self.store_time_ms = log_offset, queue_offset, store_time_ms
        self.queue, self.size = queue, size

    cdef tuple _tuple(self):
        return (
            self.status, self.log_offset, self.queue, self.queue_offset, self.store_time_ms, self.size, self.durability,
            self.store_host,
        )

    @property
    def message_id(self):
        """RocketMQ's offset message id: upper-case hex of host, port and log offset."""
        return (self.store_host + self.log_offset.to_bytes(8, "big")).hex().upper()

    @property
    def is_durable(self):
        """True only if the message is known to be on disk: on this one, or on those of the copies it waited for."""
        return self.durability.startswith("on disk")

    def _replace(self, **changes):
        """Return a copy with some fields changed."""
        return Receipt(**{**self._asdict(), **changes})

    __replace__ = _replace

    def _asdict(self):
        """Return the fields by name."""
        return dict(zip(self._fields, self._tuple(), strict=True))

    def __iter__(self):
        return iter(self._tuple())

    def __len__(self):
        return 8

    def __getitem__(self, which):
        return self._tuple()[which]

    def __richcmp__(self, other, int how):
        theirs = (<Receipt>other)._tuple() if type(other) is Receipt else other
        if not isinstance(theirs, tuple):
            return NotImplemented
        return PyObject_RichCompare(self._tuple(), theirs, how)

    def __hash__(self):
        return hash(self._tuple())

    def __repr__(self):
        return f"Receipt({', '.join([f'{name}={value!r}' for name, value in self._asdict().items()])})"

    def __reduce__(self):
        return _made_receipt, self._tuple()


cdef struct Appended:
    int64_t log_offset, queue_offset
    int32_t size, cursor


@cython.final
cdef class Receipts:
    """The receipts of a batch, in the order of its messages: a sequence that creates each receipt when it is read."""

    cdef Appended *places
    cdef Py_ssize_t length
    cdef list cursors
    cdef object status, durability, store_host
    cdef int64_t store_time_ms

    def __cinit__(self):
        self.places, self.length = NULL, 0

    def __dealloc__(self):
        free(self.places)

    def __init__(self):
        raise TypeError("Receipts cannot be created directly; put_many returns them")

    cdef Receipt _at(self, Py_ssize_t row):
        cdef Receipt made = Receipt.__new__(Receipt)
        cdef Appended *place = &self.places[row]
        made.status, made.durability, made.store_host = self.status, self.durability, self.store_host
        made.log_offset, made.queue_offset, made.size = place.log_offset, place.queue_offset, place.size
        made.queue, made.store_time_ms = (<QueueCursor>self.cursors[place.cursor]).queue, self.store_time_ms
        return made

    def __len__(self):
        return self.length

    def __getitem__(self, which):
        if isinstance(which, slice):
            return [self._at(row) for row in range(*which.indices(self.length))]
        row = operator_index(which)
        if row < 0:
            row += self.length
        if not 0 <= row < self.length:
            raise IndexError("receipt index out of range")
        return self._at(row)

    def __iter__(self):
        for row in range(self.length):
            yield self._at(row)

    def __contains__(self, value):
        return any(value == each for each in self)

    def __reversed__(self):
        return iter(list(self)[::-1])

    def index(self, value, start=0, stop=None):
        """Return the index of the first receipt that equals `value`; see `list.index`."""
        return list(self).index(value, start, self.length if stop is None else stop)

    def count(self, value):
        """Return how many receipts equal `value`."""
        return list(self).count(value)

    def __eq__(self, other):
        if isinstance(other, (list, Receipts)):
            return list(self) == list(other)
        return NotImplemented

    __hash__ = None

    def __repr__(self):
        return repr(list(self))

    def __reduce__(self):
        return list, (list(self),)
