# Topics, tags, keys and properties of many records. Rows come from Python: each is checked against the window first.

cdef struct Growing:
    uint8_t *p
    int64_t n, room


cdef int grow(Growing *memory, int64_t more) except -1 nogil:
    cdef int64_t room = memory.room
    cdef uint8_t *grown
    if memory.n + more <= room:
        return 0
    while room < memory.n + more:
        room = 4096 if room == 0 else 2 * room
    grown = <uint8_t *>realloc(memory.p, room)
    if grown is NULL:
        with gil:
            raise MemoryError
    memory.p, memory.room = grown, room
    return 0


cdef inline int put_number(Growing *memory, int64_t value) except -1 nogil:
    grow(memory, 8)
    memcpy(memory.p + memory.n, &value, 8)
    memory.n += 8
    return 0


cdef class Numbers:
    """Growing columns of integers."""

    cdef Growing columns[5]
    cdef int count

    def __cinit__(self, int count):
        memset(self.columns, 0, sizeof(self.columns))
        self.count = count

    def __dealloc__(self):
        cdef int i
        for i in range(5):
            free(self.columns[i].p)

    cdef tuple taken(self):
        return tuple([
            PyBytes_FromStringAndSize(<const char *>self.columns[i].p, self.columns[i].n) for i in range(self.count)
        ])


cdef inline Span text_of(Span window, const Record *row) noexcept nogil:
    cdef Span text
    text.p, text.n = window.p + row.position + row.text_at, row.text_size
    return text


cdef inline Span topic_of(Span window, const Record *row) noexcept nogil:
    cdef Span topic
    topic.p, topic.n = window.p + row.position + row.topic_at, row.topic_size
    return topic


cdef inline Span span_of(bytes text) noexcept:
    cdef Span span
    span.p, span.n = <const uint8_t *>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)
    return span


cdef Span wanted_name(bytes name) except *:
    """Return the span of a property's name; raises `ValueError` if no property can have that name."""
    cdef Span wanted = span_of(name)
    if wanted.n == 0 or not is_plain(wanted):
        raise ValueError(f"no property can be named {name!r}")
    return wanted


def named(window, rows, bytes name not None):
    """Return the values of one property, at most one a row: columns of row, start and size, native i64."""
    cdef Held held = Held(window)
    cdef HeldRows given = HeldRows(rows)
    cdef Span span = held.span(), wanted = wanted_name(name), value
    cdef Numbers found = Numbers(3)
    cdef Record row
    cdef int64_t i
    with nogil:
        for i in range(given.count):
            if not row_within(span, given.p, i, &row):
                continue
            value = property(text_of(span, &row), wanted)
            if value.n:
                put_number(&found.columns[0], i)
                put_number(&found.columns[1], value.p - span.p)
                put_number(&found.columns[2], value.n)
    return found.taken()


def indexed(window, rows):
    """Return the tag codes and keys that dispatchers index.

    Returns:
        The tag code of each row's queue entry: Java's hash of the tag, 0 if there is none; native i64. And every key,
        UNIQ_KEY first, then the words of KEYS, as columns of row (i64) and of the index hash of `topic#key` (i64), in
        log order.
    """
    cdef Held held = Held(window)
    cdef HeldRows given = HeldRows(rows)
    cdef Span span = held.span(), hash_sign = span_of(b"#"), word, topic, last
    cdef Indexed values
    cdef Numbers found = Numbers(2)
    cdef Record row
    cdef const uint8_t *at
    cdef int32_t prefix = 0
    cdef int64_t i, count = given.count
    cdef bytearray made = bytearray(8 * count)
    cdef int64_t *codes = <int64_t *><char *>made
    last.p, last.n = NULL, -1
    with nogil:
        for i in range(count):
            if not row_within(span, given.p, i, &row):
                continue
            values = indexed_values(text_of(span, &row))
            codes[i] = java_hash_more(0, values.tag)
            if values.unique.n == 0 and values.keys.n == 0:
                continue
            topic = topic_of(span, &row)
            if not is_same(topic, last):
                prefix = java_hash_more(java_hash_more(0, topic), hash_sign)
                last = topic
            if values.unique.n:
                put_number(&found.columns[0], i)
                put_number(&found.columns[1], index_hash(java_hash_more(prefix, values.unique)))
            at = values.keys.p
            while word_next(&at, values.keys.p + values.keys.n, &word):
                put_number(&found.columns[0], i)
                put_number(&found.columns[1], index_hash(java_hash_more(prefix, word)))
    return (made, *found.taken())


