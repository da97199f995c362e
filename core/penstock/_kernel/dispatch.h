/* Queue entries and keys in an index file, and the search for records by key or time.

   No Python. Columns, index files and queue entries may hold anything: every number from them is checked against the
   memory that it points into, and no sum of two numbers from disk is compared, which could overflow. */
#pragma once
#include <stdlib.h>
#include "text.h"

/* --- columns of a batch */

/* Integers of 4 or 8 bytes, `stride` bytes apart. */
typedef struct {
    const uint8_t *p;
    int64_t n, stride, width;
} NumberColumn;

static inline int64_t at_row(const NumberColumn *c, int64_t row)
{
    const uint8_t *p = c->p + row * c->stride;
    int32_t narrow;
    int64_t wide;
    if (c->width == 4)
        return memcpy(&narrow, p, 4), narrow;
    return memcpy(&wide, p, 8), wide;
}

/* --- queue entries */

/* PRE_BLANK_SIZE is the size in a pre-blank entry, whose record has been deleted. */
enum { QUEUE_ENTRY_SIZE = 20, PRE_BLANK_SIZE = INT32_MAX, TYPE_PREPARED = 0x4, TYPE_ROLLBACK = 0xC };

typedef struct {
    NumberColumn log_offsets, sizes, queues, queue_offsets, types, tag_codes, topic_rows, times;
    int64_t count, topics, queue_max, queue_offset_max;
} EntryRows;

/* One queue of the batch; `next` is first the number of its rows, and later the position of its next entry. */
typedef struct {
    int64_t topic, queue, next;
} QueueLane;

/* Entries of consecutive queue offsets; `start` is the first one's index among the grouped entries. */
typedef struct {
    int64_t topic, queue, queue_offset, start, log_offset;
} EntryRun;

/* Memory of one grouping: arrays for `count` rows; `table` has a power of two above twice as many places. */
typedef struct {
    QueueLane *cursors;
    int32_t *table, *row_cursors;
    int64_t *order, n_cursors, mask;
} Grouping;

enum { LANE_NONE = -1, LANE_REFUSED = -2 };

static inline void grouping_free(Grouping *g)
{
    free(g->cursors), free(g->table), free(g->row_cursors), free(g->order);
}

static inline int grouping_make(Grouping *g, int64_t count)
{
    int64_t room = 4;
    while (room <= 2 * count)
        room *= 2;
    g->mask = room - 1, g->n_cursors = 0;
    g->cursors = malloc((size_t)(count + 1) * sizeof(QueueLane));
    g->table = malloc((size_t)room * sizeof(int32_t));
    g->row_cursors = malloc((size_t)(count + 1) * sizeof(int32_t));
    g->order = malloc((size_t)(count + 1) * sizeof(int64_t));
    if (!g->cursors || !g->table || !g->row_cursors || !g->order)
        return 0;
    memset(g->table, 0xff, (size_t)room * sizeof(int32_t));
    return 1;
}

/* Returns the table place at which the search for a queue begins. The table's address is part of the hash, so that
   nobody can choose queue numbers that collide. */
static inline uint64_t cursor_place(const Grouping *g, int64_t topic, int64_t queue)
{
    uint64_t v = (uint64_t)topic * 0x9E3779B97F4A7C15u + (uint64_t)queue + (uint64_t)(uintptr_t)g->table;
    v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9u;
    v = (v ^ v >> 27) * 0x94D049BB133111EBu;
    return v ^ v >> 31;
}

static inline int32_t queue_lane_of(Grouping *g, int64_t topic, int64_t queue)
{
    uint64_t at = cursor_place(g, topic, queue) & (uint64_t)g->mask;
    int32_t found;
    while ((found = g->table[at]) >= 0) {
        if (g->cursors[found].topic == topic && g->cursors[found].queue == queue)
            return found;
        at = (at + 1) & (uint64_t)g->mask;
    }
    g->cursors[g->n_cursors] = (QueueLane){topic, queue, 0};
    return g->table[at] = (int32_t)g->n_cursors++;
}

