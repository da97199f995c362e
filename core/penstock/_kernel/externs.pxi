# Declarations of the C headers.

cdef extern from "_kernel/record.h" nogil:
    ctypedef struct Span:
        const uint8_t *p
        int64_t n
    ctypedef struct Parts:
        Span body, topic, tag, text, born_host, store_host
        const Span *keys
        int64_t queue_offset, log_offset, born_ms, store_ms, prepared
        int32_t n_keys, queue, flag, sys_flag, reconsume, has_crc
    ctypedef struct Record:
        int64_t position
        int64_t queue_offset, log_offset, born_ms, store_ms, prepared
        int32_t size, queue, flag, sys_flag, reconsume, crc
        int32_t body_at, body_size, topic_at, topic_size, text_at, text_size
        int32_t magic, is_valid
    ctypedef enum RecordState:
        RECORD_OK, RECORD_MORE, RECORD_BLANK, RECORD_NONE, RECORD_INVALID
    ctypedef struct Checks:
        int32_t checks, n_ranges
        const int64_t *ranges
        int64_t torn_from, sector_bytes
    const char *RECORD_LAYOUT
    enum:
        FIXED_SIZE, MAGIC_V1, MAGIC_V2, MAGIC_BLANK, BORN_IPV6, STORE_IPV6, V1_TOPIC_MAX, TEXT_MAX, CRC_PROPERTY_SIZE
        CRC_MASK
    enum:
        CHECK_CRC, CHECK_TORN, CRC_LATER
    void crc_start()
    uint32_t crc32_more(uint32_t crc, const uint8_t *p, size_t n)
    uint32_t crc32c_more(uint32_t crc, const uint8_t *p, size_t n)
    int64_t text_size(const Parts *m)
    int64_t record_size(const Parts *m, int64_t text)
    uint8_t *record_write(uint8_t *p, const Parts *m, int64_t size, int64_t text)
    void record_seal(uint8_t *p, int64_t size)
    void record_stamp(uint8_t *p, int64_t queue_offset, int64_t log_offset, int64_t store_ms)
    void record_copy(uint8_t *to, const uint8_t *source, int64_t size)
    bint record_is_counted(const uint8_t *p)
    bint is_laid_out(const uint8_t *p, const Record *r)
    void record_mark(uint8_t *p, int64_t mark)
    void record_prefetch(const uint8_t *p, int64_t size)
    RecordState record_parse(const uint8_t *p, int64_t room, Record *r)
    bint ends_in_own_crc(const uint8_t *p, const Record *r)
    bint is_valid_at(const uint8_t *p, const Record *r, int64_t log_offset, const Checks *c)
    void put16(uint8_t *p, uint32_t v)
    void put32(uint8_t *p, uint32_t v)
    void put64(uint8_t *p, uint64_t v)
    int32_t get32(const uint8_t *p)
    int64_t get64(const uint8_t *p)

cdef extern from "_kernel/text.h" nogil:
    bint pair_next(const uint8_t **at, const uint8_t *end, Span *name, Span *value)
    bint word_next(const uint8_t **at, const uint8_t *end, Span *word)
    bint is_same(Span a, Span b)
    Span property(Span text, Span wanted)
    ctypedef struct Indexed:
        Span tag, keys, unique
    Indexed indexed_values(Span text)
    bint is_utf8(Span s)
    int32_t java_hash_more(int32_t hash, Span s)
    int32_t index_hash(int32_t hash)
    bint is_plain(Span s)
    bint is_key(Span s)
    bint is_tag(Span s)
    uint8_t *put_pair(uint8_t *at, Span name, Span value)
    const char **RESERVED_NAMES

cdef extern from "_kernel/clock.h" nogil:
    int64_t clock_ms()
    int64_t clock_ns()

cdef extern from "_kernel/system.h" nogil:
    void futex_wait(int32_t *word, int32_t seen, int64_t at_most_ns)
    void futex_wake(int32_t *word, int32_t most)
    uint8_t *page_of_this_process()
    void give_page_back(uint8_t *page)
    int wake_ask(int32_t *word, int32_t *aside)
    int wake_sleep(int32_t *word, int32_t v, int64_t at_most_ns)
    int wake_all(int32_t *word, int file, int64_t position, int always)

cdef extern from "<errno.h>" nogil:
    enum:
        EINTR, ETIMEDOUT, EEXIST

cdef extern from "_kernel/gathered.h" nogil:
    enum:
        GATHERED_BYTES
    ctypedef struct Gathered:
        const uint8_t *bytes
        int64_t start, count, rewritten
        int64_t *committed
        int error
    bint gathered_begin(Gathered *g)
    void gathered_end(Gathered *g)
    uint8_t *gathered_place(Gathered *g, int64_t position, int64_t size)
    void gathered_placed(Gathered *g)
    int gathered_commit(Gathered *g, int file)
    void gathered_drop(Gathered *g, int64_t stop)
    void move_up(int64_t *position, int64_t to)

