# Queue entries and index entries of records, and how records are found by them. All functions work on plain buffers:
# columns of a batch, an index file in memory, a window of the log.

cdef extern from "_kernel/dispatch.h" nogil:
    ctypedef struct NumberColumn:
        const uint8_t *p
        int64_t n, stride, width
    ctypedef struct EntryRows:
        NumberColumn log_offsets, sizes, queues, queue_offsets, types, tag_codes, topic_rows, times
        int64_t count, topics, queue_max, queue_offset_max
    ctypedef struct EntryRun:
        int64_t topic, queue, queue_offset, start, log_offset
    ctypedef struct Grouping:
        int64_t n_cursors
        int32_t *row_cursors
    ctypedef struct IndexMemory:
        uint8_t *p
        int64_t n, slots, entries
    ctypedef struct KeyRows:
        NumberColumn rows, hashes, log_offsets, times
    ctypedef struct Sought:
        int32_t hash
        int64_t begin_ms, end_ms
    enum:
        QUEUE_ENTRY_SIZE, PRE_BLANK_SIZE, INDEX_HEADER_SIZE, INDEX_SLOT_SIZE, INDEX_ENTRY_SIZE, LANE_REFUSED,
        TYPE_ROLLBACK
    int grouping_make(Grouping *g, int64_t count)
    void grouping_free(Grouping *g)
    int64_t at_row(const NumberColumn *c, int64_t row)
    int64_t group_rows(const EntryRows *rows, Grouping *g, int64_t *refused)
    int64_t lay_entries(const EntryRows *rows, Grouping *g, uint8_t *entries, int64_t *times, EntryRun *runs)
    int64_t entry_at(const IndexMemory *x, int64_t number)
    int64_t index_add(const IndexMemory *x, const KeyRows *keys, int64_t first)
    void index_links(const uint8_t *entries, int64_t count, int64_t slot_count, int32_t *slots, int32_t *previous)
    int64_t index_follow(const IndexMemory *x, const Sought *s, int64_t *number, int64_t *found, int64_t steps)
    bint is_keyed(const uint8_t *p, const Record *r, Span topic, Span key)

cdef extern from "Python.h":
    const void *PyUnicode_1BYTE_DATA(object text)
    bint PyUnicode_IS_ASCII(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)

# For fewer rows, releasing the GIL costs more than the work.
cdef enum: LONG_ROWS = 512
# The maximum number of entries of a chain that one call follows while it holds the GIL.
cdef enum: CHAIN_STEPS = 1024
# The maximum number of rows of one call, so that no allocated size can overflow.
cdef enum: ROWS_MAX = 1 << 30


cdef class HeldNumbers:
    """The integers of a column, of 4 or 8 bytes and any stride, held while this object exists."""

    cdef Py_buffer view
    cdef bint is_held

    def __cinit__(self, owner):
        self.is_held = False
        PyObject_GetBuffer(owner, &self.view, PyBUF_STRIDES | PyBUF_FORMAT)
        self.is_held = True
        kind = self.view.format.decode("ascii") if self.view.format is not NULL else "B"
        if self.view.ndim != 1 or kind.lstrip("@=<") not in _WHOLE.get(self.view.itemsize, ()):
            raise ValueError(f"a column must be one row of 32-bit or 64-bit integers, not {kind!r}")

    def __dealloc__(self):
        if self.is_held:
            PyBuffer_Release(&self.view)

    cdef inline NumberColumn column(self) noexcept:
        cdef NumberColumn c
        c.p, c.n = <const uint8_t *>self.view.buf, self.view.shape[0]
        c.stride, c.width = self.view.strides[0], self.view.itemsize
        return c


_WHOLE = {4: ("i", "l"), 8: ("l", "q")}


cdef NumberColumn numbers_of(owner, list held, int64_t count) except *:
    """Return a column of `count` rows, any number for -1; `held` keeps its memory."""
    cdef HeldNumbers made = HeldNumbers(owner)
    cdef NumberColumn c = made.column()
    if (count >= 0 and c.n != count) or c.n > ROWS_MAX:
        raise ValueError(f"a column has {c.n} rows; it must have {count}")
    held.append(made)
    return c


# --- queue entries