/* Assigns each row to its queue. Returns how many rows have an entry; -1 for a topic that is not in the batch. */
static inline int64_t group_rows(const EntryRows *rows, Grouping *g, int64_t *refused)
{
    int64_t kept = 0, last_topic = -1, last_queue = -1;
    int32_t cursor = LANE_NONE;
    *refused = 0;
    for (int64_t row = 0; row < rows->count; row++) {
        int64_t type = at_row(&rows->types, row), topic = at_row(&rows->topic_rows, row);
        int64_t queue = at_row(&rows->queues, row), place = at_row(&rows->queue_offsets, row);
        if (topic < 0 || topic >= rows->topics)
            return -1;
        if (type == TYPE_PREPARED || type == TYPE_ROLLBACK) {
            g->row_cursors[row] = LANE_NONE;
            continue;
        }
        if (queue < 0 || queue > rows->queue_max || place < 0 || place >= rows->queue_offset_max) {
            g->row_cursors[row] = LANE_REFUSED, ++*refused;
            continue;
        }
        if (topic != last_topic || queue != last_queue)
            cursor = queue_lane_of(g, topic, queue), last_topic = topic, last_queue = queue;
        g->row_cursors[row] = cursor, g->cursors[cursor].next++, kept++;
    }
    return kept;
}

static inline void put_entry(uint8_t *p, int64_t log_offset, int64_t size, int64_t tag_code)
{
    put64(p, (uint64_t)log_offset), put32(p + 8, (uint32_t)size), put64(p + 12, (uint64_t)tag_code);
}

/* Writes the entries queue by queue, in log order within each queue; `runs` has room for one run a row. Returns
   the number of runs. */
static inline int64_t lay_entries(const EntryRows *rows, Grouping *g, uint8_t *entries, int64_t *times, EntryRun *runs)
{
    int64_t start = 0, n_runs = 0;
    for (int64_t cursor = 0; cursor < g->n_cursors; cursor++) {
        int64_t count = g->cursors[cursor].next;
        g->cursors[cursor].next = start, start += count;
    }
    for (int64_t row = 0; row < rows->count; row++) {
        int64_t to;
        if (g->row_cursors[row] < 0)
            continue;
        g->order[to = g->cursors[g->row_cursors[row]].next++] = row;
        put_entry(entries + QUEUE_ENTRY_SIZE * to, at_row(&rows->log_offsets, row), at_row(&rows->sizes, row),
                  at_row(&rows->tag_codes, row));
        times[to] = at_row(&rows->times, row);
    }
    start = 0;
    for (int64_t cursor = 0; cursor < g->n_cursors; cursor++)
        for (int64_t following = -1; start < g->cursors[cursor].next; start++) {
            int64_t place = at_row(&rows->queue_offsets, g->order[start]);
            if (place != following)
                runs[n_runs++] = (EntryRun){g->cursors[cursor].topic, g->cursors[cursor].queue, place, start,
                                            at_row(&rows->log_offsets, g->order[start])};
            following = place + 1;
        }
    return n_runs;
}

/* --- an index file: header, slots, entries; see docs/format.md */

enum {
    INDEX_HEADER_SIZE = 40, INDEX_SLOT_SIZE = 4, INDEX_ENTRY_SIZE = 20,
    BEGIN_MS_AT = 0, END_MS_AT = 8, BEGIN_OFFSET_AT = 16, END_OFFSET_AT = 24, SLOT_COUNT_AT = 32, INDEX_COUNT_AT = 36,
    ENTRY_OFFSET_AT = 4, ENTRY_SECONDS_AT = 12, ENTRY_PREVIOUS_AT = 16,
    SLOTS_AHEAD = 8,
};
#define SECONDS_MAX INT32_MAX

/* A file in memory; `n` may be less than the file's size, and nothing after `n` may be read. */
typedef struct {
    uint8_t *p;
    int64_t n, slots, entries;
} IndexMemory;

static inline int64_t slot_at(const IndexMemory *x, int32_t hash)
{
    int64_t slot = hash % x->slots;
    return INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * (slot < 0 ? slot + x->slots : slot);
}

static inline int64_t entry_at(const IndexMemory *x, int64_t number)
{
    return INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * x->slots + INDEX_ENTRY_SIZE * number;
}

/* Returns whole seconds since the base: 0 without a base or before it. */
static inline int64_t seconds_since(int64_t time_ms, int64_t base_ms)
{
    int64_t seconds = base_ms > 0 && time_ms > base_ms ? (time_ms - base_ms) / 1000 : 0;
    return seconds > SECONDS_MAX ? SECONDS_MAX : seconds;
}

