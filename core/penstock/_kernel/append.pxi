# The end of the log: the lock that orders appends, and the one step that puts a record there.

cdef enum:
    # Who waits for the append lock looks up so often, for signals and for the limit.
    NAP_NS = 50_000_000
    STARVING_NS = 20_000_000


@cython.final
cdef class AppendLock:
    """The one lock that orders appends, with figures of its own and a limit to waiting.

    A record that goes straight into mapped memory needs no lock: between the look at the log's end and the
    assignment of the new one no Python runs, and nothing lets another thread have the interpreter. This is for all
    that may let others run meanwhile: a roll, a channel's write, a batch.

    Whoever finds it taken waits without the interpreter's lock; when one holder keeps it for longer than the limit,
    those who wait are turned away with `BusyError`, so that callers slow down instead of piling up (RocketMQ's "page
    cache busy", spec section 7.1). The thread that holds it is refused at once: it can only be a signal handler, a
    finaliser or a log handler that interrupted an append.

    An interrupt (Ctrl-C) may come right after it was taken: its handler asks `is_owned`.
    """

    cdef unsigned long owner
    # Python's numbers: a clock that is handed in may say anything.
    cdef object since_ns, limit_ns, longest_ns, now_ns
    cdef readonly int64_t waits, refused
    cdef int32_t turns
    cdef int64_t waiting, starving

    def __cinit__(self, int64_t limit_ms, now_ns):
        """`now_ns()` tells nanoseconds that never go back."""
        self.limit_ns, self.now_ns, self.since_ns, self.longest_ns = limit_ms * 1_000_000, now_ns, 0, 0

    cpdef bint is_owned(self) noexcept:
        """Say whether this thread holds it."""
        return self.owner != 0 and self.owner == PyThread_get_thread_ident()

    def refuse_within(self):
        """Raise if this very thread is within an append: a signal handler may not begin another."""
        if self.is_owned():
            self._refuse("an append that this thread interrupted has been under way", 0)

    cdef _refuse(self, str what, held_ns):
        from penstock.errors import BusyError
        self.refused += 1
        raise BusyError(what, held_ns // 1_000_000)

    cdef inline bint is_free(self) noexcept:
        """Say whether a thread that comes now may go on: nobody holds it, or has waited for it for long."""
        return self.owner == 0 and self.starving == 0

    cdef int wait(self, bint for_ever) except -1:
        """Return when nobody holds it; raises what `acquire` does.

        Whoever runs finds it free more often than who must be woken first. So from some time on a waiter
        goes first; not from the beginning, since each hand-over costs a switch of threads.
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
        """Sleep until it is given back, or for a short while."""
        cdef int32_t seen = self.turns
        self.waiting += 1
        with nogil:
            futex_wait(&self.turns, seen, NAP_NS)
        self.waiting -= 1
        return PyErr_CheckSignals()

    def acquire(self, *, bint for_ever=False):
        """Take it; `BusyError` when one other holds it for longer than the limit, unless `for_ever`."""
        cdef unsigned long me = PyThread_get_thread_ident()
        if not self.is_free():
            self.wait(for_ever)
        # Nothing ran since.
        self.owner = me
        self.since_ns = self.now_ns()

    def release(self):
        """Give it back, and note how long it was held."""
        held_ns = self.now_ns() - self.since_ns
        if held_ns > self.longest_ns:
            self.longest_ns = held_ns
        self.owner, self.since_ns = 0, 0
        self.turns += 1
        if self.waiting:
            # One who was woken may have to let another go first, who sleeps.
            futex_wake(&self.turns, INT32_MAX if self.starving else 1)

    def __enter__(self):
        self.acquire()

    def __exit__(self, *_):
        self.release()

    def stats(self):
        """Return how often somebody waited, or was turned away, and the longest hold in microseconds."""
        return {"waits": self.waits, "refused": self.refused, "longest_hold_us": self.longest_ns // 1000}


@cython.final
cdef class Extent:
    """How far a segment is written, and how far that was handed to the system; bytes from its start."""

    cdef public int64_t wrote, committed

    def __cinit__(self, int64_t position):
        self.wrote = self.committed = position

    def commit_to(self, int64_t position):
        """Note that all before a position was handed over; the thread that syncs may have done more by now."""
        move_up(&self.committed, position)


@cython.final
cdef class Draft:
    """One message on its way into the log, all of it converted, and held by this or by who puts it."""

    cdef Parts parts
    cdef Span spans[KEYS_MAX]
    # What the parts lead into, beside what the caller's arguments are.
    cdef object body, texts, host
    cdef readonly QueueCursor cursor
    cdef readonly int64_t size
    cdef int64_t text
    cdef bint has_born

    cdef int fill(self, RecordEncoder encoder, topic, body, queue, tag, keys, properties, flag, delay_level, born_time_ms,
                  born_host) except -1:
        cdef Parts *m = &self.parts
        cdef bytes own_body = encoder.body(body, delay_level)
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
        """Hold nothing more of the message, which was put, and be none."""
        self.body = self.texts = self.host = self.cursor = None

    @property
    def log_offset(self):
        """Where it was put, or would have been."""
        return self.parts.log_offset

    cdef inline void place(self, int64_t log_offset, int64_t now_ms) noexcept nogil:
        self.parts.log_offset, self.parts.store_ms = log_offset, now_ms
        if not self.has_born:
            self.parts.born_ms = now_ms

    def encode(self, int64_t log_offset, int64_t now_ms):
        """Return the record's bytes, with the cursor's next queue offset."""
        cdef bytes made
        if self.cursor is None:
            raise ValueError("a draft without a message")
        made = PyBytes_FromStringAndSize(NULL, self.size)
        self.place(log_offset, now_ms)
        self.parts.queue_offset = self.cursor.next_offset
        record_write(<uint8_t *>PyBytes_AS_STRING(made), &self.parts, self.size, self.text)
        return made


@cython.final
cdef class Appender:
    """The end of the log as single puts see it. Safe from any thread.

    Attributes:
        last_time_ms: no record is later than that, and no next one earlier.
        refusals: reasons (bits) for which puts ask first whether they may: see `refuse`.
        is_idle: the tail follower sleeps until it is woken.
        is_pausing: it looks again by itself.
    """

    cdef readonly RecordEncoder encoder
    cdef AppendLock lock
    cdef public int64_t last_time_ms
    # The thread that syncs sets one too.
    cdef readonly int refusals
    cdef public bint is_idle, is_pausing
    cdef object append_slowly, settle, accepted, durability
    cdef bint settles
    # Where puts that wait for the disk do so; None where the flush policy is asked.
    cdef SyncGate gate
    cdef int64_t timeout_ms
    cdef tuple on_disk, late
    cdef object on_durable
    # Of the segment being written, where stores into its memory are allowed: below `end`.
    cdef Held held
    cdef uint8_t *memory
    # Where they are gathered instead.
    cdef GatherBuffer gathered
    cdef Extent extent
    cdef int64_t base_offset, capacity, end
    # A page that a forked child finds empty.
    cdef uint8_t *open_page

    def __cinit__(self, RecordEncoder encoder not None, AppendLock lock not None, append_slowly):
        """`append_slowly(draft)` puts one record under the lock, by a roll or a channel's write; returns where it went."""
        self.encoder, self.lock, self.append_slowly = encoder, lock, append_slowly
        self.open_page = page_of_this_process()
        if self.open_page is NULL:
            raise MemoryError
        self.refusals, self.is_idle, self.is_pausing = 0, True, True

    def refuse(self, int reason):
        """Let puts ask before anything else whether they may; until `allow` is called with the same reason."""
        set_bits(&self.refusals, reason)

    def allow(self, int reason):
        """Take a reason back."""
        keep_bits(&self.refusals, ~reason)

    def __dealloc__(self):
        if self.open_page is not NULL:
            give_page_back(self.open_page)

    @property
    def is_in_child(self):
        """Whether this is a child of the process that opened the store, however it was forked."""
        return self.open_page[0] == 0

    def connect(self, settle, accepted, durability, *, bint settles):
        """Say what follows a put.

        Args:
            settle: called with the log's end behind the record and the caller's `wait`; returns status and durability.
            accepted: the status of a put that nothing follows, and `durability` its durability.
            settles: whether `settle` is called at all, or only while the follower is idle.
        """
        self.settle, self.accepted, self.durability, self.settles = settle, accepted, durability, settles

    def wait_at(self, SyncGate gate, int64_t timeout_ms, tuple on_disk not None, tuple late not None, on_durable):
        """Let puts that wait for the disk wait there, and ask `settle` only about what else follows a put.

        Args:
            gate: the gate; None for `settle` in every case.
            timeout_ms: how long they wait at most.
            on_disk: status and durability of a put that was synced; `late` those of one whose time has passed.
            on_durable: called after such a sync, if the follower does not look by itself.
        """
        self.gate, self.timeout_ms, self.on_disk, self.late = gate, timeout_ms, on_disk, late
        self.on_durable = on_durable

    def attach(self, Extent extent not None, int64_t base_offset, int64_t capacity, memory=None, int64_t end=0,
               GatherBuffer gathered=None):
        """Go on in a segment; under the lock.

        Args:
            extent: how far it is written; moved by each put.
            base_offset: where it begins.
            capacity: how many bytes it can hold.
            memory: what lies in the file, writable; None where records go by the channel's `write`.
            end: stores into the memory are allowed below this position.
            gathered: where records wait for their write instead, below `end`.
        """
        cdef Held held = None
        if memory is not None:
            held = Held(memory, True)
            if held.view.len < min(end, capacity):
                raise ValueError("less memory than the segment has")
        self.memory = NULL if held is None else <uint8_t *>held.view.buf
        self.held, self.extent, self.base_offset, self.capacity = held, extent, base_offset, capacity
        self.gathered = gathered
        self.end = min(end, capacity)

    def pause(self):
        """Let the next record go by the slow way, which asks the channel anew; from any thread, at any time."""
        self.end = 0

    def detach(self):
        """Let go of the segment; under the lock."""
        self.memory, self.held, self.gathered, self.extent = NULL, None, None, None

    cdef bint store(self, Draft draft, int64_t now_ms) noexcept nogil:
        """Put a record into the segment's memory, or where it is gathered; False where it has no room, or may not go there.

        No Python object is touched but those that the draft and this hold; nothing here can fail half way.
        """
        cdef int64_t position
        cdef uint8_t *at = NULL
        cdef bint is_gathered = self.gathered is not None
        if self.memory is NULL and not is_gathered:
            return False
        position = self.extent.wrote
        if draft.size > self.end - position or draft.size > self.capacity - position - 8:
            return False
        if is_gathered:
            at = gathered_place(&self.gathered.state, position, draft.size)
            if at is NULL:
                return False
        else:
            at = self.memory + position
        if now_ms < self.last_time_ms:
            now_ms = self.last_time_ms
        draft.place(self.base_offset + position, now_ms)
        draft.parts.queue_offset = draft.cursor.next_offset
        record_write(at, &draft.parts, draft.size, draft.text)
        draft.cursor.next_offset += 1
        self.last_time_ms = now_ms
        self.extent.wrote = position + draft.size
        if is_gathered:
            gathered_placed(&self.gathered.state)
        else:
            self.extent.committed = position + draft.size
        return True

    cdef tuple known(self, int64_t end_offset, int64_t store_ms, bint wait):
        """Return status and durability of a put, after what follows it."""
        cdef Wanted target
        cdef GateOutcome outcome
        if not wait or self.gate is None or self.is_idle:
            return self.settle(end_offset, wait)
        target.end, target.newest_ms, target.latest_ms, target.checks = end_offset, store_ms, store_ms, True
        outcome = self.gate.wait_until(&target, self.timeout_ms)
        if outcome == GATE_FLUSHED:
            if not self.is_pausing:
                self.on_durable()
            return self.on_disk
        # It knows what the store has failed with.
        return self.late if outcome == GATE_LATE else self.settle(end_offset, wait)

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
        made.log_offset, made.queue, made.queue_offset = draft.parts.log_offset, draft.parts.queue, draft.parts.queue_offset
        made.store_time_ms, made.size = draft.parts.store_ms, <int32_t>draft.size
        made.store_host, made.status, made.durability = self.encoder.store_host, self.accepted, self.durability
        if self.settles or self.is_idle:
            made.status, made.durability = self.known(made.log_offset + made.size, made.store_time_ms, wait)
        return made


cdef class Producer:
    """The putting half of a store: see `penstock.store.store`."""

    cdef Appender appender
    # The draft of the last put, for the next one.
    cdef Draft spare

    def _produce_by(self, Appender appender):
        """Append by this; None for a store that takes no messages."""
        self.appender = appender

    def _check_writable(self):
        """Raise if messages may not be put now."""
        raise NotImplementedError

    def put(self, topic, body, *, queue=0, tag="", keys=(), properties=None, flag=0, delay_level=0, bint wait=True,
            born_time_ms=None, born_host=None):
        """Append one message and return its receipt; see `Message` for the arguments.

        Under a flush policy that waits, returns when the message is on disk, or when the policy's
        time-out has passed: then the status is `FLUSH_DISK_TIMEOUT`, and the message may become
        durable yet. Raises `MessageError` for a message that cannot be stored, `DiskFullError`
        when there is no room, `StoreFailedError` once a sync has failed.
        """
        cdef Appender appender = self.appender
        cdef Draft draft
        cdef Receipt receipt
        if appender is None or appender.refusals or appender.open_page[0] == 0:
            self._check_writable()
        if appender is None:
            raise ValueError("a store that takes no messages")
        # A put meanwhile, from another thread or a signal handler, finds none.
        draft = self.spare
        self.spare = None
        if draft is None:
            draft = Draft.__new__(Draft)
        draft.fill(appender.encoder, topic, body, queue, tag, keys, properties, flag, delay_level, born_time_ms, born_host)
        receipt = appender.append(draft, wait)
        draft.let_go()
        self.spare = draft
        return receipt


def store_records(memory, int64_t position, data, sizes):
    """Copy whole records into a file's memory, each so that none counts before all of it is there.

    Args:
        memory: the file's, writable.
        position: where the first begins in it.
        data: the records, one behind the other.
        sizes: the size of each (any sequence), of `data` in all.
    """
    cdef Held target = Held(memory, True)
    cdef Held source = Held(data)
    cdef int64_t at = 0, size
    if position < 0 or source.view.len > target.view.len - position:
        raise ValueError("less memory than the records need")
    for each in sizes:
        size = each
        if size < 0 or size > source.view.len - at:
            raise ValueError("sizes of other records")
        record_copy(<uint8_t *>target.view.buf + position + at, <const uint8_t *>source.view.buf + at, size)
        at += size
    if at != source.view.len:
        raise ValueError("sizes of other records")
