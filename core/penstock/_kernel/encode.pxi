# One way in: whatever a caller hands over becomes `Parts`, and `record_write` makes the record of them.

cdef enum:
    KEYS_MAX = 16
    # Each property is held against those before it; where a row has more, a table of names is quicker.
    PAIRS_MAX = 64
    # From here on a text is looked at for more than its names and values.
    LONG_TEXT = 512
    # So much memory is kept for the next batch.
    SPARE_BYTES = 16 << 20



@cython.final
cdef class QueueCursor:
    """One queue as the append path knows it: its topic, its number, and the offset that comes next."""

    cdef readonly str topic
    cdef readonly bytes topic_bytes
    cdef readonly int32_t queue
    cdef public int64_t next_offset

    def __cinit__(self, str topic not None, int32_t queue, int64_t next_offset):
        self.topic, self.topic_bytes, self.queue, self.next_offset = topic, topic.encode(), queue, next_offset


cdef inline bint utf8_of(object text, Span *span) noexcept:
    """Give the UTF-8 of a text, which lives as long as it does; False for what is no exact `str` or has none."""
    cdef Py_ssize_t n = 0
    span.p, span.n = NULL, 0
    if type(text) is not str:
        return False
    span.p = <const uint8_t *>utf8_or_null(text, &n)
    if span.p is NULL:
        PyErr_Clear()
        return False
    span.n = n
    return True


cdef inline bint is_words(Span text) noexcept nogil:
    """Say whether a text can be keys: it holds no separator of properties, and more than spaces."""
    cdef const uint8_t *at = text.p
    cdef Span word
    return is_plain(text) and word_next(&at, text.p + text.n, &word)


cdef int64_t whole(object value, int64_t low, int64_t high, str name) except? -1:
    """Return a whole number of any integer type that fits its field; no bool, no float."""
    cdef int overflow = 0
    cdef long long number
    if type(value) is not int:
        if isinstance(value, bool) or not hasattr(type(value), "__index__"):
            raise encode_words().NumberError(name, value)
        value = operator_index(value)
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow or number < low or number > high:
        raise encode_words().NumberError(name, value)
    return number


cdef object ZERO = 0


cdef encode_words():
    """Return the module that says in words what is refused."""
    from penstock.write import validation
    return validation


