# Syncs of the log: records that are gathered for one write, and the gate that syncs for all waiters.

cdef enum:
    # A waiting thread checks for signals at this interval.
    SLICE_NS = 50_000_000

# The results of `SyncGate.wait`, and the reasons why a gate has failed.
FLUSHED, LATE = GATE_FLUSHED, GATE_LATE
WRITE, SYNC, GONE, MARK = FAILURE_WRITE, FAILURE_SYNC, FAILURE_GONE, FAILURE_MARK


cdef raise_system_error(int number):
    raise OSError(number, strerror(number).decode())


@cython.final
cdef class GatherBuffer:
    """Records in memory that wait for one write to their file. One thread appends, any number may commit.

    A channel with such a buffer puts records there, and its `commit` writes them: with `commit` and the descriptor,
    or, if the file has none, with a write of its own between `peek` and `drop`.
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
        """Add bytes for a position of the file; return False if they do not fit: the caller commits, or writes them."""
        cdef Held held = Held(data)
        cdef uint8_t *at = gathered_place(&self.state, position, held.view.len)
        if at is NULL:
            return False
        memcpy(at, held.view.buf, held.view.len)
        gathered_placed(&self.state)
        return True

    def commit(self, int descriptor):
        """Write the waiting bytes. After an `OSError` (EIO) they are lost, and no more bytes are accepted."""
        cdef int error
        with nogil:
            error = gathered_commit(&self.state, descriptor)
        if error:
            raise OSError(EIO, f"gathered records could not be written: {strerror(error).decode()}")

    def peek(self):
        """Return a position of the file, and a copy of the bytes that wait to be written there."""
        # Safe: appends hold the GIL, and only `commit` removes bytes otherwise.
        self.state.rewritten = INT64_MAX
        return self.state.start, PyBytes_FromStringAndSize(<const char *>self.state.bytes, self.state.count)

    def drop(self, int64_t stop):
        """Drop bytes that are in the file now, up to a position; those appended again since `peek` are kept."""
        gathered_drop(&self.state, stop)


cdef int _call_sync(void *store, void *what, int64_t end) noexcept with gil:
    return (<SyncGate>store).call(<object>what, end, NULL)


cdef int _call_mark(void *store, const uint8_t *slot, int64_t position) noexcept with gil:
    return (<SyncGate>store).call((<SyncGate>store).write_slot, position, slot)


def is_sync_thread():
    """Return whether this is the thread of a gate, which calls functions of the store: it must not wait for a sync."""
    return is_gate_thread != 0


@cython.final
@cython.no_gc_clear
cdef class SyncGate:
    """Makes a store's log durable, for all waiters, in rounds; see `gate.h`. Safe from any thread.

    Once its thread was started, it must be closed. A forked child does not have the thread.
    """

    cdef Gate *gate
    cdef Appender appender
    # By end offset of a segment: the objects whose memory and descriptors the rounds use.
    cdef dict parts
    cdef uint8_t *open_page
    # Writes the progress file if that has no descriptor.
    cdef object write_slot
    # Requests a round, if there is no thread.
    cdef object wake
    # The exception for which a call of the store failed, and the one that cut it.
    cdef object raised, cut
    cdef bint has_thread

    def __cinit__(self):
        self.parts = {}

    def __init__(self, Appender appender not None, int refusal, int64_t flushed, int64_t flushed_ms):
        """Create a gate for a log that is durable up to `flushed`.

        Args:
            appender: after a failure, its puts are refused with the reason `refusal`.
            flushed: the log offset; `flushed_ms` is the store time of a record before it.
        """
        cdef GateCalls calls
        if self.gate is not NULL:
            raise RuntimeError("the gate was created already")
        self.open_page = page_of_this_process()
        if self.open_page is NULL:
            raise MemoryError
        calls.store, calls.sync, calls.mark = <void *>self, _call_sync, _call_mark
        self.gate = gate_new(flushed, flushed_ms, calls)
        if self.gate is NULL:
            raise MemoryError
        self.appender = appender
        self.gate.refusals, self.gate.refusal = &appender.refusals, refusal

    def start(self, uint64_t sequence, mark, wake=None, bytes slot=None):
        """Begin to sync.

        Args:
            sequence: the number of the progress file's slot that was written last.
            mark: the descriptor of the progress file, which is duplicated; or a function that writes a slot.
            wake: called to request that another thread, or this one, calls `run`; None to start a thread of the gate.
            slot: what to write of a failure before the first `write_mark`; without it, only the gate's own fields.
        """
        cdef Gate *gate = self.here()
        cdef int error
        if self.has_mark():
            raise RuntimeError("the gate was started already")
        gate.sequence = sequence
        if slot is not None:
            if PyBytes_GET_SIZE(slot) != MARK_BYTES:
                raise ValueError("the slot has the wrong size")
            memcpy(gate.slot, PyBytes_AS_STRING(slot), MARK_BYTES)
        if callable(mark):
            self.write_slot = mark
        else:
            gate.mark = fcntl(<int>mark, F_DUPFD_CLOEXEC, 0)
            if gate.mark < 0:
                raise_system_error(errno)
        self.wake = wake
        if wake is None:
            error = gate_start(gate)
            if error:
                raise_system_error(error)
            self.has_thread = True
            # The thread uses this object.
            Py_INCREF(self)

    def __dealloc__(self):
        if self.gate is not NULL and self.open_page is not NULL and self.open_page[0]:
            with nogil:
                gate_stop(self.gate)
                gate_release(self.gate)
        if self.open_page is not NULL:
            give_page_back(self.open_page)

    def ring(self, Bell bell not None):
        """Ring a bell after each sync from now on; call it before `start`."""
        # Of its own: the thread may outlive the bell.
        self.here().bell = fcntl(bell.descriptor, F_DUPFD_CLOEXEC, 0)
        if self.gate.bell < 0:
            raise_system_error(errno)

    cdef bint has_mark(self):
        return self.gate.mark >= 0 or self.write_slot is not None

    cdef Gate *here(self) except NULL:
        if self.gate is NULL or self.open_page[0] == 0:
            raise RuntimeError("the gate does not exist in this process")
        return self.gate

    cdef int call(self, function, int64_t at, const uint8_t *slot) noexcept:
        """Call a function of the store; return 0, an error number, or GATE_CUT."""
        try:
            if slot is NULL:
                function(at)
            else:
                function(PyBytes_FromStringAndSize(<const char *>slot, MARK_BYTES), at)
        except BaseException as error:
            # In the gate's thread nobody would get it.
            if not self.has_thread and not isinstance(error, Exception):
                self.cut = error
                return GATE_CUT
            if self.raised is None:
                self.raised = error
            return EIO
        return 0

    def run(self):
        """Run the rounds that are requested, in this thread; a gate that has a thread does nothing."""
        cdef Gate *gate = self.here()
        cdef int done = 1
        while self.wake is not None and done == 1:
            with nogil:
                done = gate_run_round(gate)
            if done == GATE_CUT:
                cut, self.cut = self.cut, None
                # Another thread may have taken it.
                if cut is not None:
                    raise cut
                done = 1

    def add(self, int64_t base_offset, int64_t capacity, int descriptor, bytes path not None, bytes folder not None,
            GatherBuffer gathered, Extent extent, owner):
        """Add the next file of the log; does nothing for a file that was added already.

        Args:
            base_offset: the file's first log offset; `capacity` is its size.
            descriptor: the descriptor to sync; `owner` keeps it open, and is held until the file is durable to its end.
            path: the file's name, which it must keep; `folder` is the folder of all files.
            gathered: the buffer of records that are not in the file yet; None if there is none.
            extent: its committed position is advanced when gathered records are written.
        """
        cdef Gate *gate = self.here()
        cdef GateFile file
        file.what = NULL
        file.file, file.base, file.end = descriptor, base_offset, base_offset + capacity
        file.path, file.gathered = PyBytes_AS_STRING(path), NULL
        if gathered is not None:
            file.gathered = &gathered.state
            gathered.state.committed = &extent.committed
        if gate.folder < 0:
            gate.folder = open(PyBytes_AS_STRING(folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC)
            if gate.folder < 0:
                raise_system_error(errno)
        self.add_file(file, (gathered, extent, owner))

    def add_by(self, int64_t base_offset, int64_t capacity, sync not None):
        """Add the next file of the log, like `add`; `sync`, called with a log offset, makes it durable up to there."""
        cdef GateFile file
        file.what, file.path, file.gathered = <void *>sync, NULL, NULL
        file.base, file.end = base_offset, base_offset + capacity
        self.add_file(file, sync)

    cdef int add_file(self, GateFile file, used) except -1:
        """Add a file, and hold the objects that it uses."""
        cdef Gate *gate = self.here()
        cdef int error
        known = self.parts.get(file.end)
        self.parts[file.end] = used
        with nogil:
            error = gate_add(gate, file)
        if error and known is None:
            del self.parts[file.end]
        elif error:
            self.parts[file.end] = known
        # Added already: an interrupt came before the caller noted that.
        if error and not (error == EEXIST and known is not None):
            raise_system_error(error)
        return 0

    def forget(self):
        """Release the objects of files that are durable to their end."""
        cdef int64_t flushed = load_acquire(&self.gate.flushed)
        for end in [end for end in self.parts if end <= flushed]:
            del self.parts[end]

    cdef GateOutcome wait_until(self, const Wanted *target, int64_t timeout_ms, bint runs=False) except *:
        """Wait, without limit if the time-out is negative; signal handlers run meanwhile. See `wait`."""
        cdef Gate *gate = self.here()
        cdef int64_t now_ns = clock_ns()
        cdef int64_t deadline_ns = INT64_MAX if timeout_ms < 0 else now_ns + timeout_ms * 1_000_000
        cdef GateOutcome outcome
        while True:
            if self.wake is not None:
                with nogil:
                    gate_ask(gate, target)
                if runs:
                    self.run()
                else:
                    self.wake()
            with nogil:
                outcome = gate_wait(gate, target, clock_ns() + SLICE_NS, deadline_ns)
            if outcome != GATE_AGAIN:
                return outcome
            PyErr_CheckSignals()

    def wait(self, int64_t end_offset, int64_t newest_ms, int64_t latest_ms, int64_t timeout_ms=-1, *, bint runs=False):
        """Request a sync; return `FLUSHED` once the log is durable to `end_offset`, `LATE` on time-out, or `FAILED`.

        Args:
            end_offset: the end of a record, or of the log.
            newest_ms: store time of a record before `end_offset`.
            latest_ms: no record before `end_offset` has a later store time.
            timeout_ms: how long to wait; without limit if negative.
            runs: run the rounds in this thread, unless the gate has a thread.
        """
        cdef Wanted target
        target.end, target.newest_ms, target.latest_ms = end_offset, newest_ms, latest_ms
        return <int>self.wait_until(&target, timeout_ms, runs)

    def write_mark(self, bytes slot not None):
        """Write a slot of the progress file; its flushed offset, time and number are filled in by the gate."""
        if PyBytes_GET_SIZE(slot) != MARK_BYTES:
            raise ValueError("the slot has the wrong size")
        self.mark(<const uint8_t *>PyBytes_AS_STRING(slot), 0)

    def mark_visible(self, int64_t visible_offset):
        """Write the last slot of `write_mark` again with another visible offset, which must be at byte 24 of a slot."""
        self.mark(NULL, visible_offset)

    cdef int mark(self, const uint8_t *slot, int64_t visible_offset) except -1:
        cdef Gate *gate = self.here()
        cdef int error = 0
        cdef int64_t position
        with nogil:
            mark_begin(gate, slot, visible_offset)
            if gate.mark >= 0:
                error = mark_write(gate)
                mark_end(gate)
        if gate.mark < 0:
            try:
                position = mark_fill(gate)
                self.write_slot(PyBytes_FromStringAndSize(<const char *>gate.slot, MARK_BYTES), position)
            except BaseException:
                mark_failed(gate)
                raise
            finally:
                mark_end(gate)
        if error:
            raise_system_error(error)
        return 0

    def fail(self, int64_t log_offset):
        """Notify all waiters that the store has failed, and that nothing from a log offset on is durable.

        Raises `OSError`, after all that, if the progress file could not be written.
        """
        cdef Gate *gate = self.here()
        with nogil:
            gate_note_failure(gate, log_offset)
        try:
            if self.has_mark():
                self.mark(NULL, -1)
        finally:
            with nogil:
                gate_tell_failure(gate)

    @property
    def failure(self):
        """The kind of the failure, and the error; None if there is no failure."""
        cdef int failure = load_failure(&self.gate.failure), error = self.gate.error
        if not failure:
            return None
        return failure, OSError(error, strerror(error).decode()) if self.raised is None else self.raised

    @property
    def flushed_offset(self):
        """Every byte of the log before it is durable."""
        return load_acquire(&self.gate.flushed)

    @property
    def flushed_time_ms(self):
        """Store time of a record before the flushed offset."""
        return load_acquire(&self.gate.flushed_ms)

    @property
    def count(self):
        """How many syncs have succeeded."""
        return load_acquire(&self.gate.syncs)

    @property
    def sequence(self):
        """The number of the progress file's slot that was written last."""
        return self.gate.sequence

    @property
    def since_ns(self):
        """When the current sync began, by the monotonic clock; 0 if none is running."""
        return load_acquire(&self.gate.since_ns)

    def await_sync(self, int64_t began_ns, int64_t timeout_ms=0):
        """Wait until the sync that began at `began_ns` has ended, up to the time-out; return whether it has.

        Args:
            began_ns: the value that `since_ns` had while the sync was running. Later syncs are not waited for.
        """
        cdef Gate *gate = self.gate
        cdef bint has_ended
        if self.open_page[0] == 0:
            return True
        with nogil:
            has_ended = gate_await_sync(gate, began_ns, clock_ns() + timeout_ms * 1_000_000)
        return has_ended

    def close(self, int64_t timeout_ms=0):
        """End the thread; return whether it ended in time. It never accesses the store's memory any more."""
        cdef Gate *gate = self.gate
        cdef bint has_ended
        if self.open_page[0] == 0:
            return True
        with nogil:
            gate_stop(gate)
            has_ended = gate_await_end(gate, clock_ns() + timeout_ms * 1_000_000)
        if has_ended and self.has_thread:
            self.has_thread = False
            Py_DECREF(self)
        return has_ended
