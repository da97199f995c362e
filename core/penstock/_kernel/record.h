/* The only C code that encodes and parses records. `penstock.format.record` does the same in plain Python, field by
   field; property tests compare the two.

   No Python: callable without the GIL. Bytes from disk may be hostile: `record_parse` never reads outside
   [p, p + room), and no sum of two numbers from disk is compared, which could overflow. */
#pragma once
#include <stdint.h>
#include <string.h>
#include "crc32.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Penstock's kernel is built for little-endian machines only"
#endif

/* Stores before the fence become visible before stores after it, in other processes too. */
#define RELEASE __atomic_thread_fence(__ATOMIC_RELEASE)

static inline void put16(uint8_t *p, uint16_t v) { v = __builtin_bswap16(v); memcpy(p, &v, 2); }
static inline void put32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
static inline void put64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }
static inline int16_t get16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return (int16_t)__builtin_bswap16(v); }
static inline int32_t get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return (int32_t)__builtin_bswap32(v); }
static inline int64_t get64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return (int64_t)__builtin_bswap64(v); }

#define MAGIC_V1 ((int32_t)0xDAA320A7)
#define MAGIC_V2 ((int32_t)0xDAA320AB)
#define MAGIC_BLANK ((int32_t)0xCBD43194)
enum {
    FIXED_SIZE = 91, V1_TOPIC_MAX = 127, TEXT_MAX = 32767, CRC_PROPERTY_SIZE = 20, CRC_MASK = 0x7fffffff,
    BORN_IPV6 = 0x10, STORE_IPV6 = 0x20, LOG_OFFSET_AT = 28, BORN_HOST_AT = 48,
};

typedef struct { const uint8_t *p; int64_t n; } Span;

/* --- encoding */

enum { CRC_NOW = 1, CRC_LATER = 2 };

/* The parts of a record. Hosts are 8 or 20 bytes; `text` follows tag and keys in the properties. If `has_crc` is
   CRC_LATER, only room for the record's own CRC is reserved, and `record_seal` writes it later. */
typedef struct {
    Span body, topic, tag, text, born_host, store_host;
    const Span *keys;
    int64_t queue_offset, log_offset, born_ms, store_ms, prepared;
    int32_t n_keys, queue, flag, sys_flag, reconsume, has_crc;
} Parts;

/* Returns the size of the properties text, including the CRC property. */
static inline int64_t text_size(const Parts *m)
{
    int64_t n = m->text.n + (m->tag.n ? m->tag.n + 6 : 0);
    if (m->n_keys) {
        n += 6 + m->n_keys - 1;
        for (int32_t i = 0; i < m->n_keys; i++)
            n += m->keys[i].n;
    }
    if (m->has_crc)
        n += CRC_PROPERTY_SIZE + (m->text.n && m->text.p[m->text.n - 1] != 2);
    return n;
}

static inline int64_t record_size(const Parts *m, int64_t text)
{
    return FIXED_SIZE - 16 + m->born_host.n + m->store_host.n + m->body.n + m->topic.n
        + (m->topic.n > V1_TOPIC_MAX) + text;
}

static inline uint8_t *put_span(uint8_t *at, Span s)
{
    if (s.n)
        memcpy(at, s.p, (size_t)s.n);
    return at + s.n;
}

/* Writes the CRC property: its name, ten digits with the least significant first, and its end. */
static inline void crc_property(uint8_t *at, uint32_t value)
{
    memcpy(at, "__CRC32#\1", 9);
    for (int digit = 9; digit < 19; digit++, value /= 10)
        at[digit] = (uint8_t)('0' + value % 10);
    at[19] = 2;
}

/* Writes the CRC property of a whole record, over its current bytes, into its last twenty bytes. */
static inline void record_seal(uint8_t *p, int64_t size)
{
    uint32_t crc = crc32_more(0, p, (size_t)(size - CRC_PROPERTY_SIZE));
    crc_property(p + size - CRC_PROPERTY_SIZE, crc & CRC_MASK);
}

