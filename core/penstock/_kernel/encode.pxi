# The only encoder: all input of callers is converted to `Parts`, from which `record_write` makes the record.

cdef enum:
    KEYS_MAX = 16
    # Each property is compared with those before it; for rows with more properties, a table of names is faster.
    PAIRS_MAX = 64
    # Texts of at least this size are also checked for sectors of zeros.
    LONG_TEXT = 512
    # At most this much memory is kept for the next batch.
    SPARE_BYTES = 16 << 20



@cython.final
cdef class QueueCursor:
    """One queue on the append path: its topic, its number, and its next offset."""

    cdef readonly str topic
    cdef readonly bytes topic_bytes
    cdef readonly int32_t queue
    cdef public int64_t next_offset

    def __cinit__(self, str topic not None, int32_t queue, int64_t next_offset):
        self.topic, self.topic_bytes, self.queue, self.next_offset = topic, topic.encode(), queue, next_offset


cdef inline bint utf8_of(object text, Span *span) noexcept:
    """Set `span` to the UTF-8 of a text, valid as long as the text; return False if it is no `str`, or has no UTF-8."""
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
    """Return whether a text can be keys: it has no separator of properties, and not only spaces."""
    cdef const uint8_t *at = text.p
    cdef Span word
    return is_plain(text) and word_next(&at, text.p + text.n, &word)


cdef int64_t whole(object value, int64_t low, int64_t high, str name) except? -1:
    """Return an integer of any type that fits its field; raises for a bool, a float, or a number out of range."""
    cdef int overflow = 0
    cdef long long number
    if type(value) is not int:
        if isinstance(value, bool) or not hasattr(type(value), "__index__"):
            raise encode_words().NumberError(name, value)
        try:
            value = operator_index(value)
        except TypeError:
            # An array has the method and refuses.
            raise encode_words().NumberError(name, value) from None
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow or number < low or number > high:
        raise encode_words().NumberError(name, value)
    return number


cdef object ZERO = 0


cdef encode_words():
    """Return the Python module that checks refused messages and raises the errors."""
    from penstock.write import validation
    return validation


cdef add_rewritten(Batch batch, Message message):
    """Add what is stored in place of a message with a delay or a partition key."""
    encode_words().add_rewritten(batch, message)


@cython.final
cdef class Turns:
    """How many queues of a topic take turns, and whose turn is next."""

    cdef Py_ssize_t queues, following


