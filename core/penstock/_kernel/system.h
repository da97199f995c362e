/* System calls: waiting on a word of memory, and memory that is zero in a forked child. */
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Waits until the word is woken, at most `at_most_ns`; returns at once if the word is not `seen`. */
static inline void futex_wait(int32_t *word, int32_t seen, int64_t at_most_ns)
{
    struct timespec limit = {at_most_ns / 1000000000, at_most_ns % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &limit, NULL, 0);
}

static inline void futex_wake(int32_t *word, int32_t most)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, most, NULL, NULL, 0);
}

/* Returns a page whose first byte is 1 in this process, and 0 in a child, however it was forked. */
static inline uint8_t *page_of_this_process(void)
{
    size_t size = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return NULL;
    /* If the system does not support this (before Linux 4.14), only Python's own fork hooks detect a child. */
    (void)madvise(page, size, MADV_WIPEONFORK);
    page[0] = 1;
    return page;
}

static inline void give_page_back(uint8_t *page) { munmap(page, (size_t)sysconf(_SC_PAGESIZE)); }

/* The wake word: the process that makes a fact true wakes the processes that wait for it.
 *
 * An even word means that nobody waits, an odd one that somebody may. It is in shared memory, and changes in two ways:
 *
 *   waiter   W1 sets the lowest bit                  waker   N1 makes the fact true (stores, writes to files)
 *            W2 reads the word: v                            N2 full fence
 *            W3 checks the fact                              N3 reads the word; even: done
 *            W4 sleeps while the word is v                   N4 odd: adds 1 and wakes all sleepers
 *
 * There is a full fence between W1 and W3 as well, so either W3 sees the store of N1, or N3 sees the store of W1. In
 * the first case, the waiter has seen the fact. In the second case, the word is not v after N4: W4 does not begin to
 * sleep, or is woken. N4 clears the bit and advances the count in one store, so no waiter that sleeps is missed.
 *
 * A killed waiter leaves the bit set: the next N4 makes one unnecessary call, and clears it. A waker that is killed
 * within N4 leaves sleepers, whose sleep has a limit; `wake_all` with `always` wakes those too. The word has the value
 * v again only after 2^31 wake-ups, which no sleep lasts. */

/* W1, by a system call: if the file was truncated, a store by this process would kill it (SIGBUS). `aside` is another
 * word of the memory, on which nobody sleeps. Returns 0, or an error number. */
static inline int wake_ask(int32_t *word, int32_t *aside)
{
    /* Sets *word |= 1, wakes sleepers on `aside` (there are none), and none on `word`, because it was not -1 before. */
    const unsigned int set_bit = FUTEX_OP(FUTEX_OP_OR, 1, FUTEX_OP_CMP_EQ, 0xfff);
    long done = syscall(SYS_futex, aside, FUTEX_WAKE_OP, 1, (void *)0, word, set_bit);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return done < 0 ? errno : 0;
}

/* W4: returns 0 after a wake or if the word is not v, else ETIMEDOUT, EINTR (a signal) or another error number. */
static inline int wake_sleep(int32_t *word, int32_t v, int64_t at_most_ns)
{
    struct timespec limit = {at_most_ns / 1000000000, at_most_ns % 1000000000};
    long done = syscall(SYS_futex, word, FUTEX_WAIT, v, &limit, NULL, 0);
    return done == 0 || errno == EAGAIN ? 0 : errno;
}

/* N2 to N4: returns whether anybody was waiting. With `always`, sleepers are woken even if the word is even. The word
 * is read from the file, and changed by a system call, as in W1; `file` is -1 for memory that cannot be truncated. */
static inline int wake_all(int32_t *word, int file, int64_t position, int always)
{
    const unsigned int add_one = FUTEX_OP(FUTEX_OP_ADD, 1, FUTEX_OP_CMP_EQ, 0xfff);
    int32_t v = 0;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (file < 0)
        v = __atomic_load_n(word, __ATOMIC_RELAXED);
    else if (pread(file, &v, sizeof v, position) != sizeof v)
        v = 0;
    /* Two concurrent wakers may leave the bit set: then the next one makes an unnecessary call. */
    if (v & 1)
        syscall(SYS_futex, word, FUTEX_WAKE_OP, INT_MAX, (void *)0, word, add_one);
    else if (always)
        syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    return v & 1;
}
