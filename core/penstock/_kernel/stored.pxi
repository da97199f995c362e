# Messages that are read: checked in the window, then copied out of it, with the body apart from the rest.

cimport cython


cdef object decode_host = None, decode_record = None


cdef int plain_words() except -1:
    """Return a function of `penstock.format.record`; used for fields that are rarely read."""
    global decode_host, decode_record
    if decode_record is None:
        from penstock.format import record
        decode_host, decode_record = record.decode_host, record.decode_record
    return 0


# An empty record: the content of a message before it is filled in.
cdef bytes NOTHING = (<int>FIXED_SIZE).to_bytes(4, "big") + bytes.fromhex("daa320a7") + bytes(FIXED_SIZE - 8)


# It holds only bytes, so it cannot be part of a reference cycle.
@cython.no_gc
@cython.freelist(256)
cdef class StoredMessage:
    """One message of the store.

    Holds a copy of its record, so it stays valid after the store is closed or the segment is deleted; texts and numbers
    are decoded when they are read. Safe from any thread.

    Args:
        record: the bytes of one complete record; raises `MalformedRecordError` if they are not. CRCs are not checked.
    """

    # The record without its body, and the body: a body is read more often than a whole record.
    cdef bytes outside
    cdef bytes inside

    def __cinit__(self):
        self.outside, self.inside = NOTHING, b""

    def __init__(self, bytes record not None):
        cdef Record row
        if record_parse(<const uint8_t *>PyBytes_AS_STRING(record), PyBytes_GET_SIZE(record), &row) != RECORD_OK \
                or row.size != PyBytes_GET_SIZE(record):
            plain_words()
            decode_record(record)
            raise AssertionError("the kernel and penstock.format.record disagree about a record")
        self.outside = record[:row.body_at] + record[row.body_at + row.body_size:]
        self.inside = record[row.body_at:row.body_at + row.body_size]

    cdef inline const uint8_t *start(self) noexcept:
        return <const uint8_t *>PyBytes_AS_STRING(self.outside)

    cdef inline int64_t born_host_size(self) noexcept:
        return 20 if get32(self.start() + 36) & BORN_IPV6 else 8

    cdef inline int64_t store_host_size(self) noexcept:
        return 20 if get32(self.start() + 36) & STORE_IPV6 else 8

    cdef inline int64_t body_at(self) noexcept:
        return 56 + self.born_host_size() + self.store_host_size() + 16

    cdef inline Span topic_span(self) noexcept:
        cdef Span topic
        cdef const uint8_t *at = self.start() + self.body_at()
        if get32(self.start() + 4) == MAGIC_V1:
            topic.p, topic.n = at + 1, at[0]
        else:
            topic.p, topic.n = at + 2, at[0] << 8 | at[1]
        return topic

    cdef inline Span text_span(self) noexcept:
        cdef Span text, topic = self.topic_span()
        text.p = topic.p + topic.n + 2
        text.n = self.start() + PyBytes_GET_SIZE(self.outside) - text.p
        return text

    cdef inline Span value(self, bytes name) noexcept:
        return property(self.text_span(), span_of(name))

    @property
    def record(self):
        """The record's bytes."""
        cdef int64_t at = self.body_at()
        return b"".join((self.outside[:at], self.inside, self.outside[at:]))

    @property
    def size(self):
        """Length of the record in bytes."""
        return PyBytes_GET_SIZE(self.outside) + PyBytes_GET_SIZE(self.inside)

    @property
    def body(self):
        """The body as stored; still compressed if its writer compressed it."""
        return self.inside

    @property
    def topic(self):
        """The topic's name."""
        return text_from(self.topic_span())

    @property
    def crc(self):
        """The stored CRC of the body."""
        return get32(self.start() + 8)

    @property
    def queue(self):
        """The queue's number."""
        return get32(self.start() + 12)

    @property
    def flag(self):
        """The caller's own 32 bits."""
        return get32(self.start() + 16)

    @property
    def queue_offset(self):
        """Ordinal in the queue."""
        return get64(self.start() + 20)

    @property
    def log_offset(self):
        """Byte address of the record in the commit log."""
        return get64(self.start() + 28)

    @property
    def sys_flag(self):
        """RocketMQ's SYSFLAG bits."""
        return get32(self.start() + 36)

    @property
    def born_time_ms(self):
        """When the producer created the message, in Unix milliseconds."""
        return get64(self.start() + 40)

    @property
    def born_host(self):
        """The producer's `address:port`."""
        plain_words()
        return decode_host(self.outside[48:48 + self.born_host_size()])

    @property
    def store_time_ms(self):
        """When the message was stored, in Unix milliseconds."""
        return get64(self.start() + 48 + self.born_host_size())

    cdef bytes store_host_bytes(self):
        cdef int64_t at = 56 + self.born_host_size()
        return self.outside[at:at + self.store_host_size()]

    @property
    def store_host(self):
        """The store's `address:port`."""
        plain_words()
        return decode_host(self.store_host_bytes())

    @property
    def reconsume_times(self):
        """How often the message was redelivered."""
        return get32(self.start() + self.body_at() - 16)

    @property
    def prepared_offset(self):
        """Log offset of a transaction's prepared message; 0 if there is none."""
        # A negative number is a mark of an atomic batch.
        return max(<int64_t>get64(self.start() + self.body_at() - 12), 0)

    @property
    def all_properties(self):
        """All properties of the record, including TAGS, KEYS and RocketMQ's own, in a new dictionary."""
        return pairs_of(self.text_span(), ())

    @property
    def properties(self):
        """The properties without TAGS and KEYS, which are separate attributes, in a new dictionary."""
        return pairs_of(self.text_span(), ("TAGS", "KEYS"))

    @property
    def tag(self):
        """The tag; empty if there is none."""
        return text_from(self.value(b"TAGS"))

    @property
    def keys(self):
        """The keys, split at spaces as the format does."""
        text = text_from(self.value(b"KEYS"))
        return tuple([key for key in text.split(" ") if key]) if " " in text else (text,) if text else ()

    @property
    def message_id(self):
        """RocketMQ's offset message id."""
        return (self.store_host_bytes() + self.outside[28:36]).hex().upper()

    def __repr__(self):
        pairs = ("tag", self.tag), ("keys", self.keys)
        cdef str words = "".join([f", {name}={value!r}" for name, value in pairs if value])
        return (
            f"StoredMessage(topic={self.topic!r}, queue={self.queue}, queue_offset={self.queue_offset}, "
            f"log_offset={self.log_offset}{words}, store_time_ms={self.store_time_ms} "
            f"({time_shown(self.store_time_ms)}), body={body_shown(self.body)})"
        )

    def __eq__(self, other):
        cdef StoredMessage that
        if not isinstance(other, StoredMessage):
            return False
        that = <StoredMessage>other
        return self.inside == that.inside and self.outside == that.outside

    def __hash__(self):
        return hash((self.outside, self.inside))

    def __reduce__(self):
        return type(self), (self.record,)