@cython.final
cdef class RecordEncoder:
    """Encodes the records of one store. Safe from any thread.

    Attributes:
        store_host: the store's own host, as encoded in its records.
        crc_property: whether each record ends in a CRC of the whole record.
        body_bytes_max: the maximum size of a body in bytes.
        make_copy_cursor: like `make_cursor`, for copies, for which no extension is asked; None for `make_cursor`.
        rewrite: `rewrite(message)` returns what is stored in place of a message with a delay or a partition key, as
            `Extension.rewrite` does; None if nothing can.
    """

    cdef readonly bytes store_host
    cdef readonly bint crc_property
    cdef readonly int64_t body_bytes_max
    cdef readonly object make_copy_cursor, rewrite
    cdef object make_cursor, turns_of, time_ms
    cdef dict cursors
    cdef dict turns
    # How often `forget` was called: what was asked for before is not kept.
    cdef Py_ssize_t forgotten
    cdef Growing spare

    def __cinit__(self, bytes store_host not None, *, bint crc_property, int64_t body_bytes_max, make_cursor=None,
                  make_copy_cursor=None, turns_of=None, rewrite=None, time_ms=None):
        """Set what is called besides the attributes.

        Args:
            make_cursor: `make_cursor(topic, queue)` checks both and returns the queue's only cursor.
            turns_of: `turns_of(topic)` returns how many queues take turns for messages without a queue number, and
                which is the first; None for one queue, number 0.
            time_ms: `time_ms()` returns the wall-clock time; None for the system's clock.
        """
        if len(store_host) not in (8, 20):
            raise ValueError("store_host must have 8 or 20 bytes")
        self.store_host, self.crc_property, self.body_bytes_max = store_host, crc_property, body_bytes_max
        self.make_cursor, self.make_copy_cursor = make_cursor, make_copy_cursor
        self.turns_of, self.rewrite = turns_of, rewrite
        self.time_ms, self.cursors, self.turns = time_ms, {}, {}

    def __dealloc__(self):
        free(self.spare.p)

    cpdef int64_t now_ms(self) except? -1:
        """Return the wall-clock time, for messages without a time of their own."""
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
        elif queue is None:
            return self._next_cursor(topic)
        return self._new_cursor(topic, queue)

    cdef QueueCursor _next_cursor(self, topic):
        cdef Turns turns = self._turns_of(topic)
        cdef Py_ssize_t number = turns.following
        cdef list cursors = self.cursors.get(topic)
        turns.following = number + 1 if number + 1 < turns.queues else 0
        if cursors is not None and number < PyList_GET_SIZE(cursors) and cursors[number] is not None:
            return <QueueCursor>cursors[number]
        return self._new_cursor(topic, number)

    cdef Turns _turns_of(self, topic):
        cdef PyObject *found = PyDict_GetItemWithError(self.turns, topic) if isinstance(topic, str) else NULL
        cdef QueueCursor cursor
        cdef Turns turns
        cdef Py_ssize_t forgotten
        if found is not NULL:
            return <Turns>found
        # The first message to a topic checks its name, and creates it.
        cursor = self.cursor(topic, 0)
        turns = Turns.__new__(Turns)
        forgotten = self.forgotten
        turns.queues, turns.following = (1, 0) if self.turns_of is None else self.turns_of(cursor.topic)
        if not 0 <= turns.following < turns.queues:
            raise ValueError("turns_of must return a number of queues, and the number of one of them")
        return turns if forgotten != self.forgotten else self.turns.setdefault(cursor.topic, turns)

    def take_turns(self, topic, Py_ssize_t count):
        """Let a topic's queues take `count` turns; return the number of the first queue, and how many take turns."""
        cdef Turns turns = self._turns_of(topic)
        cdef Py_ssize_t first = turns.following
        turns.following = (first + count) % turns.queues
        return first, turns.queues

    def forget(self, topic):
        """Call `make_cursor` and `turns_of` again for the next message to a topic."""
        self.forgotten += 1
        self.cursors.pop(topic, None)
        self.turns.pop(topic, None)

    def cursor_of(self, topic, queue):
        """Return the cursor of a queue, of the next in turn for None; may raise `TopicError` or `QueueError`."""
        return self.cursor(topic, queue)

    cdef QueueCursor _new_cursor(self, topic, queue):
        cdef Py_ssize_t forgotten = self.forgotten
        cdef QueueCursor cursor = self.make_cursor(topic, queue)
        cdef list queues
        if cursor is None or cursor.queue < 0:
            raise ValueError("make_cursor must return a cursor whose queue is not negative")
        if forgotten != self.forgotten:
            return cursor
        queues = self.cursors.setdefault(cursor.topic, [])
        while len(queues) <= cursor.queue:
            queues.append(None)
        queues[cursor.queue] = cursor
        return cursor

    cdef bytes body(self, body):
        """Return a body as bytes, checked."""
        if type(body) is not bytes or PyBytes_GET_SIZE(body) > self.body_bytes_max:
            return encode_words().check_body(body, self.body_bytes_max)
        return body

    cdef object text(self, Parts *m, Span *spans, tag, keys, properties):
        """Fill in tag, keys and other properties; return what, besides `tag`, must be held while the parts are used."""
        cdef Py_ssize_t i, count
        cdef object held = None
        # The Python module asks whether an object of any other type has pairs.
        cdef bint has_pairs = properties is not None and not (type(properties) is dict and not <dict>properties)
        m.tag.p, m.tag.n, m.text.p, m.text.n, m.keys, m.n_keys = NULL, 0, NULL, 0, spans, 0
        m.has_crc = self.crc_property
        if (type(keys) is tuple or type(keys) is list) and utf8_of(tag, &m.tag) and is_tag(m.tag):
            if type(keys) is list:
                keys = tuple(keys)
            count = PyTuple_GET_SIZE(keys)
            if count <= KEYS_MAX:
                for i in range(count):
                    if not utf8_of(<object>PyTuple_GET_ITEM(keys, i), &spans[i]) or not is_key(spans[i]):
                        break
                else:
                    m.n_keys = <int32_t>count
                    held = self._pairs(properties) if has_pairs else ()
        if held is not None:
            if has_pairs:
                m.text = span_of(held)
            if text_size(m) < LONG_TEXT:
                # The spans point into these objects.
                return (held, keys) if has_pairs else keys
        made = encode_words().text_of(tag, keys, properties, crc_property=self.crc_property)
        m.tag.n, m.n_keys, m.text = 0, 0, span_of(made)
        return made

    cdef bytes _pairs(self, properties):
        """Return the text of the properties; None if one of them is not plain."""
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


# A batch up to this size keeps the GIL while it is stamped: else another thread would run under the append lock.
cdef enum: NOGIL_BYTES = 64 << 10


