# Waiting for a fact that another thread or process makes true: the wake word of system.h, in a file's memory.

cdef enum:
    # A signal that comes just before the sleep does not end it: so often one looks for signals.
    SIGNALS_NS = 100_000_000


@cython.final
cdef class WakeWord:
    """A word in shared memory on which threads and processes sleep. Safe from any thread.

    Nobody stores into the memory or reads it, but has the system do it, and reads the file: memory of a file that is cut
    short meanwhile answers with an error then.
    """

    cdef Held held
    cdef int32_t *word
    cdef int32_t *aside
    cdef int file
    cdef int64_t position

    def __cinit__(self, memory, int64_t position, int64_t aside, int file=-1):
        """Take the words at two positions in writable shared memory; nobody may sleep on the one `aside`.

        `file` is a descriptor of the file in whose memory they lie, open for as long as this is used; -1 for memory that
        cannot be cut short.
        """
        self.file, self.position = file, position
        self.held = Held(memory, True)
        for each in (position, aside):
            if each < 0 or each % 4 or each > self.held.view.len - 4:
                raise ValueError("no word of this memory")
        self.word = <int32_t *>(<uint8_t *>self.held.view.buf + position)
        self.aside = <int32_t *>(<uint8_t *>self.held.view.buf + aside)

    def ask(self):
        """Say that somebody waits; from now on whoever wakes changes the word. `OSError` where the memory is gone."""
        cdef int error = wake_ask(self.word, self.aside)
        if error:
            raise OSError(error, "the word to wait on cannot be changed")

    def sleep(self, int32_t seen, int64_t at_most_ns):
        """Return True when the word is no longer `seen` or somebody wakes, False after so long.

        Without the interpreter's lock. A signal's handler runs meanwhile, and what it raises is raised here; `OSError` where
        the memory is gone.
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
                raise OSError(error, "the word to wait on is gone")
            left = until - clock_ns()
        return False

    def wake(self, *, bint always=False):
        """Wake all that sleep, and say whether somebody waited; no system call where nobody does, unless `always`."""
        return wake_all(self.word, self.file, self.position, always) != 0

    def read(self):
        """Return the word, of memory that cannot be cut short."""
        return self.word[0]