@cython.final
cdef class RecordEncoder:
    """How the records of one store are made. Safe from any thread.

    Attributes:
        store_host: the store's own host, as its records have it.
        crc_property: whether each record ends in a CRC over the whole of it.
        body_bytes_max: the largest body that is taken.
    """

    cdef readonly bytes store_host
    cdef readonly bint crc_property
    cdef readonly int64_t body_bytes_max
    cdef public object make_cursor
    cdef object time_ms
    cdef dict cursors
    cdef Growing spare

    def __cinit__(self, bytes store_host not None, *, bint crc_property, int64_t body_bytes_max, make_cursor=None, time_ms=None):
        """`make_cursor(topic, queue)` checks both and returns the one cursor of a queue; `time_ms()` is the system's if None."""
        if len(store_host) not in (8, 20):
            raise ValueError("a host has 8 or 20 bytes")
        self.store_host, self.crc_property, self.body_bytes_max = store_host, crc_property, body_bytes_max
        self.make_cursor, self.time_ms, self.cursors = make_cursor, time_ms, {}

    def __dealloc__(self):
        free(self.spare.p)

    cpdef int64_t now_ms(self) except? -1:
        """Return the wall-clock time, which a message gets that brings none of its own."""
        return clock_ms() if self.time_ms is None else self.time_ms()

    cdef QueueCursor cursor(self, topic, queue):
        cdef PyObject *found
        cdef int overflow = 0
        cdef long long number
        if type(queue) is int and isinstance(topic, str):
            found = PyDict_GetItemWithError(self.cursors, topic)
            if found is not NULL:
                number = PyLong_AsLongLongAndOverflow(queue, &overflow)
                if 0 <= number < PyList_GET_SIZE(<list>found) and not overflow:
                    cursor = <object>PyList_GET_ITEM(<list>found, number)
                    if cursor is not None:
                        return <QueueCursor>cursor
        return self._new_cursor(topic, queue)

    def cursor_of(self, topic, queue):
        """Return the cursor of a queue; raises what refuses topic or number."""
        return self.cursor(topic, queue)

    cdef QueueCursor _new_cursor(self, topic, queue):
        cdef QueueCursor cursor = self.make_cursor(topic, queue)
        cdef list queues
        if cursor is None or cursor.queue < 0:
            raise ValueError("make_cursor must return the cursor of a queue from 0 on")
        queues = self.cursors.setdefault(cursor.topic, [])
        while len(queues) <= cursor.queue:
            queues.append(None)
        queues[cursor.queue] = cursor
        return cursor

    cdef bytes body(self, body, delay_level):
        """Return a body as bytes, checked."""
        if type(body) is not bytes or PyBytes_GET_SIZE(body) > self.body_bytes_max or delay_level:
            return encode_words().check_body(body, delay_level, self.body_bytes_max)
        return body

    cdef object text(self, Parts *m, Span *spans, tag, keys, properties):
        """Fill in tag, keys and further text; returns what must be held for as long as they are used, beside `tag`."""
        cdef Py_ssize_t i, count
        cdef object held = None
        m.tag.p, m.tag.n, m.text.p, m.text.n, m.keys, m.n_keys = NULL, 0, NULL, 0, spans, 0
        m.has_crc = self.crc_property
        if (type(keys) is tuple or type(keys) is list) and utf8_of(tag, &m.tag) and is_plain(m.tag):
            if type(keys) is list:
                keys = tuple(keys)
            count = PyTuple_GET_SIZE(keys)
            if count <= KEYS_MAX:
                for i in range(count):
                    if not utf8_of(<object>PyTuple_GET_ITEM(keys, i), &spans[i]) or not is_words(spans[i]):
                        break
                else:
                    m.n_keys = <int32_t>count
                    held = () if not properties else self._pairs(properties)
        if held is not None:
            if properties:
                m.text = span_of(held)
            if text_size(m) < LONG_TEXT:
                # The spans lead into these.
                return (held, keys) if properties else keys
        made = encode_words().text_of(tag, keys, properties, crc_property=self.crc_property)
        m.tag.n, m.n_keys, m.text = 0, 0, span_of(made)
        return made

    cdef bytes _pairs(self, properties):
        """Return the text of properties that are plain, or None."""
        cdef Span name_span, value_span
        cdef int64_t size = 0
        cdef uint8_t *at
        cdef bytes made
        cdef list found = []
        if type(properties) is not dict:
            return None
        for name, value in list((<dict>properties).items()):
            if not utf8_of(name, &name_span) or not utf8_of(value, &value_span) or is_reserved(name_span):
                return None
            if not (name_span.n and value_span.n and is_plain(name_span) and is_plain(value_span)):
                return None
            size += name_span.n + value_span.n + 2
            found.append((name, value))
        made = PyBytes_FromStringAndSize(NULL, size)
        at = <uint8_t *>PyBytes_AS_STRING(made)
        for name, value in found:
            utf8_of(name, &name_span)
            utf8_of(value, &value_span)
            at = put_pair(at, name_span, value_span)
        return made


cdef struct LaneName:
    Span topic
    int32_t queue


# A batch up to this size keeps the interpreter's lock while it is stamped: another thread would run within the append lock.
cdef enum: NOGIL_BYTES = 64 << 10


