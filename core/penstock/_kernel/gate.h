/* Group commit: makes a store's log durable, for all waiters, in rounds.
 *
 * Each waiter requests a log offset. A round takes the largest one, and syncs each file from the flushed offset up to
 * there, oldest first. Requests that arrive meanwhile are for the next round. Before the next round, it waits a short
 * while for the waiters that were just notified, which are likely to append again.
 *
 * The rounds run in a thread of the gate, which does not use the interpreter, or, without that thread, in the threads
 * that call `gate_run_round`: so tests decide when to sync. A file, or the progress file, without a descriptor is
 * synced or written by a function of the store (`GateCalls`), which takes the interpreter's lock. `lock` is not held
 * then, but `marking` may be, so no thread waits for either of them while it holds the interpreter's lock.
 *
 * Invariants:
 *   - `flushed` advances over bytes that were synced, in a file that still has its name, and that a slot of the
 *     progress file records; over a file's end only after its folder was synced too. Waiters are notified after that.
 *   - A failure is permanent. It is set (puts are refused, the progress file records it) before anybody is notified.
 *   - Memory of the store is accessed only while `is_busy`; code that releases the memory waits until that is false.
 *     What `GateCalls` uses is released only after the thread has ended.
 */
#pragma once
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include "clock.h"
#include "gathered.h"
#include "system.h"

enum {
    /* The maximum number of files in one sync; a longer range takes multiple syncs. */
    GATE_FILES = 16,
    GATHER_NS = 50000,
    GATHER_SHARE = 4,
    MARK_BYTES = 512,
    /* A call of the store was interrupted; nothing has failed, and the next round repeats it. */
    GATE_CUT = -1,
};

typedef enum { GATE_FLUSHED, GATE_LATE, GATE_FAILED, GATE_AGAIN } GateOutcome;

typedef enum {
    FAILURE_NONE,
    FAILURE_TOLD,    /* reported by the store, which knows the reason */
    FAILURE_WRITE,   /* gathered records could not be written */
    FAILURE_SYNC,
    FAILURE_GONE,    /* a file lost its name */
    FAILURE_MARK,
    FAILURE_CUT,     /* none: see GATE_CUT */
} GateFailure;

/* Functions of the store; they return 0, an error number, or GATE_CUT. */
typedef struct {
    void *store;
    int (*sync)(void *store, void *what, int64_t end);
    int (*mark)(void *store, const uint8_t *slot, int64_t position);
} GateCalls;

/* One file of the log. The descriptor, and the memory that the pointers point into, belong to the store. */
typedef struct {
    void *what;              /* passed to `GateCalls.sync`; NULL if the descriptors are used */
    int file;
    char *path;
    dev_t device;
    ino_t inode;
    int64_t base, end;       /* log offsets */
    Gathered *gathered;      /* NULL if appended bytes are in the file at once */
} GateFile;

/* The target of a waiter. `newest_ms` is the store time of a record before `end`; no record before `end` is later than
   `latest_ms`. */
typedef struct {
    int64_t end, newest_ms, latest_ms;
} Wanted;

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t asked, changed;
    int references;
    int is_stopped, has_ended, is_syncing, is_busy, is_gathering;

    GateFile *files;         /* oldest first; those before the flushed offset go */
    int n_files, room;

    Wanted wanted;
    int64_t taken;           /* end of the sync that runs */
    int64_t flushed, flushed_ms;
    int64_t syncs, since_ns, last_ns;
    int32_t turns[2];        /* futexes: of the syncs with even and with odd numbers */
    int waiting[2], expected;

    GateFailure failure;
    int error;
    int64_t sound;           /* nothing from there on is ever marked as durable */
    int *refusals, refusal;  /* a bit that is set at a failure, where puts look */

    int folder;              /* of all files; -1 until the first is added */
    int bell;                /* rung after each sync; -1 if nobody hears it */
    GateCalls calls;
    pthread_mutex_t marking; /* taken after `lock` */
    int mark;                /* -1 if `calls` write the progress file */
    uint8_t slot[MARK_BYTES];
    int64_t marked, marked_ms;
    uint64_t sequence;
} Gate;

