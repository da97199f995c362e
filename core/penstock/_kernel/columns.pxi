# Columns in Arrow's layout: 32-bit offsets, the bytes of all values, and a bit for each row that has a value.
# Each column is made in two passes without the GIL: the first computes its size, the second writes up to that.

cdef enum: BORN_HOST_END = 56
# While one record is checked, the memory of the record this many entries later is prefetched.
cdef enum: ROWS_AHEAD = 4


cdef class Pieces:
    """One slice of a window for each row; `p` is NULL for a row without a value."""

    cdef Span *spans
    cdef int64_t count

    def __cinit__(self, int64_t count):
        self.count = count
        self.spans = <Span *>calloc(count + 1, sizeof(Span))
        if self.spans is NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.spans)


cdef int64_t room_of(Pieces pieces, bint is_text, int64_t *missing) noexcept nogil:
    cdef int64_t i, room = 0
    missing[0] = 0
    for i in range(pieces.count):
        if pieces.spans[i].p is NULL:
            missing[0] += 1
        else:
            room += text_room(pieces.spans[i]) if is_text else pieces.spans[i].n
    return room


cdef bint fill(Pieces pieces, bint is_text, int32_t *offsets, uint8_t *data, int64_t room) noexcept nogil:
    """Write offsets and bytes; return False if memory could not be allocated."""
    cdef int64_t i
    cdef uint8_t *at = data
    offsets[0] = 0
    for i in range(pieces.count):
        if pieces.spans[i].p is not NULL:
            at = text_put(at, data + room, pieces.spans[i]) if is_text else put_span(at, pieces.spans[i])
            if at is NULL:
                return False
        offsets[i + 1] = <int32_t>(at - data)
    return True