@cython.final
cdef class Batch:
    """Encoded records one behind the other, which an append stamps and writes. Not thread-safe.

    Its bytes are lent to whoever looks at them; none can be added meanwhile.
    """

    cdef readonly RecordEncoder encoder
    cdef list own_cursors
    # Receipts were made of it, or another thread is adding to it.
    cdef bint is_spent, is_busy
    cdef bint seals
    cdef QueueCursor last_cursor
    cdef int32_t last_number
    cdef Growing data, places, names, scratch, nexts
    cdef dict numbers
    cdef Span host
    cdef int64_t born_ms
    cdef Py_ssize_t lent
    # Lanes met lately, by a number made of topic and queue; -1 for none.
    cdef int32_t near[64]

    def __cinit__(self, RecordEncoder encoder not None, *, bint seals=True):
        """Begin an empty batch; without `seals` its records get their own CRCs only by `stamp`."""
        self.seals = seals
        self.encoder, self.own_cursors, self.numbers, self.host = encoder, [], {}, span_of(encoder.store_host)
        self.born_ms = encoder.now_ms()
        memset(self.near, 255, sizeof(self.near))
        # Memory that was used before costs no fresh pages.
        self.data, encoder.spare.p, encoder.spare.room = encoder.spare, NULL, 0
        self.data.n = 0

    def __dealloc__(self):
        if self.encoder is not None and self.encoder.spare.room < self.data.room <= SPARE_BYTES:
            free(self.encoder.spare.p)
            self.encoder.spare = self.data
        else:
            free(self.data.p)
        free(self.places.p)
        free(self.names.p)
        free(self.scratch.p)
        free(self.nexts.p)

    @property
    def cursors(self):
        """The cursors that its records belong to, in the order in which they were met."""
        return tuple(self.own_cursors)

    cdef int check_free(self) except -1:
        if self.is_busy or self.is_spent or self.lent:
            raise BufferError("the batch's bytes are looked at, it was appended, or another thread adds to it")
        return 0

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self.is_busy:
            raise BufferError("another thread adds to the batch")
        PyBuffer_FillInfo(view, self, self.data.p, self.data.n, 1, flags)
        self.lent += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.lent -= 1

    def __len__(self):
        return self.places.n // <Py_ssize_t>sizeof(Appended)

    @property
    def size(self):
        """Bytes of all records."""
        return self.data.n

    @property
    def largest(self):
        """Bytes of the largest record; 0 for none."""
        cdef Appended *places = <Appended *>self.places.p
        cdef int32_t largest = 0
        cdef Py_ssize_t row
        for row in range(len(self)):
            if places[row].size > largest:
                largest = places[row].size
        return largest

    @property
    def end_offset(self):
        """Log offset behind the last record; of a batch that was appended."""
        cdef Appended *last
        if self.places.n == 0:
            return 0
        last = <Appended *>(self.places.p + self.places.n) - 1
        return last.log_offset + last.size

    def columns(self):
        """Return log offsets, queue offsets, sizes and cursor numbers, native i64 each, a row a record."""
        cdef Py_ssize_t row, count = len(self)
        cdef Appended *places = <Appended *>self.places.p
        cdef bytearray made = bytearray(32 * count)
        cdef int64_t *numbers = <int64_t *><char *>made
        for row in range(count):
            numbers[row], numbers[count + row] = places[row].log_offset, places[row].queue_offset
            numbers[2 * count + row], numbers[3 * count + row] = places[row].size, places[row].cursor
        view = memoryview(made)
        return tuple([view[8 * count * column:8 * count * (column + 1)].cast("q") for column in range(4)])

    # --- filling

    cdef int32_t number_of(self, QueueCursor cursor) except -1:
        """Return the place of a cursor among this batch's."""
        cdef LaneName *name
        if cursor is self.last_cursor:
            return self.last_number
        found = self.numbers.get(cursor)
        if found is None:
            grow(&self.names, sizeof(LaneName))
            name = <LaneName *>(self.names.p + self.names.n)
            name.topic, name.queue = span_of(cursor.topic_bytes), cursor.queue
            self.names.n += sizeof(LaneName)
            found = self.numbers[cursor] = len(self.own_cursors)
            self.own_cursors.append(cursor)
        self.last_cursor, self.last_number = cursor, found
        return found

    cdef int32_t number_at(self, Span topic, int64_t queue) except -1 nogil:
        """As `number_of` for the bytes of a topic; makes the cursor where there is none yet."""
        cdef uint32_t mixed = <uint32_t>queue * 31 + <uint32_t>topic.n * 7 + (topic.p[topic.n - 1] if topic.n else 0)
        cdef int32_t *near = &self.near[mixed & 63]
        cdef LaneName *name
        if near[0] >= 0:
            name = &(<LaneName *>self.names.p)[near[0]]
            if name.queue == queue and is_same(name.topic, topic):
                return near[0]
        with gil:
            near[0] = self.number_of(self.encoder.cursor(PyUnicode_DecodeUTF8(<const char *>topic.p, topic.n, NULL), queue))
        return near[0]

    cdef int put(self, Parts *m, int32_t number) except -1 nogil:
        """Add a record of these parts; its offsets and store time are stamped later."""
        cdef int64_t text = text_size(m), size
        cdef Appended *place
        cdef LaneName *name = &(<LaneName *>self.names.p)[number]
        m.topic, m.queue, m.store_host = name.topic, name.queue, self.host
        if m.born_host.n == 0:
            m.born_host = self.host
        m.queue_offset = m.log_offset = m.store_ms = 0
        if m.has_crc and not self.seals:
            m.has_crc = CRC_LATER
        size = record_size(m, text)
        if size > INT32_MAX or text > TEXT_MAX:
            with gil:
                raise ValueError("a record or its text is too large")
        grow(&self.data, size)
        grow(&self.places, sizeof(Appended))
        record_write(self.data.p + self.data.n, m, size, text)
        self.data.n += size
        place = <Appended *>(self.places.p + self.places.n)
        place.log_offset = place.queue_offset = -1
        place.size, place.cursor = <int32_t>size, number
        self.places.n += sizeof(Appended)
        return 0

    def add_all(self, list messages not None):
        """Add messages up to the first that is refused; raises what refuses it."""
        cdef Py_ssize_t number = 0
        # Whoever holds the list may change it meanwhile.
        while number < PyList_GET_SIZE(messages):
            self.add(messages[number])
            number += 1

    cpdef int add(self, Message message) except -1:
        """Add a message; raises what refuses it, and nothing was added."""
        if message is None:
            raise TypeError("a message, not None")
        cdef Parts m
        cdef Span spans[KEYS_MAX]
        cdef RecordEncoder encoder = self.encoder
        cdef bytes host = None
        cdef bytes body = encoder.body(message.body, message.delay_level)
        cdef object tag = message.tag
        cdef object held = encoder.text(&m, spans, tag, message._keys, message.properties)
        cdef int32_t number
        m.body = span_of(body)
        m.flag = m.sys_flag = m.reconsume = 0
        m.prepared = 0
        if message.flag is not ZERO:
            m.flag = <int32_t>whole(message.flag, INT32_MIN, INT32_MAX, "flag")
        if message.sys_flag is not ZERO:
            m.sys_flag = <int32_t>whole(message.sys_flag, INT32_MIN, INT32_MAX, "sys_flag")
        if message.reconsume_times is not ZERO:
            m.reconsume = <int32_t>whole(message.reconsume_times, INT32_MIN, INT32_MAX, "reconsume_times")
        if message.prepared_offset is not ZERO:
            m.prepared = whole(message.prepared_offset, INT64_MIN, INT64_MAX, "prepared_offset")
        m.born_ms = self.born_ms
        if message.born_time_ms is not None:
            m.born_ms = whole(message.born_time_ms, INT64_MIN, INT64_MAX, "born_time_ms")
        m.born_host.n = 0
        if message.born_host is not None:
            host = encode_words().host_bytes(message.born_host)
            m.born_host = span_of(host)
        if m.sys_flag & 0xC == 0x4 or m.sys_flag & 0xC == 0xC:
            raise encode_words().transaction_refused()
        number = self.number_of(encoder.cursor(message.topic, message.queue))
        self.check_free()
        if m.body.n < LONG_BYTES:
            self.put(&m, number)
            return 0
        self.is_busy = True
        try:
            with nogil:
                self.put(&m, number)
        finally:
            self.is_busy = False
        return 0

    def add_columns(self, ArrowRows columns not None, Py_ssize_t start=0):
        """Add rows of Arrow columns from `start` on, as far as each is plain; returns the row where that ends.

        A row that is not plain, or cannot be stored, is for `add` to take or to refuse.
        """
        cdef Parts m
        cdef Span keys[1]
        cdef Span topic
        cdef int64_t queue = 0
        cdef Py_ssize_t row = max(start, 0), count = columns.rows.count
        m.keys, m.sys_flag, m.reconsume, m.prepared, m.has_crc = keys, 0, 0, 0, self.encoder.crc_property
        self.check_free()
        self.is_busy = True
        try:
            with nogil:
                while row < count and fill_row(&columns.rows, row, &m, keys, &self.scratch, &topic, &queue):
                    if columns.rows.born_ms is NULL:
                        m.born_ms = self.born_ms
                    self.put(&m, self.number_at(topic, queue))
                    row += 1
        finally:
            self.is_busy = False
        return row

    def add_record(self, QueueCursor cursor not None, record, *, bint has_crc):
        """Add a whole valid record that was encoded before, in the form of this batch; `has_crc`: it ends in a CRC of its own."""
        # A copy: it may lie in a file that somebody changes meanwhile.
        cdef bytes own = bytes(record), text = None
        cdef Span span = span_of(own)
        cdef Record row
        cdef Parts m
        self.check_free()
        if record_parse(span.p, span.n, &row) != RECORD_OK or row.size != span.n:
            raise ValueError("no whole record")
        if has_crc and row.text_size < CRC_PROPERTY_SIZE:
            raise ValueError("a record without room for a CRC of its own")
        m.body.p, m.body.n = span.p + row.body_at, row.body_size
        m.tag.n, m.n_keys, m.keys = 0, 0, NULL
        m.text.p, m.text.n = span.p + row.text_at, row.text_size
        if has_crc:
            m.text.n -= CRC_PROPERTY_SIZE
        if m.text.n and not self.encoder.crc_property and m.text.p[m.text.n - 1] != 2:
            # Ours end in the end of a pair: one that ends in zero looks like a sector that was never written.
            text = m.text.p[:m.text.n] + b"\x02"
            m.text = span_of(text)
        if m.text.n >= LONG_TEXT:
            encode_words().check_text(m.text.p[:m.text.n], crc_property=self.encoder.crc_property)
        m.has_crc = self.encoder.crc_property
        m.born_host.p, m.born_host.n = span.p + 48, 20 if row.sys_flag & 0x10 else 8
        m.flag, m.sys_flag, m.reconsume, m.prepared, m.born_ms = row.flag, row.sys_flag, row.reconsume, row.prepared, row.born_ms
        self.put(&m, self.number_of(cursor))

    # --- appending

    def fit(self, Py_ssize_t start, int64_t room):
        """Return the first row from `start` on that `room` bytes have no room for, and how many bytes those before it have."""
        cdef Appended *places = <Appended *>self.places.p
        cdef Py_ssize_t row, count = len(self)
        cdef int64_t size = 0
        for row in range(max(start, 0), count):
            if places[row].size > room - size:
                return row, size
            size += places[row].size
        return count, size

    def sizes(self, Py_ssize_t start, Py_ssize_t stop):
        """Return the sizes of some records, native i32."""
        cdef Appended *places = <Appended *>self.places.p
        cdef Py_ssize_t row, first = max(start, 0)
        cdef Py_ssize_t count = max(min(stop, <Py_ssize_t>len(self)) - first, 0)
        cdef bytearray made = bytearray(4 * count)
        cdef int32_t *sizes = <int32_t *><char *>made
        for row in range(count):
            sizes[row] = places[first + row].size
        return memoryview(made).cast("i")

    def stamp(self, list pieces not None, int64_t store_ms, int64_t first_mark=0):
        """Write offsets and store time into the records, and CRCs over them where they have such.

        Args:
            pieces: (row, log offset) of each piece of the batch: from that row on records follow each other from there.
            store_ms: the store time of all.
            first_mark: from there on records are numbered in PREPAREDTRANSACTIONOFFSET; 0 leaves it.
        """
        cdef Py_ssize_t row, count = len(self), cursor_count = len(self.own_cursors), piece_count = len(pieces)
        cdef int64_t *numbers
        cdef int64_t *starts
        self.nexts.n = 0
        grow(&self.nexts, (cursor_count + 2 * piece_count + 2) * <int64_t>sizeof(int64_t))
        numbers = <int64_t *>self.nexts.p
        starts = numbers + cursor_count
        for row in range(cursor_count):
            numbers[row] = (<QueueCursor>self.own_cursors[row]).next_offset
        for row in range(piece_count):
            starts[2 * row], starts[2 * row + 1] = pieces[row]
        starts[2 * piece_count] = count
        if self.data.n > NOGIL_BYTES:
            with nogil:
                self.stamp_all(count, numbers, starts, store_ms, first_mark)
        else:
            self.stamp_all(count, numbers, starts, store_ms, first_mark)
        self.nexts.n = cursor_count * <int64_t>sizeof(int64_t)

    cdef void stamp_all(self, Py_ssize_t count, int64_t *numbers, const int64_t *starts, int64_t store_ms,
                        int64_t first_mark) noexcept nogil:
        cdef Py_ssize_t row, piece = 0
        cdef int64_t at = 0, log_offset = 0, is_counted
        cdef Appended *place
        cdef bint sealed = self.encoder.crc_property
        for row in range(count):
            if row == starts[2 * piece]:
                log_offset = starts[2 * piece + 1]
                piece += 1
            place = &(<Appended *>self.places.p)[row]
            is_counted = record_is_counted(self.data.p + at)
            place.log_offset, place.queue_offset = log_offset, numbers[place.cursor] * is_counted
            numbers[place.cursor] += is_counted
            record_stamp(self.data.p + at, place.queue_offset, log_offset, store_ms)
            if first_mark:
                record_mark(self.data.p + at, first_mark + row)
            if sealed:
                record_seal(self.data.p + at, place.size)
            log_offset += place.size
            at += place.size

    def count_up(self):
        """Move the cursors on, past the records that were stamped last."""
        cdef int64_t *numbers = <int64_t *>self.nexts.p
        cdef Py_ssize_t row
        if self.nexts.n != <int64_t>len(self.own_cursors) * <int64_t>sizeof(int64_t):
            raise ValueError("nothing was stamped")
        for row in range(len(self.own_cursors)):
            (<QueueCursor>PyList_GET_ITEM(self.own_cursors, row)).next_offset = numbers[row]

    def receipts(self, int64_t store_ms, status, durability):
        """Return the receipts of records that were appended; the batch is empty then, and takes no more."""
        cdef Receipts made = Receipts.__new__(Receipts)
        made.places, made.length = <Appended *>self.places.p, len(self)
        self.places.p, self.places.n, self.places.room = NULL, 0, 0
        self.is_spent, self.last_cursor = True, None
        made.cursors, made.store_host, made.store_time_ms = self.own_cursors, self.encoder.store_host, store_ms
        made.status, made.durability = status, durability
        return made