cdef inline str text_from(Span text):
    return PyUnicode_DecodeUTF8(<const char *>text.p, text.n, "replace")


cdef dict pairs_of(Span text, tuple but):
    """Return the properties of a text, except those in `but` and the record's CRC; see `penstock.format.properties`."""
    cdef Span name, value
    cdef const uint8_t *at = text.p
    cdef dict made = {}
    while pair_next(&at, text.p + text.n, &name, &value):
        key = text_from(name)
        if key != "__CRC32#" and key not in but:
            made[key] = text_from(value)
    return made


cdef struct Target:
    uint8_t *outside
    uint8_t *inside


cdef inline bint copy_out(Span window, const Record *row, Target to) noexcept nogil:
    """Copy a record out of a window; return False if it is not the record that was parsed.

    The window may be a file that another process changes meanwhile; the message reads its fields from the copy later.
    """
    cdef const uint8_t *p = window.p + row.position
    cdef int64_t end = row.body_at + row.body_size
    memcpy(to.outside, p, row.body_at)
    memcpy(to.inside, p + row.body_at, row.body_size)
    memcpy(to.outside + row.body_at, p + end, row.size - end)
    return is_laid_out(to.outside, row)


cdef inline StoredMessage blank_message(const Record *row, Target *to):
    """Return a message whose bytes the caller must fill in before it is used."""
    cdef StoredMessage made = StoredMessage.__new__(StoredMessage)
    made.outside = PyBytes_FromStringAndSize(NULL, row.size - row.body_size)
    made.inside = PyBytes_FromStringAndSize(NULL, row.body_size)
    to.outside = <uint8_t *>PyBytes_AS_STRING(made.outside)
    to.inside = <uint8_t *>PyBytes_AS_STRING(made.inside)
    return made