/* --- slots of the progress file ("marks"); see `penstock.durability.progress` for the layout */

/* With `marking` held: sets the fields of the slot that the gate knows; returns the slot's position. */
static int64_t mark_fill(Gate *g)
{
    int64_t latest_ms = get64(g->slot + 40);
    g->sequence++;
    put64(g->slot + 8, g->sequence), put64(g->slot + 16, (uint64_t)g->marked);
    put64(g->slot + 40, (uint64_t)(latest_ms > g->marked_ms ? latest_ms : g->marked_ms));
    if (g->failure)
        put32(g->slot + 48, 1);
    put32(g->slot + MARK_BYTES - 4, crc32_more(0, g->slot, MARK_BYTES - 4));
    return (int64_t)(g->sequence % 2 * MARK_BYTES);
}

/* With `marking` held, after a write that failed: the slot may be torn, so it is the next one, too, and the other stays
   whole. */
static void mark_failed(Gate *g) { g->sequence++; }

/* With `marking` held: writes the slot; returns 0, the system's error, or GATE_CUT. */
static int mark_write(Gate *g)
{
    int64_t position = mark_fill(g);
    int error = g->mark >= 0 ? write_all(g->mark, g->slot, MARK_BYTES, position)
                             : g->calls.mark(g->calls.store, g->slot, position);
    if (error)
        mark_failed(g);
    return error;
}

static int mark_flushed(Gate *g, int64_t flushed, int64_t latest_ms)
{
    int error;
    pthread_mutex_lock(&g->marking);
    g->marked = flushed < g->sound ? flushed : g->sound;
    if (latest_ms > g->marked_ms)
        g->marked_ms = latest_ms;
    error = mark_write(g);
    pthread_mutex_unlock(&g->marking);
    return error;
}

/* The store writes a slot of its own, and calls `mark_end` afterwards. Without a slot it is the last one, with another
   visible offset unless that is negative. */
static void mark_begin(Gate *g, const uint8_t *slot, int64_t visible)
{
    pthread_mutex_lock(&g->marking);
    if (slot)
        memcpy(g->slot, slot, MARK_BYTES);
    else if (visible >= 0)
        put64(g->slot + 24, (uint64_t)visible);
}

static void mark_end(Gate *g) { pthread_mutex_unlock(&g->marking); }

/* --- failure */

/* Wakes the event loop that watches an eventfd. It does not block: a full counter has been rung already. */
static void ring_bell(int descriptor)
{
    uint64_t one = 1;
    if (descriptor >= 0)
        (void)!write(descriptor, &one, sizeof one);
}

static void gate_tell(Gate *g, int which)
{
    __atomic_add_fetch(&g->turns[which], 1, __ATOMIC_RELEASE);
    futex_wake(&g->turns[which], INT_MAX);
}

static void gate_tell_all(Gate *g)
{
    gate_tell(g, 0), gate_tell(g, 1);
    pthread_cond_broadcast(&g->changed);
}

/* With the lock held. Only the first failure counts. If `at` is below the flushed offset, that offset is lowered: the
   synced bytes were not those that were appended. The caller then writes the slot and notifies all waiters. */