def queue_entries(log_offsets, sizes, queues, queue_offsets, transaction_types, tag_codes, topic_rows, store_times_ms,
                  int64_t topics, int64_t queue_max, int64_t queue_offset_max):
    """Encode the queue entries of a batch's records, grouped by queue and in log order within each queue.

    Prepared and rolled back records have no entry. Neither have records whose queue is not from 0 to `queue_max`, or
    whose queue offset is not from 0 to below `queue_offset_max`: their rows are returned as refused.

    Args:
        log_offsets: a column of the batch, like all arguments up to `store_times_ms`: 32-bit or 64-bit integers.
        topics: the number of the batch's topics; `topic_rows` must be below it.
        queue_max: the largest valid queue number.
        queue_offset_max: the smallest queue offset that is too large.

    Returns:
        The entries, 20 bytes each; their store times, native i64; their runs of consecutive queue offsets, five
        native i64 each: topic, queue, first queue offset, number of the first entry, its log offset; and the
        refused rows, native i64.
    """
    cdef EntryRows rows
    cdef list held = []
    cdef int64_t count, kept = 0, refused = 0
    cdef Grouping g
    memset(&g, 0, sizeof(Grouping))
    rows.log_offsets = numbers_of(log_offsets, held, -1)
    rows.count = count = rows.log_offsets.n
    rows.sizes, rows.queues = numbers_of(sizes, held, count), numbers_of(queues, held, count)
    rows.queue_offsets, rows.types = numbers_of(queue_offsets, held, count), numbers_of(transaction_types, held, count)
    rows.tag_codes, rows.topic_rows = numbers_of(tag_codes, held, count), numbers_of(topic_rows, held, count)
    rows.times = numbers_of(store_times_ms, held, count)
    rows.topics, rows.queue_max, rows.queue_offset_max = topics, queue_max, queue_offset_max
    try:
        kept = _grouped(&rows, &g, &refused)
        return _laid(&rows, &g, kept) + (_refused(&g, count, refused),)
    finally:
        grouping_free(&g)


def row_entries(rows, topic_rows, tag_codes, int64_t topics, int64_t queue_max, int64_t queue_offset_max):
    """Encode the queue entries of records as `queue_entries` does, from the rows of a scan, and divide them into runs.

    Args:
        rows: the rows of the records (see `scan`), whose log offsets are those that the records state.
        topic_rows: the index of each row's topic, native i64.
        tag_codes: the third field of each row's entry, native i64.
        topics: the number of the batch's topics; `topic_rows` must be below it.
        queue_max: the largest valid queue number.
        queue_offset_max: the smallest queue offset that is too large.

    Returns:
        The runs of consecutive queue offsets, in the order of `queue_entries`: topic, queue, first queue offset, log
        offset of the first entry's record, the entries, and their store times, native i64. And the refused rows, native
        i64.
    """
    cdef HeldRows given = HeldRows(rows)
    cdef Held named = Held(topic_rows), coded = Held(tag_codes)
    cdef int64_t i, kept = 0, refused = 0, count = given.count
    cdef bytearray kinds
    cdef int64_t *kind
    cdef Record row
    cdef NumberColumn flags
    cdef EntryRows columns
    cdef Grouping g
    if count > ROWS_MAX or named.view.len != 8 * count or coded.view.len != 8 * count:
        raise ValueError(f"{count} rows need as many topics and tag codes")
    kinds = bytearray(8 * count)
    kind = <int64_t *><char *>kinds
    flags = field_of(given, <const uint8_t *>&row.sys_flag - <const uint8_t *>&row, 4)
    for i in range(count):
        kind[i] = at_row(&flags, i) & TYPE_ROLLBACK
    columns.log_offsets = field_of(given, <const uint8_t *>&row.log_offset - <const uint8_t *>&row, 8)
    columns.sizes = field_of(given, <const uint8_t *>&row.size - <const uint8_t *>&row, 4)
    columns.queues = field_of(given, <const uint8_t *>&row.queue - <const uint8_t *>&row, 4)
    columns.queue_offsets = field_of(given, <const uint8_t *>&row.queue_offset - <const uint8_t *>&row, 8)
    columns.times = field_of(given, <const uint8_t *>&row.store_ms - <const uint8_t *>&row, 8)
    columns.types = wide_column(<const uint8_t *>kind, count)
    columns.tag_codes = wide_column(<const uint8_t *>coded.view.buf, count)
    columns.topic_rows = wide_column(<const uint8_t *>named.view.buf, count)
    columns.count, columns.topics = count, topics
    columns.queue_max, columns.queue_offset_max = queue_max, queue_offset_max
    memset(&g, 0, sizeof(Grouping))
    try:
        kept = _grouped(&columns, &g, &refused)
        return _divided(_laid(&columns, &g, kept), kept), _refused(&g, count, refused)
    finally:
        grouping_free(&g)