static inline uint8_t *put_text(uint8_t *at, const Parts *m)
{
    if (m->tag.n)
        memcpy(at, "TAGS\1", 5), at = put_span(at + 5, m->tag), *at++ = 2;
    if (m->n_keys) {
        memcpy(at, "KEYS\1", 5), at += 5;
        for (int32_t i = 0; i < m->n_keys; i++) {
            if (i)
                *at++ = ' ';
            at = put_span(at, m->keys[i]);
        }
        *at++ = 2;
    }
    at = put_span(at, m->text);
    if (m->has_crc) {
        if (m->text.n && m->text.p[m->text.n - 1] != 2)
            *at++ = 2;
        crc_property(at, 0), at += CRC_PROPERTY_SIZE;
    }
    return at;
}

static inline int32_t flags_of(const Parts *m)
{
    int32_t own = m->sys_flag & ~(BORN_IPV6 | STORE_IPV6);
    return own | (m->born_host.n == 20 ? BORN_IPV6 : 0) | (m->store_host.n == 20 ? STORE_IPV6 : 0);
}

/* Writes a record of `size` bytes at p, which has room, and returns where it ends.

   The order of stores: size and own log offset, everything else, magic. If the process is killed in between, the magic
   is incomplete, so the log ends before this record. The body is copied first, and its CRC is computed from the copy:
   another thread may change the caller's bytes meanwhile. */
static inline uint8_t *record_write(uint8_t *p, const Parts *m, int64_t size, int64_t text)
{
    int is_v2 = m->topic.n > V1_TOPIC_MAX;
    uint8_t *at, *body;
    uint32_t crc;
    put32(p, (uint32_t)size);
    memset(p + 4, 0, 4);
    put64(p + LOG_OFFSET_AT, (uint64_t)m->log_offset);
    RELEASE;
    put32(p + 12, (uint32_t)m->queue), put32(p + 16, (uint32_t)m->flag);
    put64(p + 20, (uint64_t)m->queue_offset);
    put32(p + 36, (uint32_t)flags_of(m)), put64(p + 40, (uint64_t)m->born_ms);
    at = put_span(p + BORN_HOST_AT, m->born_host);
    put64(at, (uint64_t)m->store_ms);
    at = put_span(at + 8, m->store_host);
    put32(at, (uint32_t)m->reconsume), put64(at + 4, (uint64_t)m->prepared), put32(at + 12, (uint32_t)m->body.n);
    body = at + 16;
    at = put_span(body, m->body);
    if (is_v2)
        put16(at, (uint16_t)m->topic.n), at += 2;
    else
        *at++ = (uint8_t)m->topic.n;
    at = put_span(at, m->topic);
    put16(at, (uint16_t)text);
    at = put_text(at + 2, m);
    put32(p + 8, crc32_more(0, body, (size_t)m->body.n) & CRC_MASK);
    if (m->has_crc == CRC_NOW) {
        /* Computed as if the magic, which is stored last, were present. */
        uint8_t magic[4];
        put32(magic, (uint32_t)(is_v2 ? MAGIC_V2 : MAGIC_V1));
        crc = crc32_more(crc32_more(crc32_more(0, p, 4), magic, 4), p + 8, (size_t)(size - 8 - CRC_PROPERTY_SIZE));
        crc_property(p + size - CRC_PROPERTY_SIZE, crc & CRC_MASK);
    }
    RELEASE;
    put32(p + 4, (uint32_t)(is_v2 ? MAGIC_V2 : MAGIC_V1));
    RELEASE;
    return at;
}

/* Copies a complete record of `size` bytes in the store order of `record_write`; fewer than 8 bytes in any order. */
static inline void record_copy(uint8_t *to, const uint8_t *from, int64_t size)
{
    if (size < 8) {
        memcpy(to, from, (size_t)size);
        return;
    }
    memcpy(to, from, 4);
    memset(to + 4, 0, 4);
    if (size >= LOG_OFFSET_AT + 8)
        memcpy(to + LOG_OFFSET_AT, from + LOG_OFFSET_AT, 8);
    RELEASE;
    memcpy(to + 8, from + 8, (size_t)(size - 8));
    RELEASE;
    memcpy(to + 4, from + 4, 4);
    RELEASE;
}

/* Writes the fields that are known only when a record is appended; the record is still private. Its own CRC, if it has
   one, must be written afterwards. */
static inline void record_stamp(uint8_t *p, int64_t queue_offset, int64_t log_offset, int64_t store_ms)
{
    int born = get32(p + 36) & BORN_IPV6 ? 20 : 8;
    put64(p + 20, (uint64_t)queue_offset), put64(p + LOG_OFFSET_AT, (uint64_t)log_offset);
    put64(p + BORN_HOST_AT + born, (uint64_t)store_ms);
}

