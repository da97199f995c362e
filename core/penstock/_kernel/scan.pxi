# Parses records: consecutive ones from a window's start, or those at given positions.

# Constants for Python: the size of a row and its fields, the checks, and the reasons why a scan ends.
ROW_BYTES = sizeof(Record)
ROW_FIELDS = [line.split()[::-1] for line in RECORD_LAYOUT.decode().splitlines()]
CRC, TORN = CHECK_CRC, CHECK_TORN
MORE, BLANK, NONE, INVALID = RECORD_MORE, RECORD_BLANK, RECORD_NONE, RECORD_INVALID

# For smaller windows, releasing the GIL costs more than the work.
cdef enum: LONG_BYTES = 64 << 10


cdef class Held:
    """The bytes of a buffer, held while this object exists."""

    cdef Py_buffer view
    cdef bint is_held

    def __cinit__(self, object owner, bint writable=False):
        self.is_held = False
        PyObject_GetBuffer(owner, &self.view, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.is_held = True

    def __dealloc__(self):
        if self.is_held:
            PyBuffer_Release(&self.view)

    cdef inline Span span(self) noexcept:
        cdef Span span
        span.p, span.n = <const uint8_t *>self.view.buf, self.view.len
        return span


cdef struct Table:
    Record *rows
    int64_t count, room


cdef inline Record *table_next(Table *table) noexcept nogil:
    """Return memory for one more row; NULL if there is none."""
    cdef Record *grown
    if table.count == table.room:
        # A few at first: most scans find a record or two, and memory that was not used lately is slow.
        table.room = 8 if table.room == 0 else 2 * table.room
        grown = <Record *>realloc(table.rows, table.room * sizeof(Record))
        if grown is NULL:
            return NULL
        table.rows = grown
    return &table.rows[table.count]


cdef Checks checks_of(int checks, bytes ranges, int64_t torn_from, int64_t sector_bytes) except *:
    """Return the checks; the caller must hold `ranges` for as long as they are used."""
    cdef Checks c
    if sector_bytes < 1:
        raise ValueError(f"sector_bytes is {sector_bytes}; it must be at least 1")
    c.checks, c.torn_from, c.sector_bytes = checks, torn_from, sector_bytes
    c.ranges = <const int64_t *><const char *>PyBytes_AS_STRING(ranges)
    c.n_ranges = <int32_t>(PyBytes_GET_SIZE(ranges) // 16)
    return c


cdef RecordState scan_rows(Span window, int64_t base, const Checks *checks, Table *table, int64_t *stop) noexcept nogil:
    """Fill a table with the valid records from the window's start on; return why they end at `stop`.

    RECORD_OK means that memory could not be allocated.
    """
    cdef int64_t at = 0
    cdef RecordState state
    cdef Record *row
    while True:
        stop[0] = at
        row = table_next(table)
        if row is NULL:
            return RECORD_OK
        state = record_parse(window.p + at, window.n - at, row)
        if state != RECORD_OK:
            return state
        if not is_valid_at(window.p + at, row, base + at, checks):
            return RECORD_INVALID
        row.position, row.is_valid = at, 1
        table.count += 1
        at += row.size


def scan(
    window, int64_t base, int checks, bytes ranges not None, int64_t torn_from=INT64_MAX, int64_t sector_bytes=512
):
    """Parse consecutive records from a window's start; stop at the first that is not valid.

    Args:
        window: bytes of the log.
        base: log offset of the first byte.
        checks: `CRC`, `TORN`, both, or neither; lengths and stated log offsets are always checked.
        ranges: pairs of log offsets, native i64, ascending: the ranges in which records end in a CRC of their own.
        torn_from: first log offset whose records `TORN` applies to.
        sector_bytes: the size of a disk sector, which is either written completely or not at all.

    Returns:
        Rows (see `penstock.format.columns.ROW`), the position where they end, why (a RecordState), and the record size
        that the bytes there state, 0 if there are too few bytes.
    """
    cdef Held held = Held(window)
    cdef Span span = held.span()
    cdef Checks c = checks_of(checks, ranges, torn_from, sector_bytes)
    cdef Table table
    cdef int64_t stop = 0
    cdef RecordState state
    table.rows, table.count, table.room = NULL, 0, 0
    try:
        if span.n >= LONG_BYTES:
            with nogil:
                state = scan_rows(span, base, &c, &table, &stop)
        else:
            state = scan_rows(span, base, &c, &table, &stop)
        if state == RECORD_OK:
            raise MemoryError
        rows = PyBytes_FromStringAndSize(<const char *>table.rows, table.count * sizeof(Record))
    finally:
        free(table.rows)
    return rows, stop, <int>state, get32(span.p + stop) if span.n - stop >= 8 else 0


def parse(window, const int64_t[::1] positions):
    """Parse the records at positions of a window; a row's `is_valid` says whether its lengths add up.

    In a row that is not valid, all fields but position, size and magic are zero.
    """
    cdef Held held = Held(window)
    cdef Span span = held.span()
    cdef int64_t i, at, count = positions.shape[0]
    cdef int32_t size, magic
    cdef bytearray made = bytearray(count * sizeof(Record))
    cdef Record *rows = <Record *><char *>made
    with nogil:
        for i in range(count):
            at = positions[i]
            if 0 <= at < span.n and record_parse(span.p + at, span.n - at, &rows[i]) == RECORD_OK:
                rows[i].is_valid = 1
            else:
                size, magic = rows[i].size, rows[i].magic
                memset(&rows[i], 0, sizeof(Record))
                rows[i].size, rows[i].magic = size, magic
            rows[i].position = at
    return made


def valid_rows(window, rows, const int64_t[::1] log_offsets, int checks, bytes ranges not None,
               int64_t torn_from=INT64_MAX, int64_t sector_bytes=512):
    """Return for each row, a byte each, whether its record is valid at its log offset; see `scan`."""
    cdef Held held = Held(window)
    cdef HeldRows given = HeldRows(rows)
    cdef Span span = held.span()
    cdef Checks c = checks_of(checks, ranges, torn_from, sector_bytes)
    cdef int64_t i, count = given.count
    cdef Record row
    cdef bytearray made = bytearray(count)
    cdef uint8_t *right = <uint8_t *><char *>made
    if log_offsets.shape[0] < count:
        raise ValueError("fewer log offsets than rows")
    with nogil:
        for i in range(count):
            if row_within(span, given.p, i, &row):
                right[i] = is_valid_at(span.p + row.position, &row, log_offsets[i], &c)
    return made


def own_crcs(window, rows):
    """Return for each row, a byte each, whether its record ends in a CRC property that matches all bytes before it."""
    cdef Held held = Held(window)
    cdef HeldRows given = HeldRows(rows)
    cdef Span span = held.span()
    cdef int64_t i, count = given.count
    cdef Record row
    cdef bytearray made = bytearray(count)
    cdef uint8_t *right = <uint8_t *><char *>made
    with nogil:
        for i in range(count):
            if row_within(span, given.p, i, &row):
                right[i] = ends_in_own_crc(span.p + row.position, &row)
    return made


cdef class HeldRows:
    """Rows from Python, held while this object exists: the bytes of `Record`s, which may hold anything.

    A typed memoryview compares the names and types of all fields at each call, which costs more than a few rows.
    """

    cdef Held held
    cdef const uint8_t *p
    cdef int64_t count

    def __cinit__(self, rows):
        self.held = Held(rows)
        self.p, self.count = <const uint8_t *>self.held.view.buf, self.held.view.len // <int64_t>sizeof(Record)
        if self.held.view.len % <int64_t>sizeof(Record):
            raise ValueError(f"{self.held.view.len} bytes are no rows of {sizeof(Record)} bytes each")


cdef inline bint row_within(Span window, const uint8_t *rows, int64_t number, Record *row) noexcept nogil:
    """Copy a row, which came from Python and may hold anything; return whether it is valid and within the window.

    `number` must be below the number of rows. The caller must use the copy: another thread may change the rows.
    """
    memcpy(row, rows + number * <int64_t>sizeof(Record), sizeof(Record))
    return (
        row.is_valid and 0 <= row.position <= window.n and FIXED_SIZE <= row.size <= window.n - row.position
        and 0 <= row.body_at <= row.size and 0 <= row.body_size <= row.size - row.body_at
        and 0 <= row.topic_at <= row.size and 0 <= row.topic_size <= row.size - row.topic_at
        and 0 <= row.text_at <= row.size and 0 <= row.text_size <= row.size - row.text_at
    )


def is_valid(record, int64_t log_offset, bint is_covered):
    """Return whether these bytes are exactly one valid record of that log offset; see `penstock.format.validity`."""
    cdef Held held = Held(record)
    cdef Span span = held.span()
    cdef Checks c
    cdef Record row
    cdef int64_t everywhere[2]
    everywhere[0], everywhere[1] = -INT64_MAX - 1, INT64_MAX
    c.checks, c.n_ranges, c.ranges, c.torn_from, c.sector_bytes = CHECK_CRC, is_covered, everywhere, INT64_MAX, 512
    if record_parse(span.p, span.n, &row) != RECORD_OK or row.size != span.n:
        return False
    return is_valid_at(span.p, &row, log_offset, &c)


def tails(window, const int64_t[::1] starts, const int64_t[::1] sizes, int64_t head_bytes):
    """Return the position after the body, native i64 each, of records of which only the head is in the window.

    Each position is between the head's end and the record's end, whatever the head states.
    """
    cdef Held held = Held(window)
    cdef Span span = held.span()
    cdef int64_t i, start, low, high, at, count = starts.shape[0]
    cdef bytearray made = bytearray(count * 8)
    cdef int64_t *found = <int64_t *><char *>made
    cdef const uint8_t *p
    cdef int32_t flags
    if sizes.shape[0] != count:
        raise ValueError("there must be as many sizes as starts")
    for i in range(count):
        start, high = starts[i], sizes[i]
        if not (0 <= start <= span.n and 0 <= high <= span.n - start):
            raise ValueError("a record is outside of the window")
        p = span.p + start
        low = head_bytes if head_bytes < high else high
        at = 0
        if low >= 112:
            flags = get32(p + 36)
            at = 88 + (12 if flags & BORN_IPV6 else 0) + (12 if flags & STORE_IPV6 else 0)
            at += get32(p + at - 4)
        found[i] = start + (low if at < low else high if at > high else at)
    return made
