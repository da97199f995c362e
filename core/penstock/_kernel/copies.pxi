# Puts that wait for copies of the log: the bell that a replicator hears, and the gate at which puts wait. And frames of
# bytes that processes send to each other: length:u32  kind:u8  head_crc:u32  crc:u32  payload[length], big-endian. The
# first CRC-32C is that of length and kind, the second one that of length, kind and payload.

cdef enum:
    KIND_AT = 4
    CRCS_AT = 5
    HEAD_BYTES = 13
    # The kind of a frame of a log's bytes: "D".
    LOG_BYTES = 68


def frame(bytes kind not None, bytes payload not None, more=b"", *, bint is_apart=False):
    """Return the frame of a payload, of which a second part may be given by itself; `kind` is one byte.

    With `is_apart` the second part is left out: it is sent by itself, after what is returned.
    """
    cdef Held held = Held(more)
    cdef Span first = span_of(payload), second = held.span()
    cdef bytes made = PyBytes_FromStringAndSize(NULL, HEAD_BYTES + first.n + (0 if is_apart else second.n))
    cdef uint8_t *p = <uint8_t *>PyBytes_AS_STRING(made)
    cdef uint32_t crc
    if PyBytes_GET_SIZE(kind) != 1 or first.n + second.n > INT32_MAX:
        raise ValueError("a frame's kind is one byte, and its payload below 2 GiB")
    put32(p, <uint32_t>(first.n + second.n))
    p[KIND_AT] = <uint8_t>kind[0]
    crc = crc32c_more(0, p, CRCS_AT)
    put32(p + CRCS_AT, crc)
    put32(p + CRCS_AT + 4, crc32c_more(crc32c_more(crc, first.p, first.n), second.p, second.n))
    p = put_span(p + HEAD_BYTES, first)
    if not is_apart:
        put_span(p, second)
    return made


def frame_end(data, int64_t start, dict limits not None):
    """Return where the frame that begins at `start` ends: after the data's end if it, or its head, is not whole.

    Returns -1 if its length or kind was changed on the way; -2 if `limits`, the greatest length of a payload by kind,
    do not allow it; -3 if it is whole, and was changed.
    """
    cdef Held held = Held(data)
    cdef Span span = held.span()
    cdef const uint8_t *p
    cdef int64_t length
    cdef uint32_t crc
    if not 0 <= start <= span.n:
        raise ValueError("the frame begins outside of the data")
    if span.n - start < HEAD_BYTES:
        return start + HEAD_BYTES
    p = span.p + start
    crc, length = crc32c_more(0, p, CRCS_AT), <uint32_t>get32(p)
    if crc != <uint32_t>get32(p + CRCS_AT):
        return -1
    if length > <int64_t>limits.get(PyBytes_FromStringAndSize(<const char *>p + KIND_AT, 1), -1):
        return -2
    if length <= span.n - start - HEAD_BYTES:
        if length < LONG_BYTES:
            crc = crc32c_more(crc, p + HEAD_BYTES, length)
        else:
            with nogil:
                crc = crc32c_more(crc, p + HEAD_BYTES, length)
        if crc != <uint32_t>get32(p + CRCS_AT + 4):
            return -3
    return start + HEAD_BYTES + length


def whole_end(data, int64_t most):
    """Return where the last whole record or filler ends of those with which some bytes begin, at most `most` of them.

    Only their sizes are looked at. Returns 0 if there is no whole one.
    """
    cdef Held held = Held(data)
    cdef Span span = held.span()
    cdef int64_t at = 0, size
    cdef int32_t magic
    if most < span.n:
        span.n = most
    while span.n - at >= 8:
        size, magic = get32(span.p + at), get32(span.p + at + 4)
        if not 8 <= size <= span.n - at or not (magic == MAGIC_V1 or magic == MAGIC_V2 or magic == MAGIC_BLANK):
            break
        at += size
    return at


cdef int64_t whole_frame(const uint8_t *p, int64_t room, uint8_t kind, int64_t most) noexcept nogil:
    """Return how many bytes the payload of the frame that begins here has; -1 if it is not whole, or was changed.

    So it is if the frame is of another kind, or its payload has more bytes than `most`: then it is not looked at.
    """
    cdef int64_t length
    cdef uint32_t crc
    if room < HEAD_BYTES:
        return -1
    length, crc = <uint32_t>get32(p), crc32c_more(0, p, CRCS_AT)
    if p[KIND_AT] != kind or length > most:
        return -1
    if crc != <uint32_t>get32(p + CRCS_AT) or length > room - HEAD_BYTES:
        return -1
    crc = crc32c_more(crc, p + HEAD_BYTES, length)
    return length if crc == <uint32_t>get32(p + CRCS_AT + 4) else -1


