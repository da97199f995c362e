/* Records that wait in memory for one write to their file.
 *
 * They are appended under the log's append lock, and written by the thread that commits: the sync thread, or a reader.
 * There are two buffers: while one is written, the other takes appended records.
 *
 * Invariants: `bytes[0 .. count)` belong to the file at `start`. Dropped bytes are in the file, or `error` is set: then
 * they are lost, and no more bytes are accepted.
 */
#pragma once
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The maximum size of waiting bytes; larger records are written to the file at once. */
enum { GATHERED_BYTES = 1 << 20 };

typedef struct {
    pthread_mutex_t writing;  /* one thread writes to the file at a time; taken before `lock` */
    pthread_mutex_t lock;     /* guards all following fields */
    uint8_t *bytes, *spare;
    int64_t start, count;
    int64_t rewritten;        /* waiting bytes from this position on were appended after the last copy was taken */
    int64_t *committed;       /* the segment's committed position; NULL if it is not tracked */
    int error;
} Gathered;

static inline int gathered_begin(Gathered *g)
{
    memset(g, 0, sizeof *g);
    g->bytes = malloc(GATHERED_BYTES), g->spare = malloc(GATHERED_BYTES);
    if (!g->bytes || !g->spare)
        return 0;
    pthread_mutex_init(&g->writing, NULL), pthread_mutex_init(&g->lock, NULL);
    g->rewritten = INT64_MAX;
    return 1;
}

static inline void gathered_end(Gathered *g) { free(g->bytes), free(g->spare); }

/* Returns memory for `size` bytes at a position of the file, with the lock held; NULL, without the lock, if they do not
   fit. Waiting bytes from that position on were left by an interrupted append, and are overwritten. */
static inline uint8_t *gathered_place(Gathered *g, int64_t position, int64_t size)
{
    pthread_mutex_lock(&g->lock);
    if (g->count == 0 || position < g->start)
        g->start = position, g->count = 0;
    if (position < g->rewritten)
        g->rewritten = position;
    if (g->error || position > g->start + g->count || size > GATHERED_BYTES - (position - g->start)) {
        pthread_mutex_unlock(&g->lock);
        return NULL;
    }
    g->count = position - g->start + size;
    return g->bytes + (position - g->start);
}

static inline void gathered_placed(Gathered *g) { pthread_mutex_unlock(&g->lock); }

/* Advances an extent's position atomically; it never decreases. */
static inline void move_up(int64_t *position, int64_t to)
{
    int64_t seen = __atomic_load_n(position, __ATOMIC_RELAXED);
    while (seen < to && !__atomic_compare_exchange_n(position, &seen, to, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        ;
}

static inline int write_all(int file, const uint8_t *bytes, int64_t size, int64_t position)
{
    while (size > 0) {
        ssize_t done = pwrite(file, bytes, (size_t)size, position);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? errno : EIO;
        bytes += done, size -= done, position += done;
    }
    return 0;
}

/* Writes the waiting bytes; returns 0, or the system's error: then the bytes are lost. */
static inline int gathered_commit(Gathered *g, int file)
{
    uint8_t *bytes;
    int64_t start, count;
    int error;
    pthread_mutex_lock(&g->writing);
    pthread_mutex_lock(&g->lock);
    bytes = g->bytes, start = g->start, count = g->count;
    g->bytes = g->spare, g->spare = bytes, g->start = start + count, g->count = 0;
    error = g->error;
    pthread_mutex_unlock(&g->lock);
    if (!error && count) {
        error = write_all(file, bytes, count, start);
        pthread_mutex_lock(&g->lock);
        g->error = error;
        if (!error && g->committed)
            move_up(g->committed, start + count);
        pthread_mutex_unlock(&g->lock);
    }
    pthread_mutex_unlock(&g->writing);
    return error;
}

/* Drops bytes that are in the file, up to a position, except those appended again since `rewritten` was set. */
static inline void gathered_drop(Gathered *g, int64_t stop)
{
    pthread_mutex_lock(&g->lock);
    if (stop > g->rewritten)
        stop = g->rewritten;
    if (stop > g->start + g->count)
        stop = g->start + g->count;
    if (stop > g->start) {
        memmove(g->bytes, g->bytes + (stop - g->start), (size_t)(g->start + g->count - stop));
        g->count -= stop - g->start, g->start = stop;
    }
    pthread_mutex_unlock(&g->lock);
}