cdef Place place_from(topic, int64_t queue):
    """Return the expected queue of records; the caller must hold `topic`."""
    cdef Place place
    place.queue, place.is_shared = queue, topic is None
    place.topic.p, place.topic.n = NULL, 0
    if topic is not None:
        place.topic = span_of(topic)
    return place


def message(window, int64_t log_offset, bytes topic, int64_t queue, int64_t ordinal, bytes ranges not None):
    """Return these bytes of the log as a message, or None if they are not exactly one valid record of that queue.

    Args:
        window: bytes of the log from the log offset on, as many as the record should have.
        log_offset: their offset in the log.
        topic: the record's expected topic; None accepts any topic, queue and ordinal.
        queue: the record's expected queue.
        ordinal: the record's expected queue offset.
        ranges: see `scan`.
    """
    cdef Held held = Held(window)
    cdef Span span = held.span()
    cdef Checks c = checks_of(CHECK_CRC, ranges, INT64_MAX, 512)
    cdef Place place = place_from(topic, queue)
    cdef Record row
    cdef Target to
    cdef bint is_right
    cdef StoredMessage made
    if span.n < LONG_BYTES:
        if not is_entry_valid(span, 0, log_offset, span.n, ordinal, &place, &c, &row):
            return None
        made = blank_message(&row, &to)
        return made if copy_out(span, &row, to) else None
    with nogil:
        is_right = is_entry_valid(span, 0, log_offset, span.n, ordinal, &place, &c, &row)
    if not is_right:
        return None
    made = blank_message(&row, &to)
    with nogil:
        is_right = copy_out(span, &row, to)
    return made if is_right else None


cdef inline bint is_entry_valid(Span window, int64_t position, int64_t log_offset, int64_t size, int64_t ordinal,
                                const Place *place, const Checks *c, Record *row) noexcept nogil:
    return (
        entry_row(window, position, log_offset, size, row)
        and is_of(window.p + position, row, place, ordinal)
        and is_valid_at(window.p + position, row, log_offset, c)
    )


cdef struct Entries:
    int64_t base
    const int64_t *log_offsets
    const int64_t *sizes
    const int64_t *ordinals
    int64_t count


cdef int64_t leading(Span window, const Entries *e, const Place *place, const Checks *c, Record *rows) noexcept nogil:
    """Parse and check the records of entries up to the first that is not valid; return how many are valid."""
    cdef int64_t i, at
    for i in range(e.count):
        if i + ROWS_AHEAD < e.count:
            at = e.log_offsets[i + ROWS_AHEAD]
            if at >= e.base and at - e.base < window.n:
                record_prefetch(window.p + (at - e.base), e.sizes[i + ROWS_AHEAD])
        # Each value is read once: another thread may change it.
        at = e.log_offsets[i]
        if at < e.base or not is_entry_valid(window, at - e.base, at, e.sizes[i], e.ordinals[i], place, c, &rows[i]):
            return i
    return e.count