cdef inline NumberColumn field_of(HeldRows rows, int64_t at, int64_t width) noexcept:
    """Return the column of a field of `Record`, which is at a position in each row."""
    cdef NumberColumn c
    c.p, c.n, c.stride, c.width = rows.p + at, rows.count, sizeof(Record), width
    return c


cdef inline NumberColumn wide_column(const uint8_t *p, int64_t count) noexcept:
    cdef NumberColumn c
    c.p, c.n, c.stride, c.width = p, count, 8, 8
    return c


cdef list _divided(tuple laid, int64_t kept):
    """Return the entries of each run."""
    cdef bytes entries = laid[0], times = laid[1], packed = laid[2]
    cdef const EntryRun *runs = <const EntryRun *>PyBytes_AS_STRING(packed)
    cdef int64_t i, start, stop, count = PyBytes_GET_SIZE(packed) // <int64_t>sizeof(EntryRun)
    cdef list made = []
    for i in range(count):
        start, stop = runs[i].start, runs[i + 1].start if i + 1 < count else kept
        made.append((
            runs[i].topic, runs[i].queue, runs[i].queue_offset, runs[i].log_offset,
            entries[QUEUE_ENTRY_SIZE * start:QUEUE_ENTRY_SIZE * stop], times[8 * start:8 * stop],
        ))
    return made


cdef int64_t _grouped(const EntryRows *rows, Grouping *g, int64_t *refused) except -1:
    """Group rows by queue; return how many have an entry. The caller frees the grouping, also after an error."""
    cdef int64_t kept
    if not grouping_make(g, rows.count):
        raise MemoryError
    if rows.count >= LONG_ROWS:
        with nogil:
            kept = group_rows(rows, g, refused)
    else:
        kept = group_rows(rows, g, refused)
    if kept < 0:
        raise ValueError("a row names a topic that is not in the batch")
    return kept


cdef tuple _laid(const EntryRows *rows, Grouping *g, int64_t kept):
    cdef bytes entries = PyBytes_FromStringAndSize(NULL, QUEUE_ENTRY_SIZE * kept)
    cdef bytes times = PyBytes_FromStringAndSize(NULL, 8 * kept)
    cdef uint8_t *to = <uint8_t *>PyBytes_AS_STRING(entries)
    cdef int64_t *times_to = <int64_t *>PyBytes_AS_STRING(times)
    cdef EntryRun *runs = <EntryRun *>malloc((kept + 1) * sizeof(EntryRun))
    cdef int64_t n_runs
    if runs is NULL:
        raise MemoryError
    try:
        if kept >= LONG_ROWS:
            with nogil:
                n_runs = lay_entries(rows, g, to, times_to, runs)
        else:
            n_runs = lay_entries(rows, g, to, times_to, runs)
        return entries, times, PyBytes_FromStringAndSize(<const char *>runs, n_runs * sizeof(EntryRun))
    finally:
        free(runs)


cdef bytes _refused(const Grouping *g, int64_t count, int64_t refused):
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 8 * refused)
    cdef int64_t *to = <int64_t *>PyBytes_AS_STRING(made)
    cdef int64_t row, at = 0
    if refused:
        for row in range(count):
            if g.row_cursors[row] == LANE_REFUSED:
                to[at] = row
                at += 1
    return made