/* Returns whether a record has a queue offset of its own: a prepared or rolled back message has none. */
static inline int record_is_counted(const uint8_t *p)
{
    int32_t type = get32(p + 36) & 0xC;
    return type != 0x4 && type != 0xC;
}

/* Writes a number to PREPAREDTRANSACTIONOFFSET, which is otherwise used only by transactions. */
static inline void record_mark(uint8_t *p, int64_t mark)
{
    int32_t flags = get32(p + 36);
    int hosts = (flags & BORN_IPV6 ? 20 : 8) + (flags & STORE_IPV6 ? 20 : 8);
    put64(p + BORN_HOST_AT + hosts + 12, (uint64_t)mark);
}

/* --- parsing */

/* The numbers of a record, and the positions of its parts from its first byte; `position` is the record's own position
   in the memory that it was parsed in. This list is the only one: `Record` and the rows of `penstock.format.columns`
   are made from it. The fields of eight bytes come first, so there is no padding. */
#define RECORD_FIELDS(I64, I32) \
    I64(position) I64(queue_offset) I64(log_offset) I64(born_ms) I64(store_ms) I64(prepared) \
    I32(size) I32(queue) I32(flag) I32(sys_flag) I32(reconsume) I32(crc) \
    I32(body_at) I32(body_size) I32(topic_at) I32(topic_size) I32(text_at) I32(text_size) \
    I32(magic) I32(is_valid)
#define AS_I64(name) int64_t name;
#define AS_I32(name) int32_t name;
typedef struct { RECORD_FIELDS(AS_I64, AS_I32) } Record;
#define NAME_I64(name) "i8 " #name "\n"
#define NAME_I32(name) "i4 " #name "\n"
/* numpy's type and the name of each field, a line each. */
#define RECORD_LAYOUT RECORD_FIELDS(NAME_I64, NAME_I32)

typedef enum {
    RECORD_OK,
    RECORD_MORE,     /* a record may begin, but does not end within the room */
    RECORD_BLANK,    /* filler */
    RECORD_NONE,     /* no record begins */
    RECORD_INVALID,  /* size and magic are those of a record, but the rest is not valid */
} RecordState;

/* Parses a record and checks that the lengths of its parts add up. All of `r` is set only if RECORD_OK is returned;
   `size` and `magic` are set if there are eight bytes. */
static inline RecordState record_parse(const uint8_t *p, int64_t room, Record *r)
{
    int32_t size, magic, at, n;
    if (room < 8)
        return RECORD_MORE;
    r->size = size = get32(p), r->magic = magic = get32(p + 4);
    if (magic == MAGIC_BLANK)
        return RECORD_BLANK;
    if ((magic != MAGIC_V1 && magic != MAGIC_V2) || size < FIXED_SIZE)
        return RECORD_NONE;
    if (size > room)
        return RECORD_MORE;
    r->crc = get32(p + 8), r->queue = get32(p + 12), r->flag = get32(p + 16);
    r->queue_offset = get64(p + 20), r->log_offset = get64(p + LOG_OFFSET_AT), r->sys_flag = get32(p + 36);
    r->born_ms = get64(p + 40);
    at = BORN_HOST_AT + (r->sys_flag & BORN_IPV6 ? 20 : 8);
    n = r->sys_flag & STORE_IPV6 ? 20 : 8;
    /* These follow: store time and host, three numbers, and the lengths of topic and properties (3 bytes or more). */
    if (size - at - n - 8 < 16 + 3)
        return RECORD_INVALID;
    r->store_ms = get64(p + at), at += 8 + n;
    r->reconsume = get32(p + at), r->prepared = get64(p + at + 4), r->body_size = n = get32(p + at + 12);
    r->body_at = at += 16;
    if (n < 0 || n > size - at - 3)
        return RECORD_INVALID;
    at += n;
    if (magic == MAGIC_V1)
        n = (int8_t)p[at], at += 1;
    else
        n = get16(p + at), at += 2;
    if (n < 0 || n > size - at - 2)
        return RECORD_INVALID;
    r->topic_at = at, r->topic_size = n, at += n;
    n = get16(p + at), at += 2;
    if (n < 0 || n != size - at)
        return RECORD_INVALID;
    r->text_at = at, r->text_size = n;
    return RECORD_OK;
}

