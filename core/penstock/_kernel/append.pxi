# The end of the log: the append lock, and the step that stores a single record there.

cdef enum:
    # A thread that waits for the append lock checks for signals and for the limit at this interval.
    NAP_NS = 50_000_000
    STARVING_NS = 20_000_000


@cython.final
cdef class AppendLock:
    """The lock that serialises appends, with statistics and a limit to waiting.

    A record that is stored directly into mapped memory needs no lock: between reading the log's end and setting the
    new one, no Python code runs and the GIL is not released. The lock is for all other appends, which may release the
    GIL: a roll, a channel's write, a batch.

    A waiting thread releases the GIL. When one holder keeps the lock for longer than the limit, waiting threads raise
    `BusyError`, so that callers slow down instead of queueing up (RocketMQ's "page cache busy", spec section 7.1). The
    thread that holds the lock is refused at once: it can only be a signal handler, a finaliser or a log handler that
    interrupted an append.

    An interrupt (Ctrl-C) may come right after the lock was taken; cleanup code then checks `is_owned`.
    """

    cdef unsigned long owner
    # Python integers: a clock that is passed in may return any number.
    cdef object since_ns, limit_ns, longest_ns, now_ns
    cdef readonly int64_t waits, refused
    cdef int32_t turns
    cdef int64_t waiting, starving

    def __cinit__(self, int64_t limit_ms, now_ns):
        """`now_ns()` returns nanoseconds that never go back."""
        self.limit_ns, self.now_ns, self.since_ns, self.longest_ns = limit_ms * 1_000_000, now_ns, 0, 0

    cpdef bint is_owned(self) noexcept:
        """Return whether this thread holds the lock."""
        return self.owner != 0 and self.owner == PyThread_get_thread_ident()

    def refuse_within(self):
        """Raise `BusyError` if this thread is within an append: a signal handler must not begin another."""
        if self.is_owned():
            self._refuse("an append that this thread interrupted has been under way", 0)

    cdef _refuse(self, str what, held_ns):
        from penstock.errors import BusyError
        self.refused += 1
        raise BusyError(what, held_ns // 1_000_000)

    cdef inline bint is_free(self) noexcept:
        """Return whether a new thread may take the lock: nobody holds it, or has waited for it for long."""
        return self.owner == 0 and self.starving == 0

    cdef int wait(self, bint for_ever) except -1:
        """Return when the lock is free; raises what `acquire` does.

        A running thread finds the lock free more often than a thread that must be woken first. So after some time a
        waiter gets precedence; not from the beginning, since each hand-over costs a thread switch.
        """
        cdef int64_t began_ns = clock_ns()
        cdef bint starves = False
        if self.is_owned():
            self._refuse("an append that this thread interrupted has been under way", 0)
        self.waits += 1
        try:
            while self.owner or (self.starving and not starves):
                self._nap()
                if not starves and clock_ns() - began_ns > STARVING_NS:
                    starves = True
                    self.starving += 1
                if self.owner and not for_ever:
                    held_ns = self.now_ns() - self.since_ns
                    if self.owner and held_ns > self.limit_ns:
                        self._refuse("another append has been under way", held_ns)
        finally:
            if starves:
                self.starving -= 1
        return 0

    cdef int _nap(self) except -1:
        """Sleep until the lock is released, or for a short while."""
        cdef int32_t seen = self.turns
        self.waiting += 1
        with nogil:
            futex_wait(&self.turns, seen, NAP_NS)
        self.waiting -= 1
        return PyErr_CheckSignals()

    def acquire(self, *, bint for_ever=False):
        """Take the lock; raises `BusyError` if one thread holds it for longer than the limit, unless `for_ever`."""
        cdef unsigned long me = PyThread_get_thread_ident()
        if not self.is_free():
            self.wait(for_ever)
        # No other thread has run since.
        self.owner = me
        self.since_ns = self.now_ns()

    def release(self):
        """Release the lock, and note how long it was held."""
        held_ns = self.now_ns() - self.since_ns
        if held_ns > self.longest_ns:
            self.longest_ns = held_ns
        self.owner, self.since_ns = 0, 0
        self.turns += 1
        if self.waiting:
            # Wakes more than one: a woken thread may have to let another waiter go first, which still sleeps.
            futex_wake(&self.turns, INT32_MAX if self.starving else 1)

    def __enter__(self):
        self.acquire()

    def __exit__(self, *_):
        self.release()

    def stats(self):
        """Return how often threads waited, how often they were refused, and the longest hold in microseconds."""
        return {"waits": self.waits, "refused": self.refused, "longest_hold_us": self.longest_ns // 1000}


@cython.final
cdef class Extent:
    """How far a segment is written, and how far it is committed to the system; bytes from its start."""

    cdef public int64_t wrote, committed

    def __cinit__(self, int64_t position):
        self.wrote = self.committed = position

    def commit_to(self, int64_t position):
        """Note that all bytes before a position are committed; the sync thread may have committed more already."""
        move_up(&self.committed, position)


@cython.final
cdef class Draft:
    """One converted message that is being appended. The caller or this object holds the Python objects of its parts."""

    cdef Parts parts
    cdef Span spans[KEYS_MAX]
    # Objects that the parts point into, other than the caller's arguments.
    cdef object body, texts, host
    cdef readonly QueueCursor cursor
    cdef readonly int64_t size
    cdef int64_t text
    cdef bint has_born

    cdef int fill(
        self, RecordEncoder encoder, topic, body, queue, tag, keys, properties, flag, born_time_ms, born_host
    ) except -1:
        cdef Parts *m = &self.parts
        cdef bytes own_body = encoder.body(body)
        cdef bytes host = encoder.store_host
        self.texts = encoder.text(m, self.spans, tag, keys, properties)
        m.body = span_of(own_body)
        m.flag = 0 if flag is ZERO else <int32_t>whole(flag, INT32_MIN, INT32_MAX, "flag")
        self.has_born = born_time_ms is not None
        if self.has_born:
            m.born_ms = whole(born_time_ms, INT64_MIN, INT64_MAX, "born_time_ms")
        m.store_host = m.born_host = span_of(host)
        if born_host is not None:
            host = encode_words().host_bytes(born_host)
            m.born_host = span_of(host)
        m.sys_flag = m.reconsume = 0
        m.prepared = 0
        self.cursor = encoder.cursor(topic, queue)
        m.topic, m.queue = span_of(self.cursor.topic_bytes), self.cursor.queue
        self.body, self.host = own_body, host
        self.text = text_size(m)
        self.size = record_size(m, self.text)
        return 0

    cdef inline void let_go(self) noexcept:
        """Release the message, which was appended; the draft is empty afterwards."""
        self.body = self.texts = self.host = self.cursor = None

    @property
    def log_offset(self):
        """The log offset at which the record was written, or was to be written."""
        return self.parts.log_offset

    cdef inline void place(self, int64_t log_offset, int64_t now_ms) noexcept nogil:
        self.parts.log_offset, self.parts.store_ms = log_offset, now_ms
        if not self.has_born:
            self.parts.born_ms = now_ms

    def encode(self, int64_t log_offset, int64_t now_ms):
        """Return the record's bytes, with the cursor's next queue offset."""
        cdef bytes made
        if self.cursor is None:
            raise ValueError("the draft has no message")
        made = PyBytes_FromStringAndSize(NULL, self.size)
        self.place(log_offset, now_ms)
        self.parts.queue_offset = self.cursor.next_offset
        record_write(<uint8_t *>PyBytes_AS_STRING(made), &self.parts, self.size, self.text)
        return made


@cython.final
cdef class Appender:
    """The end of the log as single puts see it. Safe from any thread.

    Attributes:
        last_time_ms: no record has a later store time, and no later put gets an earlier one.
        refusals: the reasons (bits) for which puts must check first whether they may append: see `refuse`.
        is_idle: the tail follower sleeps until it is woken.
        is_pausing: the tail follower checks again by itself.
    """

    cdef readonly RecordEncoder encoder
    cdef AppendLock lock
    cdef public int64_t last_time_ms
    # The sync thread sets a bit too.
    cdef readonly int refusals
    cdef public bint is_idle, is_pausing
    cdef object append_slowly, apply_policy, accepted, durability
    cdef bint applies_always
    # The gate at which puts wait for durability; None if the flush policy is called.
    cdef SyncGate gate
    cdef int64_t timeout_ms
    cdef tuple on_disk, late
    cdef object on_durable
    # The gate at which puts wait for copies; None if they wait for none.
    cdef CopyGate copies
    # The segment being written; stores into its memory are allowed below `end`.
    cdef Held held
    cdef uint8_t *memory
    # The buffer that takes records instead.
    cdef GatherBuffer gathered
    cdef Extent extent
    cdef int64_t base_offset, capacity, end
    # A page that is zero in a forked child.
    cdef uint8_t *open_page

    def __cinit__(self, RecordEncoder encoder not None, AppendLock lock not None, append_slowly):
        """`append_slowly(draft)` appends a record under the lock, with a roll or channel's write; sets its offset."""
        self.encoder, self.lock, self.append_slowly = encoder, lock, append_slowly
        self.open_page = page_of_this_process()
        if self.open_page is NULL:
            raise MemoryError
        self.refusals, self.is_idle, self.is_pausing = 0, True, True

    def refuse(self, int reason):
        """Make puts check first whether they may append, until `allow` is called with the same reason."""
        set_bits(&self.refusals, reason)

    def allow(self, int reason):
        """Remove a reason that `refuse` has set."""
        keep_bits(&self.refusals, ~reason)

    def __dealloc__(self):
        if self.open_page is not NULL:
            give_page_back(self.open_page)

    @property
    def is_in_child(self):
        """Whether this is a child of the process that opened the store, however it was forked."""
        return self.open_page[0] == 0

    def connect(self, apply_policy, accepted, durability, *, bint applies_always):
        """Set what is done after a put.

        Args:
            apply_policy: called with the log offset after the record and the caller's `wait`; returns status and
                durability.
            accepted: the status of a put for which `apply_policy` is not called, and `durability` its durability.
            applies_always: whether `apply_policy` is called for every put, or only while the follower is idle.
        """
        self.apply_policy, self.applies_always = apply_policy, applies_always
        self.accepted, self.durability = accepted, durability

    def wait_at(self, SyncGate gate, int64_t timeout_ms, tuple on_disk not None, tuple late not None, on_durable):
        """Make puts wait for durability at a gate; `apply_policy` is called only for puts that do not wait.

        Args:
            gate: the gate; None to call `apply_policy` in every case.
            timeout_ms: the maximum wait.
            on_disk: status and durability of a put that was synced; `late` those of a put that timed out.
            on_durable: called after such a sync, if the follower does not check by itself.
        """
        self.gate, self.timeout_ms, self.on_disk, self.late = gate, timeout_ms, on_disk, late
        self.on_durable = on_durable

    def wait_for(self, CopyGate copies):
        """Make puts with `wait=True` wait for copies, too; `apply_policy` does so for those that it is called for."""
        self.copies = copies

    def attach(self, Extent extent not None, int64_t base_offset, int64_t capacity, buffer=None, int64_t end=0):
        """Append to a segment from now on; called under the lock.

        Args:
            extent: how far the segment is written; each put advances it.
            base_offset: the segment's first log offset.
            capacity: the segment's size in bytes.
            buffer: the file's bytes, writable, or the `GatherBuffer` that takes records instead; None if records must
                be written by the channel's `write`.
            end: stores into the buffer are allowed below this position.
        """
        cdef Held held = None
        cdef GatherBuffer gathered = <GatherBuffer>buffer if isinstance(buffer, GatherBuffer) else None
        if buffer is not None and gathered is None:
            held = Held(buffer, True)
            if held.view.len < min(end, capacity):
                raise ValueError("the memory is smaller than the segment")
        self.memory = NULL if held is None else <uint8_t *>held.view.buf
        self.held, self.extent, self.base_offset, self.capacity = held, extent, base_offset, capacity
        self.gathered = gathered
        self.end = min(end, capacity)

    @property
    def is_paused(self):
        """Whether `pause` was called since the last `attach`, or no memory was given."""
        return self.end == 0

    def pause(self):
        """Make the next put take the slow path, which reads the channel's properties again; safe at any time."""
        self.end = 0

    def detach(self):
        """Release the segment; called under the lock."""
        self.memory, self.held, self.gathered, self.extent = NULL, None, None, None

    cdef uint8_t *place(self, int64_t position, int64_t size) noexcept nogil:
        """Return memory for records at a position; NULL if the log does not end there, or they do not fit.

        `placed` must be called when the records are there; no step in between may fail.
        """
        cdef bint is_gathered = self.gathered is not None
        if self.memory is NULL and not is_gathered:
            return NULL
        if position != self.extent.wrote or size > self.end - position or size > self.capacity - position - 8:
            return NULL
        return gathered_place(&self.gathered.state, position, size) if is_gathered else self.memory + position

    cdef void placed(self, int64_t stop, int64_t now_ms) noexcept nogil:
        """Let the log end at a position, after records of which the last has a store time."""
        self.last_time_ms = now_ms
        self.extent.wrote = stop
        if self.gathered is not None:
            gathered_placed(&self.gathered.state)
        else:
            self.extent.committed = stop

    cdef bint store(self, Draft draft, int64_t now_ms) noexcept nogil:
        """Store a record in the segment's memory or gather buffer; return False if it does not fit or is not allowed.

        Only Python objects that the draft and the appender hold are accessed, and no step fails after the first byte.
        """
        cdef int64_t position = 0 if self.extent is None else self.extent.wrote
        cdef uint8_t *at = self.place(position, draft.size)
        if at is NULL:
            return False
        if now_ms < self.last_time_ms:
            now_ms = self.last_time_ms
        draft.place(self.base_offset + position, now_ms)
        draft.parts.queue_offset = draft.cursor.next_offset
        record_write(at, &draft.parts, draft.size, draft.text)
        draft.cursor.next_offset += 1
        self.placed(position + draft.size, now_ms)
        return True

    def land(self, data, int64_t log_offset, int64_t size_max, bytes ranges not None, int passed=0):
        """Store the records in the frames of another log's bytes with which some bytes begin, where this log ends.

        Only what comes most often is taken: whole frames of whole, valid records, which fit into the segment and have
        no marks of a batch. The caller decides about the first other frame.

        Args:
            data: frames; see `frame`. The payload of one of kind "D" is a log offset (big-endian i64) and the bytes
                there.
            log_offset: of the first byte.
            size_max: the maximum size of a record.
            ranges: as for `scan`.
            passed: reasons of `refuse` that do not concern them.

        Returns:
            How many bytes of `data` were taken, and the log offset after the last record.
        """
        cdef Held held = Held(data)
        cdef Span span = held.span(), records
        cdef Checks c = checks_of(CHECK_CRC, ranges, INT64_MAX, 512)
        cdef int64_t taken = 0, length, at, size, newest_ms
        cdef const uint8_t *p
        cdef uint8_t *to
        if self.refusals & ~passed or self.open_page[0] == 0 or not self.lock.is_free():
            return 0, log_offset
        while True:
            p = span.p + taken
            length = whole_frame(p, span.n - taken, LOG_BYTES, LONG_BYTES)
            if length <= 8 or get64(p + HEAD_BYTES) != log_offset:
                return taken, log_offset
            records.p, records.n = p + HEAD_BYTES + 8, length - 8
            newest_ms = whole_records(records, log_offset, size_max, &c)
            to = NULL if newest_ms < 0 else self.place(log_offset - self.base_offset, records.n)
            if to is NULL:
                return taken, log_offset
            at = 0
            while at < records.n:
                size = get32(records.p + at)
                record_copy(to + at, records.p + at, size)
                at += size
            self.placed(log_offset - self.base_offset + records.n, max(newest_ms, self.last_time_ms))
            log_offset += records.n
            taken += HEAD_BYTES + length

    def appended(self, int64_t end_offset):
        """Apply the flush policy to records that nobody waits for."""
        if self.applies_always or self.is_idle:
            self.apply_policy(end_offset, False)

    cdef tuple known(self, int64_t end_offset, int64_t store_ms, bint wait):
        """Do what follows a put; return its status and durability."""
        cdef Wanted target
        cdef GateOutcome outcome
        if not wait or self.gate is None or self.is_idle:
            return self.apply_policy(end_offset, wait)
        target.end, target.newest_ms, target.latest_ms = end_offset, store_ms, store_ms
        outcome = self.gate.wait_until(&target, self.timeout_ms)
        if outcome == GATE_FLUSHED:
            if not self.is_pausing:
                self.on_durable()
            return self.on_disk if self.copies is None else self.copies.wait(end_offset)
        # `apply_policy` raises the error with which the store has failed.
        return self.late if outcome == GATE_LATE else self.apply_policy(end_offset, wait)

    cdef Receipt append(self, Draft draft, bint wait):
        cdef Receipt made = Receipt.__new__(Receipt)
        cdef int64_t now_ms
        while True:
            now_ms = self.encoder.now_ms()
            if self.lock.is_free():
                break
            self.lock.wait(False)
        if self.refusals or not self.store(draft, now_ms):
            self.append_slowly(draft)
        made.log_offset, made.queue = draft.parts.log_offset, draft.parts.queue
        made.queue_offset = draft.parts.queue_offset
        made.store_time_ms, made.size = draft.parts.store_ms, <int32_t>draft.size
        made.store_host, made.status, made.durability = self.encoder.store_host, self.accepted, self.durability
        if self.applies_always or self.is_idle or (wait and self.copies is not None):
            made.status, made.durability = self.known(made.log_offset + made.size, made.store_time_ms, wait)
        return made


cdef class Producer:
    """The write side of a store: see `penstock.store.store`."""

    cdef Appender appender
    # The draft of the last put, for the next one.
    cdef Draft spare

    def _produce_by(self, Appender appender):
        """Set the appender; None for a store that takes no messages."""
        self.appender = appender

    def _check_writable(self):
        """Raise if messages cannot be put now."""
        raise NotImplementedError

    def _put_rewritten(self, message):
        """Store what takes the place of a message with a delay or a partition key; return the receipt."""
        raise NotImplementedError

    def put(self, topic, body, *, queue=None, tag="", keys=(), properties=None, flag=0, delay_level=0, wait=True,
            born_time_ms=None, born_host=None, partition_key=None, delay=0, deliver_at=None):
        """Append one message and return its receipt; see `Message` for the arguments.

        Under a flush policy that waits, returns when the message is on disk, or when the policy's
        time-out has passed: then the status is `FLUSH_DISK_TIMEOUT`, and the message may still become
        durable. Raises `MessageError` for a message that cannot be stored, `DiskFullError`
        when there is no room, `StoreFailedError` after a sync has failed.
        """
        cdef Appender appender = self.appender
        cdef Draft draft
        cdef Receipt receipt
        if appender is None or appender.refusals or appender.open_page[0] == 0:
            self._check_writable()
        if appender is None:
            raise ValueError("the store takes no messages")
        if wait is not True and wait is not False:
            wait = encode_words().check_wait(wait)
        if (
            delay_level is not ZERO or partition_key is not None or delay is not ZERO or deliver_at is not None
        ):
            return self._put_rewritten(Message(
                topic, body, queue=queue, tag=tag, keys=keys, properties=properties, flag=flag, delay_level=delay_level,
                wait=wait, born_time_ms=born_time_ms, born_host=born_host, partition_key=partition_key, delay=delay,
                deliver_at=deliver_at,
            ))
        # A concurrent put, from another thread or a signal handler, must not use the same draft.
        draft = self.spare
        self.spare = None
        if draft is None:
            draft = Draft.__new__(Draft)
        draft.fill(appender.encoder, topic, body, queue, tag, keys, properties, flag, born_time_ms, born_host)
        receipt = appender.append(draft, wait)
        draft.let_go()
        self.spare = draft
        return receipt


cdef class BatchProducer:
    """A batch that is filled by `put`: see `penstock.store.batches`. Thread-safe if the subclass uses `_hold`."""

    cdef Batch batch
    cdef Appender appender
    cdef int64_t room
    cdef Py_ssize_t holds
    # Whether a message requests to wait until it is durable.
    cdef public bint _waits

    def _produce_into(self, Batch batch not None, Appender appender not None, int64_t room):
        """Put into a batch, up to `room` bytes of records, while the appender takes messages."""
        self.batch, self.appender, self.room = batch, appender, room

    def _hold(self):
        """Make `put` call `add`, until `_release` was called as often."""
        self.holds += 1

    def _release(self):
        """See `_hold`."""
        self.holds -= 1

    def add(self, message):
        """Add a message that `put` does not add by itself, or refuse it."""
        raise NotImplementedError

    def put(self, topic, body, *, queue=None, tag="", keys=(), properties=None, flag=0, delay_level=0, wait=True,
            born_time_ms=None, born_host=None, partition_key=None, delay=0, deliver_at=None):
        """Add a message that is born now; see `Message` for the arguments. If this raises, nothing was added."""
        cdef Batch batch = self.batch
        cdef Appender appender = self.appender
        cdef RecordEncoder encoder
        cdef Parts m
        cdef Span spans[KEYS_MAX]
        cdef QueueCursor cursor
        cdef int32_t number
        if (
            batch is not None and self.holds == 0 and appender.refusals == 0 and appender.open_page[0]
            and (wait is True or wait is False) and delay_level is ZERO and partition_key is None
            and delay is ZERO and deliver_at is None
            and born_host is None and type(body) is bytes and PyBytes_GET_SIZE(body) < LONG_BYTES
        ):
            encoder = batch.encoder
            m.body = span_of(encoder.body(body))
            held = encoder.text(&m, spans, tag, keys, properties)
            m.flag = 0 if flag is ZERO else <int32_t>whole(flag, INT32_MIN, INT32_MAX, "flag")
            m.sys_flag = m.reconsume = 0
            m.prepared, m.born_host.n = 0, 0
            if born_time_ms is None:
                m.born_ms = encoder.now_ms()
            else:
                m.born_ms = whole(born_time_ms, INT64_MIN, INT64_MAX, "born_time_ms")
            cursor = encoder.cursor(topic, queue)
            # What was called above may have let another thread run. From here on, none does.
            if self.holds == 0:
                number = batch.number_of(cursor)
                batch.check_free()
                batch.put(&m, number)
                if batch.data.n <= self.room:
                    self._waits = self._waits or wait is True
                    return
                batch.shorten(len(batch) - 1)
        self.add(Message(
            topic, body, queue=queue, tag=tag, keys=keys, properties=properties, flag=flag,
            delay_level=delay_level, wait=wait, born_time_ms=born_time_ms, born_host=born_host,
            partition_key=partition_key, delay=delay, deliver_at=deliver_at,
        ))


def store_records(memory, int64_t position, data, sizes):
    """Copy complete records into a file's memory; each record's size is written last: no partial record is valid.

    Args:
        memory: the file's memory, writable.
        position: where the first record begins in it.
        data: the records, one after the other.
        sizes: the size of each record (any sequence); together the size of `data`.
    """
    cdef Held target = Held(memory, True)
    cdef Held source = Held(data)
    cdef int64_t at = 0, size
    if position < 0 or source.view.len > target.view.len - position:
        raise ValueError("the memory is too small for the records")
    for each in sizes:
        size = each
        if size < 0 or size > source.view.len - at:
            raise ValueError("the sizes do not match the records")
        record_copy(<uint8_t *>target.view.buf + position + at, <const uint8_t *>source.view.buf + at, size)
        at += size
    if at != source.view.len:
        raise ValueError("the sizes do not match the records")