/* Returns the next entry's number; a corrupt one in the header is limited to 1 up to the number of entries. */
static inline int64_t index_count(const IndexMemory *x)
{
    int64_t count = get32(x->p + INDEX_COUNT_AT);
    return count < 1 ? 1 : count > x->entries ? x->entries : count;
}

/* Keys, and the columns of their records; `rows` are the keys' rows in these columns. */
typedef struct {
    NumberColumn rows, hashes, log_offsets, times;
} KeyRows;

/* Adds one key: entry, then slot. Returns whether its slot was empty. */
static inline int put_key(const IndexMemory *x, int64_t number, int32_t hash, int64_t log_offset, int64_t seconds)
{
    uint8_t *entry = x->p + entry_at(x, number), *slot = x->p + slot_at(x, hash);
    int32_t previous = get32(slot);
    /* Each entry's predecessor has a smaller number: any other number is corrupt. */
    if (previous < 0 || previous >= number)
        previous = 0;
    put32(entry, (uint32_t)hash), put64(entry + ENTRY_OFFSET_AT, (uint64_t)log_offset);
    put32(entry + ENTRY_SECONDS_AT, (uint32_t)seconds), put32(entry + ENTRY_PREVIOUS_AT, (uint32_t)previous);
    RELEASE;
    put32(slot, (uint32_t)number);
    return previous == 0;
}

/* Adds keys in order, as many as fit, from key `first` on; returns how many, -1 for an invalid row. The file must be in
   writable memory up to the last added entry. The header is written last: if the process is killed before that, the
   header counts only complete entries. */
static inline int64_t index_add(const IndexMemory *x, const KeyRows *keys, int64_t first)
{
    int64_t number = index_count(x), start = number, used = get32(x->p + SLOT_COUNT_AT);
    int64_t stop, time_ms = 0, log_offset = 0;
    int64_t begin_ms = get64(x->p + BEGIN_MS_AT), begin_offset = get64(x->p + BEGIN_OFFSET_AT);
    stop = keys->rows.n - first < x->entries - number ? keys->rows.n : first + x->entries - number;
    for (int64_t key = first; key < stop; key++)
        if (at_row(&keys->rows, key) < 0 || at_row(&keys->rows, key) >= keys->log_offsets.n)
            return -1;
    for (int64_t key = first; key < stop; key++, number++) {
        int64_t row = at_row(&keys->rows, key);
        /* Checked again: another thread may change the column. */
        if (row < 0 || row >= keys->log_offsets.n)
            return -1;
        if (key + SLOTS_AHEAD < stop)
            __builtin_prefetch(x->p + slot_at(x, (int32_t)at_row(&keys->hashes, key + SLOTS_AHEAD)), 1);
        time_ms = at_row(&keys->times, row), log_offset = at_row(&keys->log_offsets, row);
        used += put_key(x, number, (int32_t)at_row(&keys->hashes, key), log_offset, seconds_since(time_ms, begin_ms));
        /* The first entry's seconds count from the header's previous base (the full file's end, after a roll). Then the
           first entry sets the base for the others. */
        if (number == 1)
            begin_ms = time_ms, begin_offset = log_offset;
    }
    if (number == start)
        return 0;
    RELEASE;
    put64(x->p + BEGIN_MS_AT, (uint64_t)begin_ms), put64(x->p + END_MS_AT, (uint64_t)time_ms);
    put64(x->p + BEGIN_OFFSET_AT, (uint64_t)begin_offset), put64(x->p + END_OFFSET_AT, (uint64_t)log_offset);
    put32(x->p + SLOT_COUNT_AT, (uint32_t)used);
    RELEASE;
    put32(x->p + INDEX_COUNT_AT, (uint32_t)number);
    return number - start;
}

/* Sets slots and predecessors as they are after adding `count` entries in order; both arrays must be zero. */
static inline void index_links(
    const uint8_t *entries, int64_t count, int64_t slot_count, int32_t *slots, int32_t *previous)
{
    IndexMemory x = {NULL, 0, slot_count, 0};
    for (int64_t i = 0; i < count; i++) {
        int64_t slot = (slot_at(&x, get32(entries + INDEX_ENTRY_SIZE * i)) - INDEX_HEADER_SIZE) / INDEX_SLOT_SIZE;
        previous[i] = slots[slot], slots[slot] = (int32_t)(i + 1);
    }
}

