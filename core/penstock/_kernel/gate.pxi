# Syncs of the log: records that gather for one write, and the thread that syncs for all who wait.

cdef enum:
    # Who waits looks up so often, for signals.
    SLICE_NS = 50_000_000

# What `SyncGate.wait` returns, and why a gate has failed.
FLUSHED, LATE = GATE_FLUSHED, GATE_LATE
WRITE, SYNC, GONE, LOST, MARK = FAILURE_WRITE, FAILURE_SYNC, FAILURE_GONE, FAILURE_LOST, FAILURE_MARK


cdef raise_system_error(int number):
    raise OSError(number, strerror(number).decode())


@cython.final
cdef class GatherBuffer:
    """Records that wait in memory for one write to their file. One who appends, any number who commit.

    A channel that has one puts records there, and its `commit` writes them: by `commit` of the descriptor, or, where the
    file has none, by a write of its own between `peek` and `drop`.
    """

    cdef Gathered state
    cdef readonly int32_t room

    def __cinit__(self):
        if not gathered_begin(&self.state):
            raise MemoryError
        self.room = GATHERED_BYTES

    def __dealloc__(self):
        gathered_end(&self.state)

    def put(self, int64_t position, data):
        """Take bytes that belong to a position of the file; False where they do not fit: then commit, or write them."""
        cdef Held held = Held(data)
        cdef uint8_t *at = gathered_place(&self.state, position, held.view.len)
        if at is NULL:
            return False
        memcpy(at, held.view.buf, held.view.len)
        gathered_placed(&self.state)
        return True

    def commit(self, int descriptor):
        """Write what waits. Raises `OSError` (EIO): then it is lost, and nothing more is taken."""
        cdef int error
        with nogil:
            error = gathered_commit(&self.state, descriptor)
        if error:
            raise OSError(EIO, f"what was gathered could not be written: {strerror(error).decode()}")

    def peek(self):
        """Return a position of the file, and a copy of the bytes that wait to be written there."""
        # Appended under the interpreter's lock, committed otherwise by `commit` only.
        self.state.rewritten = INT64_MAX
        return self.state.start, PyBytes_FromStringAndSize(<const char *>self.state.bytes, self.state.count)

    def drop(self, int64_t stop):
        """Forget what is in the file now, up to a position of it; but not what was appended again since `peek`."""
        gathered_drop(&self.state, stop)


