# Rows of Arrow columns, encoded to a batch without a Python object for each.

cdef struct Texts:
    # Values of variable length; the bounds are NULL if the column is missing.
    const int32_t *bounds
    const uint8_t *data
    int64_t size


cdef struct Rows:
    Py_ssize_t count
    int64_t body_bytes_max, text_bytes_max
    Texts topic, body, tag, keys, names, values
    const int64_t *queue
    const int64_t *flag
    const int64_t *born_ms
    const int32_t *pairs
    int64_t pair_count
    bint checks_zeros


@cython.final
cdef class ArrowRows:
    """The rows of an Arrow table, as columns of buffers, held while this object exists."""

    cdef Rows rows
    cdef list held

    def __cinit__(self, RecordEncoder encoder not None, Py_ssize_t count, topic, body, *, queue=None, tag=None,
                  keys=None, flag=None, born_ms=None, pairs=None):
        """Hold columns of `count` values each.

        Args:
            encoder: the encoder whose limits apply.
            topic: a text column: offsets (native i32), bytes or None, and the index of the first value.
            body: a column like `topic`; `tag` and `keys` are such columns or None.
            queue: native i64, or None; likewise `flag` and `born_ms`.
            pairs: offsets of a map column (native i32), the index of the first row, names and values as columns like
                `topic`, and the number of pairs; or None.
        """
        cdef Rows *rows = &self.rows
        if not 0 <= count < INT32_MAX:
            raise ValueError(f"{count} rows at once are too many")
        self.held = []
        rows.count, rows.body_bytes_max = count, encoder.body_bytes_max
        rows.text_bytes_max = TEXT_MAX - (CRC_PROPERTY_SIZE if encoder.crc_property else 0)
        rows.checks_zeros = not encoder.crc_property
        self._texts(&rows.topic, topic, count)
        self._texts(&rows.body, body, count)
        self._texts(&rows.tag, tag, count)
        self._texts(&rows.keys, keys, count)
        rows.queue = <const int64_t *>self._numbers(queue, 8, 0, count)
        rows.flag = <const int64_t *>self._numbers(flag, 8, 0, count)
        rows.born_ms = <const int64_t *>self._numbers(born_ms, 8, 0, count)
        if pairs is not None:
            bounds, first, names, values, rows.pair_count = pairs
            if not 0 <= rows.pair_count < INT32_MAX:
                raise ValueError(f"{rows.pair_count} properties at once are too many")
            rows.pairs = <const int32_t *>self._numbers(bounds, 4, first, count + 1)
            self._texts(&rows.names, names, rows.pair_count)
            self._texts(&rows.values, values, rows.pair_count)

    cdef const char *_numbers(self, numbers, Py_ssize_t width, Py_ssize_t first, Py_ssize_t count) except? NULL:
        cdef Held held
        if numbers is None:
            return NULL
        held = Held(numbers)
        if first < 0 or count > held.view.len // width - first:
            raise ValueError("a column has fewer numbers than there are rows")
        self.held.append(held)
        return <const char *>held.view.buf + first * width

    cdef int _texts(self, Texts *texts, column, Py_ssize_t count) except -1:
        cdef Held data
        texts.bounds, texts.data, texts.size = NULL, NULL, 0
        if column is None:
            return 0
        bounds, data_bytes, first = column
        texts.bounds = <const int32_t *>self._numbers(bounds, 4, first, count + 1)
        data = Held(b"" if data_bytes is None else data_bytes)
        self.held.append(data)
        texts.data, texts.size = <const uint8_t *>data.view.buf, data.view.len
        return 0


cdef inline bint value_of(const Texts *texts, Py_ssize_t row, Span *span) noexcept nogil:
    """Set `span` to one value; return False if its offsets are invalid. Reads each once: others may change them."""
    cdef int32_t start, stop
    span.p, span.n = texts.data, 0
    if texts.bounds is NULL:
        return True
    start, stop = texts.bounds[row], texts.bounds[row + 1]
    if start < 0 or stop < start or stop > texts.size:
        return False
    span.p, span.n = texts.data + start, stop - start
    return True