def messages(window, int64_t base, const int64_t[::1] log_offsets, const int64_t[::1] sizes,
             const int64_t[::1] ordinals, bytes topic, int64_t queue, bytes ranges not None):
    """Return the records that queue entries point at as messages, up to the first that is not valid.

    Args:
        window: bytes of the log.
        base: log offset of the window's first byte, not negative.
        log_offsets: the entries' log offsets.
        sizes: the entries' sizes.
        ordinals: the entries' queue offsets.
        topic: the expected topic of the records; None accepts any topic and queue.
        queue: the expected queue.
        ranges: see `scan`.
    """
    cdef Held held = Held(window)
    cdef Span span = held.span()
    cdef Checks c = checks_of(CHECK_CRC, ranges, INT64_MAX, 512)
    cdef Place place = place_from(topic, queue)
    cdef Entries e
    cdef int64_t count = log_offsets.shape[0], good = 0
    cdef Record *rows
    if base < 0:
        raise ValueError(f"base is {base}; it must not be negative")
    if not (sizes.shape[0] == ordinals.shape[0] == count):
        raise ValueError("there must be as many sizes and ordinals as log offsets")
    if count == 0:
        return []
    e.base, e.log_offsets, e.sizes = base, &log_offsets[0], &sizes[0]
    e.ordinals, e.count = &ordinals[0], count
    rows = <Record *>malloc(count * sizeof(Record))
    if rows is NULL:
        raise MemoryError
    try:
        if span.n < LONG_BYTES:
            good = leading(span, &e, &place, &c, rows)
        else:
            with nogil:
                good = leading(span, &e, &place, &c, rows)
        return copied(span, rows, good)
    finally:
        free(rows)


cdef int64_t copy_all(Span window, const Record *rows, const Target *to, int64_t count) noexcept nogil:
    cdef int64_t i
    for i in range(count):
        if not copy_out(window, &rows[i], to[i]):
            return i
    return count


cdef list copied(Span window, const Record *rows, int64_t count):
    """Return a copy of each record as a message, up to the first that has changed since it was parsed."""
    cdef list made = [None] * count
    cdef Target *to = <Target *>malloc((count + 1) * sizeof(Target))
    cdef int64_t i, total = 0
    if to is NULL:
        raise MemoryError
    # Untracked until its messages are filled in, so that the garbage collector does not expose the list.
    PyObject_GC_UnTrack(made)
    try:
        for i in range(count):
            made[i] = blank_message(&rows[i], &to[i])
            total += rows[i].size
        if total < LONG_BYTES:
            total = copy_all(window, rows, to, count)
        else:
            with nogil:
                total = copy_all(window, rows, to, count)
        del made[total:]
    finally:
        free(to)
    PyObject_GC_Track(made)
    return made


def run_of(const int64_t[::1] log_offsets, const int64_t[::1] sizes, int64_t limit, int64_t room, int64_t gap):
    """Return how many entries can be read together, and the end of the last one's record.

    Each record begins at or after the end of the one before, at most `gap` bytes after it, and ends at or before the
    log offset `limit`; together they span at most `room` bytes. The first is included if it ends before the limit.
    """
    cdef int64_t i, end, count = log_offsets.shape[0]
    if sizes.shape[0] != count:
        raise ValueError("there must be as many sizes as log offsets")
    if count == 0 or not is_before(log_offsets[0], sizes[0], limit):
        return 0, 0
    end = log_offsets[0] + sizes[0]
    for i in range(1, count):
        if not (
            is_before(log_offsets[i], sizes[i], limit) and 0 <= log_offsets[i] - end <= gap
            and log_offsets[i] + sizes[i] - log_offsets[0] <= room
        ):
            return i, end
        end = log_offsets[i] + sizes[i]
    return count, end


cdef inline bint is_before(int64_t log_offset, int64_t size, int64_t limit) noexcept:
    return 0 <= log_offset <= limit and 0 < size <= limit - log_offset
