/* What the kernel asks of the system: waiting on a word of memory, and memory that a forked child finds empty. */
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

/* Waits until the word is woken, at most so long, unless it is no longer what was seen. */
static inline void futex_wait(int32_t *word, int32_t seen, int64_t at_most_ns)
{
    struct timespec limit = {at_most_ns / 1000000000, at_most_ns % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &limit, NULL, 0);
}

static inline void futex_wake(int32_t *word, int32_t most)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, most, NULL, NULL, 0);
}

/* A page whose first byte is 1 in this process, and 0 in a child, however it was forked. */
static inline uint8_t *page_of_this_process(void)
{
    size_t size = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return NULL;
    /* Where the system knows no such pages (before 4.14), what Python does at a fork is all there is. */
    (void)madvise(page, size, MADV_WIPEONFORK);
    page[0] = 1;
    return page;
}

static inline void give_page_back(uint8_t *page) { munmap(page, (size_t)sysconf(_SC_PAGESIZE)); }

/* The wake word: how those who wait for a fact are woken by the one who makes it true, in whatever process.
 *
 * Even: nobody waits. Odd: somebody may. It lies in shared memory, and moves in two ways only:
 *
 *   who waits   W1 sets its lowest bit          who wakes   N1 makes the fact true (stores, writes to files)
 *               W2 reads it: v                              N2 full fence
 *               W3 looks for the fact                       N3 reads it: even, and there is nothing to do
 *               W4 sleeps while it still is v                N4 odd: adds 1; wakes all that sleep
 *
 * Between W1 and W3 there is a full fence as well, so of W3 and N3 one sees what the other has stored. If W3 does, the
 * fact was seen. If N3 does, the word is no longer v when N4 is done: W4 does not begin to sleep, or is woken. As N4
 * clears the bit and counts in one store, nobody is taken for awake who still sleeps on v.
 *
 * Whoever waits and is killed leaves the bit: the next N3 makes one call too many, and clears it. Who wakes and is
 * killed within N4 leaves sleepers, whose sleep has a limit; `wake_all` with `always` wakes those too. The word comes
 * back to v after 2^31 wake-ups, which nobody sleeps through. */

/* W1, by the kernel: in a file that somebody has cut short a store from here would kill the process (SIGBUS).
 * `aside` is a word beside it on which nobody sleeps. Returns 0, or an error number. */
static inline int wake_ask(int32_t *word, int32_t *aside)
{
    /* Sets *word |= 1, wakes who sleeps on `aside`, and then nobody on `word`, as it was not -1 before. */
    const unsigned int set_bit = FUTEX_OP(FUTEX_OP_OR, 1, FUTEX_OP_CMP_EQ, 0xfff);
    long done = syscall(SYS_futex, aside, FUTEX_WAKE_OP, 1, (void *)0, word, set_bit);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return done < 0 ? errno : 0;
}

/* W4: returns 0 when it was woken or the word is not v, else ETIMEDOUT, EINTR (a signal) or another error number. */
static inline int wake_sleep(int32_t *word, int32_t v, int64_t at_most_ns)
{
    struct timespec limit = {at_most_ns / 1000000000, at_most_ns % 1000000000};
    long done = syscall(SYS_futex, word, FUTEX_WAIT, v, &limit, NULL, 0);
    return done == 0 || errno == EAGAIN ? 0 : errno;
}

/* N2 to N4: says whether anybody was waiting. With `always` sleepers are woken whatever the word says. The word of a file
 * is read from it, and changed by the kernel, as at W1; `file` is -1 for memory that cannot be cut short. */
static inline int wake_all(int32_t *word, int file, int64_t position, int always)
{
    const unsigned int add_one = FUTEX_OP(FUTEX_OP_ADD, 1, FUTEX_OP_CMP_EQ, 0xfff);
    int32_t v = 0;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (file < 0)
        v = __atomic_load_n(word, __ATOMIC_RELAXED);
    else if (pread(file, &v, sizeof v, position) != sizeof v)
        v = 0;
    /* Two who wake at once may leave the bit set: then the next one makes a call too many. */
    if (v & 1)
        syscall(SYS_futex, word, FUTEX_WAKE_OP, INT_MAX, (void *)0, word, add_one);
    else if (always)
        syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    return v & 1;
}
