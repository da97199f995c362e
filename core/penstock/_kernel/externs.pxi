# What the C headers declare.

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
    enum:
        FIXED_SIZE, MAGIC_V1, BORN_IPV6, STORE_IPV6, V1_TOPIC_MAX, TEXT_MAX, CRC_PROPERTY_SIZE, CRC_MASK
    enum:
        CHECK_CRC, CHECK_TORN
    void crc_start()
    uint32_t crc32_more(uint32_t crc, const uint8_t *p, size_t n)
    int64_t text_size(const Parts *m)
    int64_t record_size(const Parts *m, int64_t text)
    uint8_t *record_write(uint8_t *p, const Parts *m, int64_t size, int64_t text)
    void record_seal(uint8_t *p, int64_t size)
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
    bint is_utf8(Span s)
    int32_t java_hash_more(int32_t hash, Span s)
    int32_t index_hash(int32_t hash)

cdef extern from "_kernel/columns.h" nogil:
    int64_t text_room(Span s)
    uint8_t *text_put(uint8_t *to, Span s)
    uint8_t *hex_put(uint8_t *to, const uint8_t *p, int64_t n)
    uint8_t *put_span(uint8_t *at, Span s)

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    object PyUnicode_DecodeUTF8(const char *s, Py_ssize_t n, const char *errors)