cdef extern from "_kernel/gate.h" nogil:
    enum:
        MARK_BYTES, GATE_CUT
    ctypedef enum GateOutcome:
        GATE_FLUSHED, GATE_LATE, GATE_FAILED, GATE_AGAIN
    ctypedef enum GateFailure:
        FAILURE_NONE, FAILURE_TOLD, FAILURE_WRITE, FAILURE_SYNC, FAILURE_GONE, FAILURE_MARK
    ctypedef struct GateCalls:
        void *store
        int (*sync)(void *store, void *what, int64_t end) noexcept nogil
        int (*mark)(void *store, const uint8_t *slot, int64_t position) noexcept nogil
    ctypedef struct GateFile:
        void *what
        int file
        char *path
        int64_t base, end
        Gathered *gathered
    ctypedef struct Wanted:
        int64_t end, newest_ms, latest_ms
    ctypedef struct Gate:
        int64_t flushed, flushed_ms, syncs, since_ns
        uint64_t sequence
        int error, bell
        GateFailure failure
        int *refusals
        int refusal, folder, mark
        uint8_t *slot
    Gate *gate_new(int64_t flushed, int64_t flushed_ms, GateCalls calls)
    int gate_start(Gate *g)
    int gate_add(Gate *g, GateFile file)
    GateOutcome gate_wait(Gate *g, const Wanted *target, int64_t slice_ns, int64_t deadline_ns)
    void gate_ask(Gate *g, const Wanted *target)
    int is_gate_thread
    int gate_run_round(Gate *g)
    bint gate_await_sync(Gate *g, int64_t began_ns, int64_t deadline_ns)
    bint gate_await_end(Gate *g, int64_t deadline_ns)
    void gate_stop(Gate *g)
    void gate_release(Gate *g)
    void gate_note_failure(Gate *g, int64_t at)
    void gate_tell_failure(Gate *g)
    void mark_begin(Gate *g, const uint8_t *slot, int64_t visible)
    int64_t mark_fill(Gate *g)
    void mark_failed(Gate *g)
    int mark_write(Gate *g)
    void mark_end(Gate *g)
    void ring_bell(int descriptor)

cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd(unsigned int count, int flags)
    enum:
        EFD_NONBLOCK, EFD_CLOEXEC

cdef extern from "<unistd.h>" nogil:
    int close(int descriptor)
    int read(int descriptor, void *to, size_t size)

cdef extern from "fcntl.h" nogil:
    int fcntl(int file, int what, ...)
    int open(const char *path, int flags, ...)
    enum:
        F_DUPFD_CLOEXEC, O_RDONLY, O_DIRECTORY, O_CLOEXEC

cdef extern from "unistd.h" nogil:
    int close(int file)

cdef extern from *:
    """
    #define set_bits(p, bits) __atomic_or_fetch((p), (bits), __ATOMIC_SEQ_CST)
    #define keep_bits(p, bits) __atomic_and_fetch((p), (bits), __ATOMIC_SEQ_CST)
    #define load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
    """
    void set_bits(int *word, int bits) nogil
    void keep_bits(int *word, int bits) nogil
    int64_t load_acquire(int64_t *word) nogil
    int load_failure "load_acquire"(GateFailure *word) nogil

cdef extern from "_kernel/columns.h" nogil:
    int64_t text_room(Span s)
    uint8_t *text_put(uint8_t *to, const uint8_t *stop, Span s)
    uint8_t *hex_put(uint8_t *to, const uint8_t *p, int64_t n)
    uint8_t *put_span(uint8_t *at, Span s)

cdef extern from "Python.h":
    void PyObject_GC_Track(object)
    void PyObject_GC_UnTrack(object)
    unsigned long PyThread_get_thread_ident()
    int PyErr_CheckSignals() except -1
    const char *utf8_or_null "PyUnicode_AsUTF8AndSize"(object text, Py_ssize_t *size) noexcept
    void PyErr_Clear()
    PyObject *PyDict_GetItemWithError(object table, object key) except? NULL
    Py_ssize_t PyList_GET_SIZE(object)
    long long PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1
    int PyBuffer_FillInfo(
        Py_buffer *view, object owner, void *memory, Py_ssize_t size, int readonly, int flags) except -1
    object PyObject_RichCompare(object, object, int)
    object PyUnicode_DecodeUTF8(const char *s, Py_ssize_t n, const char *errors)