cdef inline int take_text(Growing *scratch, Span text, int64_t *at) except -1 nogil:
    """Copy a text, so that the checked bytes are those that are stored; set `at` to the copy's position."""
    grow(scratch, text.n + 1)
    put_span(scratch.p + scratch.n, text)
    at[0] = scratch.n
    scratch.n += text.n
    return 0


cdef bint fill_row(
    const Rows *rows, Py_ssize_t row, Parts *m, Span *keys, Growing *scratch, Span *topic, int64_t *queue
) except -1 nogil:
    """Fill in the parts of a row; return False if it is not plain."""
    cdef Span tag, word
    cdef int64_t number, size, topic_at, tag_at, keys_at, text_at
    scratch.n = 0
    if not value_of(&rows.body, row, &m.body) or m.body.n > rows.body_bytes_max:
        return False
    if not (value_of(&rows.topic, row, topic) and value_of(&rows.tag, row, &tag) and value_of(&rows.keys, row, &word)):
        return False
    take_text(scratch, topic[0], &topic_at)
    take_text(scratch, tag, &tag_at)
    take_text(scratch, word, &keys_at)
    text_at = scratch.n
    if rows.pairs is not NULL and not take_pairs(rows, row, scratch):
        return False
    # Nothing more is copied, so the memory does not move any more.
    topic.p, tag.p, word.p = scratch.p + topic_at, scratch.p + tag_at, scratch.p + keys_at
    m.tag, keys[0], m.n_keys = tag, word, 1 if word.n else 0
    m.text.p, m.text.n = scratch.p + text_at, scratch.n - text_at
    if not is_utf8(topic[0]) or not (is_tag(m.tag) and is_utf8(m.tag)):
        return False
    if m.n_keys and not (is_words(keys[0]) and is_utf8(keys[0])):
        return False
    size = text_size(m)
    if size > rows.text_bytes_max or (rows.checks_zeros and size >= LONG_TEXT):
        return False
    queue[0] = 0 if rows.queue is NULL else rows.queue[row]
    number = 0 if rows.flag is NULL else rows.flag[row]
    if number < INT32_MIN or number > INT32_MAX:
        return False
    m.flag, m.born_host.n = <int32_t>number, 0
    m.born_ms = 0 if rows.born_ms is NULL else rows.born_ms[row]
    return True


cdef bint take_pairs(const Rows *rows, Py_ssize_t row, Growing *scratch) except -1 nogil:
    """Add the text of a row's properties; return False if one is not plain or occurs twice, or there are too many."""
    cdef int32_t first = rows.pairs[row], stop = rows.pairs[row + 1], pair
    cdef int64_t start = scratch.n
    cdef Span name, value, other, ignored
    cdef const uint8_t *at
    if first < 0 or stop < first or stop > rows.pair_count or stop - first > PAIRS_MAX:
        return False
    for pair in range(first, stop):
        if not (value_of(&rows.names, pair, &name) and value_of(&rows.values, pair, &value)):
            return False
        grow(scratch, name.n + value.n + 2)
        memcpy(scratch.p + scratch.n, name.p, name.n)
        name.p = scratch.p + scratch.n
        memcpy(scratch.p + scratch.n + name.n + 1, value.p, value.n)
        value.p = name.p + name.n + 1
        if not (name.n and value.n and is_plain(name) and is_plain(value) and is_utf8(name) and is_utf8(value)):
            return False
        at = scratch.p + start
        while pair_next(&at, scratch.p + scratch.n, &other, &ignored):
            if is_same(name, other):
                return False
        if is_reserved(name):
            return False
        scratch.p[scratch.n + name.n] = 1
        scratch.p[scratch.n + name.n + 1 + value.n] = 2
        scratch.n += name.n + value.n + 2
    return True


cdef bint is_reserved(Span name) noexcept nogil:
    """Return whether a caller must not set this property, or it requests something unsupported."""
    cdef const char **reserved = RESERVED_NAMES
    cdef Span other
    while reserved[0] is not NULL:
        other.p, other.n = <const uint8_t *>reserved[0], <int64_t>strlen(reserved[0])
        if is_same(name, other):
            return True
        reserved += 1
    return False