def entry_columns(entries):
    """Parse queue entries: return columns of log offset, size and tag code, native i64, and the smallest tag code or 0.

    The size of an entry that points at no record is 0, and the log offset of a pre-blank one is -1; a remainder of
    fewer than 20 bytes is ignored.
    """
    cdef Held held = Held(entries)
    cdef Span span = held.span()
    cdef int64_t i, count = span.n // QUEUE_ENTRY_SIZE
    cdef bytearray offsets = bytearray(8 * count), sizes = bytearray(8 * count), codes = bytearray(8 * count)
    cdef int64_t *offset = <int64_t *><char *>offsets
    cdef int64_t *size = <int64_t *><char *>sizes
    cdef int64_t *code = <int64_t *><char *>codes
    cdef const uint8_t *p = span.p
    cdef int64_t least = 0
    for i in range(count):
        offset[i], size[i], code[i] = get64(p), get32(p + 8), get64(p + 12)
        if size[i] == PRE_BLANK_SIZE:
            offset[i], size[i] = -1, 0
        elif size[i] <= 0:
            # -1 is for pre-blank entries only.
            offset[i], size[i] = offset[i] - (offset[i] == -1), 0
        if code[i] < least:
            least = code[i]
        p += QUEUE_ENTRY_SIZE
    return offsets, sizes, codes, least


# --- the key index

def key_hash(topic, key):
    """Return the index's hash of `topic#key`: Java's, never negative."""
    cdef Span span
    cdef int32_t value
    # A subclass of str may redefine its conversion; below, both must be exactly str.
    topic, key = str.__str__(topic), str.__str__(key)
    if not (PyUnicode_IS_ASCII(topic) and PyUnicode_IS_ASCII(key)):
        return index_hash(java_hash(f"{topic}#{key}"))
    span.p, span.n = <const uint8_t *>PyUnicode_1BYTE_DATA(topic), PyUnicode_GET_LENGTH(topic)
    value = java_hash_more(java_hash_more(0, span), span_of(b"#"))
    span.p, span.n = <const uint8_t *>PyUnicode_1BYTE_DATA(key), PyUnicode_GET_LENGTH(key)
    return index_hash(java_hash_more(value, span))


cdef IndexMemory index_in(Span memory, int64_t slots, int64_t entries) except *:
    cdef IndexMemory x
    if not (0 < slots <= ROWS_MAX and 0 < entries <= ROWS_MAX):
        raise ValueError(f"an index file cannot have {slots} slots and {entries} entries")
    x.p, x.n, x.slots, x.entries = <uint8_t *>memory.p, memory.n, slots, entries
    return x


def index_file_add(memory, int64_t slots, int64_t entries, rows, hashes, log_offsets, store_times_ms, int64_t first=0):
    """Add keys to an index file in order, as many as fit; return how many were added.

    For each key the entry is written first, then the slot; the header is written last. The resulting bytes are the same
    as those of adding the keys one by one.

    Args:
        memory: the whole file, writable.
        slots: its number of slots.
        entries: its number of entries; the first one is never used.
        rows: the record of each key, as a row of the next columns.
        hashes: the keys' index hashes.
        log_offsets: the records' log offsets.
        store_times_ms: the records' store times.
        first: the first key to add.
    """
    cdef Held to = Held(memory, True)
    cdef IndexMemory x = index_in(to.span(), slots, entries)
    cdef list held = []
    cdef KeyRows keys
    cdef int64_t added
    keys.rows = numbers_of(rows, held, -1)
    keys.hashes, keys.log_offsets = numbers_of(hashes, held, keys.rows.n), numbers_of(log_offsets, held, -1)
    keys.times = numbers_of(store_times_ms, held, keys.log_offsets.n)
    if entry_at(&x, entries) > x.n:
        raise ValueError(f"{x.n} bytes are too few for an index file of {slots} slots and {entries} entries")
    if not 0 <= first <= keys.rows.n:
        raise ValueError(f"first is {first}; it must be 0 to {keys.rows.n}")
    if keys.rows.n - first >= LONG_ROWS:
        with nogil:
            added = index_add(&x, &keys, first)
    else:
        added = index_add(&x, &keys, first)
    if added < 0:
        raise ValueError("a key names a row that is not in the batch")
    return added