cdef int64_t whole_records(Span data, int64_t log_offset, int64_t size_max, const Checks *checks) noexcept nogil:
    """Return the newest store time of whole, valid records without marks of a batch; -1 if they are not just that."""
    cdef int64_t at = 0, newest_ms = 0
    cdef Record row
    while at < data.n:
        if record_parse(data.p + at, data.n - at, &row) != RECORD_OK or row.size > size_max or row.prepared < 0:
            return -1
        if not is_valid_at(data.p + at, &row, log_offset + at, checks):
            return -1
        newest_ms, at = max(newest_ms, row.store_ms), at + row.size
    return newest_ms


@cython.final
cdef class Bell:
    """Wakes an event loop when a log has advanced; see `penstock.contracts.LogBell`. Safe from any thread."""

    cdef int descriptor

    def __cinit__(self):
        self.descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        if self.descriptor < 0:
            raise_system_error(errno)

    def __dealloc__(self):
        if self.descriptor >= 0:
            close(self.descriptor)

    def fileno(self):
        """Return a file descriptor that is readable after a ring."""
        return self.descriptor

    cpdef ring(self):
        """Make the descriptor readable."""
        ring_bell(self.descriptor)

    def answer(self):
        """Make the descriptor unreadable; call it before looking at what has changed."""
        cdef uint64_t count
        # EAGAIN: nobody has rung.
        read(self.descriptor, &count, sizeof(count))


@cython.final
cdef class CopyGate:
    """Makes puts wait until enough copies have their bytes. Safe from any thread, and takes no lock.

    Attributes:
        bell: rings when a put waits, and when one has timed out.
        reached: enough distinct stores have every byte of the log before it.
        missed: the end of the last put that timed out; 0 if none has.
    """

    cdef readonly Bell bell
    cdef readonly int64_t reached, missed
    cdef bint is_available, has_ended
    cdef int32_t turns
    cdef int64_t waiting, timeout_ms
    cdef tuple copied, late, lacking
    cdef object look

    def __cinit__(self, Bell bell not None):
        self.bell = bell

    def connect(self, int64_t timeout_ms, tuple copied not None, tuple late not None, tuple lacking not None,
                look=None):
        """Set how puts wait.

        Args:
            timeout_ms: the maximum wait.
            copied: status and durability of a put that enough copies have; `late` those of a put that timed out, and
                `lacking` those of a put that did not wait, because too few copies were in sync.
            look: called in place of a wait, after which the put is late, in a store without threads; None to wait.
        """
        self.timeout_ms, self.copied, self.late, self.lacking = timeout_ms, copied, late, lacking
        self.look = look

    def reach(self, int64_t log_offset, bint available, int64_t missed):
        """Note the progress of the copies; see `penstock.contracts.ReplicatedLog.reach`."""
        # A put that has timed out since the judgement was made is not known to it.
        self.is_available = available and missed >= self.missed and not self.has_ended
        if log_offset > self.reached:
            self.reached = log_offset
            self.turns += 1
            if self.waiting:
                futex_wake(&self.turns, INT32_MAX)

    def end(self):
        """Let no put wait any more: the replicator has ended. Puts that wait are late at once."""
        self.has_ended, self.is_available = True, False
        self.turns += 1
        futex_wake(&self.turns, INT32_MAX)

    @property
    def available(self):
        """Whether a put may wait: enough copies are in sync, and no put has timed out since that was judged."""
        return self.is_available

    cpdef tuple wait(self, int64_t end):
        """Return status and durability of a put that ends at a log offset, once they are known."""
        if self.reached >= end:
            return self.copied
        if not self.is_available:
            return self.lacking
        if self.wait_until(end, clock_ns() + self.timeout_ms * 1_000_000):
            return self.copied
        return self.miss(end)

    cdef bint wait_until(self, int64_t end, int64_t deadline_ns) except -1:
        """Wait for the copies; return whether they have reached `end`. Signal handlers run meanwhile."""
        cdef int32_t seen
        cdef int64_t left_ns
        if self.look is not None:
            self.look()
            return self.reached >= end
        self.bell.ring()
        self.waiting += 1
        try:
            while True:
                # Read before the condition: whoever changes that changes this as well, which ends the sleep.
                seen, left_ns = self.turns, deadline_ns - clock_ns()
                if self.reached >= end:
                    return True
                if self.has_ended or left_ns <= 0:
                    return False
                with nogil:
                    futex_wait(&self.turns, seen, min(left_ns, <int64_t>SLICE_NS))
                PyErr_CheckSignals()
        finally:
            self.waiting -= 1

    cpdef tuple miss(self, int64_t end):
        """Note that a put has timed out: later puts do not wait until the replicator has judged the copies anew."""
        if end > self.missed:
            self.missed, self.is_available = end, False
        self.bell.ring()
        return self.late