cdef tuple column_of(Pieces pieces, bint is_text):
    """Return three parts: a bit a row, or None if all rows have a value; offsets; bytes."""
    cdef int64_t missing = 0, room, i
    cdef uint8_t *bits
    cdef int32_t *offsets
    cdef uint8_t *data
    cdef bint is_done
    with nogil:
        room = room_of(pieces, is_text, &missing)
    if room > INT32_MAX:
        raise OverflowError(f"one column of the batch needs {room} bytes, which is too many; read fewer rows at a time")
    starts = PyBytes_FromStringAndSize(NULL, 4 * (pieces.count + 1))
    values = PyBytes_FromStringAndSize(NULL, room)
    offsets, data = <int32_t *>PyBytes_AS_STRING(starts), <uint8_t *>PyBytes_AS_STRING(values)
    with nogil:
        is_done = fill(pieces, is_text, offsets, data, room)
    if not is_done:
        raise MemoryError
    if missing == 0:
        return None, starts, values
    present = bytearray((pieces.count + 7) // 8)
    bits = <uint8_t *><char *>present
    for i in range(pieces.count):
        if pieces.spans[i].p is not NULL:
            bits[i >> 3] |= <uint8_t>(1 << (i & 7))
    return bytes(present), starts, values


def body_column(window, rows):
    """Return the bodies as offsets and bytes."""
    cdef Held held = Held(window)
    cdef HeldRows given = HeldRows(rows)
    cdef Span span = held.span()
    cdef Pieces pieces = Pieces(given.count)
    cdef Record row
    cdef int64_t i
    for i in range(pieces.count):
        pieces.spans[i].p = span.p
        if row_within(span, given.p, i, &row):
            pieces.spans[i].p, pieces.spans[i].n = span.p + row.position + row.body_at, row.body_size
    return column_of(pieces, False)[1:]


def topic_column(window, rows):
    """Return the topics as offsets and UTF-8."""
    cdef Held held = Held(window)
    cdef HeldRows given = HeldRows(rows)
    cdef Span span = held.span()
    cdef Pieces pieces = Pieces(given.count)
    cdef Record row
    cdef int64_t i
    for i in range(pieces.count):
        pieces.spans[i].p = span.p
        if row_within(span, given.p, i, &row):
            pieces.spans[i] = topic_of(span, &row)
    return column_of(pieces, True)[1:]


def property_column(window, rows, bytes name not None):
    """Return one property of each row: a bit for each row that has it, or None if all have it; offsets; UTF-8."""
    cdef Held held = Held(window)
    cdef HeldRows given = HeldRows(rows)
    cdef Span span = held.span(), wanted = wanted_name(name), value
    cdef Pieces pieces = Pieces(given.count)
    cdef Record row
    cdef int64_t i
    with nogil:
        for i in range(pieces.count):
            if row_within(span, given.p, i, &row):
                value = property(text_of(span, &row), wanted)
                if value.n:
                    pieces.spans[i] = value
    return column_of(pieces, True)


def pair_columns(window, rows, bytes but not None):
    """Return all properties except one: offsets of each row's pairs; offsets and UTF-8 of names; the same of values."""
    cdef Held held = Held(window)
    cdef HeldRows given = HeldRows(rows)
    cdef Span span = held.span(), skipped = span_of(but), text, name, value
    cdef int64_t i, count = 0, rows_count = given.count
    cdef const uint8_t *at
    cdef bytearray firsts = bytearray(4 * (rows_count + 1))
    cdef int32_t *first = <int32_t *><char *>firsts
    cdef Growing names, values
    cdef Pieces keys, items
    cdef Record row
    memset(&names, 0, sizeof(names))
    memset(&values, 0, sizeof(values))
    try:
        with nogil:
            for i in range(rows_count):
                if row_within(span, given.p, i, &row):
                    text = text_of(span, &row)
                    at = text.p
                    while pair_next(&at, text.p + text.n, &name, &value):
                        if not is_same(name, skipped):
                            put_piece(&names, name)
                            put_piece(&values, value)
                            count += 1
                first[i + 1] = <int32_t>count
        if count > INT32_MAX:
            raise OverflowError("the batch has too many properties; read fewer rows at a time")
        keys, items = Pieces(count), Pieces(count)
        if count:
            memcpy(keys.spans, names.p, <size_t>names.n)
            memcpy(items.spans, values.p, <size_t>values.n)
    finally:
        free(names.p)
        free(values.p)
    return bytes(firsts), column_of(keys, True)[1:], column_of(items, True)[1:]


cdef inline int put_piece(Growing *memory, Span piece) except -1 nogil:
    grow(memory, sizeof(Span))
    memcpy(memory.p + memory.n, &piece, sizeof(Span))
    memory.n += sizeof(Span)
    return 0


def message_ids(window, rows):
    """Return offset message ids, hex of the store host and the log offset, as offsets and text."""
    cdef Held held = Held(window)
    cdef HeldRows given = HeldRows(rows)
    cdef Span span = held.span()
    cdef int64_t i, count = given.count
    cdef const uint8_t *p
    cdef uint8_t own[8]
    cdef int64_t host_at, host_size
    cdef Record row
    cdef uint8_t *at
    cdef uint8_t *data
    starts = bytearray(4 * (count + 1))
    cdef int32_t *offsets = <int32_t *><char *>starts
    cdef bytes text = PyBytes_FromStringAndSize(NULL, 2 * 28 * count)
    data = at = <uint8_t *>PyBytes_AS_STRING(text)
    if 2 * 28 * count > INT32_MAX:
        raise OverflowError("the batch has too many rows; read fewer rows at a time")
    with nogil:
        for i in range(count):
            if row_within(span, given.p, i, &row):
                p = span.p + row.position
                host_at = BORN_HOST_END + 8 + (12 if row.sys_flag & BORN_IPV6 else 0)
                host_size = 20 if row.sys_flag & STORE_IPV6 else 8
                if host_at + host_size <= row.size:
                    put64(own, <uint64_t>row.log_offset)
                    at = hex_put(hex_put(at, p + host_at, host_size), own, 8)
            offsets[i + 1] = <int32_t>(at - data)
    return bytes(starts), text[:at - data]


# --- the records of queue entries

cdef struct Place:
    Span topic
    int64_t queue
    bint is_shared


cdef inline bint is_of(const uint8_t *p, const Record *r, const Place *place, int64_t ordinal) noexcept nogil:
    """Return whether a record belongs to a queue, at that ordinal. Shared queues may point to records of any queue."""
    cdef Span topic
    topic.p, topic.n = p + r.topic_at, r.topic_size
    return place.is_shared or (
        r.queue == place.queue and r.queue_offset == ordinal and is_same(topic, place.topic)
    )


cdef inline bint entry_row(Span window, int64_t position, int64_t log_offset, int64_t size, Record *row) noexcept nogil:
    """Parse the record that a queue entry points at; return whether it has that size and states that log offset."""
    memset(row, 0, sizeof(Record))
    row.position = position
    if not (0 <= position <= window.n and FIXED_SIZE <= size <= window.n - position):
        return False
    if record_parse(window.p + position, size, row) != RECORD_OK or row.size != size or row.log_offset != log_offset:
        return False
    row.is_valid = 1
    return True


def entry_rows(window, const int64_t[::1] positions, const int64_t[::1] log_offsets, const int64_t[::1] sizes,
               const int64_t[::1] ordinals, const int64_t[::1] numbers, list places not None, bytes ranges=None):
    """Parse the records that queue entries point at, and compare each with its entry and its queue.

    Args:
        window: bytes of the log.
        positions: the records' positions in the window.
        log_offsets: the entries' log offsets.
        sizes: the entries' sizes.
        ordinals: the entries' queue offsets.
        numbers: for each entry, the index of its queue in `places`.
        places: topic (bytes; None if records of other topics are expected) and queue number of each queue.
        ranges: see `scan`; CRCs are checked if these are given.

    Returns:
        Rows (see `penstock.format.columns.ROW`), and the first row that is not valid or unlike its entry, or -1.
    """
    cdef Held held = Held(window)
    cdef Span span = held.span()
    cdef int64_t i, count = positions.shape[0], known = len(places), bad = -1
    cdef bytearray made = bytearray(count * sizeof(Record))
    cdef Record *rows = <Record *><char *>made
    cdef int64_t at, ahead, number
    cdef Place *all_places
    cdef bint is_checked = ranges is not None
    cdef Checks c = checks_of(CHECK_CRC, ranges if is_checked else b"", INT64_MAX, 512)
    if not (log_offsets.shape[0] == sizes.shape[0] == ordinals.shape[0] == numbers.shape[0] == count):
        raise ValueError("all columns must have as many rows as positions")
    all_places = <Place *>calloc(known + 1, sizeof(Place))
    if all_places is NULL:
        raise MemoryError
    try:
        # `places` keeps the topics' memory meanwhile.
        for i in range(known):
            topic, all_places[i].queue = places[i]
            all_places[i].is_shared = topic is None
            if topic is not None:
                all_places[i].topic = span_of(topic)
        with nogil:
            for i in range(count):
                # Each value is read once: another thread may change it.
                at, number = positions[i], numbers[i]
                if i + ROWS_AHEAD < count:
                    ahead = positions[i + ROWS_AHEAD]
                    if 0 <= ahead < span.n:
                        record_prefetch(span.p + ahead, sizes[i + ROWS_AHEAD])
                if not (
                    0 <= number < known
                    and entry_row(span, at, log_offsets[i], sizes[i], &rows[i])
                    and is_of(span.p + at, &rows[i], &all_places[number], ordinals[i])
                    and (not is_checked or is_valid_at(span.p + at, &rows[i], rows[i].log_offset, &c))
                ):
                    bad = i
                    break
    finally:
        free(all_places)
    return made, bad