def index_file_links(entries, int64_t slots):
    """Return the slots, and each entry's predecessor, native i32, as they are after adding these entries in order."""
    cdef Held held = Held(entries)
    cdef Span span = held.span()
    cdef int64_t count = span.n // INDEX_ENTRY_SIZE
    cdef IndexMemory x = index_in(span, slots, 1)
    if count > ROWS_MAX:
        raise ValueError(f"{count} entries are more than an index file can have")
    cdef bytearray table = bytearray(4 * slots), previous = bytearray(4 * count)
    cdef int32_t *slot = <int32_t *><char *>table
    cdef int32_t *before = <int32_t *><char *>previous
    with nogil:
        index_links(span.p, count, x.slots, slot, before)
    return table, previous


def index_file_find(
    memory, int64_t slots, int64_t entries, int32_t key_hash, int64_t begin_ms, int64_t end_ms, int64_t number=0
):
    """Find a key in an index file: return log offsets, newest first, and the number to continue with, 0 at the end.

    Hashes collide, and an entry's time is rounded, so the caller must check the records. A chain ends at an entry whose
    predecessor's number is not smaller, or is outside of the memory.

    Args:
        memory: the file, or a part of it from its start.
        slots: the file's number of slots.
        entries: the file's number of entries.
        key_hash: see `key_hash`.
        begin_ms: the earliest store time.
        end_ms: the latest store time; both must be between -2^62 and 2^62.
        number: the number that the previous call returned; 0 begins with the newest entry.
    """
    cdef Held held = Held(memory)
    cdef IndexMemory x = index_in(held.span(), slots, entries)
    cdef Sought sought
    cdef int64_t found[CHAIN_STEPS]
    cdef int64_t i, count
    if not (-(1 << 62) <= begin_ms <= 1 << 62 and -(1 << 62) <= end_ms <= 1 << 62):
        raise ValueError(f"times from {begin_ms} to {end_ms} are out of range")
    sought.hash, sought.begin_ms, sought.end_ms = key_hash, begin_ms, end_ms
    count = index_follow(&x, &sought, &number, found, CHAIN_STEPS)
    return [found[i] for i in range(count)], number


# --- from an address to a record

def record_with_key(window, int64_t position, int64_t log_offset, bytes topic not None, bytes key not None,
                    int64_t begin_ms, int64_t end_ms, bytes ranges not None):
    """Return the message at a position if its record is valid and has this topic and key, and a time within the bounds.

    Args:
        window: bytes of the log.
        position: the position in the window at which the record begins.
        log_offset: the log offset of that position.
        topic: the topic, UTF-8.
        key: the key, UTF-8: a word or a phrase of KEYS, or the UNIQ_KEY.
        begin_ms: the earliest store time.
        end_ms: the latest store time.
        ranges: see `scan`.

    Returns:
        The message; None if topic, key or time differ; False if there is no valid record within the window.
    """
    cdef Held held = Held(window)
    cdef Span span = held.span()
    cdef Checks c = checks_of(CHECK_CRC, ranges, INT64_MAX, 512)
    cdef Record row
    cdef Target to
    cdef StoredMessage made
    if not 0 <= position <= span.n or record_parse(span.p + position, span.n - position, &row) != RECORD_OK:
        return False
    if not is_valid_at(span.p + position, &row, log_offset, &c):
        return False
    if not (begin_ms <= row.store_ms <= end_ms and is_keyed(span.p + position, &row, span_of(topic), span_of(key))):
        return None
    row.position = position
    made = blank_message(&row, &to)
    return made if copy_out(span, &row, to) else False


def record_time(
    window, int64_t position, int64_t log_offset, int64_t size, bytes topic, int64_t queue, int64_t ordinal
):
    """Return the store time of the record at a position, if it states the requested size, queue and ordinal; else None.

    Lengths, log offset, queue and ordinal are checked, but no checksum: use it only if a wrong time is harmless.

    Args:
        window: bytes of the log.
        position: the position in the window at which the record begins.
        log_offset: the log offset of that position.
        size: the expected size.
        topic: the expected topic, UTF-8; None for a record of any topic and queue.
        queue: the expected queue.
        ordinal: the expected ordinal in that queue.
    """
    cdef Held held = Held(window)
    cdef Span span = held.span()
    cdef Place place = place_from(topic, queue)
    cdef Record row
    if not entry_row(span, position, log_offset, size, &row) or not is_of(span.p + position, &row, &place, ordinal):
        return None
    return row.store_ms
