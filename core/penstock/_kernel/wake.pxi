# Waiting for another thread or process: the wake word of system.h, in a file's memory.

cdef enum:
    # A signal that arrives just before the sleep does not end it, so signals are checked at this interval.
    SIGNALS_NS = 100_000_000


@cython.final
cdef class WakeWord:
    """A word in shared memory on which threads and processes sleep. Safe from any thread.

    The memory is accessed only through system calls, and the word is read from the file. So if the file is truncated
    meanwhile, an access returns an error instead of killing the process.
    """

    cdef Held held
    cdef int32_t *word
    cdef int32_t *aside
    cdef int file
    cdef int64_t position

    def __cinit__(self, memory, int64_t position, int64_t aside, int file=-1):
        """Use the words at two positions in writable shared memory; nobody may sleep on the word at `aside`.

        `file` is the descriptor of the mapped file, which must stay open while this object is used; -1 for memory that
        cannot be truncated.
        """
        self.file, self.position = file, position
        self.held = Held(memory, True)
        for each in (position, aside):
            if each < 0 or each % 4 or each > self.held.view.len - 4:
                raise ValueError("no word of this memory")
        self.word = <int32_t *>(<uint8_t *>self.held.view.buf + position)
        self.aside = <int32_t *>(<uint8_t *>self.held.view.buf + aside)

    def ask(self):
        """Request that the next wake changes the word. Raises `OSError` if the file was truncated."""
        cdef int error = wake_ask(self.word, self.aside)
        if error:
            raise OSError(error, "the wake word cannot be changed")

    def sleep(self, int32_t seen, int64_t at_most_ns):
        """Return True when the word is not `seen` or a wake comes, False after `at_most_ns` nanoseconds.

        Releases the GIL. Signal handlers run meanwhile, and their exceptions are raised here. Raises `OSError` if the
        file was truncated.
        """
        cdef int64_t until = clock_ns() + at_most_ns
        cdef int64_t left = at_most_ns
        cdef int error
        while left > 0:
            with nogil:
                error = wake_sleep(self.word, seen, min(left, <int64_t>SIGNALS_NS))
            if error == 0:
                return True
            PyErr_CheckSignals()
            if error != EINTR and error != ETIMEDOUT:
                raise OSError(error, "the wake word is gone: its file was truncated")
            left = until - clock_ns()
        return False

    def wake(self, *, bint always=False):
        """Wake all sleepers; return whether there were any. Makes no system call if nobody waits, unless `always`."""
        return wake_all(self.word, self.file, self.position, always) != 0

    def read(self):
        """Return the word; only for memory that cannot be truncated."""
        return self.word[0]