static void gate_set_failure(Gate *g, GateFailure failure, int error, int64_t at)
{
    if (at < g->flushed)
        __atomic_store_n(&g->flushed, at, __ATOMIC_RELEASE);
    pthread_mutex_lock(&g->marking);
    if (at < g->sound)
        g->sound = at;
    if (at < g->marked)
        g->marked = at;
    if (!g->failure) {
        g->error = error;
        if (g->refusals)
            __atomic_or_fetch(g->refusals, g->refusal, __ATOMIC_SEQ_CST);
        __atomic_store_n(&g->failure, failure, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&g->marking);
}

/* --- waiting */

static int gate_is_done(Gate *g, int64_t end, GateOutcome *outcome)
{
    if (__atomic_load_n(&g->flushed, __ATOMIC_ACQUIRE) >= end)
        return *outcome = GATE_FLUSHED, 1;
    if (__atomic_load_n(&g->failure, __ATOMIC_ACQUIRE) || __atomic_load_n(&g->is_stopped, __ATOMIC_ACQUIRE))
        return *outcome = GATE_FAILED, 1;
    return 0;
}

/* With the lock held: requests that the next round reaches a target. */
static void gate_want(Gate *g, const Wanted *target)
{
    if (target->end > g->wanted.end)
        g->wanted = *target;
}

/* Requests a sync, and waits until all bytes before the target's end are durable, at most until `slice_ns`. Then it
   returns GATE_AGAIN, or GATE_LATE from `deadline_ns` on. Both are times of the monotonic clock. */
static GateOutcome gate_wait(Gate *g, const Wanted *target, int64_t slice_ns, int64_t deadline_ns)
{
    GateOutcome outcome;
    while (!gate_is_done(g, target->end, &outcome)) {
        int64_t now_ns = clock_ns(), until_ns = slice_ns < deadline_ns ? slice_ns : deadline_ns;
        int32_t seen;
        int which;
        if (now_ns >= until_ns)
            return now_ns >= deadline_ns ? GATE_LATE : GATE_AGAIN;
        pthread_mutex_lock(&g->lock);
        if (gate_is_done(g, target->end, &outcome)) {
            pthread_mutex_unlock(&g->lock);
            break;
        }
        gate_want(g, target);
        which = (int)((g->syncs + (g->is_syncing && target->end > g->taken)) & 1);
        seen = g->turns[which];
        g->waiting[which]++;
        if (!g->is_syncing && (!g->is_gathering || g->waiting[which] >= g->expected))
            pthread_cond_signal(&g->asked);
        pthread_mutex_unlock(&g->lock);
        futex_wait(&g->turns[which], seen, until_ns - now_ns);
        pthread_mutex_lock(&g->lock);
        if (g->turns[which] == seen)
            g->waiting[which]--;
        pthread_mutex_unlock(&g->lock);
        if (!gate_is_done(g, target->end, &outcome) && clock_ns() < until_ns)
            /* Perhaps a signal: the caller checks. */
            return GATE_AGAIN;
    }
    return outcome;
}

/* --- syncing */

/* Returns whether the file still has its name, and has the synced bytes. */
static int file_is_there(const GateFile *f, int64_t end)
{
    struct stat found;
    return stat(f->path, &found) == 0 && found.st_ino == f->inode && found.st_dev == f->device
        && found.st_size >= end - f->base;
}

/* Makes one file durable up to `end`, and its folder if that is the file's end. */
static GateFailure file_sync(const Gate *g, const GateFile *f, int64_t end, int *error)
{
    if (f->what) {
        *error = g->calls.sync(g->calls.store, f->what, end);
        return !*error ? FAILURE_NONE : *error == GATE_CUT ? FAILURE_CUT : FAILURE_SYNC;
    }
    if (fdatasync(f->file))
        return *error = errno, FAILURE_SYNC;
    if (!file_is_there(f, end))
        return *error = ENOENT, FAILURE_GONE;
    if (end == f->end && fsync(g->folder))
        return *error = errno, FAILURE_SYNC;
    return FAILURE_NONE;
}

typedef struct {
    GateFile files[GATE_FILES];
    int n_files;
    int64_t start;
    Wanted target;
} Round;

/* With the lock held: copies the files and the target of one sync. */
static void round_take(Gate *g, Round *r)
{
    r->start = g->flushed, r->target = g->wanted, r->n_files = 0;
    for (int i = 0; i < g->n_files && r->n_files < GATE_FILES; i++)
        if (g->files[i].end > r->start && g->files[i].base < r->target.end)
            r->files[r->n_files++] = g->files[i];
    if (r->n_files && r->files[r->n_files - 1].end < r->target.end)
        /* The times of the records up to there are not known; the last known ones are kept. */
        r->target.end = r->files[r->n_files - 1].end, r->target.newest_ms = g->flushed_ms;
    g->taken = r->target.end;
}

static int64_t round_end(const Round *r, const GateFile *f)
{
    return f->end < r->target.end ? f->end : r->target.end;
}

static GateFailure round_write(const Round *r, int *error)
{
    for (int i = 0; i < r->n_files; i++)
        if (r->files[i].gathered && (*error = gathered_commit(r->files[i].gathered, r->files[i].file)))
            return FAILURE_WRITE;
    return FAILURE_NONE;
}

static GateFailure round_sync(const Gate *g, const Round *r, int *error)
{
    GateFailure failure = FAILURE_NONE;
    for (int i = 0; i < r->n_files && !failure; i++)
        failure = file_sync(g, &r->files[i], round_end(r, &r->files[i]), error);
    return failure;
}

/* With the lock held: marks the store's memory as in use; returns 0 if the gate was stopped. */
static int gate_enter(Gate *g) { return g->is_busy = !g->is_stopped; }

static void gate_leave(Gate *g)
{
    g->is_busy = 0;
    pthread_cond_broadcast(&g->changed);
}

/* Does one sync; the lock is held before and after, but not during the sync. */
static GateFailure gate_sync(Gate *g, const Round *r, int *error)
{
    GateFailure failure;
    if (!gate_enter(g))
        return FAILURE_TOLD;
    pthread_mutex_unlock(&g->lock);
    failure = round_write(r, error);
    pthread_mutex_lock(&g->lock);
    gate_leave(g);
    if (failure)
        return failure;
    pthread_mutex_unlock(&g->lock);
    failure = round_sync(g, r, error);
    pthread_mutex_lock(&g->lock);
    /* A loss that was noted meanwhile must not be recorded as durable. */
    if (failure || g->failure || !gate_enter(g))
        return failure ? failure : FAILURE_TOLD;
    pthread_mutex_unlock(&g->lock);
    if ((*error = mark_flushed(g, r->target.end, r->target.latest_ms)))
        failure = *error == GATE_CUT ? FAILURE_CUT : FAILURE_MARK;
    pthread_mutex_lock(&g->lock);
    gate_leave(g);
    return failure;
}

/* With the lock held: publishes the new flushed offset and notifies the waiters. */
static void gate_reached(Gate *g, const Round *r)
{
    int which = (int)(g->syncs & 1), gone = 0;
    g->flushed_ms = r->target.newest_ms;
    g->expected = g->waiting[0] + g->waiting[1];
    g->waiting[which] = 0;
    g->syncs++;
    __atomic_store_n(&g->flushed, r->target.end, __ATOMIC_RELEASE);
    while (gone < g->n_files && g->files[gone].end <= r->target.end)
        free(g->files[gone++].path);
    g->n_files -= gone;
    memmove(g->files, g->files + gone, (size_t)g->n_files * sizeof *g->files);
    gate_tell(g, which);
    ring_bell(g->bell);
}

static void until(Gate *g, int64_t deadline_ns)
{
    struct timespec at = {deadline_ns / 1000000000, deadline_ns % 1000000000};
    (void)pthread_cond_timedwait(&g->asked, &g->lock, &at);
}

/* With the lock held: waits a short while, because threads that were notified of the last sync may append again. */
static void gate_gather(Gate *g)
{
    int64_t share_ns = g->last_ns / GATHER_SHARE;
    int64_t deadline_ns = clock_ns() + (share_ns < GATHER_NS ? share_ns : GATHER_NS);
    g->is_gathering = 1;
    while (!g->is_stopped && g->waiting[g->syncs & 1] < g->expected && clock_ns() < deadline_ns)
        until(g, deadline_ns);
    g->is_gathering = 0;
}

/* With the lock held: ends a round that failed. The failure is recorded before anybody is notified of it. */
static int gate_failed(Gate *g, GateFailure failure, int error)
{
    gate_set_failure(g, failure, error, INT64_MAX);
    if (gate_enter(g)) {
        pthread_mutex_unlock(&g->lock);
        pthread_mutex_lock(&g->marking);
        /* Best effort: a system error of this write is ignored. */
        error = mark_write(g);
        pthread_mutex_unlock(&g->marking);
        pthread_mutex_lock(&g->lock);
        gate_leave(g);
    }
    gate_tell_all(g);
    return error == GATE_CUT;
}

/* With the lock held: runs one round; returns 1 if it was cut. */
static int gate_step(Gate *g)
{
    Round round;
    GateFailure failure;
    int error = 0, is_cut = 0;
    int64_t began_ns;
    gate_gather(g);
    began_ns = clock_ns();
    __atomic_store_n(&g->since_ns, began_ns, __ATOMIC_RELAXED);
    g->is_syncing = 1;
    round_take(g, &round);
    failure = gate_sync(g, &round, &error);
    g->is_syncing = 0;
    g->last_ns = clock_ns() - began_ns;
    __atomic_store_n(&g->since_ns, 0, __ATOMIC_RELAXED);
    if (g->failure || g->is_stopped)
        ;  /* The waiters were notified, or there are none. */
    else if (failure && failure != FAILURE_CUT)
        is_cut = gate_failed(g, failure, error);
    else if (!failure)
        gate_reached(g, &round);
    pthread_cond_broadcast(&g->changed);
    return is_cut || failure == FAILURE_CUT;
}

/* Releases the store's reference or the thread's; the last release frees the gate. */
static void gate_release(Gate *g)
{
    int left;
    pthread_mutex_lock(&g->lock);
    left = --g->references;
    pthread_mutex_unlock(&g->lock);
    if (left)
        return;
    for (int i = 0; i < g->n_files; i++)
        free(g->files[i].path);
    if (g->folder >= 0)
        close(g->folder);
    if (g->mark >= 0)
        close(g->mark);
    if (g->bell >= 0)
        close(g->bell);
    free(g->files), free(g);
}

/* With the lock held: returns whether there is anything to sync. A flush may request bytes of a file that the appending
   thread has created, and adds to the gate a moment later. */
static int gate_has_work(const Gate *g)
{
    return !g->failure && g->wanted.end > g->flushed && g->n_files && g->files[g->n_files - 1].end > g->flushed;
}

/* Whether this thread is that of a gate: what waits for a sync must not wait in it. */
static _Thread_local int is_gate_thread;

static void *gate_run(void *given)
{
    Gate *g = given;
    is_gate_thread = 1;
    pthread_setname_np(pthread_self(), "penstock-sync");
    /* Without this, a wait of 50 us lasts 100 us. */
    (void)prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
    pthread_mutex_lock(&g->lock);
    while (!g->is_stopped) {
        if (gate_has_work(g))
            (void)gate_step(g);  /* It is not cut: signals are handled elsewhere. */
        else
            pthread_cond_wait(&g->asked, &g->lock);
    }
    g->has_ended = 1;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    gate_release(g);
    return NULL;
}

/* Runs one round in the calling thread. Returns 1; 0 if nothing is requested, or another thread is in it; GATE_CUT. */
static int gate_run_round(Gate *g)
{
    int done = 0;
    pthread_mutex_lock(&g->lock);
    if (!g->is_stopped && !g->is_syncing && !g->is_gathering && gate_has_work(g))
        done = gate_step(g) ? GATE_CUT : 1;
    pthread_mutex_unlock(&g->lock);
    return done;
}

/* Requests that the next round reaches a target. */
static void gate_ask(Gate *g, const Wanted *target)
{
    pthread_mutex_lock(&g->lock);
    gate_want(g, target);
    pthread_mutex_unlock(&g->lock);
}

/* --- creation and release */

/* Returns a gate for a log that is durable up to `flushed`; NULL if memory could not be allocated. */
static Gate *gate_new(int64_t flushed, int64_t flushed_ms, GateCalls calls)
{
    Gate *g = calloc(1, sizeof *g);
    pthread_condattr_t monotonic;
    if (!g)
        return NULL;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&g->lock, NULL), pthread_mutex_init(&g->marking, NULL);
    pthread_cond_init(&g->asked, &monotonic), pthread_cond_init(&g->changed, &monotonic);
    g->references = 1, g->flushed = g->marked = g->wanted.end = flushed, g->flushed_ms = flushed_ms;
    g->calls = calls, g->folder = g->mark = g->bell = -1, g->has_ended = 1, g->sound = INT64_MAX;
    return g;
}