# --- rows of Arrow columns

cdef struct Texts:
    # Values of variable length; no bounds for a column that is not there.
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
    """The rows of an Arrow table, as columns of buffers, held until this goes."""

    cdef Rows rows
    cdef list held

    def __cinit__(self, RecordEncoder encoder not None, Py_ssize_t count, topic, body, *, queue=None, tag=None, keys=None,
                  flag=None, born_ms=None, pairs=None):
        """Take columns of `count` values each.

        Args:
            encoder: whose limits hold.
            topic: of text: offsets (native i32), bytes or None, and the number of the first value.
            body: as `topic`; `tag` and `keys` too, or None.
            queue: native i64, or None; so are `flag` and `born_ms`.
            pairs: offsets of a map column (native i32), the number of the first row, names and values as `topic`, and
                how many pairs they have; or None.
        """
        cdef Rows *rows = &self.rows
        if not 0 <= count < INT32_MAX:
            raise ValueError(f"{count} rows at once")
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
                raise ValueError(f"{rows.pair_count} properties at once")
            rows.pairs = <const int32_t *>self._numbers(bounds, 4, first, count + 1)
            self._texts(&rows.names, names, rows.pair_count)
            self._texts(&rows.values, values, rows.pair_count)

    cdef const char *_numbers(self, numbers, Py_ssize_t width, Py_ssize_t first, Py_ssize_t count) except? NULL:
        cdef Held held
        if numbers is None:
            return NULL
        held = Held(numbers)
        if first < 0 or count > held.view.len // width - first:
            raise ValueError("too few numbers for so many rows")
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
    """Give one value; False for offsets that do not fit. Each is read once: another thread may change them."""
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
    """Copy a text, so that what is looked at is what is stored; gives the copy's place."""
    grow(scratch, text.n + 1)
    put_span(scratch.p + scratch.n, text)
    at[0] = scratch.n
    scratch.n += text.n
    return 0


cdef bint fill_row(const Rows *rows, Py_ssize_t row, Parts *m, Span *keys, Growing *scratch, Span *topic, int64_t *queue) except -1 nogil:
    """Fill in the parts of a row; False if it is not plain."""
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
    # Nothing more is copied: the memory stays where it is.
    topic.p, tag.p, word.p = scratch.p + topic_at, scratch.p + tag_at, scratch.p + keys_at
    m.tag, keys[0], m.n_keys = tag, word, 1 if word.n else 0
    m.text.p, m.text.n = scratch.p + text_at, scratch.n - text_at
    if not is_utf8(topic[0]) or not (is_plain(m.tag) and is_utf8(m.tag)):
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
    """Add the text of a row's properties; False if one is not plain, or given twice, or they are many."""
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
    """Say whether a property is not the caller's to give, or asks for what is not done."""
    cdef const char **reserved = RESERVED_NAMES
    cdef Span other
    while reserved[0] is not NULL:
        other.p, other.n = <const uint8_t *>reserved[0], <int64_t>strlen(reserved[0])
        if is_same(name, other):
            return True
        reserved += 1
    return False