/* Returns whether a record without its body has its parts at the positions that were parsed before. */
static inline int is_laid_out(const uint8_t *p, const Record *r)
{
    const uint8_t *tail = p + r->body_at;
    return get32(p + 4) == r->magic && get32(p + 36) == r->sys_flag && get32(tail - 4) == r->body_size
           && (r->magic == MAGIC_V1 ? tail[0] : get16(tail)) == r->topic_size
           && get16(p + (r->text_at - r->body_size - 2)) == r->text_size;
}

static inline int body_crc_is_right(const uint8_t *p, const Record *r)
{
    return (int32_t)(crc32_more(0, p + r->body_at, (size_t)r->body_size) & CRC_MASK) == r->crc;
}

/* Returns whether a record, if its text is long enough, ends in a CRC property that matches all bytes before it. */
static inline int ends_in_own_crc(const uint8_t *p, const Record *r)
{
    uint8_t own[CRC_PROPERTY_SIZE];
    const uint8_t *end = p + r->size - CRC_PROPERTY_SIZE;
    if (r->text_size < CRC_PROPERTY_SIZE || memcmp(end, "__CRC32#\1", 9) != 0)
        return 0;
    crc_property(own, crc32_more(0, p, (size_t)(r->size - CRC_PROPERTY_SIZE)) & CRC_MASK);
    return memcmp(end, own, CRC_PROPERTY_SIZE) == 0;
}

/* Prefetches the first cache lines of a record that is read soon; any pointer may be passed. */
static inline void record_prefetch(const uint8_t *p, int64_t size)
{
    for (int64_t at = 0; at < size && at < 512; at += 64)
        __builtin_prefetch(p + at);
}

/* --- validity */

enum { CHECK_CRC = 1, CHECK_TORN = 2 };

/* The checks in addition to the lengths and the stated log offset. `ranges` are pairs of log offsets, ascending,
   between which every record ends in a CRC of its own; records from `torn_from` on were written by Penstock, and
   perhaps not synced. */
typedef struct {
    int32_t checks, n_ranges;
    const int64_t *ranges;
    int64_t torn_from, sector_bytes;
} Checks;

static inline int is_covered(const Checks *c, int64_t log_offset)
{
    int32_t low = 0, high = c->n_ranges;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (log_offset < c->ranges[2 * middle])
            high = middle;
        else if (log_offset >= c->ranges[2 * middle + 1])
            low = middle + 1;
        else
            return 1;
    }
    return 0;
}

static inline int is_zero(const uint8_t *p, int64_t n)
{
    return n <= 0 || (p[0] == 0 && memcmp(p, p + 1, (size_t)(n - 1)) == 0);
}

/* Returns whether topic or properties look like a sector that was never written: Penstock's do not end in zero, and
   hold no sector of zeros. A record that ends in a matching CRC of its own is never torn. */
static inline int is_torn(const uint8_t *p, const Record *r, int64_t log_offset, const Checks *c)
{
    int looks_torn = (r->topic_size && !p[r->topic_at + r->topic_size - 1]) || (r->text_size && !p[r->size - 1]);
    if (!looks_torn && r->text_size > c->sector_bytes) {
        int64_t first = log_offset + r->text_at, end = log_offset + r->size;
        first += (c->sector_bytes - first % c->sector_bytes) % c->sector_bytes;
        for (int64_t at = first; !looks_torn && at <= end - c->sector_bytes; at += c->sector_bytes)
            looks_torn = is_zero(p + (at - log_offset), c->sector_bytes);
    }
    return looks_torn && !ends_in_own_crc(p, r);
}

/* Returns whether a parsed record is valid at that log offset; see `penstock.format.validity`. */
static inline int is_valid_at(const uint8_t *p, const Record *r, int64_t log_offset, const Checks *c)
{
    if (r->log_offset != log_offset)
        return 0;
    if (c->checks & CHECK_CRC) {
        if (!body_crc_is_right(p, r))
            return 0;
        if (c->n_ranges && is_covered(c, log_offset) && !ends_in_own_crc(p, r))
            return 0;
    }
    return !(c->checks & CHECK_TORN) || log_offset < c->torn_from || !is_torn(p, r, log_offset, c);
}