def tag_keys(window, rows):
    """Return every tag: columns of row (i64) and of the index hash of `topic#T#tag` (i64)."""
    cdef Held held = Held(window)
    cdef HeldRows given = HeldRows(rows)
    cdef Span span = held.span(), wanted = span_of(b"TAGS"), mark = span_of(b"#T#"), value
    cdef Numbers found = Numbers(2)
    cdef Record row
    cdef int32_t hash
    cdef int64_t i
    with nogil:
        for i in range(given.count):
            if not row_within(span, given.p, i, &row):
                continue
            value = property(text_of(span, &row), wanted)
            if value.n:
                hash = java_hash_more(java_hash_more(0, topic_of(span, &row)), mark)
                put_number(&found.columns[0], i)
                put_number(&found.columns[1], index_hash(java_hash_more(hash, value)))
    return found.taken()


def topics(window, rows):
    """Return the distinct topics in log order, and for each row the index of its topic (native i64)."""
    cdef Held held = Held(window)
    cdef HeldRows given = HeldRows(rows)
    cdef Span span = held.span(), topic
    cdef int64_t i, count = given.count, number = 0
    cdef bytearray made = bytearray(8 * count)
    cdef int64_t *numbers = <int64_t *><char *>made
    cdef dict known = {}
    cdef Span last
    cdef Record row
    cdef bytes name
    last.p, last.n = NULL, -1
    for i in range(count):
        topic.p, topic.n = span.p, 0
        if row_within(span, given.p, i, &row):
            topic = topic_of(span, &row)
        if not is_same(topic, last):
            name = topic.p[:topic.n]
            number = known.setdefault(name, len(known))
            last = topic
        numbers[i] = number
    return list(known), made


def java_hash(text):
    """Return Java's `String.hashCode` of a text."""
    cdef bytes units
    cdef uint32_t value = 0
    cdef const uint8_t *p
    cdef Py_ssize_t i
    if not isinstance(text, str):
        raise TypeError(f"text must be a str, not {type(text).__name__}")
    # Lone surrogates have no UTF-8 form; Java hashes them like other code units.
    units = str.encode(text, "utf-16-le", "surrogatepass")
    p = <const uint8_t *>PyBytes_AS_STRING(units)
    for i in range(0, PyBytes_GET_SIZE(units), 2):
        value = value * 31 + (<uint32_t>p[i] | <uint32_t>p[i + 1] << 8)
    return <int32_t>value


def hash_pieces(data, const int64_t[::1] starts, const int64_t[::1] sizes):
    """Return Java's hash of UTF-8 slices of `data`, native i32 each."""
    cdef Held held = Held(data)
    cdef Span span = held.span(), piece
    cdef int64_t i, at, size, count = starts.shape[0]
    cdef bytearray made = bytearray(4 * count)
    cdef int32_t *hashes = <int32_t *><char *>made
    if sizes.shape[0] != count:
        raise ValueError("there must be as many sizes as starts")
    with nogil:
        for i in range(count):
            at, size = starts[i], sizes[i]
            if 0 <= at <= span.n and 0 <= size <= span.n - at:
                piece.p, piece.n = span.p + at, size
                hashes[i] = java_hash_more(0, piece)
    return made