/* Starts the thread; returns 0 or the system's error. Other threads handle signals. */
static int gate_start(Gate *g)
{
    pthread_attr_t about;
    pthread_t thread;
    sigset_t all, before;
    int error;
    pthread_attr_init(&about);
    pthread_attr_setdetachstate(&about, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    g->references++, g->has_ended = 0;
    if ((error = pthread_create(&thread, &about, gate_run, g)))
        g->references--, g->has_ended = 1;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&about);
    return error;
}

/* Returns 0 if a file is the next one, so that the files have no gap; EEXIST for a file that was added already, else
   another error number. */
static int gate_misfit(const Gate *g, const GateFile *file)
{
    int64_t end = g->n_files ? g->files[g->n_files - 1].end : g->flushed;
    if (file->end <= end)
        return EEXIST;
    return (g->n_files ? file->base != end : file->base > end) ? EINVAL : 0;
}

/* Adds a file; returns 0 or the system's error. The path is copied. */
static int gate_add(Gate *g, GateFile file)
{
    struct stat about;
    int error;
    if (!file.what && fstat(file.file, &about))
        return errno;
    if (!file.what)
        file.device = about.st_dev, file.inode = about.st_ino;
    pthread_mutex_lock(&g->lock);
    error = gate_misfit(g, &file);
    if (!error && g->n_files == g->room) {
        GateFile *grown = realloc(g->files, (size_t)(g->room + GATE_FILES) * sizeof *grown);
        if (grown)
            g->files = grown, g->room += GATE_FILES;
        else
            error = ENOMEM;
    }
    if (!error && file.path && !(file.path = strdup(file.path)))
        error = ENOMEM;
    if (!error)
        g->files[g->n_files++] = file, pthread_cond_signal(&g->asked);
    pthread_mutex_unlock(&g->lock);
    return error;
}