@cython.final
cdef class Batch:
    """Encoded records, one after the other, which an append stamps and writes. Not thread-safe.

    While its bytes are in use as a buffer, no record can be added.
    """

    cdef readonly RecordEncoder encoder
    cdef list own_cursors
    # Whether its receipts were taken, and whether another thread is adding to it.
    cdef bint is_spent, is_busy
    # Whether a record has a PREPAREDTRANSACTIONOFFSET of its own.
    cdef readonly bint has_prepared
    cdef QueueCursor last_cursor
    cdef int32_t last_number
    cdef Growing data, places, names, scratch, nexts
    cdef dict numbers
    cdef Span host
    cdef int64_t born_ms
    cdef Py_ssize_t lent
    # A cache of cursor numbers, by a hash of topic and queue; -1 for an empty place.
    cdef int32_t near[64]

    def __cinit__(self, RecordEncoder encoder not None):
        """Create an empty batch; only `stamp` writes the records' own CRCs."""
        self.encoder, self.own_cursors, self.numbers, self.host = encoder, [], {}, span_of(encoder.store_host)
        self.born_ms = encoder.now_ms()
        memset(self.near, 255, sizeof(self.near))
        # Reused memory needs no new pages.
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
        """The cursors of the records' queues, in the order of their first records."""
        return tuple(self.own_cursors)

    cdef int check_free(self) except -1:
        if self.is_busy or self.is_spent or self.lent:
            raise BufferError(
                "the batch cannot be changed: its bytes are in use, it was appended, or another thread adds to it"
            )
        return 0

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self.is_busy:
            raise BufferError("the batch cannot be read: another thread adds to it")
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
        """Bytes of the largest record; 0 if there is none."""
        cdef Appended *places = <Appended *>self.places.p
        cdef int32_t largest = 0
        cdef Py_ssize_t row
        for row in range(len(self)):
            if places[row].size > largest:
                largest = places[row].size
        return largest

    @property
    def end_offset(self):
        """Log offset after the last record; only for a batch that was appended."""
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
        """Return the index of a cursor in this batch's cursors; adds it if it is new."""
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
        """Like `number_of`, for the bytes of a topic; creates the cursor if there is none yet."""
        cdef uint32_t mixed = <uint32_t>queue * 31 + <uint32_t>topic.n * 7 + (topic.p[topic.n - 1] if topic.n else 0)
        cdef int32_t *near = &self.near[mixed & 63]
        cdef LaneName *name
        if near[0] >= 0:
            name = &(<LaneName *>self.names.p)[near[0]]
            if name.queue == queue and is_same(name.topic, topic):
                return near[0]
        with gil:
            near[0] = self.number_of(
                self.encoder.cursor(PyUnicode_DecodeUTF8(<const char *>topic.p, topic.n, NULL), queue))
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
        if m.has_crc:
            m.has_crc = CRC_LATER
        size = record_size(m, text)
        if size > INT32_MAX or text > TEXT_MAX:
            with gil:
                raise ValueError("the record or its properties text is too large")
        grow(&self.data, size)
        grow(&self.places, sizeof(Appended))
        record_write(self.data.p + self.data.n, m, size, text)
        self.has_prepared = self.has_prepared or m.prepared != 0
        self.data.n += size
        place = <Appended *>(self.places.p + self.places.n)
        place.log_offset = place.queue_offset = -1
        place.size, place.cursor = <int32_t>size, number
        self.places.n += sizeof(Appended)
        return 0

    def add_all(self, list messages not None):
        """Add messages up to the first that is refused; raises the reason, and keeps the messages before it."""
        cdef Py_ssize_t number = 0
        # The caller may change the list meanwhile.
        while number < PyList_GET_SIZE(messages):
            self.add(messages[number])
            number += 1

    cpdef int add(self, Message message) except -1:
        """Add a message; if it is refused, raises the reason and adds nothing."""
        if message is None:
            raise TypeError("message must be a Message, not None")
        if (
            message.delay_level is not ZERO or message.partition_key is not None or message.delay is not ZERO
            or message.deliver_at is not None
        ):
            add_rewritten(self, message)
            return 0
        cdef Parts m
        cdef Span spans[KEYS_MAX]
        cdef RecordEncoder encoder = self.encoder
        cdef bytes host = None
        cdef bytes body = encoder.body(message.body)
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
            # Negative numbers are marks of atomic batches, which only `stamp` writes.
            m.prepared = whole(message.prepared_offset, 0, INT64_MAX, "prepared_offset")
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
        """Add rows of Arrow columns from `start` on, up to the first that is not plain; return that row's number.

        The caller passes a row that is not plain, or cannot be stored, to `add`, which adds or refuses it.
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
        """Add a complete valid record, in this batch's form; `has_crc` says whether it ends in a CRC of its own."""
        # Copied: the bytes may be in a file that another process changes meanwhile.
        cdef bytes own = bytes(record), text = None
        cdef Span span = span_of(own)
        cdef Record row
        cdef Parts m
        self.check_free()
        if record_parse(span.p, span.n, &row) != RECORD_OK or row.size != span.n:
            raise ValueError("record must be one complete record")
        if has_crc and row.text_size < CRC_PROPERTY_SIZE:
            raise ValueError("the record has no CRC of its own")
        m.body.p, m.body.n = span.p + row.body_at, row.body_size
        m.tag.n, m.n_keys, m.keys = 0, 0, NULL
        m.text.p, m.text.n = span.p + row.text_at, row.text_size
        if has_crc:
            m.text.n -= CRC_PROPERTY_SIZE
        if m.text.n and not self.encoder.crc_property and m.text.p[m.text.n - 1] != 2:
            # Penstock's texts end with a pair's end: one that ends in zero looks like a sector never written.
            text = m.text.p[:m.text.n] + b"\x02"
            m.text = span_of(text)
        if m.text.n >= LONG_TEXT:
            encode_words().check_text(m.text.p[:m.text.n], crc_property=self.encoder.crc_property)
        m.has_crc = self.encoder.crc_property
        m.born_host.p, m.born_host.n = span.p + 48, 20 if row.sys_flag & 0x10 else 8
        m.flag, m.sys_flag, m.reconsume, m.born_ms = row.flag, row.sys_flag, row.reconsume, row.born_ms
        # A mark says where the batch of the original is; see `penstock.log.scan`.
        m.prepared = max(row.prepared, 0)
        self.put(&m, self.number_of(cursor))

    def set_born_time(self):
        """Give messages that have no time of their own, and are added from now on, the present time."""
        self.born_ms = self.encoder.now_ms()

    def shorten(self, Py_ssize_t count):
        """Remove the records after the first `count`."""
        cdef Appended *places = <Appended *>self.places.p
        self.check_free()
        while len(self) > max(count, 0):
            self.places.n -= sizeof(Appended)
            self.data.n -= places[len(self)].size

    # --- appending

    def fit(self, Py_ssize_t start, int64_t room):
        """Return the first row, from `start` on, that does not fit into `room` bytes, and the size of those before."""
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

    def stamp(self, list pieces not None, int64_t store_ms, int64_t first_mark=0, int64_t rest_mark=0):
        """Write offsets and store time into the records, and CRCs over those that have CRCs of their own.

        Args:
            pieces: (row, log offset) of each slice of the batch: from there on, records are consecutive.
            store_ms: the store time of all records.
            first_mark: numbers the records, from this on, in PREPAREDTRANSACTIONOFFSET; 0 leaves the field.
            rest_mark: written to all records but the first, in place of the numbers after `first_mark`, if it is not 0.
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
                self.stamp_all(count, numbers, starts, store_ms, first_mark, rest_mark)
        else:
            self.stamp_all(count, numbers, starts, store_ms, first_mark, rest_mark)
        self.nexts.n = cursor_count * <int64_t>sizeof(int64_t)

    cdef void stamp_all(self, Py_ssize_t count, int64_t *numbers, const int64_t *starts, int64_t store_ms,
                        int64_t first_mark, int64_t rest_mark) noexcept nogil:
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
                record_mark(self.data.p + at, rest_mark if rest_mark and row else first_mark + row)
            if sealed:
                record_seal(self.data.p + at, place.size)
            log_offset += place.size
            at += place.size

    def count_up(self):
        """Advance the cursors past the records that were stamped last."""
        cdef int64_t *numbers = <int64_t *>self.nexts.p
        cdef Py_ssize_t row
        if self.nexts.n != <int64_t>len(self.own_cursors) * <int64_t>sizeof(int64_t):
            raise ValueError("the batch was not stamped")
        for row in range(len(self.own_cursors)):
            (<QueueCursor>PyList_GET_ITEM(self.own_cursors, row)).next_offset = numbers[row]

    def receipts(self, int64_t store_ms, status, durability):
        """Return the receipts of appended records; the batch is empty afterwards, and takes no more records."""
        cdef Receipts made = Receipts.__new__(Receipts)
        made.places, made.length = <Appended *>self.places.p, len(self)
        self.places.p, self.places.n, self.places.room = NULL, 0, 0
        self.is_spent, self.last_cursor = True, None
        made.cursors, made.store_host, made.store_time_ms = self.own_cursors, self.encoder.store_host, store_ms
        made.status, made.durability = status, durability
        return made
