# Puts that wait for copies of the log: the bell that a replicator hears, and the gate at which puts wait.


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