/* Notes a failure that the store reports; see `gate_set_failure`. */
static void gate_note_failure(Gate *g, int64_t at)
{
    pthread_mutex_lock(&g->lock);
    gate_set_failure(g, FAILURE_TOLD, 0, at);
    pthread_mutex_unlock(&g->lock);
}

static void gate_tell_failure(Gate *g)
{
    pthread_mutex_lock(&g->lock);
    gate_tell_all(g);
    pthread_mutex_unlock(&g->lock);
}

/* Waits until the sync that began at `began_ns` has ended, at most until `deadline_ns`; returns whether it has. */
static int gate_await_sync(Gate *g, int64_t began_ns, int64_t deadline_ns)
{
    struct timespec at = {deadline_ns / 1000000000, deadline_ns % 1000000000};
    int has_ended;
    pthread_mutex_lock(&g->lock);
    while (g->is_syncing && g->since_ns == began_ns)
        if (pthread_cond_timedwait(&g->changed, &g->lock, &at))
            break;
    has_ended = !g->is_syncing || g->since_ns != began_ns;
    pthread_mutex_unlock(&g->lock);
    return has_ended;
}

/* Waits until the thread has ended, at most until `deadline_ns`; returns whether it has. */
static int gate_await_end(Gate *g, int64_t deadline_ns)
{
    struct timespec at = {deadline_ns / 1000000000, deadline_ns % 1000000000};
    int has_ended;
    pthread_mutex_lock(&g->lock);
    while (!g->has_ended)
        if (pthread_cond_timedwait(&g->changed, &g->lock, &at))
            break;
    has_ended = g->has_ended;
    pthread_mutex_unlock(&g->lock);
    return has_ended;
}

/* Ends the thread after its current sync. After the return, the thread does not access the store's memory. */
static void gate_stop(Gate *g)
{
    pthread_mutex_lock(&g->lock);
    __atomic_store_n(&g->is_stopped, 1, __ATOMIC_RELEASE);
    g->refusals = NULL;
    pthread_cond_signal(&g->asked);
    while (g->is_busy)
        pthread_cond_wait(&g->changed, &g->lock);
    /* Remaining waiters are notified that nothing more is synced. */
    gate_tell(g, 0), gate_tell(g, 1);
    pthread_mutex_unlock(&g->lock);
}