@cython.final
@cython.no_gc_clear
cdef class SyncGate:
    """The thread that makes a store's log durable, for all who wait for it; see `gate.h`. Safe from any thread.

    It ends with `close`, or with this object. In a child of a fork there is none.
    """

    cdef Gate *gate
    cdef Appender appender
    # Whose memory and descriptors it uses: end offset to the parts of a segment.
    cdef dict parts
    cdef uint8_t *open_page

    def __cinit__(self):
        self.parts = {}

    def __init__(self, Appender appender not None, int refusal, int64_t flushed, int64_t flushed_ms, uint64_t sequence,
                 int mark_descriptor):
        """Begin with a log that is durable up to `flushed`.

        Args:
            appender: its puts are refused from a failure on, with the reason `refusal`.
            flushed: the log offset; `flushed_ms` is the store time of a record before it.
            sequence: number of the mark that was written last.
            mark_descriptor: of the file of marks; it is duplicated.
        """
        cdef int error, mark
        if self.gate is not NULL:
            raise RuntimeError("it has begun")
        self.open_page = page_of_this_process()
        if self.open_page is NULL:
            raise MemoryError
        mark = fcntl(mark_descriptor, F_DUPFD_CLOEXEC, 0)
        if mark < 0:
            raise_system_error(errno)
        self.gate = gate_new(flushed, flushed_ms, sequence, mark)
        if self.gate is NULL:
            close(mark)
            raise MemoryError
        self.appender = appender
        self.gate.refusals, self.gate.refusal = &appender.refusals, refusal
        error = gate_start(self.gate)
        if error:
            raise_system_error(error)

    def __dealloc__(self):
        if self.gate is not NULL and self.open_page is not NULL and self.open_page[0]:
            with nogil:
                gate_stop(self.gate)
                gate_release(self.gate)
        if self.open_page is not NULL:
            give_page_back(self.open_page)

    cdef Gate *here(self) except NULL:
        if self.gate is NULL or self.open_page[0] == 0:
            raise RuntimeError("there is no such thread in this process")
        return self.gate

    def cover(self, bytes ranges not None):
        """Say where records end in a CRC of their own: pairs of log offsets, native i64, ascending."""
        cdef Gate *gate = self.here()
        cdef Py_ssize_t size = PyBytes_GET_SIZE(ranges)
        cdef int64_t *own = <int64_t *>malloc(size + 1)
        if own is NULL:
            raise MemoryError
        memcpy(own, PyBytes_AS_STRING(ranges), size)
        with nogil:
            gate_cover(gate, own, <int32_t>(size // 16))

    def add(self, int64_t base_offset, int64_t capacity, int descriptor, view, bytes path not None, bytes folder not None,
            GatherBuffer gathered, Extent extent, owner):
        """Take in the next file of the log; does nothing for one that it has already.

        Args:
            base_offset: where it begins in the log; `capacity` is its size.
            descriptor: what is synced; `owner` keeps it open, and is held until the file is durable to its end.
            view: the file's bytes as readers see them.
            path: its name, which it must keep; `folder` is where that is.
            gathered: records that are not in the file yet; None where all are.
            extent: moved up as they are written.
        """
        cdef Gate *gate = self.here()
        cdef Held held = Held(view)
        cdef GateFile file
        cdef int error
        if held.view.len < capacity:
            raise ValueError("a view of less than the file")
        file.file, file.base, file.end = descriptor, base_offset, base_offset + capacity
        file.path, file.view, file.gathered = PyBytes_AS_STRING(path), <const uint8_t *>held.view.buf, NULL
        if gathered is not None:
            file.gathered = &gathered.state
            gathered.state.committed = &extent.committed
        file.folder = open(PyBytes_AS_STRING(folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        if file.folder < 0:
            raise_system_error(errno)
        known = self.parts.get(file.end)
        self.parts[file.end] = (held, gathered, extent, owner)
        error = gate_add(gate, file)
        if error:
            close(file.folder)
            if known is None:
                del self.parts[file.end]
            else:
                self.parts[file.end] = known
        # One that it has already: an interrupt came before the caller knew.
        if error and not (error == EEXIST and known is not None):
            raise_system_error(error)

    def forget(self):
        """Let go of the parts of files that are durable to their end."""
        cdef int64_t flushed = load_acquire(&self.gate.flushed)
        for end in [end for end in self.parts if end <= flushed]:
            del self.parts[end]

    cdef GateOutcome wait_until(self, const Wanted *target, int64_t timeout_ms) except *:
        """Wait, for ever if the time-out is negative; whoever runs meanwhile may be interrupted by a signal."""
        cdef Gate *gate = self.here()
        cdef int64_t now_ns = clock_ns()
        cdef int64_t deadline_ns = INT64_MAX if timeout_ms < 0 else now_ns + timeout_ms * 1_000_000
        cdef GateOutcome outcome
        while True:
            with nogil:
                outcome = gate_wait(gate, target, clock_ns() + SLICE_NS, deadline_ns)
            if outcome != GATE_AGAIN:
                return outcome
            PyErr_CheckSignals()

    def wait(self, int64_t end_offset, int64_t newest_ms, int64_t latest_ms, *, bint checks, int64_t timeout_ms=-1):
        """Return `FLUSHED` when the log is durable up to `end_offset`, `LATE` after the time-out, or `FAILED`.

        Args:
            end_offset: where a record ends, or the log.
            newest_ms: store time of a record before it.
            latest_ms: no record before it is later.
            checks: whether what was synced is read back first.
            timeout_ms: how long to wait; for ever if that is negative.
        """
        cdef Wanted target
        target.end, target.newest_ms, target.latest_ms, target.checks = end_offset, newest_ms, latest_ms, checks
        return <int>self.wait_until(&target, timeout_ms)

    def write_mark(self, bytes slot not None):
        """Write a mark whose flushed offset, times and number are known here."""
        cdef Gate *gate = self.here()
        cdef const uint8_t *bytes_ = <const uint8_t *>PyBytes_AS_STRING(slot)
        cdef int error
        if PyBytes_GET_SIZE(slot) != MARK_BYTES:
            raise ValueError("not a slot")
        with nogil:
            error = mark_state(gate, bytes_)
        if error:
            raise_system_error(error)

    def fail(self, int64_t log_offset):
        """Tell everybody that the store has failed, and that nothing from a log offset on is durable."""
        cdef Gate *gate = self.here()
        with nogil:
            gate_note_failure(gate, log_offset)

    @property
    def failure(self):
        """Why it has failed, what the system said, and the log offset; None if it has not."""
        cdef int failure = load_failure(&self.gate.failure), error = self.gate.error
        if not failure:
            return None
        return failure, f"[Errno {error}] {strerror(error).decode()}", self.gate.failed_at

    @property
    def flushed_offset(self):
        """Every byte of the log before it is durable."""
        return load_acquire(&self.gate.flushed)

    @property
    def flushed_time_ms(self):
        """Store time of a record before it."""
        return load_acquire(&self.gate.flushed_ms)

    @property
    def count(self):
        """How many syncs there were."""
        return load_acquire(&self.gate.syncs)

    @property
    def sequence(self):
        """The number of the mark that was written last."""
        return self.gate.sequence

    @property
    def since_ns(self):
        """When the sync that runs began, by the clock that never goes back; 0 between two."""
        return load_acquire(&self.gate.since_ns)

    def is_idle(self, int64_t timeout_ms=0):
        """Wait, at most so long, until no sync runs; return whether that is so."""
        cdef Gate *gate = self.gate
        cdef bint is_idle
        if self.open_page[0] == 0:
            return True
        with nogil:
            is_idle = gate_idle(gate, clock_ns() + timeout_ms * 1_000_000, False)
        return is_idle

    def close(self, int64_t timeout_ms=0):
        """End the thread; return whether it ended in time. It uses nothing more in any case."""
        cdef Gate *gate = self.gate
        cdef bint has_ended
        if self.open_page[0] == 0:
            return True
        with nogil:
            gate_stop(gate)
            has_ended = gate_idle(gate, clock_ns() + timeout_ms * 1_000_000, True)
        return has_ended