/* The key hash and time range of a look-up; times must be between -2^62 and 2^62. */
typedef struct {
    int32_t hash;
    int64_t begin_ms, end_ms;
} Sought;

static inline int may_hold(const IndexMemory *x, const Sought *s)
{
    return get32(x->p + INDEX_COUNT_AT) > 1 && get64(x->p + BEGIN_MS_AT) <= s->end_ms
        && get64(x->p + END_MS_AT) >= s->begin_ms;
}

/* Returns whether an entry's record may have a time in the range. Entries have whole seconds, so the bounds are widened
   by one second. The result is 1 for the first entry, whose seconds have another base, and without a base. The largest
   number of seconds also means any later time. */
static inline int may_be_timed(
    const Sought *s, int64_t log_offset, int64_t first_offset, int64_t base_ms, int64_t seconds)
{
    int64_t since_ms = 1000 * seconds;
    if (log_offset == first_offset || base_ms <= 0)
        return 1;
    return base_ms <= s->end_ms + 1000 - since_ms
        && (base_ms > s->begin_ms - 1000 - since_ms || seconds == SECONDS_MAX);
}

/* Follows a chain from entry `*number` on, or from its slot if that is 0, for at most `steps` entries. Stores the log
   offsets of entries that may match in `found`, and returns how many. `*number` is set to the entry to continue with, 0
   at the end. Entries that the header does not count yet are included: each was complete before its slot was. */
static inline int64_t index_follow(
    const IndexMemory *x, const Sought *s, int64_t *number, int64_t *found, int64_t steps)
{
    int64_t count = 0, at = *number, bound = x->entries, base_ms, first_offset;
    *number = 0;
    if (x->n < INDEX_HEADER_SIZE || (at == 0 && !may_hold(x, s)))
        return 0;
    base_ms = get64(x->p + BEGIN_MS_AT), first_offset = get64(x->p + BEGIN_OFFSET_AT);
    if (at == 0 && slot_at(x, s->hash) <= x->n - INDEX_SLOT_SIZE)
        at = get32(x->p + slot_at(x, s->hash));
    for (; 0 < at && at < bound; steps--) {
        const uint8_t *entry = x->p + entry_at(x, at);
        int64_t log_offset;
        if (entry_at(x, at) > x->n - INDEX_ENTRY_SIZE)
            return count;
        if (steps == 0) {
            *number = at;
            return count;
        }
        log_offset = get64(entry + ENTRY_OFFSET_AT);
        if (get32(entry) == s->hash && log_offset >= 0
            && may_be_timed(s, log_offset, first_offset, base_ms, get32(entry + ENTRY_SECONDS_AT)))
            found[count++] = log_offset;
        bound = at, at = get32(entry + ENTRY_PREVIOUS_AT);
    }
    return count;
}

/* --- from a candidate to a record */

/* Returns whether a text contains a phrase that is delimited by spaces or the text's ends. */
static inline int has_phrase(Span text, Span phrase)
{
    for (int64_t at = 0; at <= text.n - phrase.n;) {
        const uint8_t *space;
        int64_t end = at + phrase.n;
        if ((end == text.n || text.p[end] == ' ')
            && (phrase.n == 0 || memcmp(text.p + at, phrase.p, (size_t)phrase.n) == 0))
            return 1;
        space = at < text.n ? memchr(text.p + at, ' ', (size_t)(text.n - at)) : NULL;
        if (!space)
            return 0;
        at = space - text.p + 1;
    }
    return 0;
}

static inline Span span_at(const uint8_t *p, int64_t at, int64_t n) { return (Span){p + at, n}; }

/* Returns whether a valid record has this topic and this key: a word or a phrase of KEYS, or its UNIQ_KEY. */
static inline int is_keyed(const uint8_t *p, const Record *r, Span topic, Span key)
{
    static const Span keys = {(const uint8_t *)"KEYS", 4}, unique = {(const uint8_t *)"UNIQ_KEY", 8};
    Span text = span_at(p, r->text_at, r->text_size), value;
    if (!is_same(span_at(p, r->topic_at, r->topic_size), topic))
        return 0;
    if (key.n == 0)
        return 0;
    if (has_phrase(property(text, keys), key))
        return 1;
    value = property(text, unique);
    return value.n > 0 && is_same(value, key);
}
